//! The commands of the first pages of the book, as a reader gives them.

use warren_testkit::cli::WarrenCli;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON, web_image};
use crate::e2e::task_document;
use crate::e2e::traffic::ClientLocation;

/// The image of the pages.
const NGINX: &str = "docker.io/library/nginx:1.27";

/// The `warren` commands of each block of a page, without the program. Other lines are for a shell, and those with
/// `sudo` start nodes. Blocks with a language show output.
fn blocks(page: &str) -> Vec<Vec<Vec<&str>>> {
    let (mut blocks, mut block) = (Vec::new(), None);
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((language.is_empty(), Vec::new())),
            (Some(_), Some(_)) => blocks.extend(block.take()),
            (None, Some((_, commands))) => {
                commands.extend(line.strip_prefix("warren ").map(|line| line.split(' ').collect()));
            }
            (None, None) => {}
        }
    }
    let blocks =
        blocks.into_iter().filter(|(is_plain, commands): &(bool, Vec<_>)| *is_plain && !commands.is_empty());
    blocks.map(|(_, commands)| commands).collect()
}

fn run_all(warren: &WarrenCli, commands: &[Vec<&str>]) {
    for command in commands {
        warren.run_ok(command);
    }
}

/// A web server in the place of nginx, with the program that the pages run in its container.
fn import_nginx(node: &LabNode) {
    let programs = ImageLayer::new().file("/bin/getent", "#!/bin/sh\nexec nslookup \"$2\"\n", 0o755).file(
        "/www/index.html",
        "hello\n",
        0o644,
    );
    let image =
        TestImage::busybox(NGINX).layer(programs).arguments(["httpd", "-f", "-p", "80", "-h", "/www"]);
    let path = node.scratch().join("nginx.tar");
    image.oci_archive().write(&path).unwrap();
    node.warren().run_ok(&["image", "import", path.to_str().unwrap()]);
}

fn named(name: &str) -> NodeOptions {
    NodeOptions::default().argument("--node-name").argument(name)
}

/// The page of the service at port 8088 of a node.
fn page_at(client: &LabHost, node: &LabNode) -> Result<String, String> {
    let mut curl = client.command("curl");
    curl.args(["-sSf", "--max-time", "5", &format!("http://{}:8088", node.host().address())]);
    tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())
}

/// The number of tasks of `web` on each of the nodes.
fn spread(via: &LabNode, count: usize, names: &[&str]) -> Result<Vec<usize>, String> {
    let tasks = task_document::serving(via, "web", count)?;
    Ok(names.iter().map(|name| tasks.iter().filter(|task| task.node_name == *name).count()).collect())
}

#[test]
fn five_minutes_are_as_written() {
    let world = NodeFixture::bare(named("node-1"));
    for (tag, file) in [(NGINX, "1.tar"), ("docker.io/library/nginx:1.28", "2.tar")] {
        world.import(file, &web_image().clone().known_as(tag).oci_archive());
    }
    let warren = world.warren();
    let [first, look, change, broken, repair, remove] =
        blocks(include_str!("../../../../docs/five-minutes.md")).try_into().unwrap();
    run_all(&warren, &first);
    world.assert_answered_by(ClientLocation::Loopback, 8088, &["web-1", "web-2"]);
    run_all(&warren, &look);
    run_all(&warren, &change);
    world.assert_answered_by(ClientLocation::Loopback, 8088, &["web-1", "web-2", "web-3"]);
    let (why, rest) = broken.split_last().unwrap();
    run_all(&warren, rest);
    let why_is = |code, text: &str| {
        eventually(SOON, text, || {
            let ran = warren.run(why);
            if ran.code == code && ran.stdout.contains(text) { Ok(()) } else { Err(ran.to_string()) }
        });
    };
    why_is(1, "the command \"no-such-program\" cannot be run: executable file not found in $PATH");
    run_all(&warren, &repair[..1]);
    assert_eq!(repair[1..], std::slice::from_ref(why)[..]);
    why_is(0, "service/broken: ");
    run_all(&warren, &remove);
    assert_eq!(world.ok("service ls -q"), "");
}

#[test]
fn two_and_three_machines_are_as_written() {
    let lab = NetworkSwitch::new();
    let client = lab.add_host();
    let first = LabNode::start(lab.add_host(), named("node-1"));
    let [token, nodes, create, resolve, drain, back, remove] =
        blocks(include_str!("../../../../docs/two-machines.md")).try_into().unwrap();
    let warren = first.warren();
    run_all(&warren, &token);
    let second = LabNode::join(lab.add_host(), NodeOptions::default(), &first, "node-2");
    import_nginx(&first);
    run_all(&warren, &nodes);
    run_all(&warren, &create);
    assert_eq!(spread(&first, 2, &["node-1", "node-2"]).unwrap(), [1, 1]);
    // The tasks are ready before nodes know the name.
    eventually(SOON, "the address of db", || {
        let ran = warren.run(&resolve[0]);
        if ran.code == 0 && ran.stdout.contains("db") { Ok(()) } else { Err(ran.to_string()) }
    });
    for node in [&first, &second] {
        eventually(SOON, "an answer", || page_at(&client, node));
    }
    run_all(&warren, &drain);
    assert_eq!(spread(&first, 2, &["node-1", "node-2"]).unwrap(), [2, 0]);
    run_all(&warren, &back);
    assert_eq!(spread(&first, 2, &["node-1", "node-2"]).unwrap(), [1, 1]);
    run_all(&warren, &remove);
    assert_eq!(warren.run_ok(&["service", "ls", "-q"]), "");
    drop(second);
    warren.run_ok(&["node", "rm", "node-2", "--force"]);

    let [token, nodes, create, lost, remove] =
        blocks(include_str!("../../../../docs/three-managers.md")).try_into().unwrap();
    run_all(&warren, &token);
    let second = LabNode::join_manager(lab.add_host(), NodeOptions::default(), &first, "node-2");
    let mut third = LabNode::join_manager(lab.add_host(), NodeOptions::default(), &first, "node-3");
    import_nginx(&first);
    let voters = || {
        eventually(2 * SOON, "three voters", || {
            let managers = warren.json(&["manager", "ls"]);
            let votes = managers
                .as_array()
                .unwrap()
                .iter()
                .filter(|manager| manager["suffrage"] == "voter" && manager["status"] == "READY");
            if votes.count() == 3 { Ok(()) } else { Err(managers.to_string()) }
        });
    };
    voters();
    run_all(&warren, &nodes);
    run_all(&warren, &create);
    assert_eq!(spread(&first, 3, &["node-1", "node-2", "node-3"]).unwrap(), [1, 1, 1]);
    third.kill();
    eventually(SOON, "a node that is DOWN", || {
        let table = warren.run_ok(&["node", "ls"]);
        if table.contains("DOWN") { Ok(()) } else { Err(table) }
    });
    run_all(&warren, &lost);
    eventually(SOON, "four tasks on two nodes", || match spread(&first, 4, &["node-3"])? == [0] {
        true => Ok(()),
        false => Err("a task is on the lost node".to_owned()),
    });
    third.run_again();
    third.wait_ready();
    voters();
    run_all(&warren, &remove);
    let left = warren.json(&["manager", "ls"]);
    assert_eq!(left.as_array().unwrap().len(), 2, "{left}");
    drop(second);
}

//! The first commands of a new user, in that order, on one node.

use serde_json::Value;
use warren_testkit::cli::WarrenCli;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON, WEB, web_image};
use crate::e2e::traffic::{CLIENT_LOCATIONS, ClientLocation};

#[test]
fn a_service_is_made_reached_scaled_and_removed() {
    let world = NodeFixture::new();
    let before = world.inventory_at_rest();

    let id = world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    assert_eq!(world.wait_serving("web", 2).len(), 2);
    for way in CLIENT_LOCATIONS {
        world.assert_answered_by(way, 8088, &["web-1", "web-2"]);
    }
    documents_agree(&world);
    for name in ["web", id.trim(), &id[..8]] {
        let found = world.warren().json(&["service", "inspect", name]);
        assert_eq!(found["id"].as_str(), Some(id.trim()), "{name}");
    }

    world.ok("service scale web=4");
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2", "web-3", "web-4"]);
    // The slots above are removed, the one below stays unchanged.
    let first = world.wait_serving("web", 4).into_iter().find(|task| task.slot == 1).unwrap();
    for _ in 0..2 {
        world.ok("service scale web=1");
        assert_eq!(world.wait_serving("web", 1), std::slice::from_ref(&first));
    }
    for way in CLIENT_LOCATIONS {
        world.assert_answered_by(way, 8088, &["web-1"]);
    }

    world.ok("service scale web=0");
    for way in CLIENT_LOCATIONS {
        world.assert_refused(way, 8088);
    }
    // Name and port are free as soon as the command has finished.
    for _ in 0..2 {
        world.ok("service rm web");
        world.warren().run_refused(&["service", "inspect", "web"], 3);
        world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    }
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
    world.ok("service rm web");
    world.assert_at_rest(&before);
}

#[test]
fn a_manager_is_reached_by_its_address_and_by_its_socket() {
    let world = NodeFixture::new();
    let contexts = world.node.scratch().join("contexts.toml");
    let outside = WarrenCli::new(&contexts).in_netns(&world.client_host.netns().path());
    let seen = outside.json(&["node", "ls"]);
    assert_eq!(seen[0]["address"], world.node.host().address().to_string());
    outside.run_ok(&["node", "ls", "--manager", &world.node.api().to_string()]);

    // Root needs neither a context nor a network.
    let bare = WarrenCli::new(&world.node.scratch().join("no-contexts.toml"))
        .in_netns(&world.client_host.netns().path());
    let mut command = bare.command(&["node", "ls", "-o", "json"]);
    command.env("WARREN_RUN_DIR", world.node.run_dir());
    let output = tool::stdout(command, tool::DEADLINE).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(serde_json::from_str::<Value>(&output).unwrap()[0]["id"], seen[0]["id"]);
}

#[test]
fn archives_of_both_formats_can_be_imported_and_run() {
    let world = NodeFixture::new();
    let mut docker = web_image().docker_archive();
    docker.reference = "warren.local/demo:1".to_owned();
    for name in ["docker.tar", "again.tar"] {
        let output = world.import(name, &docker);
        assert!(output.contains(WEB) && output.contains("sha256:"), "{output}");
    }
    let shown =
        world.warren().json(&["image", "import", world.node.scratch().join("web.tar").to_str().unwrap()]);
    assert_eq!(shown[0]["image"], WEB);
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
}

/// Everything that can be listed or shown is the same in all four formats.
#[track_caller]
fn documents_agree(world: &NodeFixture) {
    let node = world.warren().json(&["node", "ls"])[0]["name"].as_str().unwrap().to_owned();
    let lists: [&[&str]; 5] = [
        &["service", "ls"],
        &["service", "ps", "web"],
        &["task", "ls"],
        &["node", "ls"],
        &["cluster", "background-tasks"],
    ];
    let single: [&[&str]; 5] = [
        &["service", "inspect", "web"],
        &["task", "inspect", "web.1"],
        &["node", "inspect", &node],
        &["cluster", "info"],
        &["version"],
    ];
    for words in lists.into_iter().chain(single) {
        let before = world.warren().json(words);
        let yaml = world.warren().run_ok(&[words, &["-o", "yaml"]].concat());
        let after = world.warren().json(words);
        let yaml: Value = serde_saphyr::from_str(&yaml).unwrap_or_else(|why| panic!("{why} in {yaml}"));
        // A node may have sent its first measurement in between.
        let agrees = [&before, &after].iter().any(|json| shape(json) == shape(&yaml));
        assert!(agrees, "{words:?}: {yaml} is neither {before} nor {after}");
    }
    for words in lists {
        let narrow = world.warren().run_ok(words);
        let wide = world.warren().run_ok(&[words, &["-o", "wide"]].concat());
        let title = |table: &str| table.lines().next().unwrap_or_default().split_whitespace().count();
        assert!(title(&wide) >= title(&narrow), "{wide}");
        assert_eq!(wide.lines().count(), narrow.lines().count(), "{wide}");
        let rows = world.warren().json(words).as_array().unwrap().len();
        assert_eq!(narrow.lines().count(), rows + 1, "{narrow}");
    }
}

/// The names of all fields: values like usage change between two reads.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect(),
        Value::Array(items) => items.iter().map(shape).collect(),
        _ => Value::Null,
    }
}

#[test]
fn ports_are_published_by_range_by_themselves_and_for_udp() {
    let world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --publish 80 --publish 9000-9001:80-81"));
    let ports = &world.warren().json(&["service", "inspect", "web"])["spec"]["ports"];
    let ports: Vec<u64> =
        ports.as_array().unwrap().iter().map(|port| port["hostPort"].as_u64().unwrap()).collect();
    assert!((30_000..=32_767).contains(&ports[0]) && ports[1..] == [9000, 9001], "{ports:?}");
    assert!(world.ok("service ls").contains(&format!("{}->80/tcp, 9000->80/tcp, 9001->81/tcp", ports[0])));
    for port in [u16::try_from(ports[0]).unwrap(), 9000] {
        CLIENT_LOCATIONS.iter().for_each(|way| world.assert_answered_by(*way, port, &["web-1"]));
    }
    world.ok(&format!("service create echo --image {WEB} --publish 5300:80/udp --publish 127.0.0.1:5300:80"));
    world.wait_serving("echo", 1);
    for way in CLIENT_LOCATIONS {
        eventually(SOON, &format!("a datagram from echo ({way:?})"), || {
            match world.datagram(way, 5300)?.trim() {
                "echo-1" => Ok(()),
                other => Err(other.to_owned()),
            }
        });
    }
    world.ok("service rm echo");
    for way in CLIENT_LOCATIONS {
        world.datagram(way, 5300).unwrap_err();
    }
}

//! Stacks of Compose files on real containers: what they serve, what a second deployment changes, what remains.

use std::collections::BTreeMap;
use std::fs;

use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::process::ChildProcess;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON, still_inventory};
use crate::e2e::task_document::{self, TaskDocument};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

/// `front` serves a page of everything that a stack gives it, `middle` passes on what `store` has in its volume.
const SHOP: &str = "
x-fast: &fast
  image: ${BOX:?give the image}
  init: true
  deploy: {update_config: {monitor: 0s}, restart_policy: {delay: 100ms}}
x-check: &check {interval: 1s, start_interval: 100ms, start_period: 30s, timeout: 5s}
services:
  front:
    <<: *fast
    command:
      - sh
      - -ec
      - |
        mkdir /www
        { cat /run/secrets/key /etc/front.conf; echo $$FROM_FILE; wget -qO- http://relay/; } > /www/index.html
        exec httpd -f -h /www
    ports: ['8088:80']
    depends_on: {middle: {condition: service_healthy}}
    networks: [outer]
    env_file: front.env
    secrets: [key]
    configs: [{source: front, target: /etc/front.conf}]
    healthcheck: {<<: *check, test: [CMD, wget, -qO-, 'http://127.0.0.1/']}
  middle:
    <<: *fast
    command:
      - sh
      - -ec
      - mkdir /www; wget -qO /www/index.html http://store/stored; exec httpd -f -h /www
    depends_on: {store: {condition: service_healthy}}
    networks:
      outer: {aliases: [relay]}
      inner:
    healthcheck: {<<: *check, test: wget -qO- http://127.0.0.1/}
  store:
    <<: *fast
    command:
      - sh
      - -ec
      - |
        echo started >> /data/starts
        echo \"stored $$(wc -l < /data/starts)\" > /data/stored
        exec httpd -f -h /data
    networks: [inner]
    volumes: ['data:/data']
    healthcheck: {<<: *check, test: \"test ! -e /data/closed && wget -qO- http://127.0.0.1/stored\"}
networks:
  outer:
  inner: {internal: true}
volumes: {data: }
secrets: {key: {file: key.txt}}
configs: {front: {content: 'config one'}}
";

/// A node and the directory of a project.
pub(super) struct Project {
    pub(super) world: NodeFixture,
}

impl Project {
    #[track_caller]
    pub(super) fn new() -> Project {
        let it = Project { world: NodeFixture::with_box() };
        it.write("compose.yaml", SHOP);
        it.write("key.txt", "secret one\n");
        it.write("front.env", "FROM_FILE=from a file\n");
        it.write(".env", &format!("BOX={BOX}\n"));
        it
    }

    /// Writes a file of the project; returns its path.
    #[track_caller]
    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.world.node.scratch().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.world.node.scratch().join(name).display().to_string()
    }

    /// Deploys the files as the stack `shop`; returns what was done with each service, in order.
    #[track_caller]
    fn deploy(&self, files: &[&str]) -> Vec<String> {
        let paths: Vec<String> = files.iter().map(|name| self.path(name)).collect();
        let files: Vec<&str> = paths.iter().flat_map(|path| ["-c", path]).collect();
        let ran = self.world.warren().run(&[&["deploy"][..], &files, &["shop"]].concat());
        assert_eq!(ran.code, 0, "{ran}");
        let lines =
            ran.stderr.lines().filter(|line| line.starts_with("service ") && !line.ends_with(" ready"));
        lines.map(|line| line.trim_start_matches("service shop_").to_owned()).collect()
    }

    /// What the published port of the stack serves.
    #[track_caller]
    pub(super) fn page(&self) -> String {
        eventually(SOON, "a page of the stack", || {
            let mut curl = self.world.client_host.command("curl");
            let url = format!("http://{}:8088/", self.world.node.host().address());
            curl.args(["--silent", "--show-error", "--fail", "--max-time", "2", &url]);
            tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())
        })
    }

    /// The serving tasks of the stack by their services, one of each.
    #[track_caller]
    fn tasks(&self) -> BTreeMap<&'static str, TaskDocument> {
        let task = |service: &'static str| {
            (service, self.world.wait_serving(&format!("shop_{service}"), 1).remove(0))
        };
        ["front", "middle", "store"].map(task).into()
    }

    /// The names of all objects of a kind.
    #[track_caller]
    pub(super) fn names(&self, noun: &str) -> Vec<String> {
        let listed = self.world.ok(&format!("{noun} ls --format {{{{.Name}}}}"));
        listed.lines().map(str::to_owned).collect()
    }

    /// The names of everything in the cluster that a stack may create.
    #[track_caller]
    fn objects(&self) -> Vec<(&'static str, Vec<String>)> {
        ["service", "network", "secret", "config", "volume"].map(|noun| (noun, self.names(noun))).into()
    }
}

#[test]
fn stack_serves_is_updated_and_removed() {
    let it = Project::new();
    it.world.ok("network create kept");
    it.world.ok(&format!("service create other --image {BOX} --network kept --command sleep --arg 100000"));
    let others = it.objects();
    assert_eq!(it.deploy(&["compose.yaml"]), ["store created", "middle created", "front created"]);
    assert_eq!(it.page(), "secret one\nconfig onefrom a file\nstored 1\n");
    let first = it.tasks();

    // Nothing changes.
    let unchanged = ["store is unchanged", "middle is unchanged", "front is unchanged"];
    assert_eq!(it.deploy(&["compose.yaml"]), unchanged);
    assert_eq!(it.tasks(), first);

    // One service changes.
    it.write("override.yaml", "services: {middle: {labels: {new: label}}}");
    it.deploy(&["compose.yaml", "override.yaml"]);
    let second = it.tasks();
    assert_ne!(second["middle"], first["middle"]);
    assert_eq!((&second["front"], &second["store"]), (&first["front"], &first["store"]));

    // New data reaches the service that uses it.
    it.write("key.txt", "secret two\n");
    it.deploy(&["compose.yaml", "override.yaml"]);
    let third = it.tasks();
    assert_ne!(third["front"], second["front"]);
    assert_eq!((&third["middle"], &third["store"]), (&second["middle"], &second["store"]));
    // The port still leads to the old task for a moment.
    eventually(SOON, "the page of the new task", || {
        let page = it.page();
        if page == "secret two\nconfig onefrom a file\nstored 1\n" { Ok(()) } else { Err(page) }
    });
    let log = it.world.warren().run(&["stack", "logs", "shop"]);
    assert_eq!(log.code, 0, "{log}");

    it.world.ok("stack rm shop");
    let mut with_volume = others.clone();
    with_volume.iter_mut().filter(|(noun, _)| *noun == "volume").for_each(|(_, names)| {
        names.push("shop_data".to_owned());
    });
    assert_eq!(it.objects(), with_volume);
    // The volume kept what was in it.
    it.deploy(&["compose.yaml"]);
    assert_eq!(it.page(), "secret two\nconfig onefrom a file\nstored 2\n");
    it.world.ok("stack rm shop --volumes");
    assert_eq!(it.objects(), others);
    it.world.warren().run_refused(&["stack", "rm", "shop"], NOT_FOUND);
    it.world.wait_serving("other", 1);
}

#[test]
fn killed_deployment_is_completed_in_order_by_the_next_one() {
    let it = Project::new();
    it.world.ok("volume create shop_data --label com.docker.stack.namespace=shop");
    // The store does not become ready as long as this file exists.
    let close = format!("service create closer --image {BOX} --volume shop_data:/data --command touch");
    it.world.ok(&format!("{close} --arg /data/closed --restart none --detach"));
    eventually(SOON, "the file", || {
        let tasks = task_document::of_service(&it.world.node, "closer");
        if tasks.iter().any(|task| task.state == "COMPLETE") { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    it.world.ok("service rm closer");
    let file = it.path("compose.yaml");
    let command = it.world.warren().command(&["deploy", "-c", &file, "shop"]);
    let log = it.world.node.scratch().join("deploy.log");
    let mut cli = ChildProcess::spawn("the deployment", command, &log);
    let store = eventually(SOON, "the first service", || {
        if it.names("service").is_empty() {
            return Err(cli.log());
        }
        let store = task_document::of_service(&it.world.node, "shop_store").pop().ok_or("no task")?;
        if store.state == "RUNNING" { Ok(store) } else { Err(format!("{store:#?}")) }
    });
    assert!(!store.ready, "{store:#?}");
    cli.kill();
    assert_eq!(it.names("service"), ["shop_store"]);

    it.world.ok(&format!("task exec {} rm /data/closed", store.id));
    assert_eq!(it.deploy(&["compose.yaml"]), ["store is unchanged", "middle created", "front created"]);
    assert_eq!(it.page(), "secret one\nconfig onefrom a file\nstored 1\n");
    assert_eq!(it.tasks()["store"].id, store.id);
    assert_eq!(
        (it.names("secret"), it.names("config")),
        (vec!["shop_key".into()], vec!["shop_front".into()])
    );
}

/// Files that are merged over those of the shop, the exit code, and parts of the error.
const REFUSED: &[(&str, i32, &[&str])] = &[
    ("services: {middle: {hostname: [a]}}", USAGE, &["bad.yaml:1:31: services.middle.hostname: "]),
    (
        "services:\n  middle:\n    prots: []",
        USAGE,
        &["bad.yaml:3:5: services.middle: \"prots\"", "\"ports\""],
    ),
    ("services: {middle: {user: '${WHO:?say who}'}}", USAGE, &["bad.yaml:1:27: ", "WHO", "say who"]),
    (
        "services: {store: {depends_on: [front]}}",
        USAGE,
        &["services.front.depends_on: services depend on each other: front -> middle -> store -> front"],
    ),
    (
        "services: {a: {extends: b}, b: {extends: a}}",
        USAGE,
        &["bad.yaml:1:", "extend each other: a -> b -> a"],
    ),
    (
        "services: {middle: {env_file: none.env}}",
        USAGE,
        &["bad.yaml:1:31: services.middle.env_file", "none.env; create it"],
    ),
    ("services: {built: {build: .}}", USAGE, &["bad.yaml:1:27: services.built.build: ", "--build", "push"]),
    (
        "services: {middle: {volumes: ['/run/docker.sock:/var/run/docker.sock:ro']}}",
        USAGE,
        &["bad.yaml:1:31: services.middle.volumes[0].source: is the socket of Docker"],
    ),
    (
        "services: {middle: {volumes: ['./pages:/pages']}}",
        USAGE,
        &["bad.yaml:1:31: services.middle.volumes[0]: ", "/pages is a path of this machine"],
    ),
    ("secrets: {key: {file: none.txt}}", NOT_FOUND, &["secrets.key: ", "none.txt: there is no such file"]),
    (
        "services: {middle: {ports: ['80:80', '8099:80']}}",
        CONFLICT,
        &["bad.yaml:1:38: services.middle.ports[1]: host port 8099 is published by service other;"],
    ),
    (
        "services: {middle: {ports: ['8088:80']}}",
        USAGE,
        &[
            "services.front.ports[0]: host port 8088 is also published by services.middle.ports[0] (",
            "bad.yaml:1:29",
        ],
    ),
    (
        "networks: {inner: !override {external: true}}",
        CONFLICT,
        &["networks.inner: there is no network inner"],
    ),
    ("services: {middle: {gpus: all}}", USAGE, &["bad.yaml:1:21: services.middle.gpus: is not supported"]),
];

#[test]
fn bad_files_are_refused_with_their_positions_and_change_nothing() {
    let it = Project::new();
    it.world
        .ok(&format!("service create other --image {BOX} --publish 8099:80 --command sleep --arg 100000"));
    let file = it.path("compose.yaml");
    it.write("bad.yaml", "");
    // Nothing listens on its port: only the rules show that it is open.
    eventually(SOON, "port 8099 to be open", || {
        let found = it.world.node.kernel_inventory();
        let is_in = |chains: &str| {
            found.names("iptables").any(|rule| rule.contains(chains) && rule.contains("--dport 8099 "))
        };
        let is_open = is_in("-A WARREN-PORTS") && !is_in("-A WARREN-CLOSED");
        if is_open { Ok(()) } else { Err(format!("{found:?}")) }
    });
    let (before, inventory) = (it.objects(), still_inventory(&it.world.node));
    for (text, code, parts) in REFUSED {
        let bad = it.write("bad.yaml", text);
        let told = it.world.warren().run_refused(&["deploy", "-c", &file, "-c", &bad, "shop"], *code);
        for part in *parts {
            assert!(told.contains(part), "{part:?} is not in the error for {text}:\n{told}");
        }
        assert_eq!(it.objects(), before, "{text} changed something");
    }
    it.world.assert_at_rest(&inventory);
}

/// An image that the README names, with a stand-in for its program.
fn stand_in(reference: &str, programs: &[(&str, &str)], entrypoint: &[&str]) -> TestImage {
    let layer = programs.iter().fold(ImageLayer::new(), |layer, (path, script)| {
        layer.file(path, format!("#!/bin/sh\n{script}\n"), 0o755)
    });
    TestImage::busybox(reference).layer(layer).entrypoint(entrypoint.iter().copied())
}

/// The file in the README, as it is written there. The stand-ins need what the programs in the images need.
#[test]
fn cms_of_the_readme_is_deployed() {
    let it = Project::new();
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let (file, _) = readme.split_once("```yaml\n").unwrap().1.split_once("```").unwrap();
    let database = "test \"$MARIADB_DATABASE $MARIADB_USER\" = 'wordpress wordpress' || exit 1
        mkdir -p /var/lib/mysql; cp $MARIADB_PASSWORD_FILE /var/lib/mysql/index.html
        httpd -p 3306 -h /var/lib/mysql; trap exit TERM; sleep 100000 & wait";
    let healthy = "test \"$*\" = '--connect --innodb_initialized' && wget -qO- http://127.0.0.1:3306/";
    let site = "test \"$WORDPRESS_DB_NAME $WORDPRESS_DB_USER\" = 'wordpress wordpress' || exit 1
        mkdir -p /var/www/html; wget -qO /tmp/password http://$WORDPRESS_DB_HOST:3306/ || exit 1
        cmp $WORDPRESS_DB_PASSWORD_FILE /tmp/password && echo installed > /var/www/html/index.html
        httpd -h /var/www/html; trap exit TERM; sleep 100000 & wait";
    let database = [("/bin/mariadbd", database), ("/bin/healthcheck.sh", healthy)];
    for (name, programs) in [("mariadb:11.4", &database[..]), ("wordpress:6-apache", &[("/bin/site", site)])]
    {
        let image = stand_in(&format!("docker.io/library/{name}"), programs, &[programs[0].0]);
        it.world.import("image.tar", &image.oci_archive());
    }
    it.write("compose.yaml", file);
    it.write("db_password.txt", "0123456789abcdef");
    let directory = it.world.node.scratch().to_owned();
    let mut deploy = it.world.warren().command(&["deploy", "cms"]);
    deploy.current_dir(&directory);
    let told = tool::output(deploy, 4 * tool::DEADLINE).unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    // The tasks are ready before the port is open.
    let page = eventually(SOON, "a page of the site", || {
        let mut curl = it.world.node.host().command("curl");
        curl.args(["--silent", "--show-error", "--fail", "-L", "localhost:8000"]);
        tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())
    });
    assert_eq!(page, "installed\n");
    it.world.ok("stack rm cms --volumes");
}

const HOOKED: &str = "
services:
  web:
    image: warren.local/box:1
    command: [sh, -c, 'trap \"exit 0\" TERM; sleep 100000 & wait']
    volumes: ['data:/data']
    stop_grace_period: 30s
    deploy: {update_config: {monitor: 0s}}
    post_start:
      - command: [sh, -c, 'echo $$STEP $$(id -u) $$(pwd) > /tmp/set-up; sleep 1']
        user: nobody
        working_dir: /tmp
        environment: {STEP: one}
      - command: [sh, -c, 'cat /tmp/set-up > /data/set-up']
    pre_stop:
      - command: [sh, -c, 'sleep 1; ps -o args > /data/processes']
volumes: {data: }
";

#[test]
fn hooks_run_in_the_container() {
    let it = Project::new();
    let file = it.write("hooked.yaml", HOOKED);
    it.deploy(&["hooked.yaml"]);
    assert_eq!(it.world.ok("service exec shop_web cat /data/set-up"), "one 65534 /tmp\n");
    // The hook ran before the stop signal.
    it.world.ok("service rm shop_web");
    it.world.create_script("reader", &["--volume", "shop_data:/data"], "trap exit TERM; sleep 100000 & wait");
    it.world.wait_serving("reader", 1);
    assert!(it.world.ok("service exec reader cat /data/processes").contains("trap"));
    it.world.ok("service rm reader");

    let failing =
        "services: {web: {post_start: !override [{command: [sh, -c, 'echo no such table; exit 3']}],
        deploy: {restart_policy: {condition: none}}}}";
    let failing = it.write("failing.yaml", failing);
    let told = it.world.warren().run_refused(&["deploy", "-c", &file, "-c", &failing, "shop"], FAILED);
    assert!(told.contains("post_start hook 1 (sh) exited with code 3: no such table"), "{told}");
}

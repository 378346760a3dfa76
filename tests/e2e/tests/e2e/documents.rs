//! Documents on real containers: applied twice, compared with the cluster, changed, pruned and removed.

use std::fs;
use std::path::Path;

use warren_testkit::cli::CommandOutput;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON};

const SERVICE: &str = "
apiVersion: warren.io/v1
kind: Service
metadata: {name: web, labels: {app: shop}}
spec:
  task:
    image: BOX
    init: true
    command:
    - sh
    - -ec
    - mkdir /www; cat /run/secrets/key /app.conf > /www/index.html; date >> /data/starts; exec httpd -f -h /www
    limits: {memory: 64Mi}
    secrets: [{source: key}]
    configs: [{source: app.conf}]
    mounts: [{target: /data, source: {volume: {name: data}}}]
    network: {networks: [{network: back}]}
    health: {probe: {tcp: {port: 80}}, interval: 1s, startInterval: 100ms}
  ports: [{hostPort: 8088, containerPort: 80}]
  update: {monitor: 0s}
";
const OTHERS: &str = "
apiVersion: warren.io/v1
kind: Secret
metadata: {name: key, labels: {app: shop}}
spec: {stringData: hunter2-}
---
apiVersion: warren.io/v1
kind: Config
metadata: {name: app.conf, labels: {app: shop}}
spec: {file: app.txt}
---
apiVersion: warren.io/v1
kind: Volume
metadata: {name: data, labels: {app: shop}}
---
apiVersion: warren.io/v1
kind: Network
metadata: {name: back, labels: {app: shop}}
";

/// The documents in a directory.
fn write(directory: &Path, service: &str, others: &str) {
    fs::create_dir_all(directory).unwrap();
    fs::write(directory.join("service.yaml"), service.replace("BOX", BOX)).unwrap();
    fs::write(directory.join("others.yml"), others).unwrap();
    fs::write(directory.join("app.txt"), "one\n").unwrap();
}

#[track_caller]
fn page(world: &NodeFixture, expected: &str) {
    eventually(SOON, "the page of the service", || {
        let mut curl = world.client_host.command("curl");
        let url = format!("http://{}:8088/", world.node.host().address());
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "2", &url]);
        let page = tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())?;
        if page == expected { Ok(()) } else { Err(format!("{page:?} instead of {expected:?}")) }
    });
}

#[test]
fn documents_are_applied_compared_changed_pruned_and_removed() {
    let world = NodeFixture::with_box();
    let directory = world.node.scratch().join("shop");
    write(&directory, SERVICE, OTHERS);
    let path = directory.to_str().unwrap();
    let run = |arguments: &[&str]| -> CommandOutput { world.warren().run(arguments) };
    let apply = |more: &[&str]| world.warren().run_ok(&[&["apply", "-f", path], more].concat());

    let before = run(&["diff", "-f", path]);
    assert_eq!(before.code, 1, "{before}");
    assert!(
        before.stdout.starts_with("create network back\n") && before.stdout.contains("web.1   new      "),
        "{before}"
    );
    let created = "network back created\nvolume data created\nsecret key created\nconfig app.conf created\nservice \
                   web created\n";
    assert_eq!(apply(&[]), created);
    page(&world, "hunter2-one\n");
    assert_eq!(apply(&[]), created.replace(" created", " is unchanged"));
    let same = run(&["diff", "-f", path]);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""), "{same}");
    for (noun, name) in [
        ("service", "web"),
        ("volume", "data"),
        ("network", "back"),
        ("config", "app.conf"),
        ("secret", "key"),
    ] {
        let document = directory.parent().unwrap().join("inspected.yaml");
        fs::write(&document, world.warren().run_ok(&[noun, "inspect", name, "--as-document"])).unwrap();
        let applied = world.warren().run_ok(&["apply", "-f", document.to_str().unwrap()]);
        assert_eq!(applied, format!("{noun} {name} is unchanged\n"));
    }

    // The task of the old data is stopped, and a new one has its volume.
    write(&directory, &SERVICE.replace("64Mi", "96Mi"), &OTHERS.replace("hunter2", "hunter3"));
    let edited = run(&["diff", "-f", path]);
    assert_eq!(edited.code, 1, "{edited}");
    assert!(edited.stdout.contains("\n  spec.task.limits.memory 64MiB -> 96MiB\n"), "{edited}");
    assert!(
        edited.stdout.contains("the data differs: 8 -> 8 bytes") && !edited.stdout.contains("hunter"),
        "{edited}"
    );
    assert!(edited.stdout.contains("web.1   stops    "), "{edited}");
    apply(&[]);
    page(&world, "hunter3-one\n");

    // More memory than the node has.
    write(&directory, &SERVICE.replace("limits: {memory: 64Mi}", "reservations: {memory: 900Gi}"), OTHERS);
    let large = run(&["apply", "-f", path, "--dry-run"]);
    assert!(large.code == 0 && large.stdout.contains("0 of 1 nodes fit: "), "{large}");
    page(&world, "hunter3-one\n");

    // Without the service, the secret and the config: they are removed, and the volume stays.
    fs::remove_file(directory.join("service.yaml")).unwrap();
    let rest = OTHERS.split("---").skip(2).collect::<Vec<_>>().join("---");
    fs::write(directory.join("others.yml"), &rest).unwrap();
    let pruned = apply(&["--prune", "-l", "app=shop"]);
    let expected = "network back is unchanged\nvolume data is unchanged\nservice web removed\nsecret key \
                    removed\nconfig \
                    app.conf removed\n";
    assert_eq!(pruned, expected);
    let removed = run(&["rm", "-f", path]);
    assert!(removed.code == 0 && removed.stdout.ends_with("network back removed\n"), "{removed}");
    let again = run(&["rm", "-f", path]);
    assert_eq!(again.stderr, "volume data does not exist\nnetwork back does not exist\n");
}

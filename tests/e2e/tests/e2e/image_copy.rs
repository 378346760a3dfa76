//! Images that only some nodes have: the reason of a task that lacks one, and how it gets there.

use std::time::{Duration, Instant};

use serde_json::Value;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::SOON;

const NAME: &str = "warren.local/copied:1";
const NOT_FOUND: i32 = 3;

/// An import or a copy is followed by the start of the tasks that wait for the image; with reserve for a machine
/// that runs other tests as well. The attempt at a registry that cannot be reached ends after ten seconds.
const START_LIMIT: Duration = Duration::from_secs(9);

fn image(name: &str, text: &str) -> TestImage {
    let large = ImageLayer::new().file("/large", vec![7; 3 << 20], 0o644);
    let own = ImageLayer::new().file("/own", text.as_bytes().to_vec(), 0o644);
    let image = TestImage::busybox(name).layer(large).layer(own);
    image.entrypoint(["sh", "-c"]).arguments(["trap exit TERM; sleep 1000 & wait"])
}

fn rows(documents: &Value) -> Vec<(&str, &str, &str)> {
    let rows = documents.as_array().unwrap().iter();
    rows.map(|row| {
        (row["node"].as_str().unwrap(), row["size"].as_str().unwrap(), row["digest"].as_str().unwrap())
    })
    .collect()
}

/// Waits until the node's task of the service runs; other nodes may lack the image.
#[track_caller]
fn wait_running(cluster: &WorkerCluster, node: &str) {
    eventually(SOON, &format!("a running task on {node}"), || {
        let tasks = cluster.warren().json(&["service", "ps", "web"]);
        let own = tasks.as_array().unwrap().iter().find(|task| task["nodeName"] == node).cloned();
        let own = own.unwrap_or_default();
        if own["state"] == "RUNNING" { Ok(()) } else { Err(own.to_string()) }
    });
}

#[test]
fn image_of_one_node_is_copied_to_the_task_that_waits_for_it() {
    let cluster = WorkerCluster::new(2);
    let warren = cluster.warren();
    let path = cluster.manager.scratch().join("copied.tar");
    image(NAME, "one").oci_archive().write(&path).unwrap();
    let path = path.to_str().unwrap();
    let imported = warren.json(&["image", "import", path, "--node", "w1"]);
    cluster.ok(&format!("service create web --detach --mode global --image {NAME}"));
    wait_running(&cluster, "w1");
    let hint = format!("w1 has it: `warren image copy {NAME} --to w2`");
    eventually(SOON, "the reason of the task without an image", || {
        let tasks = warren.json(&["service", "ps", "web"]);
        let waiting = tasks.as_array().unwrap().iter().find(|task| task["nodeName"] == "w2");
        let reason = waiting.map_or_else(String::new, |task| task["reason"].to_string());
        if reason.contains(&hint) { Ok(()) } else { Err(reason) }
    });
    let copied = warren.json(&["image", "copy", NAME, "--to", "w2"]);
    let arrived = Instant::now();
    wait_running(&cluster, "w2");
    assert!(arrived.elapsed() < START_LIMIT, "{:?}", arrived.elapsed());
    println!("started {:?} after the copy", arrived.elapsed());

    // The same image, and the same meaning of its size everywhere.
    let listed = warren.json(&["image", "ls"]);
    let listed: Vec<Value> =
        listed.as_array().unwrap().iter().filter(|row| row["image"] == NAME).cloned().collect();
    let listed = Value::Array(listed);
    let (listed, imported, copied) = (rows(&listed), rows(&imported), rows(&copied));
    assert_eq!((imported[0].0, copied[0].0), ("w1", "w2"));
    assert_eq!(listed, [imported[0], copied[0]]);
    assert_eq!(imported[0].2, copied[0].2);

    // Repeated, and to nodes of which one has it.
    for _twice in 0..2 {
        assert_eq!(rows(&warren.json(&["image", "copy", NAME, "--to", "all", "--from", "w1"])).len(), 1);
    }
    warren.run_refused(&["image", "copy", "warren.local/none:1", "--to", "w2"], NOT_FOUND);
}

#[test]
fn image_that_is_imported_starts_the_tasks_that_wait_for_it() {
    let cluster = WorkerCluster::new(2);
    let warren = cluster.warren();
    cluster.ok("node update w2 --label-add rack=b");
    cluster.ok(&format!("service create web --detach --mode global --image {NAME}"));
    eventually(SOON, "a failed pull on every node", || {
        let tasks = warren.json(&["service", "ps", "web"]);
        let reasons: Vec<String> =
            tasks.as_array().unwrap().iter().map(|task| task["reason"].to_string()).collect();
        let failed = reasons.iter().filter(|reason| reason.contains("warren.local")).count();
        if failed == 2 { Ok(()) } else { Err(format!("{reasons:?}")) }
    });
    let path = cluster.manager.scratch().join("copied.tar");
    image(NAME, "one").oci_archive().write(&path).unwrap();
    for (nodes, node) in [("rack=b", "w2"), ("all", "w1")] {
        warren.run_ok(&["image", "import", path.to_str().unwrap(), "--node", nodes]);
        let arrived = Instant::now();
        wait_running(&cluster, node);
        assert!(arrived.elapsed() < START_LIMIT, "{:?}", arrived.elapsed());
        println!("started {:?} after the import", arrived.elapsed());
    }
}

//! A cluster is restored after the permanent loss of its manager, and running tasks are not disturbed.

use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON};

const CONFLICT: i32 = 4;
const FAILED: i32 = 1;

#[track_caller]
fn create(cluster: &WorkerCluster, name: &str) {
    cluster.ok(&format!(
        "service create {name} --replicas 2 --image {BOX} --command sleep --arg 100000 --stop-grace 0s"
    ));
}

#[test]
fn restored_manager_keeps_running_containers() {
    let mut cluster = WorkerCluster::new(2);
    create(&cluster, "kept");
    cluster.ok("node update w1 --label-add place=first");
    let backup = cluster.manager.scratch().join("backup");
    let phrase = cluster.manager.scratch().join("phrase");
    std::fs::write(&phrase, "correct horse battery staple\n").unwrap();
    let (backup, phrase) = (backup.to_str().unwrap().to_owned(), phrase.to_str().unwrap().to_owned());
    cluster.ok(&format!("manager backup {backup} --passphrase-file {phrase}"));
    let text = std::fs::read(&backup).unwrap();
    let contains = |what: &str| text.windows(what.len()).any(|window| window == what.as_bytes());
    assert!(!contains("kept") && !contains("PRIVATE KEY"), "a backup is encrypted");
    // Changes after the backup are lost with the manager.
    create(&cluster, "later");
    cluster.ok("node update w1 --label-add place=second");
    let before = cluster.pids();
    let kept: Vec<String> = cluster.wait_serving("kept", 2).into_iter().map(|task| task.id).collect();

    cluster.manager.kill();
    let data = cluster.manager.data_dir();
    let local = cluster.manager.local();
    let restore = |file: &str, phrase: &str| {
        local.run(&[
            "manager",
            "restore",
            file,
            "--passphrase-file",
            phrase,
            "--data-dir",
            data.to_str().unwrap(),
        ])
    };
    let refused = restore(&backup, &phrase);
    assert_eq!(refused.code, CONFLICT, "a manager's data is not overwritten: {refused}");
    std::fs::remove_dir_all(&data).unwrap();

    let wrong = cluster.manager.scratch().join("wrong");
    std::fs::write(&wrong, "correct horse battery stable\n").unwrap();
    let refused = restore(&backup, wrong.to_str().unwrap());
    assert_eq!(refused.code, FAILED, "{refused}");
    let cut = cluster.manager.scratch().join("cut");
    std::fs::write(&cut, &text[..text.len() - 100]).unwrap();
    let refused = restore(cut.to_str().unwrap(), &phrase);
    assert_eq!(refused.code, FAILED, "a backup that is not whole is refused: {refused}");
    assert!(!data.join("manager").exists(), "nothing is written before all is checked");

    let restored = restore(&backup, &phrase);
    assert_eq!(restored.code, 0, "{restored}");
    cluster.manager.init_again();
    cluster.manager.wait_ready();
    for worker in &mut cluster.workers {
        worker.wait_ready();
    }
    let again: Vec<String> = cluster.wait_serving("kept", 2).into_iter().map(|task| task.id).collect();
    assert_eq!(again, kept, "the same tasks");
    eventually(2 * SOON, "the end of what came after the backup", || {
        let now = cluster.pids();
        if now.len() == 2 { Ok(()) } else { Err(format!("{now:?}")) }
    });
    let now = cluster.pids();
    assert!(now.iter().all(|(id, pid)| before.get(id) == Some(pid)), "{before:?} {now:?}");
    let node = cluster.warren().json(&["node", "inspect", "w1"]);
    assert_eq!(node["labels"]["place"], "first", "{node}");

    // It is a cluster like any other: writes, joining and leaving workers, another restart.
    create(&cluster, "new");
    cluster.wait_serving("new", 2);
    cluster.manager.crash_and_recover();
    cluster.wait_serving("kept", 2);
    let services = cluster.warren().json(&["service", "ls"]);
    let names: Vec<_> = services.as_array().unwrap().iter().map(|service| &service["name"]).collect();
    assert_eq!(names, ["kept", "new"], "the later one is not known any more");
}

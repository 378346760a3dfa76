//! The image of a revision is what the first worker reported, on every node.

use warren_types::*;

use crate::test_cluster::*;

fn resolved(task: TaskId, image: ImageDigest) -> TaskReport {
    TaskReport { image: Some(image), ready: false, ..report(task, 0, TaskState::Preparing) }
}

/// The digest in the task's assignment.
fn assigned_digest(cluster: &TestCluster, number: u64) -> Option<ImageDigest> {
    let node = cluster.task(1, number).node.unwrap();
    let tasks = cluster.state.assignment(&node).unwrap().tasks;
    tasks.into_iter().find(|task| task.id.number == number).unwrap().digest
}

fn placed() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.reconcile(1);
    cluster.schedule();
    cluster
}

#[test]
fn first_reported_digest_is_pinned() {
    let mut cluster = placed();
    let before: Vec<_> = (1..=2).map(|node| cluster.state.assignment_version(&node_id(node))).collect();
    assert_eq!(assigned_digest(&cluster, 1), None);
    let version = cluster.state.service(&service_id(1)).unwrap().version;
    cluster.report(resolved(task_id(1, 1), digest('a')));
    for (number, before) in (1..=2).zip(before) {
        assert_eq!(assigned_digest(&cluster, number), Some(digest('a')));
        let node = cluster.task(1, number).node.unwrap();
        assert!(cluster.state.assignment_version(&node) > before, "its node is told");
    }
    let once = cluster.state.export();
    cluster.report(resolved(task_id(1, 2), digest('b')));
    cluster.report(resolved(task_id(1, 1), digest('b')));
    assert_eq!(
        (assigned_digest(&cluster, 1), assigned_digest(&cluster, 2)),
        (Some(digest('a')), Some(digest('a')))
    );
    assert_eq!(cluster.state.export().services, once.services);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().version, version, "no person changed it");
}

#[test]
fn rollback_keeps_its_pin() {
    let mut cluster = placed();
    cluster.report(resolved(task_id(1, 1), digest('a')));
    cluster.settle();
    cluster.update_image(1, "demo:2");
    cluster.settle();
    assert_eq!(assigned_digest(&cluster, 3), None);
    cluster.report(resolved(task_id(1, 3), digest('b')));
    assert_eq!(
        (assigned_digest(&cluster, 1), assigned_digest(&cluster, 3)),
        (Some(digest('a')), Some(digest('b')))
    );
    cluster.rollback(1, None);
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert_eq!(service.pins.get(&3), Some(&digest('a')));
}

#[test]
fn digest_reference_is_its_own_pin() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut expected = spec("web", 1);
    expected.task.image = format!("demo@{}", digest('c')).parse().unwrap();
    cluster.service(1, expected);
    cluster.reconcile(1);
    cluster.schedule();
    cluster.report(resolved(task_id(1, 1), digest('d')));
    assert_eq!(assigned_digest(&cluster, 1), Some(digest('c')));
    cluster.update_image(1, &format!("demo@{}", digest('e')));
    let pins = &cluster.state.service(&service_id(1)).unwrap().pins;
    assert_eq!(*pins, [(1, digest('c')), (2, digest('e'))].into());
}

#[test]
fn pin_survives_snapshot_and_is_deleted_with_revision() {
    let mut cluster = placed();
    cluster.report(resolved(task_id(1, 1), digest('a')));
    let restored = warren_core::State::restore(cluster.state.export()).unwrap();
    assert_eq!(restored, cluster.state);
    cluster.scale(1, 0);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    for number in 2..=12 {
        cluster.update_image(1, &format!("demo:{number}"));
    }
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert!(service.pins.is_empty() && service.history[0].number == 2, "{:?}", service.history[0]);
}

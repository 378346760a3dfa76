//! What happens with tasks whose nodes are down, and when.

use std::time::Duration;

use warren_core::ReconcilePlan;
use warren_types::*;

use crate::test_cluster::*;

const SEC: Duration = Duration::from_secs(1);

fn stopping(mut spec: ServiceSpec, after: Duration) -> ServiceSpec {
    spec.task.on_disconnect = OnDisconnect::StopAfter(after);
    spec
}

fn patient(spec: ServiceSpec, replace_after: Duration) -> ServiceSpec {
    ServiceSpec { replace_after, ..spec }
}

/// A service with one task that is lost, and its node.
fn lost(spec: ServiceSpec) -> (TestCluster, u128) {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, spec);
    world.settle();
    let node = world.task(1, 1).node.unwrap().0.0;
    world.set_down(node);
    (world, node)
}

fn again(plan: &ReconcilePlan) -> (usize, Option<Duration>) {
    (plan.commands.len(), plan.recheck_after)
}

#[test]
fn lost_task_is_replaced_at_deadline() {
    let web = || spec("web", 1);
    let graceful = |grace| {
        let mut spec = stopping(web(), 30 * SEC);
        spec.task.stop_grace = grace;
        spec
    };
    for (spec, expected) in [
        (web(), 0),
        (patient(web(), 60 * SEC), 60),
        (stopping(web(), 30 * SEC), 40),
        (graceful(Duration::ZERO), 40),
        (graceful(60 * SEC), 90),
        (patient(stopping(web(), 30 * SEC), 20 * SEC), 40),
        (patient(stopping(web(), 30 * SEC), 60 * SEC), 60),
    ] {
        let (mut world, _) = lost(spec.clone());
        let moment = Duration::from_millis(1);
        if expected > 0 {
            assert_eq!(again(&world.reconcile(1)), (0, Some(expected * SEC)), "{spec:?}");
            world.advance_time(expected * SEC - moment);
            assert_eq!(again(&world.reconcile(1)), (0, Some(moment)), "{spec:?}");
            world.advance_time(moment);
        }
        world.settle();
        assert_eq!(
            (world.live(1), world.task(1, 1).desired),
            (vec![(1, 2)], DesiredTaskState::Remove),
            "{spec:?}"
        );
    }
}

#[test]
fn task_of_returned_node_is_kept() {
    let (mut world, node) = lost(patient(spec("web", 1), 60 * SEC));
    world.advance_time(59 * SEC);
    world.settle();
    world.connect(node);
    world.advance_time(60 * SEC);
    world.settle();
    assert_eq!((world.live(1), world.reason(1, 1)), (vec![(1, 1)], String::new()));
}

#[test]
fn self_stopped_task_is_replaced_on_report() {
    let (mut world, node) = lost(stopping(spec("web", 1), 30 * SEC));
    world.advance_time(35 * SEC);
    world.connect(node);
    world.observe(task_id(1, 1), TaskState::Shutdown);
    world.settle();
    assert_eq!(world.live(1), [(1, 2)]);
    assert_eq!(world.task(1, 2).not_before(), None, "it did what it was told");
}

#[test]
fn lost_task_shows_reason_and_deadline() {
    let (world, _) = lost(spec("web", 1));
    let down = world.reason(1, 1);
    assert!(down.starts_with("node node-") && !down.contains("place"), "{down}");
    for (spec, why) in [
        (patient(spec("web", 1), 60 * SEC), "unless its node returns before (--replace-after)"),
        (stopping(spec("web", 1), 50 * SEC), "when it has certainly stopped by itself (--on-disconnect)"),
    ] {
        let (mut world, _) = lost(spec);
        let until = world.task(1, 1).lost_since().unwrap() + 60 * SEC;
        let output = world.reason(1, 1);
        assert!(output.ends_with(&format!("; it is replaced at {until}, {why}")), "{output}");
        world.advance_time(60 * SEC);
        assert_eq!(world.reason(1, 1), down, "it is about to be replaced");
    }
}

#[test]
fn removed_slot_does_not_wait() {
    let (mut world, _) = lost(patient(spec("web", 1), 60 * SEC));
    world.scale(1, 0);
    world.settle();
    assert_eq!(world.task(1, 1).desired, DesiredTaskState::Remove);
    let (mut world, node) = lost(patient(spec("web", 1), 60 * SEC));
    world.remove_node(node);
    world.settle();
    assert_eq!(world.live(1), [(1, 2)], "whoever removes a node says that nothing of it runs any more");
}

#[test]
fn replace_after_can_be_changed_while_waiting() {
    let (mut world, _) = lost(patient(spec("web", 1), 60 * SEC));
    let before = world.state.service(&service_id(1)).unwrap().revision.number;
    world.update(1, spec("web", 1));
    assert_eq!(world.state.service(&service_id(1)).unwrap().revision.number, before, "no task is another");
    world.settle();
    assert_eq!(world.live(1), [(1, 2)]);
}

#[test]
fn update_skips_waiting_slot() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, patient(spec("web", 2), 600 * SEC));
    world.settle();
    let node = world.task(1, 1).node.unwrap().0.0;
    assert_ne!(world.task(1, 2).node, Some(node_id(node)));
    world.set_down(node);
    world.update(1, {
        let mut spec = patient(spec("web", 2), 600 * SEC);
        spec.task.init = true;
        spec
    });
    for _ in 0..6 {
        world.settle();
    }
    assert_eq!(world.live(1), [(1, 1), (2, 3)], "the other slot is updated");
    world.advance_time(600 * SEC);
    for _ in 0..6 {
        world.settle();
    }
    assert_eq!(world.live(1), [(1, 4), (2, 3)]);
}

#[test]
fn lost_replacement_gets_no_third_task() {
    let mut world = TestCluster::with_nodes(3);
    world.service(1, stopping(spec("web", 1), 30 * SEC));
    world.settle();
    world.update(1, {
        let mut spec = stopping(spec("web", 1), 30 * SEC);
        spec.task.init = true;
        spec
    });
    world.reconcile(1);
    world.schedule();
    let second = world.task(1, 2).node.unwrap();
    assert_ne!(world.task(1, 1).node, Some(second));
    world.set_down(second.0.0);
    assert_eq!(again(&world.reconcile(1)), (0, Some(40 * SEC)));
    assert_eq!(world.live(1), [(1, 1), (1, 2)]);
    world.advance_time(40 * SEC);
    for _ in 0..4 {
        world.settle();
    }
    assert_eq!(world.live(1), [(1, 3)]);
}

#[test]
fn volume_has_one_writer_until_deadline() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, stopping(with_volumes("web", 1, &["data"]), 30 * SEC));
    world.settle();
    let node = world.task(1, 1).node.unwrap().0.0;
    world.set_down(node);
    world.scale(1, 0);
    world.settle();
    world.scale(1, 1);
    assert_eq!(
        again(&world.reconcile(1)),
        (0, Some(40 * SEC)),
        "the one that was told to go may still write"
    );
    world.advance_time(40 * SEC);
    assert_eq!(world.reconcile(1).commands.len(), 1);
}

#[test]
fn global_task_waits_for_its_node() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, stopping(global("agent"), 30 * SEC));
    world.settle();
    world.set_down(1);
    world.advance_time(600 * SEC);
    world.settle();
    assert_eq!(world.live(1).len(), 2);
    assert!(!world.reason(1, 1).contains("place"), "{}", world.reason(1, 1));
}

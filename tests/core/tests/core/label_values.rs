//! Global services with a task per value of a label of nodes.

use std::time::Duration;

use warren_core::{Command, NewTask};
use warren_types::*;

use crate::test_cluster::*;

/// Nodes 1 to 4 in the zones `a`, `a`, `b` and none, and the service.
fn zones(spec: ServiceSpec) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(4);
    for (node, zone) in [(1, "a"), (2, "a"), (3, "b")] {
        cluster.label(node, "zone", Some(zone));
    }
    cluster.service(1, spec);
    cluster.settle();
    cluster
}

fn settle_fully(cluster: &mut TestCluster) {
    for _ in 0..12 {
        cluster.settle();
        cluster.clean_up();
    }
    assert!(cluster.reconcile(1).is_empty());
}

/// Slot, value and node of each live task.
fn tasks(cluster: &TestCluster) -> Vec<(u32, String, u128)> {
    let live = cluster.state.tasks_of(&service_id(1)).filter(|task| task.is_live());
    let mut tasks: Vec<_> = live
        .map(|task| {
            (task.slot, task.label_value().unwrap().to_string(), task.node.map_or(0, |node| node.0.0))
        })
        .collect();
    tasks.sort_unstable();
    tasks
}

#[track_caller]
fn check(cluster: &TestCluster, expected: &[(u32, &str, u128)]) {
    let expected: Vec<_> =
        expected.iter().map(|(slot, value, node)| (*slot, (*value).to_owned(), *node)).collect();
    assert_eq!(tasks(cluster), expected);
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert_eq!(cluster.state.desired_tasks(service) as usize, expected.len());
}

#[test]
fn each_value_has_one_task() {
    let mut cluster = zones(per_zone("cache"));
    check(&cluster, &[(1, "a", 1), (2, "b", 3)]);
    cluster.node(5, resources(4000, 1024));
    cluster.label(5, "zone", Some("b"));
    assert!(cluster.reconcile(1).is_empty(), "nothing moves when a second node has a value");
    cluster.label(4, "zone", Some(""));
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 1), (2, "b", 3), (3, "", 4)]);
    for node in [1, 2] {
        cluster.label(node, "zone", None);
    }
    settle_fully(&mut cluster);
    check(&cluster, &[(2, "b", 3), (3, "", 4)]);
    cluster.label(2, "zone", Some("c"));
    cluster.label(1, "zone", Some("a"));
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 1), (2, "b", 3), (3, "", 4), (4, "c", 2)]);
}

#[test]
fn another_node_with_the_value_takes_over() {
    let mut cluster = zones(per_zone("cache"));
    cluster.set_down(1);
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
    cluster.set_down(3);
    assert!(cluster.reconcile(1).is_empty(), "there is no other node for it");
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
    cluster.connect(1);
    cluster.connect(3);
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
    cluster.label(2, "zone", Some("b"));
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 1), (2, "b", 3)]);
}

#[test]
fn lost_task_waits_as_long_as_its_service_says() {
    let wait = Duration::from_secs(60);
    let mut cluster = zones(ServiceSpec { replace_after: wait, ..per_zone("cache") });
    cluster.advance_time(SETTLED);
    cluster.settle();
    cluster.set_down(1);
    assert_eq!(cluster.reconcile(1).recheck_after, Some(wait));
    check(&cluster, &[(1, "a", 1), (2, "b", 3)]);
    cluster.advance_time(wait);
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
}

#[test]
fn drained_node_gives_its_task_to_another_one_first() {
    let mut cluster = zones(per_zone("cache"));
    cluster.availability(1, Availability::Drain);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), [(1, 1), (1, 3), (2, 2)], "the replacement is next to it");
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
    cluster.availability(2, Availability::Pause);
    assert!(cluster.reconcile(1).is_empty());
    cluster.availability(2, Availability::Drain);
    settle_fully(&mut cluster);
    check(&cluster, &[(2, "b", 3)]);
    cluster.availability(1, Availability::Pause);
    cluster.availability(2, Availability::Active);
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 2), (2, "b", 3)]);
    cluster.availability(2, Availability::Drain);
    settle_fully(&mut cluster);
    check(&cluster, &[(2, "b", 3)]);
}

#[test]
fn update_and_rollback_keep_the_slots() {
    let mut cluster = zones(per_zone("cache"));
    cluster.update_image(1, "demo:2");
    settle_fully(&mut cluster);
    let revisions = |cluster: &TestCluster| {
        [1, 2].map(|slot| cluster.state.live_task(&service_id(1), slot).unwrap().revision.number)
    };
    assert_eq!((tasks(&cluster).len(), revisions(&cluster)), (2, [2, 2]));
    cluster.availability(3, Availability::Pause);
    cluster.rollback(1, Some(1));
    settle_fully(&mut cluster);
    assert_eq!((tasks(&cluster).len(), revisions(&cluster)), (2, [3, 2]));
    let service = cluster.state.service(&service_id(1)).unwrap();
    assert_eq!(service.rollout.good_revision, 3, "a paused node does not hold the rollout");
}

#[test]
fn refused_value_has_reason() {
    let mut spec = per_zone("cache");
    spec.task.reservations = resources(0, 2048);
    let mut cluster = zones(spec.clone());
    cluster.node(5, resources(4000, 4096));
    cluster.label(5, "zone", Some("b"));
    cluster.settle();
    check(&cluster, &[(1, "a", 0), (2, "b", 5)]);
    assert_eq!(cluster.reason(1, 1), "0 of 2 nodes fit: 2 lack memory (need 2GiB, best has 1GiB)");
    let scale = Command::ScaleService { id: service_id(1), version: None, replicas: 2, at: cluster.now };
    let refusal = "replicas: cache is a global service: it has one task per value of node.labels.zone";
    assert_eq!(cluster.refuse(scale), refusal);
    let spec = ServiceSpec { per: None, ..spec };
    let update =
        Command::UpdateService { id: service_id(1), version: None, spec, force: false, at: cluster.now };
    let refusal = "spec.per: the service has a task per value of node.labels.zone; that cannot be changed; create a \
                   new service";
    assert_eq!(cluster.refuse(update), refusal);
}

#[test]
fn plan_for_a_slot_of_another_value_creates_nothing() {
    let mut cluster = zones(per_zone("cache"));
    cluster.label(3, "zone", None);
    settle_fully(&mut cluster);
    let new = |slot, value: Option<&str>| NewTask { label_value: value.map(Into::into), ..new_task(slot) };
    for (slot, value) in [(2, Some("c")), (3, Some("a")), (0, Some("c")), (3, None)] {
        let slots = vec![new(slot, value)];
        let service = service_id(1);
        cluster.accept(Command::CreateTasks { term: TERM, service, revision: 1, slots, at: cluster.now });
        assert_eq!(tasks(&cluster).len(), 1, "{slot} {value:?}");
    }
}

#[test]
fn records_of_values_that_no_node_has_are_deleted_later() {
    let mut cluster = zones(per_zone("cache"));
    cluster.label(3, "zone", None);
    settle_fully(&mut cluster);
    cluster.reap(1);
    assert_eq!(cluster.state.tasks_of(&service_id(1)).count(), 2, "its log is kept");
    cluster.advance_time(LOG_RETENTION);
    cluster.reap(1);
    assert_eq!(cluster.state.tasks_of(&service_id(1)).count(), 1);
    cluster.label(3, "zone", Some("c"));
    settle_fully(&mut cluster);
    check(&cluster, &[(1, "a", 1), (2, "c", 3)]);
}

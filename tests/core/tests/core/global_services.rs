//! Global services: one task on every node that may have it.

use warren_core::Command;
use warren_types::*;

use crate::test_cluster::*;

/// A running global service on nodes 1 to `nodes`.
fn everywhere(nodes: u128, spec: ServiceSpec) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(nodes);
    cluster.service(1, spec);
    cluster.settle();
    cluster
}

/// The nodes with a live task, each with its slot.
fn nodes(cluster: &TestCluster) -> Vec<(u128, u32)> {
    let live = cluster.state.tasks_of(&service_id(1)).filter(|task| task.is_live());
    let mut nodes: Vec<_> = live.map(|task| (task.node.map_or(0, |node| node.0.0), task.slot)).collect();
    nodes.sort_unstable();
    nodes
}

fn desired_tasks(cluster: &TestCluster) -> u32 {
    cluster.state.desired_tasks(cluster.state.service(&service_id(1)).unwrap())
}

#[test]
fn each_node_runs_one_task() {
    let mut cluster = everywhere(2, global("agent"));
    assert_eq!(nodes(&cluster), [(1, 1), (2, 2)]);
    cluster.node(3, resources(4000, 1024));
    cluster.settle();
    assert_eq!((nodes(&cluster), desired_tasks(&cluster)), (vec![(1, 1), (2, 2), (3, 3)], 3));
    let scale = Command::ScaleService { id: service_id(1), version: None, replicas: 2, at: cluster.now };
    assert_eq!(cluster.refuse(scale), "replicas: agent is a global service: it has one task per node");
    cluster.remove(1);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    assert_eq!((cluster.state.services().count(), cluster.state.tasks().count()), (0, 0));
}

#[test]
fn a_node_that_is_down_keeps_its_task() {
    let mut cluster = everywhere(2, global("agent"));
    cluster.set_down(1);
    assert!(cluster.reconcile(1).is_empty(), "there is nothing to replace it with");
    assert_eq!((nodes(&cluster), desired_tasks(&cluster)), (vec![(1, 1), (2, 2)], 2));
    cluster.connect(1);
    assert!(cluster.reconcile(1).is_empty());
}

#[test]
fn drained_node_regains_global_task() {
    let mut cluster = everywhere(2, global("agent"));
    cluster.availability(1, Availability::Drain);
    cluster.reconcile(1);
    assert_eq!((nodes(&cluster), desired_tasks(&cluster)), (vec![(2, 2)], 1));
    cluster.clean_up();
    cluster.availability(1, Availability::Active);
    cluster.settle();
    assert_eq!(nodes(&cluster), [(1, 1), (2, 2)]);
}

#[test]
fn a_paused_node_keeps_its_task_and_gets_none() {
    let mut cluster = everywhere(2, global("agent"));
    cluster.availability(1, Availability::Pause);
    assert!(cluster.reconcile(1).is_empty());
    cluster.update_image(1, "demo:2");
    for _ in 0..4 {
        cluster.settle();
        cluster.clean_up();
    }
    let old = cluster.state.live_task(&service_id(1), 1).unwrap().revision.number;
    let new = cluster.state.live_task(&service_id(1), 2).unwrap().revision.number;
    assert_eq!((old, new), (1, 2));
    let progress =
        warren_core::rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now);
    assert_eq!((progress.updated, progress.total), (1, 2));
    let waits = "1 tasks of earlier revisions may be on nodes that are paused or down";
    assert_eq!(progress.waiting_reason.as_deref(), Some(waits));
    cluster.availability(1, Availability::Active);
    for _ in 0..4 {
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(
        warren_core::rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now)
            .updated,
        2
    );
    assert_eq!(nodes(&cluster), [(1, 1), (2, 2)]);
}

#[test]
fn labels_decide_where_it_runs() {
    let mut spec = global("agent");
    spec.placement.constraints = vec!["node.labels.gpu exists".parse().unwrap()];
    let mut cluster = everywhere(3, spec);
    assert_eq!((nodes(&cluster), desired_tasks(&cluster)), (vec![], 0));
    cluster.label(2, "gpu", Some("yes"));
    cluster.settle();
    assert_eq!(nodes(&cluster), [(2, 2)]);
    cluster.label(2, "gpu", None);
    cluster.settle();
    cluster.clean_up();
    assert_eq!(nodes(&cluster), []);
}

#[test]
fn unplaceable_global_task_shows_reason() {
    let mut spec = global("agent");
    spec.task.reservations = resources(0, 2048);
    let cluster = everywhere(2, spec);
    let why = "0 of 1 nodes fit: 1 lacks memory (need 2GiB, best has 1GiB)";
    assert_eq!((cluster.reason(1, 1), cluster.reason(1, 2)), (why.to_string(), why.to_string()));
}

#[test]
fn global_update_replaces_node_by_node() {
    let mut cluster = everywhere(3, global("agent"));
    cluster.update_image(1, "demo:2");
    let mut most = 0;
    for _ in 0..12 {
        cluster.settle();
        most = most.max(cluster.live(1).len());
        cluster.clean_up();
    }
    assert_eq!((nodes(&cluster), most), (vec![(1, 1), (2, 2), (3, 3)], 4));
    assert_eq!(
        warren_core::rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now)
            .updated,
        3
    );
}

#[test]
fn removed_node_slots_are_deleted() {
    let mut cluster = everywhere(2, global("agent"));
    cluster.remove_node(1);
    cluster.reconcile(1);
    cluster.reap(1);
    assert_eq!(nodes(&cluster), [(2, 2)]);
    assert_eq!(cluster.state.tasks().count(), 1);
    cluster.node(1, resources(4000, 1024));
    cluster.settle();
    assert_eq!(nodes(&cluster), [(1, 3), (2, 2)], "a node that joins again is another slot");
}

#[test]
fn a_node_keeps_five_records() {
    let mut cluster = everywhere(1, global("agent"));
    for _ in 0..8 {
        let (_, newest) = cluster.live(1)[0];
        cluster.observe(task_id(1, newest), TaskState::Failed);
        cluster.advance_time(std::time::Duration::from_secs(3600));
        cluster.settle();
        cluster.clean_up();
    }
    cluster.reap(1);
    assert_eq!(cluster.state.tasks().count(), 6);
}

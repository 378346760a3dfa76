//! Why a task cannot be placed, as text.

use std::time::Duration;

use warren_core::state::VolumeData;
use warren_core::{Command, schedule};
use warren_types::*;

use crate::test_cluster::*;

/// The first task of `spec`, and why it is pending, on nodes with this CPU and memory of which the last
/// `down` are down.
#[track_caller]
fn check(nodes: &[(u64, u64)], down: usize, spec: ServiceSpec, expected: &str) {
    let mut world = TestCluster::new();
    for (number, (cpu, memory)) in (1..).zip(nodes) {
        world.node(number, resources(*cpu, *memory));
    }
    (nodes.len() - down + 1..=nodes.len()).for_each(|number| world.set_down(number as u128));
    world.service(1, spec);
    world.reconcile(1);
    world.schedule();
    assert_eq!(world.reason(1, 1), expected);
}

#[test]
fn refusals_count_nodes_per_reason() {
    let memory = |mebibytes| reserving("web", 1, resources(0, mebibytes));
    check(&[], 0, memory(512), "no node has joined yet");
    check(
        &[(1000, 300), (1000, 200), (1000, 100), (1000, 900), (1000, 900)],
        2,
        memory(512),
        "0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB), 2 are down",
    );
    check(
        &[(1000, 300), (1000, 900), (1000, 900)],
        2,
        memory(512),
        "0 of 3 nodes fit: 2 are down, 1 lacks memory (need 512MiB, best has 300MiB)",
    );
    check(
        &[(500, 900), (1500, 900), (4000, 100), (4000, 900)],
        1,
        reserving("web", 1, resources(2000, 512)),
        "0 of 4 nodes fit: 2 lack CPU (need 2, best has 1.5), 1 is down, \
         1 lacks memory (need 512MiB, best has 100MiB)",
    );
    check(&[(1000, 512)], 0, memory(512), "waiting for node node-1");
}

#[test]
fn never_connected_nodes_are_listed_separately() {
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    world.reconcile(1);
    let (id, at) = (node_id(1), world.now);
    let (name, description) = ("one".parse().unwrap(), description(resources(1000, 512)));
    world.accept(Command::RegisterNode {
        id,
        name,
        role: NodeRole::Worker,
        description,
        taints: Default::default(),
        at,
    });
    assert_eq!(world.reason(1, 1), "0 of 1 nodes fit: 1 has joined but not connected yet");
}

#[test]
fn availability_and_constraints_are_reasons() {
    let check = |constraints: &[&str], most: Option<u32>, expected: &str| {
        let mut world = TestCluster::with_nodes(5);
        world.label(1, "zone", Some("a"));
        world.availability(2, Availability::Drain);
        world.availability(3, Availability::Drain);
        world.availability(4, Availability::Pause);
        let mut spec = constrained("web", 3, constraints);
        spec.placement.max_per_node = most;
        world.service(1, spec);
        world.settle();
        assert_eq!(world.reason(1, 3), expected);
    };
    let unmet = "2 do not meet \"node.labels.zone == b\"";
    check(
        &["node.labels.zone == b"],
        None,
        &format!("0 of 5 nodes fit: 2 are drained, {unmet}, 1 is paused"),
    );
    check(
        &["node.labels.zone == a", "node.name != node-1"],
        None,
        "0 of 5 nodes fit: 2 are drained, 1 is paused, 1 does not meet \"node.labels.zone == a\", \
         1 does not meet \"node.name != node-1\"",
    );
    let crowded = "2 have 1 task of the service already, as many as one node may have";
    check(&[], Some(1), &format!("0 of 5 nodes fit: 2 are drained, {crowded}, 1 is paused"));
    check(&[], None, "");
}

/// Why the first task is pending that has `volumes`, on three nodes after `happened`.
#[track_caller]
fn check_volumes(volumes: &[&str], happened: fn(&mut TestCluster), expected: &str) {
    let mut world = TestCluster::with_nodes(3);
    happened(&mut world);
    world.service(1, with_volumes("web", 1, volumes));
    world.reconcile(1);
    world.schedule();
    assert_eq!(world.reason(1, 1), expected);
}

#[test]
fn volume_location_is_a_reason() {
    check_volumes(
        &["data"],
        |world| {
            world.volume(1, "data", Some(3));
        },
        "waiting for node node-3",
    );
    check_volumes(
        &["data"],
        |world| {
            world.volume(1, "data", Some(2));
            world.set_down(2);
        },
        "0 of 3 nodes fit: 2 do not have the volume data, which is on node-2 (DOWN), 1 is down",
    );
    check_volumes(
        &["data-{{.Task.Slot}}"],
        |world| {
            world.volume(1, "data-1", Some(2));
            world.availability(2, Availability::Drain);
            world.set_down(3);
        },
        "0 of 3 nodes fit: 2 do not have the volume data-1, which is on node-2 (drained), 1 is drained",
    );
    check_volumes(
        &["data"],
        |world| {
            world.volume(1, "data", Some(1));
            world.availability(1, Availability::Pause);
        },
        "0 of 3 nodes fit: 2 do not have the volume data, which is on node-1 (paused), 1 is paused",
    );
    check_volumes(
        &["data"],
        |world| {
            world.volume(1, "data", Some(1));
            world.conditions(1, &[NodeCondition::DiskPressure]);
        },
        "0 of 3 nodes fit: 2 do not have the volume data, which is on node-1 (disk pressure), 1 is under disk pressure",
    );
    check_volumes(
        &["data"],
        |world| {
            world.volume(1, "data", Some(2));
            world.remove_node(2);
        },
        "0 of 2 nodes fit: 2 do not have its data: the volume data is on a node that was removed; \
         delete its record with `warren volume rm data`",
    );
    check_volumes(
        &["data", "logs", "new"],
        |world| {
            world.volume(1, "data", Some(1));
            world.volume(2, "logs", Some(2));
        },
        "0 of 3 nodes fit: 2 do not have the volume data, which is on node-1, \
         1 does not have the volume logs, which is on node-2",
    );
    check_volumes(
        &["data-{{.Node.Labels.zone}}"],
        |world| {
            world.volume(1, "data-a", Some(2));
            world.label(1, "zone", Some("a"));
            world.label(3, "zone", Some("b b"));
        },
        "0 of 3 nodes fit: 1 does not have the volume data-a, which is on node-2, \
         1 cannot have the volume data-{{.Node.Labels.zone}}: \"data-b b\" is not a volume name (1 to 64 \
         letters, digits, '.', '_' and '-', starting and ending with a letter or digit), \
         1 cannot have the volume data-{{.Node.Labels.zone}}: the node has no label zone",
    );
}

#[test]
fn removing_volume_is_a_reason() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, with_volumes("web", 2, &["data-{{.Task.Slot}}"]));
    world.volume(1, "data-1", Some(1));
    let (id, data) = (volume_id(1), VolumeData::Unknown);
    world.accept(Command::RemoveVolume { id, purge: true, data, at: world.now });
    world.settle();
    let expected = "0 of 1 nodes fit: 1 cannot have the volume data-1, which is being removed";
    assert_eq!((world.reason(1, 1).as_str(), world.reason(1, 2).as_str()), (expected, ""));
}

#[test]
fn node_condition_is_a_reason() {
    use NodeCondition::{
        ClockSkew, DiskPressure, MemoryPressure, NetworkDegraded, NetworkUnavailable, RangeConflict,
        RuntimeUnavailable,
    };
    let check = |conditions: &[&[NodeCondition]], expected: &str| {
        let mut world = TestCluster::with_nodes(conditions.len() as u128);
        for (number, conditions) in (1..).zip(conditions) {
            world.conditions(number, conditions);
        }
        world.service(1, spec("web", 1));
        world.settle();
        assert_eq!(world.reason(1, 1), expected, "{conditions:?}");
    };
    check(&[&[RuntimeUnavailable]], "0 of 1 nodes fit: 1 has containerd unavailable");
    check(
        &[&[RuntimeUnavailable, DiskPressure], &[RuntimeUnavailable]],
        "0 of 2 nodes fit: 2 have containerd unavailable",
    );
    check(&[&[ClockSkew, DiskPressure], &[DiskPressure]], "0 of 2 nodes fit: 2 are under disk pressure");
    check(
        &[&[MemoryPressure], &[NetworkUnavailable], &[DiskPressure]],
        "0 of 3 nodes fit: 1 has no working network, 1 is under disk pressure, 1 is under memory pressure",
    );
    check(&[&[ClockSkew, NetworkDegraded, RangeConflict]], "");
    check(&[&[RuntimeUnavailable], &[]], "");
}

#[test]
fn every_key_of_a_constraint_is_honoured() {
    for (constraint, admitted) in [
        ("node.id == 0000000000000000000000001", true),
        ("node.id == 0000000000000000000000002", false),
        ("node.name == node-1", true),
        ("node.name in (node-2,node-3)", false),
        ("node.ip == 192.0.2.1", true),
        ("node.ip notin (192.0.2.1)", false),
        ("node.role == worker", true),
        ("node.role == manager", false),
        ("node.arch == amd64", true),
        ("node.os != linux", false),
        ("node.labels.zone == a", true),
        ("node.labels.disk exists", false),
    ] {
        let mut world = TestCluster::with_nodes(1);
        world.label(1, "zone", Some("a"));
        world.service(1, constrained("web", 1, &[constraint]));
        world.settle();
        assert_eq!(world.task(1, 1).node.is_some(), admitted, "{constraint}");
    }
}

#[test]
fn free_memory_is_shown_in_whole_units() {
    let mut world = TestCluster::new();
    world.node(1, Resources { cpu: MilliCpu(1000), memory: Bytes((300 << 20) + 12_345) });
    world.service(1, reserving("web", 1, resources(0, 512)));
    world.reconcile(1);
    assert_eq!(world.reason(1, 1), "0 of 1 nodes fit: 1 lacks memory (need 512MiB, best has 300MiB)");
}

#[test]
fn a_full_subnet_is_a_reason() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1013));
    // A plan creates 1,000 tasks.
    world.settle();
    world.settle();
    let expected = "0 of 1 nodes fit: 1 has no free address (all 1012 of its subnets are held or were until shortly \
                    ago, and it gets no further subnet)";
    assert_eq!(world.reason(1, 1013), expected);
}

#[test]
fn resources_taken_by_plan_are_unavailable() {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, reserving("web", 4, resources(0, 600)));
    world.reconcile(1);
    let placement = schedule(&world.state, world.now);
    assert_eq!(placement.assignments.len(), 2);
    let reasons: Vec<_> = placement.refusals.iter().map(|(_, _, reason)| reason.to_string()).collect();
    assert_eq!(reasons, ["0 of 2 nodes fit: 2 lack memory (need 600MiB, best has 424MiB)"]);
}

#[test]
fn failing_slot_shows_backoff_deadline() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 3));
    world.settle();
    for (number, wait) in [(3, 5), (4, 10), (5, 0)] {
        world.observe(task_id(1, number), TaskState::Failed);
        world.reconcile(1);
        world.advance_time(Duration::from_secs(wait));
        if wait > 0 {
            world.settle();
        }
    }
    let placement = schedule(&world.state, world.now);
    assert_eq!((placement.assignments.len(), placement.recheck_after), (0, Some(Duration::from_secs(20))));
    let expected = "back-off until 2026-11-20T14:30:35Z: slot web.3 failed 3 times in a row";
    assert_eq!(world.reason(1, 6), expected);
    world.advance_time(Duration::from_secs(20));
    world.settle();
    assert_eq!(world.reason(1, 6), "");
}

#[test]
fn each_state_has_a_reason() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    world.reconcile(1);
    assert_eq!(
        warren_core::explain_task(&world.state, None, world.task(1, 1), world.now),
        "no suitable node yet"
    );
    world.schedule();
    let steps = [
        (TaskState::Accepted, "preparing on node node-1"),
        (TaskState::Preparing, "preparing on node node-1"),
        (TaskState::Ready, "starting on node node-1"),
        (TaskState::Starting, "starting on node node-1"),
        (TaskState::Running, ""),
        (TaskState::Complete, "exited with code 0"),
    ];
    for (state, expected) in steps {
        world.observe(task_id(1, 1), state);
        assert_eq!(world.reason(1, 1), expected, "{state:?}");
    }
}

#[test]
fn undesired_task_has_a_reason() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, reserving("web", 2, resources(0, 600)));
    world.settle();
    world.scale(1, 0);
    world.reconcile(1);
    assert_eq!(world.reason(1, 1), "stopping on node node-1");
    assert_eq!(world.reason(1, 2), "stopped before it was assigned to a node");
    world.clean_up();
    assert_eq!(world.reason(1, 1), "stopped by the manager");
}

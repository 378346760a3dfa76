//! Planned commands on tasks: each item is checked again, and invalid ones are skipped.

use std::time::Duration;

use warren_core::{ApplyOutcome, Command, NewTask, StateChange};
use warren_types::*;

use crate::test_cluster::*;

fn create(slots: &[u32]) -> Command {
    let slots = slots.iter().map(|slot| new_task(*slot)).collect();
    Command::CreateTasks { term: TERM, service: service_id(1), revision: 1, slots, at: Timestamp(0) }
}

fn assign(placements: &[(u64, u128)]) -> Command {
    let placements = placements.iter().map(|(task, node)| (task_id(1, *task), node_id(*node))).collect();
    Command::AssignTasks { term: TERM, placements, at: Timestamp(0) }
}

fn desire(tasks: &[u64], desired: DesiredTaskState) -> Command {
    let tasks = tasks.iter().map(|task| task_id(1, *task)).collect();
    Command::SetDesiredTaskState { term: TERM, tasks, desired, at: Timestamp(0) }
}

fn delete(tasks: &[u64]) -> Command {
    Command::DeleteTasks { term: TERM, tasks: tasks.iter().map(|task| task_id(1, *task)).collect() }
}

/// Numbers of the tasks that the command changed.
#[track_caller]
fn changed(cluster: &mut TestCluster, command: Command) -> Vec<u64> {
    match cluster.apply(&command) {
        ApplyOutcome::Applied { changes, .. } => changes
            .into_iter()
            .filter_map(|change| if let StateChange::Task(task) = change { Some(task.number) } else { None })
            .collect(),
        ApplyOutcome::Unchanged { .. } => Vec::new(),
        ApplyOutcome::Rejected(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn only_free_desired_slots_get_tasks() {
    let mut cluster = TestCluster::new();
    cluster.service(1, spec("web", 3));
    assert_eq!(changed(&mut cluster, create(&[0, 1, 1, 3, 4])), [1, 2]);
    assert_eq!(cluster.live(1), [(1, 1), (3, 2)]);
    assert_eq!(changed(&mut cluster, create(&[0, 1, 1, 3, 4])), [0u64; 0]);
    let stale = Command::CreateTasks {
        term: TERM,
        service: service_id(1),
        revision: 2,
        slots: vec![],
        at: cluster.now,
    };
    assert_eq!(cluster.refuse(stale), "service web is at revision 1, not 2; plan again");
}

#[test]
fn stale_placement_is_skipped() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, reserving("web", 4, resources(0, 600)));
    cluster.accept(create(&[1, 2, 3, 4]));
    // Task 2 does not fit next to task 1, node 7 and task 9 do not exist.
    assert_eq!(changed(&mut cluster, assign(&[(1, 1), (2, 1), (3, 7), (9, 2), (4, 2)])), [1, 4]);
    assert_eq!(changed(&mut cluster, assign(&[(1, 2), (2, 1), (4, 1)])), [0u64; 0]);
    cluster.accept(desire(&[2], DesiredTaskState::Remove));
    assert_eq!(changed(&mut cluster, assign(&[(2, 3)])), [0u64; 0], "it is not wanted any more");
    cluster.set_down(3);
    assert_eq!(changed(&mut cluster, assign(&[(3, 3)])), [0u64; 0]);
    cluster.connect(3);
    assert_eq!(changed(&mut cluster, assign(&[(3, 3)])), [3]);
}

#[test]
fn task_in_backoff_is_not_placed() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    let not_before = Some(cluster.now + Duration::from_secs(1));
    let slots = vec![NewTask { not_before, ..new_task(1) }];
    cluster.accept(Command::CreateTasks {
        term: TERM,
        service: service_id(1),
        revision: 1,
        slots,
        at: cluster.now,
    });
    let placements = vec![(task_id(1, 1), node_id(1))];
    let assign = |at| Command::AssignTasks { term: TERM, placements: placements.clone(), at };
    let now = cluster.now;
    assert_eq!(changed(&mut cluster, assign(now)), [0u64; 0]);
    assert_eq!(changed(&mut cluster, assign(now + Duration::from_secs(1))), [1]);
}

#[test]
fn freed_address_is_not_reused_at_once() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 253));
    cluster.settle();
    let address =
        |cluster: &TestCluster, number| cluster.task(1, number).address.map(|address| address.octets());
    assert_eq!(address(&cluster, 1), Some([10, 0, 0, 2]));
    assert_eq!(address(&cluster, 253), Some([10, 0, 0, 254]));
    cluster.observe(task_id(1, 5), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(60));
    cluster.settle();
    assert_eq!(cluster.live(1)[4], (5, 254));
    assert_eq!(
        address(&cluster, 254),
        Some([10, 0, 1, 2]),
        "the address of task 5 is held until it is removed"
    );
    cluster.clean_up();
    assert_eq!(cluster.state.tasks_on(&node_id(1)).count(), 253);
    cluster.observe(task_id(1, 6), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(60));
    cluster.settle();
    assert_eq!(address(&cluster, 255), Some([10, 0, 1, 3]), "the address of task 5 is not released yet");
}

#[test]
fn desired_state_never_goes_back() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    let assignment = |cluster: &TestCluster| cluster.state.assignment(&node_id(1)).unwrap();
    let before = assignment(&cluster).version;
    assert_eq!(changed(&mut cluster, desire(&[1, 9], DesiredTaskState::Shutdown)), [1]);
    assert!(assignment(&cluster).version > before);
    assert_eq!(changed(&mut cluster, desire(&[1], DesiredTaskState::Running)), [0u64; 0]);
    assert_eq!(changed(&mut cluster, desire(&[1], DesiredTaskState::Shutdown)), [0u64; 0]);
    assert_eq!(changed(&mut cluster, desire(&[1, 2], DesiredTaskState::Remove)), [1, 2]);
    let desires: Vec<_> = assignment(&cluster).tasks.iter().map(|task| task.desired).collect();
    assert_eq!(desires, [DesiredTaskState::Remove; 2]);
}

#[test]
fn only_released_task_is_deleted() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 3));
    cluster.accept(create(&[1, 2, 3]));
    cluster.accept(assign(&[(1, 1), (2, 1)]));
    cluster.accept(desire(&[2, 3], DesiredTaskState::Remove));
    // Task 1 is desired, task 2 still holds its node, task 3 never had one.
    assert_eq!(changed(&mut cluster, delete(&[1, 2, 3, 9])), [3]);
    cluster.clean_up();
    assert_eq!(changed(&mut cluster, delete(&[1, 2, 3])), [2]);
    assert_eq!(changed(&mut cluster, delete(&[1, 2, 3])), [0u64; 0]);
    cluster.accept(create(&[2]));
    assert_eq!(cluster.live(1), [(1, 1), (2, 4)], "numbers are never given twice");
}

/// Otherwise the same command would have another effect the second time: it would replace the task that it
/// created.
#[test]
fn slot_is_created_once_per_command() {
    let mut cluster = TestCluster::new();
    cluster.service(1, spec("web", 2));
    let beside = NewTask { desired: DesiredTaskState::Ready, replaces: Some(1), ..new_task(1) };
    let slots = vec![beside, new_task(1), new_task(2), new_task(2)];
    let command =
        Command::CreateTasks { term: TERM, service: service_id(1), revision: 1, slots, at: Timestamp(0) };
    assert_eq!(changed(&mut cluster, command.clone()), [1]);
    assert_eq!(changed(&mut cluster, command), [0; 0]);
    assert_eq!(cluster.live(1), [(2, 1)]);
}

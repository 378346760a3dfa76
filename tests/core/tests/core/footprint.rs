//! The memory of a task.

use warren_core::{Command, State, schedule_with_limit};
use warren_types::*;

use crate::counting::count;
use crate::test_cluster::*;

const NODES: u128 = 200;
const SERVICES: u128 = 20;
const TASKS_EACH: u32 = 1000;

fn run(state: &mut State, command: &Command) {
    let outcome = state.apply(TERM, state.applied().index + 1, command);
    assert!(matches!(outcome, warren_core::ApplyOutcome::Applied { .. }), "{command:?}: {outcome:?}");
}

/// Without the invariants after each entry, which would take most of the time.
fn create_tasks(state: &mut State, at: Timestamp) {
    for number in 1..=SERVICES {
        let id = service_id(number);
        let slots = (1..=TASKS_EACH).map(new_task).collect();
        run(state, &Command::CreateService { id, spec: spec(&format!("s{number}"), TASKS_EACH), at });
        run(state, &Command::CreateTasks { term: TERM, service: id, revision: 1, slots, at });
    }
}

fn start_tasks(state: &mut State, at: Timestamp) {
    for node in (1..=NODES).map(node_id) {
        let running = |task: &std::sync::Arc<Task>| report(task.id, 1, TaskState::Running);
        let reports = state.tasks_on(&node).map(running).collect();
        run(state, &Command::ReportTasks { node, session: 1, reports, at });
    }
}

#[test]
fn a_running_task_costs_less_than_a_kilobyte() {
    let TestCluster { mut state, now, .. } = TestCluster::with_nodes(NODES);
    let tasks = i64::from(TASKS_EACH) * SERVICES as i64;
    let ((), created, _) = count(|| create_tasks(&mut state, now));
    let (placement, _, scheduling) = count(|| schedule_with_limit(&state, now, usize::MAX));
    assert_eq!(placement.assignments.len() as i64, tasks);
    let command = placement.command(&state, now).unwrap();
    let ((), placed, _) = count(|| run(&mut state, &command));
    let ((), started, _) = count(|| start_tasks(&mut state, now));
    state.check().unwrap();
    assert_eq!(state.task_counts(&service_id(1)).ready, TASKS_EACH);

    let held = (created + placed + started) / tasks;
    println!("{held} bytes held per task, {} allocated per task to schedule", scheduling / tasks);
    assert!(held < 1024, "{held} bytes per task");
    assert!(scheduling / tasks < 1024, "{} bytes per task", scheduling / tasks);
}

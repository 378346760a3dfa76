//! Conditions of nodes, and health of tasks.

use std::collections::BTreeSet;

use warren_core::{ApplyOutcome, Command, CommandResponse, StateChange};
use warren_types::*;

use crate::test_cluster::*;

fn set(session: u64, conditions: &[NodeCondition]) -> Command {
    let conditions = conditions.iter().copied().collect();
    Command::SetNodeConditions { node: node_id(1), session, conditions, at: Timestamp(0) }
}

fn observed_conditions(cluster: &TestCluster) -> BTreeSet<NodeCondition> {
    cluster.state.node(&node_id(1)).unwrap().conditions.clone()
}

#[test]
fn conditions_come_from_newest_session() {
    use NodeCondition::{ClockSkew, DiskPressure};
    let mut cluster = TestCluster::with_nodes(1);
    let command = set(1, &[DiskPressure, ClockSkew]);
    let answer = CommandResponse::Done;
    assert_eq!(
        cluster.apply(&command),
        ApplyOutcome::Applied { response: answer.clone(), changes: vec![StateChange::Node(node_id(1))] },
        "sessions are woken by that"
    );
    assert_eq!(observed_conditions(&cluster), [DiskPressure, ClockSkew].into());
    assert_eq!(cluster.apply(&command), ApplyOutcome::Unchanged { answer });
    cluster.connect(1);
    assert_eq!(
        observed_conditions(&cluster),
        [DiskPressure, ClockSkew].into(),
        "the new session has not said anything yet"
    );
    let refusal = cluster.refuse(set(1, &[]));
    assert_eq!(refusal, "node node-1 is in session 2, this is of session 1; open a new session");
    cluster.accept(set(2, &[]));
    assert_eq!(observed_conditions(&cluster), [].into());
    let gone =
        Command::SetNodeConditions { node: node_id(2), session: 1, conditions: [].into(), at: cluster.now };
    assert!(cluster.refuse(gone).contains("does not exist"));
}

#[test]
fn health_counts_only_while_running() {
    use Health::{Healthy, None, Starting, Unhealthy};
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    let say = |state, health, ready| TaskReport { health, ready, ..report(task_id(1, 1), 1, state) };
    let mut check = |text: TaskReport, expected: (Health, bool)| {
        cluster.report(text);
        let observed = &cluster.task(1, 1).observed;
        assert_eq!((observed.health, observed.ready), expected);
        let unhealthy: Vec<_> =
            cluster.state.unhealthy_tasks_of(&service_id(1)).map(|task| task.id).collect();
        let expected: &[TaskId] = if expected.0 == Unhealthy { &[task_id(1, 1)] } else { &[] };
        assert_eq!(unhealthy, expected);
        let counts = cluster.state.task_counts(&service_id(1));
        assert_eq!(counts.ready, u32::from(observed.ready));
    };
    check(say(TaskState::Running, Starting, true), (Starting, false));
    check(say(TaskState::Running, Healthy, true), (Healthy, true));
    check(say(TaskState::Running, Unhealthy, true), (Unhealthy, false));
    check(say(TaskState::Running, Healthy, false), (Healthy, false));
    check(TaskReport { attempt: 2, ..say(TaskState::Starting, Unhealthy, true) }, (None, false));
    check(TaskReport { attempt: 2, ..say(TaskState::Running, Unhealthy, false) }, (Unhealthy, false));
    check(TaskReport { attempt: 2, ..say(TaskState::Failed, Unhealthy, false) }, (None, false));
}

#[test]
fn removed_task_is_not_listed_as_unhealthy() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    for number in 1..3 {
        let health = Health::Unhealthy;
        cluster.report(TaskReport {
            health,
            ready: false,
            ..report(task_id(1, number), 1, TaskState::Running)
        });
    }
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 0, TaskState::New) });
    cluster.remove_node(1);
    assert_eq!(cluster.state.unhealthy_tasks_of(&service_id(1)).count(), 0);
    assert!(cluster.state.tasks().all(|task| task.observed.health == Health::None));
}

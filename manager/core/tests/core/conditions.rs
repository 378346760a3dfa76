//! What agents say is wrong with their nodes, and what checks say of tasks.

use std::collections::BTreeSet;

use warren_core::{Answer, Change, Command, Outcome};
use warren_types::*;

use crate::world::*;

fn set(session: u64, conditions: &[NodeCondition]) -> Command {
    let conditions = conditions.iter().copied().collect();
    Command::SetNodeConditions { node: node_id(1), session, conditions, at: Timestamp(0) }
}

fn found(world: &World) -> BTreeSet<NodeCondition> {
    world.state.node(&node_id(1)).unwrap().conditions.clone()
}

#[test]
fn the_newest_session_says_what_is_wrong() {
    use NodeCondition::{ClockOff, DiskLow};
    let mut world = World::with_nodes(1);
    let command = set(1, &[DiskLow, ClockOff]);
    let answer = Answer::Done;
    assert_eq!(
        world.run(&command),
        Outcome::Applied { answer: answer.clone(), changes: vec![Change::Node(node_id(1))] },
        "sessions are woken by that"
    );
    assert_eq!(found(&world), [DiskLow, ClockOff].into());
    assert_eq!(world.run(&command), Outcome::Unchanged { answer });
    world.connect(1);
    assert_eq!(found(&world), [DiskLow, ClockOff].into(), "the new session has not said anything yet");
    let refusal = world.refuse(set(1, &[]));
    assert_eq!(refusal, "node node-1 is in session 2, this is of session 1; open a new session");
    world.accept(set(2, &[]));
    assert_eq!(found(&world), [].into());
    let gone =
        Command::SetNodeConditions { node: node_id(2), session: 1, conditions: [].into(), at: world.now };
    assert!(world.refuse(gone).contains("does not exist"));
}

#[test]
fn only_a_running_task_is_well_or_not() {
    use Health::{Healthy, None, Starting, Unhealthy};
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    world.settle();
    let say = |state, health, ready| TaskReport { health, ready, ..report(task_id(1, 1), 1, state) };
    let mut check = |said: TaskReport, wanted: (Health, bool)| {
        world.report(said);
        let observed = &world.task(1, 1).observed;
        assert_eq!((observed.health, observed.ready), wanted);
        let unhealthy: Vec<_> = world.state.unhealthy_of(&service_id(1)).map(|task| task.id).collect();
        let wanted: &[TaskId] = if wanted.0 == Unhealthy { &[task_id(1, 1)] } else { &[] };
        assert_eq!(unhealthy, wanted);
        let counts = world.state.counts(&service_id(1));
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
fn an_unhealthy_task_that_is_gone_is_not_unhealthy() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 2));
    world.settle();
    for number in 1..3 {
        let health = Health::Unhealthy;
        world.report(TaskReport {
            health,
            ready: false,
            ..report(task_id(1, number), 1, TaskState::Running)
        });
    }
    world.report(TaskReport { removed: true, ..report(task_id(1, 1), 0, TaskState::New) });
    world.remove_node(1);
    assert_eq!(world.state.unhealthy_of(&service_id(1)).count(), 0);
    assert!(world.state.tasks().all(|task| task.observed.health == Health::None));
}

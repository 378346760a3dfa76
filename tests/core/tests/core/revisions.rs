//! Commands that change a service: update, rollback, their history, and the ports of an update.

use warren_core::state::REVISION_HISTORY_LIMIT;
use warren_core::{ApplyOutcome, Command};
use warren_types::*;

use crate::test_cluster::*;

fn update(version: Option<u64>, spec: ServiceSpec) -> Command {
    Command::UpdateService { id: service_id(1), version, spec, force: false, at: Timestamp(0) }
}

/// At the service's current version.
fn rollback(world: &TestCluster, revision: Option<u64>) -> Command {
    let version = Some(world.version(1));
    Command::RollbackService { id: service_id(1), version, revision, at: Timestamp(0) }
}

fn refuse_rollback(world: &mut TestCluster, revision: Option<u64>) -> String {
    world.refuse(rollback(world, revision))
}

fn run_rollback(world: &mut TestCluster, revision: Option<u64>) -> ApplyOutcome {
    world.apply(&rollback(world, revision))
}

#[track_caller]
fn accept_rollback(world: &mut TestCluster, revision: Option<u64>) {
    world.accept(rollback(world, revision));
}

fn image(number: u32) -> ServiceSpec {
    let mut spec = spec("web", 1);
    spec.task.image = format!("demo:{number}").parse().unwrap();
    spec
}

fn known(world: &TestCluster) -> (Vec<u64>, u64) {
    let service = world.state.service(&service_id(1)).unwrap();
    (service.history.iter().map(|revision| revision.number).collect(), service.revision.number)
}

#[test]
fn only_task_changes_make_revision() {
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    let mut expected = spec("web", 3);
    expected.labels = [("tier".to_string(), "front".to_string())].into();
    let answer = world.accept(update(Some(2), expected.clone()));
    assert_eq!((&answer, known(&world)), (&world.service_answer(1, 3), (vec![], 1)));
    assert_eq!(world.apply(&update(Some(2), expected.clone())), ApplyOutcome::Unchanged { answer });
    expected.task.tty = true;
    assert!(world.refuse(update(Some(2), expected.clone())).contains("is at version 3, not 2"));
    world.accept(update(Some(3), expected.clone()));
    assert_eq!(known(&world), (vec![1], 2));
    expected.placement.max_per_node = Some(2);
    world.accept(update(None, expected));
    assert_eq!(known(&world), (vec![1, 2], 3));
}

#[test]
fn immutable_field_change_is_refused() {
    let mut world = TestCluster::new();
    world.service(1, spec("web", 1));
    let refusal = world.refuse(update(None, spec("api", 1)));
    assert_eq!(refusal, "spec.name: the service is called web; a name cannot be changed");
    let refusal = world.refuse(update(None, global("web")));
    let expected =
        "spec.mode: a replicated service stays replicated and a global one global; create a new service";
    assert_eq!(refusal, expected);
    let mut wrong = spec("web", 1);
    wrong.task.limits.memory = Some(Bytes(1));
    assert!(world.refuse(update(None, wrong)).starts_with("spec.task.limits.memory"));
    world.remove(1);
    assert!(world.refuse(update(None, image(2))).contains("is being removed"));
    assert!(refuse_rollback(&mut world, None).contains("is being removed"));
}

#[test]
fn a_rollback_makes_an_earlier_revision_the_current_one() {
    let mut world = TestCluster::new();
    world.service(1, image(1));
    assert!(refuse_rollback(&mut world, None).contains("has no earlier revision"));
    world.accept(update(None, image(2)));
    world.accept(update(None, image(3)));
    let refusal = refuse_rollback(&mut world, Some(9));
    assert!(refusal.starts_with("service web has no revision 9;"), "{refusal}");
    assert!(
        matches!(run_rollback(&mut world, Some(3)), ApplyOutcome::Unchanged { .. }),
        "it is the current one"
    );
    accept_rollback(&mut world, Some(1));
    let service = world.state.service(&service_id(1)).unwrap();
    assert_eq!(*service.spec, image(1));
    assert_eq!(known(&world), (vec![1, 2, 3], 4));
    accept_rollback(&mut world, None);
    assert_eq!(*world.state.service(&service_id(1)).unwrap().spec, image(3), "the one before");
}

#[test]
fn history_is_bounded_except_used_revisions() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, image(1));
    world.settle();
    for number in 2..=15 {
        world.accept(update(None, image(number)));
    }
    assert_eq!(known(&world), ([1].into_iter().chain(5..15).collect(), 15), "task 1 runs revision 1");
    assert_eq!(known(&world).0.len(), REVISION_HISTORY_LIMIT + 1);
    for _ in 0..5 {
        world.settle();
        world.clean_up();
    }
    world.scale(1, 0);
    world.settle();
    world.clean_up();
    world.advance_time(warren_types::LOG_RETENTION);
    world.reap(1);
    assert_eq!(known(&world), ((5..15).collect(), 15), "it goes with its last record");
}

#[test]
fn port_is_released_with_last_task() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, publishing("web", 1, 80));
    world.settle();
    world.accept(update(None, publishing("web", 1, 81)));
    let other =
        || Command::CreateService { id: service_id(2), spec: publishing("api", 0, 80), at: Timestamp(0) };
    assert!(world.refuse(other()).contains("host port 80 is already published by service web"));
    let new = Command::CreateService { id: service_id(3), spec: publishing("db", 0, 81), at: Timestamp(0) };
    assert!(world.refuse(new).contains("host port 81"));
    for _ in 0..4 {
        world.settle();
    }
    assert!(world.refuse(other()).contains("host port 80"), "it is not said to be removed yet");
    world.clean_up();
    world.accept(other());
    assert!(refuse_rollback(&mut world, None).contains("host port 80 is already published by service api"));
    assert!(world.refuse(update(None, publishing("web", 1, 80))).contains("service api"));
}

#[test]
fn rollback_keeps_port_while_tasks_hold_it() {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, publishing("web", 1, 80));
    world.settle();
    world.accept(update(None, spec("web", 1)));
    world.settle();
    accept_rollback(&mut world, None);
    for _ in 0..4 {
        world.settle();
        world.clean_up();
    }
    assert_eq!(world.live(1), [(1, 1)], "it was never replaced");
}

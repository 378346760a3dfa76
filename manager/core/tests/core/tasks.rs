//! Planned commands on tasks: each item is checked again, and what does not hold is left.

use std::time::Duration;

use warren_core::{Change, Command, NewTask, Outcome};
use warren_types::*;

use crate::world::*;

fn create(slots: &[u32]) -> Command {
    let slots = slots.iter().map(|slot| new_task(*slot)).collect();
    Command::CreateTasks { term: TERM, service: service_id(1), revision: 1, slots, at: Timestamp(0) }
}

fn assign(placements: &[(u64, u128)]) -> Command {
    let placements = placements.iter().map(|(task, node)| (task_id(1, *task), node_id(*node))).collect();
    Command::AssignTasks { term: TERM, placements, at: Timestamp(0) }
}

fn desire(tasks: &[u64], desired: Desired) -> Command {
    let tasks = tasks.iter().map(|task| task_id(1, *task)).collect();
    Command::SetDesired { term: TERM, tasks, desired, at: Timestamp(0) }
}

fn delete(tasks: &[u64]) -> Command {
    Command::DeleteTasks { term: TERM, tasks: tasks.iter().map(|task| task_id(1, *task)).collect() }
}

/// Numbers of the tasks that the command changed.
#[track_caller]
fn changed(world: &mut World, command: Command) -> Vec<u64> {
    match world.run(&command) {
        Outcome::Applied { changes, .. } => changes
            .into_iter()
            .filter_map(|change| if let Change::Task(task) = change { Some(task.number) } else { None })
            .collect(),
        Outcome::Unchanged { .. } => Vec::new(),
        Outcome::Rejected(refusal) => panic!("{refusal}"),
    }
}

#[test]
fn only_free_and_wanted_slots_get_tasks() {
    let mut world = World::new();
    world.service(1, spec("web", 3));
    assert_eq!(changed(&mut world, create(&[0, 1, 1, 3, 4])), [1, 2]);
    assert_eq!(world.live(1), [(1, 1), (3, 2)]);
    assert_eq!(changed(&mut world, create(&[0, 1, 1, 3, 4])), [0u64; 0]);
    let stale = Command::CreateTasks {
        term: TERM,
        service: service_id(1),
        revision: 2,
        slots: vec![],
        at: world.now,
    };
    assert_eq!(world.refuse(stale), "service web is at revision 1, not 2; plan again");
}

#[test]
fn placements_are_looked_at_again() {
    let mut world = World::with_nodes(3);
    world.service(1, reserving("web", 4, resources(0, 600)));
    world.accept(create(&[1, 2, 3, 4]));
    // Task 2 does not fit beside task 1, node 7 and task 9 do not exist.
    assert_eq!(changed(&mut world, assign(&[(1, 1), (2, 1), (3, 7), (9, 2), (4, 2)])), [1, 4]);
    assert_eq!(changed(&mut world, assign(&[(1, 2), (2, 1), (4, 1)])), [0u64; 0]);
    world.accept(desire(&[2], Desired::Remove));
    assert_eq!(changed(&mut world, assign(&[(2, 3)])), [0u64; 0], "it is not wanted any more");
    world.down(3);
    assert_eq!(changed(&mut world, assign(&[(3, 3)])), [0u64; 0]);
    world.connect(3);
    assert_eq!(changed(&mut world, assign(&[(3, 3)])), [3]);
}

#[test]
fn a_task_that_is_held_back_is_not_placed() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    let not_before = Some(world.now + Duration::from_secs(1));
    let slots = vec![NewTask { not_before, ..new_task(1) }];
    world.accept(Command::CreateTasks {
        term: TERM,
        service: service_id(1),
        revision: 1,
        slots,
        at: world.now,
    });
    let placements = vec![(task_id(1, 1), node_id(1))];
    let assign = |at| Command::AssignTasks { term: TERM, placements: placements.clone(), at };
    let now = world.now;
    assert_eq!(changed(&mut world, assign(now)), [0u64; 0]);
    assert_eq!(changed(&mut world, assign(now + Duration::from_secs(1))), [1]);
}

#[test]
fn a_freed_address_is_not_given_again_at_once() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 300));
    world.settle();
    let address = |world: &World, number| world.task(1, number).address.map(|address| address.octets());
    assert_eq!(address(&world, 1), Some([10, 0, 0, 2]));
    assert_eq!(address(&world, 253), Some([10, 0, 0, 254]));
    assert_eq!(address(&world, 254), None);
    world.scale(1, 252);
    world.settle();
    world.clean_up();
    world.observe(task_id(1, 5), TaskState::Failed);
    world.wait(Duration::from_secs(60));
    world.settle();
    assert_eq!(world.live(1)[4], (5, 301));
    assert_eq!(
        address(&world, 301),
        Some([10, 0, 0, 254]),
        "the address of task 5 is held until it is removed"
    );
    world.clean_up();
    assert_eq!(world.state.tasks_on(&node_id(1)).count(), 252);
}

#[test]
fn what_is_desired_only_goes_forward() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 2));
    world.settle();
    let assignment = |world: &World| world.state.assignment(&node_id(1)).unwrap();
    let before = assignment(&world).version;
    assert_eq!(changed(&mut world, desire(&[1, 9], Desired::Shutdown)), [1]);
    assert!(assignment(&world).version > before);
    assert_eq!(changed(&mut world, desire(&[1], Desired::Running)), [0u64; 0]);
    assert_eq!(changed(&mut world, desire(&[1], Desired::Shutdown)), [0u64; 0]);
    assert_eq!(changed(&mut world, desire(&[1, 2], Desired::Remove)), [1, 2]);
    let desires: Vec<_> = assignment(&world).tasks.iter().map(|task| task.desired).collect();
    assert_eq!(desires, [Desired::Remove; 2]);
}

#[test]
fn only_what_holds_nothing_is_forgotten() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 3));
    world.accept(create(&[1, 2, 3]));
    world.accept(assign(&[(1, 1), (2, 1)]));
    world.accept(desire(&[2, 3], Desired::Remove));
    // Task 1 is wanted, task 2 still holds its node, task 3 never had one.
    assert_eq!(changed(&mut world, delete(&[1, 2, 3, 9])), [3]);
    world.clean_up();
    assert_eq!(changed(&mut world, delete(&[1, 2, 3])), [2]);
    assert_eq!(changed(&mut world, delete(&[1, 2, 3])), [0u64; 0]);
    world.accept(create(&[2]));
    assert_eq!(world.live(1), [(1, 1), (2, 4)], "numbers are never given twice");
}

/// Otherwise the same command would mean another thing the second time: the task that it made is there to be replaced.
#[test]
fn a_slot_is_decided_on_once() {
    let mut world = World::new();
    world.service(1, spec("web", 2));
    let beside = NewTask { desired: Desired::Ready, replaces: Some(1), ..new_task(1) };
    let slots = vec![beside, new_task(1), new_task(2), new_task(2)];
    let command =
        Command::CreateTasks { term: TERM, service: service_id(1), revision: 1, slots, at: Timestamp(0) };
    assert_eq!(changed(&mut world, command.clone()), [1]);
    assert_eq!(changed(&mut world, command), [0; 0]);
    assert_eq!(world.live(1), [(2, 1)]);
}

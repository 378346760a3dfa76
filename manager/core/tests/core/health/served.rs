//! Whatever checks say in whatever order, a slot that is served stays served, and in the end all are.

use std::time::Duration;

use proptest::prelude::*;
use warren_types::Health::{Healthy, Starting, Unhealthy};
use warren_types::*;

use super::{all_healthy, check, healthy};
use crate::world::*;

#[derive(Debug, Clone)]
enum Happens {
    /// The checks of the task of that place among those that run say so.
    Check(usize, Health),
    Plan,
    Wait(u64),
    Update(u8),
    Down(u128),
    Back(u128),
}

fn happens() -> impl Strategy<Value = Happens> {
    let health = prop::sample::select(&[Starting, Healthy, Unhealthy, Unhealthy][..]);
    prop_oneof![
        6 => (0..9usize, health).prop_map(|(place, health)| Happens::Check(place, health)),
        6 => Just(Happens::Plan),
        2 => (1..20u64).prop_map(Happens::Wait),
        1 => (1..4u8).prop_map(Happens::Update),
        1 => (1..4u128).prop_map(Happens::Down),
        1 => (1..4u128).prop_map(Happens::Back),
    ]
}

fn serves(world: &World, id: &TaskId) -> bool {
    let task = world.state.task(id).unwrap();
    task.is_live() && task.lost_since().is_none() && task.observed.ready
}

/// What plans do to a slot: never more than two tasks, and none that serves goes before another one does.
fn plan(world: &mut World) {
    let serving: Vec<(u32, TaskId)> =
        world.state.tasks().filter(|task| serves(world, &task.id)).map(|task| (task.slot, task.id)).collect();
    world.settle();
    for (slot, id) in serving {
        let mut others = world.state.live_tasks(&service_id(1), slot);
        assert!(serves(world, &id) || others.any(|other| serves(world, &other.id)), "slot {slot} was served");
    }
    for slot in 1..4 {
        assert!(world.state.live_tasks(&service_id(1), slot).count() <= 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_slot_that_is_served_stays_so_and_in_the_end_all_are(steps in prop::collection::vec(happens(), 1..80)) {
        let mut world = healthy(3, spec("web", 3));
        for step in steps {
            match step {
                Happens::Check(place, health) => {
                    let runs = world.state.tasks().filter(|task| task.is_live() && task.lost_since().is_none());
                    let runs = runs.filter(|task| task.observed.state == TaskState::Running);
                    let runs: Vec<u64> = runs.map(|task| task.id.number).collect();
                    if !runs.is_empty() {
                        check(&mut world, runs[place % runs.len()], health);
                    }
                }
                Happens::Plan => plan(&mut world),
                Happens::Wait(seconds) => world.wait(Duration::from_secs(seconds)),
                Happens::Update(image) => drop(world.update_image(1, &format!("demo:{image}"))),
                Happens::Down(node) => world.down(node),
                Happens::Back(node) => drop(world.connect(node)),
            }
            world.clean_up();
        }
        for node in 1..4 {
            world.connect(node);
        }
        for _ in 0..20 {
            world.wait(Duration::from_secs(300));
            plan(&mut world);
            all_healthy(&mut world);
            world.clean_up();
            world.reap(1);
        }
        prop_assert!(world.reconcile(1).is_empty());
        let counts = world.state.counts(&service_id(1));
        prop_assert_eq!((counts.live, counts.ready), (3, 3));
    }
}

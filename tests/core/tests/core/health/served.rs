//! With any order of check results, a slot that serves keeps serving, and in the end all do.

use std::time::Duration;

use proptest::prelude::*;
use warren_testkit::soak;
use warren_types::Health::{Healthy, Starting, Unhealthy};
use warren_types::*;

use super::{all_healthy, check, healthy};
use crate::test_cluster::*;

#[derive(Debug, Clone)]
enum SlotEvent {
    /// The running task with that index reports this health.
    Check(usize, Health),
    Plan,
    Wait(u64),
    Update(u8),
    Down(u128),
    Back(u128),
}

fn happens() -> impl Strategy<Value = SlotEvent> {
    let health = prop::sample::select(&[Starting, Healthy, Unhealthy, Unhealthy][..]);
    prop_oneof![
        6 => (0..9usize, health).prop_map(|(place, health)| SlotEvent::Check(place, health)),
        6 => Just(SlotEvent::Plan),
        2 => (1..20u64).prop_map(SlotEvent::Wait),
        1 => (1..4u8).prop_map(SlotEvent::Update),
        1 => (1..4u128).prop_map(SlotEvent::Down),
        1 => (1..4u128).prop_map(SlotEvent::Back),
    ]
}

fn serves(cluster: &TestCluster, id: &TaskId) -> bool {
    let task = cluster.state.task(id).unwrap();
    task.is_live() && task.lost_since().is_none() && task.observed.ready
}

/// What plans do to a slot: never more than two tasks, and none that serves is removed before another one
/// does.
fn plan(cluster: &mut TestCluster) {
    let serving: Vec<(u32, TaskId)> = cluster
        .state
        .tasks()
        .filter(|task| serves(cluster, &task.id))
        .map(|task| (task.slot, task.id))
        .collect();
    cluster.settle();
    for (slot, id) in serving {
        let mut others = cluster.state.live_tasks(&service_id(1), slot);
        assert!(
            serves(cluster, &id) || others.any(|other| serves(cluster, &other.id)),
            "slot {slot} was served"
        );
    }
    for slot in 1..4 {
        assert!(cluster.state.live_tasks(&service_id(1), slot).count() <= 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak::count(64, 1000) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn served_slot_stays_served(steps in prop::collection::vec(happens(), 1..80)) {
        let mut cluster = healthy(3, spec("web", 3));
        for step in steps {
            match step {
                SlotEvent::Check(place, health) => {
                    let runs = cluster.state.tasks().filter(|task| task.is_live() && task.lost_since().is_none());
                    let runs = runs.filter(|task| task.observed.state == TaskState::Running);
                    let runs: Vec<u64> = runs.map(|task| task.id.number).collect();
                    if !runs.is_empty() {
                        check(&mut cluster, runs[place % runs.len()], health);
                    }
                }
                SlotEvent::Plan => plan(&mut cluster),
                SlotEvent::Wait(seconds) => cluster.advance_time(Duration::from_secs(seconds)),
                SlotEvent::Update(image) => drop(cluster.update_image(1, &format!("demo:{image}"))),
                SlotEvent::Down(node) => cluster.set_down(node),
                SlotEvent::Back(node) => drop(cluster.connect(node)),
            }
            cluster.clean_up();
        }
        for node in 1..4 {
            cluster.connect(node);
        }
        for _ in 0..20 {
            cluster.advance_time(Duration::from_secs(300));
            plan(&mut cluster);
            all_healthy(&mut cluster);
            cluster.clean_up();
            cluster.reap(1);
        }
        prop_assert!(cluster.reconcile(1).is_empty());
        let counts = cluster.state.task_counts(&service_id(1));
        prop_assert_eq!((counts.live, counts.ready), (3, 3));
    }
}

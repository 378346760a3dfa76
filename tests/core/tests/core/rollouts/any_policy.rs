//! With any policy and any outcome: an update goes back at most once, no plan takes more slots out of service
//! than ordered, and in the end all slots are served.

use std::time::Duration;

use proptest::prelude::*;
use warren_testkit::soak;
use warren_types::strategies::update_policies;
use warren_types::*;

use super::{fail, progress, reject, service};
use crate::test_cluster::*;

#[derive(Debug, Clone)]
enum Event {
    Plan,
    Wait(u64),
    /// The live task with that index runs, fails, or is rejected.
    Run(usize),
    Fail(usize),
    Reject(usize),
    Update(u8),
    Resume,
    Rollback,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Plan),
        3 => (1..20u64).prop_map(Event::Wait),
        8 => (0..9usize).prop_map(Event::Run),
        2 => (0..9usize).prop_map(Event::Fail),
        1 => (0..9usize).prop_map(Event::Reject),
        1 => (1..4u8).prop_map(Event::Update),
        1 => Just(Event::Resume),
        1 => Just(Event::Rollback),
    ]
}

fn short(mut policy: UpdatePolicy) -> UpdatePolicy {
    let cut = |period: Duration| Duration::from_millis(period.as_millis() as u64 % 20_000);
    (policy.delay, policy.monitor) = (cut(policy.delay), cut(policy.monitor));
    policy
}

fn specs() -> impl Strategy<Value = ServiceSpec> {
    (1..5u32, prop::bool::weighted(0.3), update_policies(), update_policies()).prop_map(
        |(replicas, with_volume, update, rollback)| {
            let mut spec = spec("web", replicas);
            (spec.update, spec.rollback) = (short(update), short(rollback));
            if with_volume {
                spec.task.mounts = with_volumes("web", 1, &["data-{{.Task.Slot}}"]).task.mounts;
                (spec.update.order, spec.rollback.order) = (None, None);
            }
            spec.rollback.on_failure = spec.rollback.on_failure.filter(|it| *it != FailureAction::Rollback);
            spec
        },
    )
}

fn serves(task: &Task) -> bool {
    task.is_live() && task.desired == DesiredTaskState::Running && task.observed.ready
}

fn served_slots(cluster: &TestCluster) -> usize {
    let live = cluster.live(1);
    let served: std::collections::BTreeSet<u32> =
        live.iter().filter(|(_, number)| serves(cluster.task(1, *number))).map(|(slot, _)| *slot).collect();
    served.len()
}

/// One plan: it never takes more slots out of service than the order and the parallelism allow.
fn plan(cluster: &mut TestCluster) {
    let before = served_slots(cluster);
    cluster.reconcile(1);
    let now = service(cluster);
    let policy = now.rollout_policy();
    let stops_first = policy.order == Some(UpdateOrder::StopFirst) || now.revision.task.writes_to_volumes();
    let allowed = match stops_first {
        true => policy.parallelism.slots(now.spec.replicas().unwrap()) as usize,
        false => 0,
    };
    let lost = before.saturating_sub(served_slots(cluster));
    assert!(lost <= allowed, "{lost} slots of {} were taken out of service: {policy:?}", before);
    cluster.schedule();
    cluster.clean_up();
    cluster.reap(1);
}

/// The live tasks that nodes have been given.
fn placed(cluster: &TestCluster) -> Vec<u64> {
    let live = cluster.live(1).into_iter().map(|(_, number)| number);
    live.filter(|number| cluster.task(1, *number).node.is_some()).collect()
}

fn run(cluster: &mut TestCluster, number: u64) {
    let task = cluster.task(1, number);
    let attempt = task.observed.attempt;
    match (task.desired, task.observed.state) {
        (_, TaskState::Running) => {}
        (DesiredTaskState::Ready, _) => cluster.report(report(task_id(1, number), attempt, TaskState::Ready)),
        _ => cluster.report(report(task_id(1, number), attempt.max(1), TaskState::Running)),
    }
}

fn end(cluster: &mut TestCluster, index: usize, how: fn(&mut TestCluster, u64)) {
    let placed = placed(cluster);
    let Some(number) = placed.get(index % placed.len().max(1)) else { return };
    if cluster.task(1, *number).desired == DesiredTaskState::Running {
        how(cluster, *number);
    }
}

fn step(cluster: &mut TestCluster, event: Event) {
    let (id, at) = (service_id(1), cluster.now);
    match event {
        Event::Plan => plan(cluster),
        Event::Wait(seconds) => cluster.advance_time(Duration::from_secs(seconds)),
        Event::Run(index) => {
            let placed = placed(cluster);
            placed.get(index % placed.len().max(1)).into_iter().for_each(|number| run(cluster, *number));
        }
        Event::Fail(index) => end(cluster, index, fail),
        Event::Reject(index) => end(cluster, index, reject),
        Event::Update(image) => drop(cluster.update_image(1, &format!("demo:{image}"))),
        Event::Resume => drop(cluster.apply(&warren_core::Command::ResumeRollout { id, version: None, at })),
        Event::Rollback => {
            let version = Some(cluster.version(1));
            drop(cluster.apply(&warren_core::Command::RollbackService { id, version, revision: None, at }));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak::count(64, 1000) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn update_goes_back_at_most_once(spec in specs(), events in prop::collection::vec(events(), 1..90)) {
        let mut cluster = TestCluster::with_nodes(3);
        cluster.service(1, spec);
        // Revisions that managers made, since the last one that a user requested.
        let mut made = 0;
        for event in events {
            let (before, by_user) = (service(&cluster).revision.number, !matches!(event, Event::Plan));
            step(&mut cluster, event);
            let after = service(&cluster).revision.number;
            match by_user {
                true if after != before => made = 0,
                true => {}
                false => made += after - before,
            }
            prop_assert!(made <= 1, "{:?}", progress(&cluster));
        }
        for _ in 0..60 {
            cluster.advance_time(Duration::from_secs(400));
            plan(&mut cluster);
            placed(&cluster).into_iter().for_each(|number| run(&mut cluster, number));
        }
        let (counts, progress) = (cluster.state.task_counts(&service_id(1)), progress(&cluster));
        prop_assert_eq!((counts.ready, counts.live), (progress.total, progress.total), "{:?}", progress);
        prop_assert!(cluster.reconcile(1).is_empty());
        let done = progress.stop_reason.is_some() || progress.updated == progress.total;
        prop_assert!(done, "{progress:?}");
    }
}

//! Policies of updates: when a task counts as ready, how many slots at a time, in which order, and what
//! follows a failure.

mod any_policy;

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::{Rollout, RolloutState, rollout, settling_time};
use warren_types::*;

use crate::test_cluster::*;

/// A service whose first revision is good.
fn good(nodes: u128, spec: ServiceSpec) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(nodes);
    cluster.service(1, spec);
    settle_down(&mut cluster);
    assert_eq!(service(&cluster).rollout.good_revision, 1);
    cluster
}

/// Runs all planners and workers for a while.
fn settle_down(cluster: &mut TestCluster) {
    for _ in 0..4 {
        cluster.settle();
        cluster.clean_up();
        cluster.advance_time(SETTLED);
    }
    cluster.reconcile(1);
}

fn service(cluster: &TestCluster) -> &Service {
    cluster.state.service(&service_id(1)).unwrap()
}

fn progress(cluster: &TestCluster) -> Rollout {
    rollout(&cluster.state, service(cluster), cluster.now)
}

/// The task's program exited with code 1, as often as its worker restarts it.
fn fail(cluster: &mut TestCluster, number: u64) {
    let exit = Some(TaskExit { code: 1, out_of_memory: false });
    let reason = "exited with code 1".to_owned();
    cluster.report(TaskReport { exit, reason, ..report(task_id(1, number), 4, TaskState::Failed) });
}

/// The node cannot run the task.
fn reject(cluster: &mut TestCluster, number: u64) {
    let reason = "command \"x\" is not in the image".to_owned();
    cluster.report(TaskReport { reason, ..report(task_id(1, number), 1, TaskState::Rejected) });
}

/// Slots of which a task is being replaced by one of the current revision.
fn replaced_now(cluster: &TestCluster) -> usize {
    let current = service(cluster).revision.number;
    let live = cluster.live(1);
    let is_new = |(_, number): &&(u32, u64)| cluster.task(1, *number).revision.number == current;
    live.iter().filter(is_new).filter(|(_, number)| !cluster.task(1, *number).observed.ready).count()
}

#[test]
fn task_without_health_check_settles_for_monitor_period() {
    let mut spec = spec("web", 1);
    spec.update.monitor = Duration::from_secs(7);
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec);
    cluster.reconcile(1);
    let settling = |cluster: &TestCluster| settling_time(service(cluster), cluster.task(1, 1), cluster.now);
    cluster.schedule();
    assert_eq!(settling(&cluster), None, "it does not run");
    cluster.observe(task_id(1, 1), TaskState::Running);
    assert_eq!(settling(&cluster), Some(Duration::from_secs(7)));
    cluster.advance_time(Duration::from_secs(5));
    assert_eq!(settling(&cluster), Some(Duration::from_secs(2)));
    assert_eq!(cluster.reconcile(1).recheck_after, Some(Duration::from_secs(2)));
    // Its program exits, with whatever code, and is started again.
    cluster.report(TaskReport { ready: false, ..report(task_id(1, 1), 2, TaskState::Starting) });
    assert_eq!(settling(&cluster), None);
    cluster.report(report(task_id(1, 1), 2, TaskState::Running));
    assert_eq!(settling(&cluster), Some(Duration::from_secs(7)));
    assert_eq!(progress(&cluster).state, RolloutState::Updating);
    cluster.advance_time(Duration::from_secs(7));
    assert_eq!(settling(&cluster), Some(Duration::ZERO));
    cluster.reconcile(1);
    assert_eq!(progress(&cluster).state, RolloutState::Completed);
}

#[test]
fn healthy_task_counts_immediately() {
    for change in [
        (|spec| spec.task.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }))) as fn(&mut ServiceSpec),
        |spec| spec.update.monitor = Duration::ZERO,
    ] {
        let mut spec = spec("web", 1);
        change(&mut spec);
        let mut cluster = TestCluster::with_nodes(1);
        cluster.service(1, spec);
        cluster.settle();
        assert_eq!(settling_time(service(&cluster), cluster.task(1, 1), cluster.now), Some(Duration::ZERO));
        cluster.reconcile(1);
        assert_eq!(progress(&cluster).state, RolloutState::Completed);
    }
}

#[test]
fn failed_update_goes_back_to_the_good_revision() {
    let mut cluster = good(2, spec("web", 3));
    cluster.update_image(1, "demo:2");
    cluster.settle();
    fail(&mut cluster, 4);
    let plan = cluster.reconcile(1);
    assert_eq!(plan.commands.len(), 3, "the failure, the removal of the new task, completed: {plan:?}");
    let now = service(&cluster);
    assert_eq!((now.revision.number, now.spec.task.image.as_str()), (3, "demo:1"));
    assert_eq!(cluster.live(1), [(1, 1), (2, 2), (3, 3)], "tasks that kept running are not replaced");
    let Rollout { state, rolled_back, stop_reason, failed_task, .. } = progress(&cluster);
    assert_eq!((state, stop_reason), (RolloutState::RolledBack, None));
    assert_eq!(failed_task, Some(task_id(1, 4)));
    let rolled_back = rolled_back.unwrap();
    assert_eq!((rolled_back.failed, rolled_back.restored), (2, 1));
    let expected = "web.1 failed: exited with code 1; revision 2 was rolled back: the service runs revision 1 \
                    again, as 3";
    assert_eq!(rolled_back.reason, expected);
    // There is nothing before the revision that runs again, and the failed one is not it.
    let (id, at, version) = (service_id(1), cluster.now, Some(cluster.version(1)));
    let refusal = cluster.refuse(warren_core::Command::RollbackService { id, version, revision: None, at });
    assert!(refusal.contains("no earlier revision"), "{refusal}");
    // The next update that fails goes back once more, and no further.
    cluster.update_image(1, "demo:3");
    assert_eq!(progress(&cluster).rolled_back, None);
    cluster.settle();
    reject(&mut cluster, 5);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 5);
    let rolled_back = progress(&cluster).rolled_back.unwrap();
    assert_eq!((rolled_back.failed, rolled_back.restored), (4, 3));
}

#[test]
fn rollback_keeps_tasks_beside_running_ones_of_the_failed_revision() {
    let mut two_at_a_time = spec("web", 3);
    two_at_a_time.update.parallelism = "2".parse().unwrap();
    let mut cluster = good(2, two_at_a_time.clone());
    two_at_a_time.task.image = "demo:2".parse().unwrap();
    cluster.update(1, two_at_a_time);
    cluster.settle();
    cluster.settle();
    assert_eq!(cluster.live(1), [(1, 1), (1, 4), (2, 2), (2, 5), (3, 3)]);
    assert!(cluster.task(1, 4).observed.ready && cluster.task(1, 5).observed.ready, "settling");
    fail(&mut cluster, 4);
    for _ in 0..4 {
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(cluster.live(1), [(1, 1), (2, 2), (3, 3)]);
}

#[test]
fn failed_rollback_is_paused() {
    let mut cluster = good(1, with_volumes("db", 1, &["data"]));
    cluster.update_image(1, "db:2");
    cluster.settle();
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.reconcile(1);
    reject(&mut cluster, 2);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 3, "{:?}", progress(&cluster));
    assert_eq!(progress(&cluster).state, RolloutState::RollingBack);
    let rolled_back = progress(&cluster).rolled_back.unwrap();
    let expected = "db.1 was rejected: command \"x\" is not in the image; revision 2 is being rolled back to \
                    revision 1, as 3";
    assert_eq!(rolled_back.reason, expected);
    cluster.schedule();
    fail(&mut cluster, 3);
    cluster.reconcile(1);
    let Rollout { state, stop_reason, rolled_back, .. } = progress(&cluster);
    assert_eq!((state, rolled_back.map(|it| it.failed)), (RolloutState::RollbackPaused, Some(2)));
    let why = stop_reason.unwrap();
    assert!(
        why.contains("the rollback is paused; it is not rolled back again; no task is ready now"),
        "{why}"
    );
    assert_eq!(service(&cluster).revision.number, 3);
    // Its slot is still tried again.
    cluster.advance_time(Duration::from_secs(3600));
    settle_down(&mut cluster);
    assert_eq!(cluster.state.task_counts(&service_id(1)).ready, 1);
    assert_eq!(progress(&cluster).state, RolloutState::RollbackPaused, "until somebody looks at it");
}

#[test]
fn update_that_may_have_changed_data_is_paused() {
    let mut cluster = good(1, with_volumes("db", 1, &["data"]));
    cluster.update_image(1, "db:2");
    cluster.settle();
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.reconcile(1);
    cluster.observe(task_id(1, 2), TaskState::Running);
    fail(&mut cluster, 2);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 2);
    let why = progress(&cluster).stop_reason.unwrap();
    let expected = "db.1 failed: exited with code 1; the update is paused, and not rolled back, because a task of \
                    revision 2 ran and may have changed the data of its volumes (--update-on-failure rollback would \
                    go back all the same); no task is ready now; fix it with";
    assert!(why.starts_with(expected), "{why}");
    // Who asks for it gets it.
    let mut spec = with_volumes("db", 1, &["data"]);
    spec.update.on_failure = Some(FailureAction::Rollback);
    let mut cluster = good(1, spec);
    cluster.update_image(1, "db:2");
    cluster.settle();
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.reconcile(1);
    fail(&mut cluster, 2);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 3);
}

#[test]
fn update_without_good_revision_is_paused() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.reconcile(1);
    cluster.schedule();
    fail(&mut cluster, 1);
    cluster.reconcile(1);
    assert_eq!(progress(&cluster).state, RolloutState::Updating, "a new service has nothing to go back to");
    cluster.update_image(1, "demo:2");
    cluster.reconcile(1);
    cluster.schedule();
    let newest = cluster.live(1)[0].1;
    fail(&mut cluster, newest);
    cluster.reconcile(1);
    let why = progress(&cluster).stop_reason.unwrap();
    assert!(why.contains("not rolled back, because no earlier revision was ready"), "{why}");
}

#[test]
fn update_to_a_removed_secret_version_is_not_rolled_back() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.secret(1, "key", 1);
    cluster.service(1, with_secrets("web", 1, &["key"]));
    settle_down(&mut cluster);
    // The failed update is the new version of the secret; the rollback takes the old one back.
    cluster.update_secret(1, 2);
    cluster.settle();
    fail(&mut cluster, 2);
    cluster.reconcile(1);
    let now = service(&cluster);
    assert_eq!((now.revision.number, now.revision.secret_objects[0].number), (3, 1));
    assert_eq!(progress(&cluster).state, RolloutState::RolledBack);
}

#[test]
fn resumed_update_continues_and_counts_anew() {
    let mut cluster = good(2, pausing(spec("web", 2)));
    cluster.update_image(1, "demo:2");
    cluster.settle();
    fail(&mut cluster, 3);
    settle_down(&mut cluster);
    assert_eq!((progress(&cluster).state, cluster.live(1)), (RolloutState::Paused, vec![(1, 1), (2, 2)]));
    let resume = |cluster: &mut TestCluster, version| {
        let (id, at) = (service_id(1), cluster.now);
        cluster.apply(&warren_core::Command::ResumeRollout { id, version, at })
    };
    cluster.advance_time(Duration::from_secs(1));
    let stale = resume(&mut cluster, Some(1));
    assert!(matches!(stale, warren_core::ApplyOutcome::Rejected(_)), "{stale:?}");
    resume(&mut cluster, None);
    assert_eq!(progress(&cluster).state, RolloutState::Updating);
    let again = resume(&mut cluster, Some(1));
    assert!(matches!(again, warren_core::ApplyOutcome::Unchanged { .. }), "{again:?}");
    for _ in 0..4 {
        cluster.advance_time(Duration::from_secs(60));
        settle_down(&mut cluster);
    }
    assert_eq!((progress(&cluster).state, progress(&cluster).updated), (RolloutState::Completed, 2));
}

#[test]
fn parallelism_bounds_slots_at_a_time() {
    for (parallelism, expected) in [("1", 1), ("4", 4), ("50%", 3), ("10%", 1), ("0", 6), ("100%", 6)] {
        for order in [UpdateOrder::StartFirst, UpdateOrder::StopFirst] {
            let mut spec = spec("web", 6);
            (spec.update.parallelism, spec.update.order) = (parallelism.parse().unwrap(), Some(order));
            let mut cluster = good(3, spec);
            cluster.update_image(1, "demo:2");
            let mut most = 0;
            for _ in 0..80 {
                cluster.settle();
                most = most.max(replaced_now(&cluster));
                cluster.clean_up();
                let unserved = 6 - cluster.state.task_counts(&service_id(1)).ready.min(6);
                let allowed = if order == UpdateOrder::StartFirst { 0 } else { expected };
                assert!(
                    unserved as usize <= allowed,
                    "{unserved} slots are not served: {parallelism} {order:?}"
                );
                cluster.advance_time(SETTLED);
            }
            assert_eq!(most, expected, "{parallelism} {order:?}");
            let progress = progress(&cluster);
            assert_eq!(progress.state, RolloutState::Completed, "{parallelism} {order:?} {progress:?}");
        }
    }
}

#[test]
fn delay_separates_replacements() {
    for order in UpdateOrder::ALL {
        let mut spec = spec("web", 3);
        (spec.update.delay, spec.update.order) = (Duration::from_secs(60), Some(order));
        let mut cluster = good(2, spec);
        cluster.update_image(1, "demo:2");
        let begin = cluster.now;
        let mut updated_at = Vec::new();
        for _ in 0..300 {
            cluster.reconcile(1);
            cluster.schedule();
            let starting: Vec<TaskId> =
                cluster.state.tasks().filter(|task| task.is_live()).map(|task| task.id).collect();
            for id in starting {
                let task = cluster.task(1, id.number);
                match task.desired {
                    _ if task.node.is_none() || task.observed.state == TaskState::Running => {}
                    DesiredTaskState::Ready => cluster.report(report(id, 0, TaskState::Ready)),
                    _ => cluster.observe(id, TaskState::Running),
                }
            }
            cluster.clean_up();
            let updated = service(&cluster).rollout.updated;
            if updated as usize > updated_at.len() {
                updated_at.push(cluster.now.saturating_since(begin).as_secs());
            }
            cluster.advance_time(Duration::from_secs(1));
        }
        let gaps: Vec<u64> = updated_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(progress(&cluster).state, RolloutState::Completed, "{order:?} {updated_at:?}");
        assert!(gaps.iter().all(|gap| *gap >= 63), "{order:?}: delay and monitor, {updated_at:?}");
    }
}

#[test]
fn delay_is_shown() {
    let mut spec = spec("web", 2);
    spec.update.delay = Duration::from_secs(60);
    let mut cluster = good(2, spec);
    cluster.update_image(1, "demo:2");
    (0..4).for_each(|_| cluster.settle());
    let waits = progress(&cluster).waiting_reason.unwrap();
    assert!(waits.starts_with("the next task is replaced at 2026-11-20T14:3"), "{waits}");
    let wait = cluster.reconcile(1).recheck_after.unwrap();
    cluster.advance_time(wait);
    assert!(!cluster.reconcile(1).is_empty());
}

#[test]
fn stop_first_stops_before_it_starts() {
    let mut spec = spec("web", 1);
    spec.update.order = Some(UpdateOrder::StopFirst);
    let mut cluster = good(1, spec);
    cluster.update_image(1, "demo:2");
    cluster.reconcile(1);
    cluster.schedule();
    assert!(cluster.reconcile(1).is_empty(), "the old one stays until the new one is prepared");
    cluster.report(report(task_id(1, 2), 0, TaskState::Ready));
    cluster.reconcile(1);
    assert_eq!((cluster.live(1), cluster.task(1, 2).desired), (vec![(1, 2)], DesiredTaskState::Ready));
    cluster.observe(task_id(1, 1), TaskState::Shutdown);
    cluster.reconcile(1);
    assert_eq!(cluster.task(1, 2).desired, DesiredTaskState::Running);
}

#[test]
fn stop_first_update_fits_on_a_full_node() {
    let mut spec = reserving("web", 1, resources(0, 600));
    let mut waiting = good(1, spec.clone());
    spec.update.order = Some(UpdateOrder::StopFirst);
    let mut cluster = good(1, spec);
    for cluster in [&mut waiting, &mut cluster] {
        cluster.update_image(1, "demo:2");
        cluster.reconcile(1);
        cluster.schedule();
        assert_eq!(cluster.task(1, 2).node, None);
    }
    assert_eq!(cluster.reconcile(1).recheck_after, Some(Duration::from_secs(2)));
    for cluster in [&mut waiting, &mut cluster] {
        cluster.advance_time(Duration::from_secs(2));
        settle_down(cluster);
    }
    assert_eq!((waiting.live(1), progress(&waiting).state), (vec![(1, 1), (1, 2)], RolloutState::Updating));
    assert_eq!((cluster.live(1), progress(&cluster).state), (vec![(1, 2)], RolloutState::Completed));
}

#[test]
fn tolerated_failures_do_not_stop_update() {
    for (ratio, action) in [(250, None), (0, Some(FailureAction::Continue))] {
        let mut spec = spec("web", 4);
        (spec.update.failure_ratio, spec.update.on_failure) = (FailureRatio(ratio), action);
        let mut cluster = good(2, spec);
        cluster.update_image(1, "demo:2");
        cluster.settle();
        fail(&mut cluster, 5);
        for _ in 0..12 {
            cluster.settle();
            cluster.clean_up();
        }
        assert_eq!(progress(&cluster).stop_reason, None);
        assert_eq!((service(&cluster).revision.number, progress(&cluster).updated), (2, 4));
    }
    // One more than the ratio allows.
    let mut spec = spec("web", 4);
    (spec.update.failure_ratio, spec.update.parallelism) = (FailureRatio(250), Parallelism::Slots(2));
    let mut cluster = good(2, spec);
    cluster.update_image(1, "demo:2");
    cluster.settle();
    fail(&mut cluster, 5);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 2);
    fail(&mut cluster, 6);
    cluster.reconcile(1);
    assert_eq!(service(&cluster).revision.number, 3);
}

#[test]
fn parallelism_bounds_stopped_slots_after_tolerated_failures() {
    let mut spec = spec("web", 4);
    spec.update.order = Some(UpdateOrder::StopFirst);
    spec.update.on_failure = Some(FailureAction::Continue);
    let mut cluster = good(2, spec);
    cluster.update_image(1, "demo:2");
    let mut failed_slots = BTreeSet::new();
    while failed_slots.len() < 4 {
        cluster.reconcile(1);
        cluster.schedule();
        for (slot, number) in cluster.live(1) {
            let task = cluster.task(1, number);
            if task.desired == DesiredTaskState::Ready && task.node.is_some() {
                reject(&mut cluster, number);
                failed_slots.insert(slot);
            }
        }
        cluster.advance_time(SETTLED);
    }
    for _ in 0..40 {
        cluster.settle();
        cluster.clean_up();
        let ready = cluster.state.task_counts(&service_id(1)).ready;
        assert!(ready >= 3, "{} slots are not served", 4 - ready);
        cluster.advance_time(SETTLED);
    }
    assert_eq!(progress(&cluster).state, RolloutState::Completed);
}

#[test]
fn rollback_follows_its_own_policy() {
    let mut spec = spec("web", 4);
    spec.update.parallelism = Parallelism::Slots(1);
    (spec.rollback.parallelism, spec.rollback.monitor) = (Parallelism::Slots(0), Duration::from_secs(20));
    let mut cluster = good(2, spec);
    cluster.update_image(1, "demo:2");
    (0..6).for_each(|_| settle_down(&mut cluster));
    assert_eq!(progress(&cluster).state, RolloutState::Completed);
    cluster.rollback(1, None);
    cluster.settle();
    assert_eq!(replaced_now(&cluster), 4);
    cluster.settle();
    assert_eq!(cluster.reconcile(1).recheck_after, Some(Duration::from_secs(20)));
    assert_eq!(progress(&cluster).state, RolloutState::RollingBack);
}

#[test]
fn failure_after_the_update_does_not_roll_back() {
    let mut cluster = good(2, spec("web", 2));
    cluster.update_image(1, "demo:2");
    (0..4).for_each(|_| settle_down(&mut cluster));
    assert_eq!(progress(&cluster).state, RolloutState::Completed);
    let newest = cluster.live(1)[1].1;
    fail(&mut cluster, newest);
    cluster.reconcile(1);
    assert_eq!((service(&cluster).revision.number, progress(&cluster).stop_reason), (2, None));
}

#[test]
fn good_revision_is_kept_beyond_the_history() {
    let mut cluster = good(2, pausing(spec("web", 1)));
    for image in 2..20 {
        cluster.update_image(1, &format!("demo:{image}"));
    }
    assert!(service(&cluster).history.iter().any(|known| known.number == 1));
}

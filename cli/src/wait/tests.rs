use super::*;
use warren_types::TaskState;

const ID: &str = "3k2v9x0000000000000000abc";

fn service(replicas: i64) -> v1::Service {
    let mode = v1::service_spec::Mode::Replicated(v1::Replicated { replicas });
    let spec = v1::ServiceSpec { name: "web".into(), mode: Some(mode), ..Default::default() };
    v1::Service { id: ID.into(), spec: Some(spec), revision: 1, ..Default::default() }
}

fn task(number: u64, slot: u32, state: TaskState) -> v1::Task {
    v1::Task {
        id: format!("{ID}-{number}"),
        service_name: "web".into(),
        slot,
        revision: 1,
        node_name: "node-1".into(),
        desired: v1::DesiredTaskState::Running.into(),
        state: v1::TaskState::from(state).into(),
        attempt: 1,
        ready: state == TaskState::Running,
        ..Default::default()
    }
}

#[track_caller]
fn check(replicas: i64, tasks: Vec<v1::Task>, expected: WaitOutcome) {
    let service = service(replicas);
    let running = ServiceGoal::new(&service, WaitGoal::Running);
    assert_eq!(ServiceSnapshot::of(service, tasks).evaluate(&running), expected);
}

#[test]
fn goal_needs_every_slot_ready_and_no_extra_task() {
    use TaskState::{Running, Shutdown, Starting};
    check(0, vec![], WaitOutcome::Reached);
    check(2, vec![task(1, 1, Running)], WaitOutcome::Waiting);
    check(2, vec![task(1, 1, Running), task(2, 2, Starting)], WaitOutcome::Waiting);
    check(2, vec![task(1, 1, Running), task(2, 2, Running)], WaitOutcome::Reached);
    // Two in one slot are not two slots.
    check(2, vec![task(1, 1, Running), task(2, 1, Running)], WaitOutcome::Waiting);
    // Scaled down: the third is still stopping, then gone.
    check(1, vec![task(1, 1, Running), task(2, 2, Shutdown)], WaitOutcome::Waiting);
    let gone = v1::Task { removed: true, ..task(2, 2, Shutdown) };
    check(1, vec![task(1, 1, Running), gone], WaitOutcome::Reached);
    // An old task of a slot does not matter once the new one serves.
    check(1, vec![task(1, 1, Shutdown), task(2, 1, Running)], WaitOutcome::Reached);
}

#[test]
fn running_task_may_be_not_ready() {
    let running = || task(1, 1, TaskState::Running);
    check(1, vec![v1::Task { ready: false, ..running() }], WaitOutcome::Waiting);
    check(1, vec![v1::Task { lost_since: Some(5), ..running() }], WaitOutcome::Waiting);
    check(
        1,
        vec![v1::Task { desired: v1::DesiredTaskState::Shutdown.into(), ..running() }],
        WaitOutcome::Waiting,
    );
    let other = Some(v1::TaskSpec { image: "other".into(), ..Default::default() });
    check(1, vec![v1::Task { revision: 0, spec: other, ..running() }], WaitOutcome::Waiting);
}

#[test]
fn settling_task_is_not_ready() {
    let settling = v1::Task { settles_in_ms: 2500, ..task(1, 1, TaskState::Running) };
    check(1, vec![settling.clone()], WaitOutcome::Waiting);
    let expected = ServiceGoal::new(&service(2), WaitGoal::Running);
    let mut picture = ServiceSnapshot::of(service(2), vec![settling, task(2, 2, TaskState::Running)]);
    assert_eq!(picture.settling_time(), Some(Duration::from_millis(2500)));
    assert_eq!(picture.summary(&expected), "service web: 1 of 2 ready, 1 settling");
    let line = "RUNNING on node-1, settling for 3s more".to_owned();
    assert_eq!(picture.waiting_for(WaitGoal::Running), [("web.1".to_owned(), line)]);
    // Its program ends with any code, and is started again.
    picture.update(Change::Task(v1::Task { attempt: 2, ..task(1, 1, TaskState::Starting) }));
    assert_eq!((picture.settling_time(), picture.evaluate(&expected)), (None, WaitOutcome::Waiting));
    picture.update(Change::Task(v1::Task { attempt: 2, ..task(1, 1, TaskState::Running) }));
    assert_eq!(picture.evaluate(&expected), WaitOutcome::Reached);
}

#[test]
fn rolled_back_update_fails_after_the_rollback() {
    let expected = ServiceGoal::new(&at(3, None), WaitGoal::Updated);
    let back = |state: v1::RolloutState, stop_reason: &str| {
        let rollout = v1::Rollout {
            updated: 1,
            total: 2,
            state: state.into(),
            stop_reason: stop_reason.to_owned(),
            rollback_reason: "web.1 failed; revision 3 was rolled back".to_owned(),
            failed_revision: 3,
            restored_revision: 2,
            failed_task: format!("{ID}-8"),
            ..Default::default()
        };
        ServiceSnapshot::of(at(4, Some(rollout)), vec![])
    };
    let broken = |why: &[&str]| WaitOutcome::Failed(why.iter().map(ToString::to_string).collect());
    let running = back(v1::RolloutState::RollingBack, "");
    assert_eq!(running.evaluate(&expected), WaitOutcome::Waiting);
    assert_eq!(running.summary(&expected), "service web: revision 3 failed, rolling back: 1 of 2 updated");
    let done = back(v1::RolloutState::RolledBack, "");
    assert_eq!(done.evaluate(&expected), broken(&["web.1 failed; revision 3 was rolled back"]));
    assert_eq!(done.failed_tasks(&expected), [format!("{ID}-8")]);
    assert_eq!(done.rolled_back_revisions(&expected), Some((3, 4)));
    let paused = back(v1::RolloutState::RollbackPaused, "web.2 failed");
    let why = ["web.1 failed; revision 3 was rolled back", "web.2 failed"];
    assert_eq!(paused.evaluate(&expected), broken(&why));
    // Another update was rolled back.
    let other = ServiceGoal::new(&at(2, None), WaitGoal::Updated);
    assert_eq!(done.evaluate(&other), broken(&["another client changed it: it is at revision 4"]));
}

#[test]
fn completed_goal_needs_the_end_of_every_slot() {
    let goal = ServiceGoal::new(&service(2), WaitGoal::Running).completed();
    let check = |first: TaskState, second: TaskState, expected: WaitOutcome| {
        let snapshot = ServiceSnapshot::of(service(2), vec![task(1, 1, first), task(2, 2, second)]);
        assert_eq!(snapshot.evaluate(&goal), expected, "{first:?} {second:?}");
        snapshot.summary(&goal)
    };
    use TaskState::{Complete, Failed, Running};
    assert_eq!(check(Running, Complete, WaitOutcome::Waiting), "service web: 1 of 2 completed");
    check(Running, Running, WaitOutcome::Waiting);
    check(Complete, Complete, WaitOutcome::Reached);
    let line = task_line(&task(1, 1, Failed));
    check(Failed, Complete, WaitOutcome::Failed(vec![format!("web.1: {line}")]));
}

#[test]
fn complete_task_satisfies_goal() {
    let complete = task(1, 1, TaskState::Complete);
    check(1, vec![complete.clone()], WaitOutcome::Reached);
    check(2, vec![complete.clone(), task(2, 2, TaskState::Starting)], WaitOutcome::Waiting);
    check(
        1,
        vec![v1::Task { desired: v1::DesiredTaskState::Remove.into(), ..complete.clone() }],
        WaitOutcome::Waiting,
    );
    let picture = ServiceSnapshot::of(service(1), vec![complete]);
    assert_eq!(picture.waiting_for(WaitGoal::Running), []);
    assert_eq!(picture.waiting_for(WaitGoal::Gone).len(), 1);
}

/// What a change of where tasks may run leaves as it is.
#[test]
fn equal_older_revision_counts_as_current() {
    let mut there = service(1);
    there.revision = 2;
    let expected = ServiceGoal::new(&there, WaitGoal::Running);
    let running = v1::Task { spec: there.spec.clone().unwrap().task, ..task(1, 1, TaskState::Running) };
    assert_eq!(
        ServiceSnapshot::of(there.clone(), vec![running.clone()]).evaluate(&expected),
        WaitOutcome::Reached
    );
    // Nothing says that the looked-up service is newer than a task that was heard of since.
    let later = v1::Task { revision: 3, ..running };
    assert_eq!(ServiceSnapshot::of(there, vec![later]).evaluate(&expected), WaitOutcome::Waiting);
}

#[test]
fn a_global_service_has_as_many_tasks_as_the_manager_counts() {
    let mut there = service(1);
    there.spec.as_mut().unwrap().mode = Some(v1::service_spec::Mode::Global(v1::Global {}));
    there.desired_tasks = 2;
    let expected = ServiceGoal::new(&there, WaitGoal::Running);
    let planner = |tasks| ServiceSnapshot::of(there.clone(), tasks).evaluate(&expected);
    let running = |slot| task(u64::from(slot), slot, TaskState::Running);
    assert_eq!(planner(vec![running(7)]), WaitOutcome::Waiting);
    assert_eq!(planner(vec![running(7), running(300)]), WaitOutcome::Reached);
    let summary = ServiceSnapshot::of(there.clone(), vec![running(7)]).summary(&expected);
    assert_eq!(summary, "service web: 1 of 2 ready");
}

fn rollout(updated: u32, stopped: &str, waiting: &str) -> Option<v1::Rollout> {
    let state = match (stopped, waiting) {
        ("", "") if updated == 2 => v1::RolloutState::Completed,
        ("", _) => v1::RolloutState::Updating,
        _ => v1::RolloutState::Paused,
    };
    let (stop_reason, waiting_reason, state) = (stopped.to_owned(), waiting.to_owned(), state.into());
    Some(v1::Rollout { updated, total: 2, stop_reason, waiting_reason, state, ..Default::default() })
}

fn at(revision: u64, rollout: Option<v1::Rollout>) -> v1::Service {
    v1::Service { revision, rollout, ..service(2) }
}

/// Two tasks of revision 3, the second in this state.
fn new_tasks(state: TaskState) -> Vec<v1::Task> {
    let tasks = [task(8, 1, TaskState::Running), task(9, 2, state)];
    tasks.map(|task| v1::Task { revision: 3, ..task }).into()
}

#[test]
fn update_ends_when_rollout_is_complete_and_ready() {
    let expected = ServiceGoal::new(&at(3, None), WaitGoal::Updated);
    let planner = |service, tasks| ServiceSnapshot::of(service, tasks).evaluate(&expected);
    let running = || new_tasks(TaskState::Running);
    assert_eq!(planner(at(3, None), running()), WaitOutcome::Waiting);
    assert_eq!(planner(at(3, rollout(1, "", "web.2 pulls")), running()), WaitOutcome::Waiting);
    assert_eq!(planner(at(3, rollout(2, "", "web.2 is removed")), running()), WaitOutcome::Waiting);
    assert_eq!(planner(at(3, rollout(2, "", "")), running()), WaitOutcome::Reached);
    assert_eq!(planner(at(3, rollout(2, "", "")), new_tasks(TaskState::Starting)), WaitOutcome::Waiting);
    // What another manager answers may be older than what was done.
    assert_eq!(planner(at(2, rollout(2, "", "")), running()), WaitOutcome::Waiting);
    let broken = |why: &str| WaitOutcome::Failed(vec![why.to_owned()]);
    assert_eq!(planner(at(3, rollout(1, "web.2 failed", "")), running()), broken("web.2 failed"));
    let later = broken("another client changed it: it is at revision 4");
    assert_eq!(planner(at(4, rollout(0, "", "")), running()), later);
    // Where nothing ran before there is nothing to replace, and what is new can still fail.
    let failed = new_tasks(TaskState::Failed);
    let second_failed = broken("web.2: FAILED on node-1");
    assert_eq!(planner(at(3, rollout(2, "", "")), failed.clone()), second_failed);
    let desired = ServiceGoal { finished_before: [failed[1].id.clone()].into(), ..expected };
    let picture = ServiceSnapshot::of(at(3, rollout(2, "", "")), failed);
    assert_eq!(picture.evaluate(&desired), WaitOutcome::Waiting);
}

#[test]
fn superseded_write_ends_waiting() {
    let made = |version, revision, replicas| v1::Service { version, revision, ..service(replicas) };
    let broken = |why: &str| WaitOutcome::Failed(vec![why.to_owned()]);
    let created = ServiceGoal::new(&made(5, 1, 1), WaitGoal::Running);
    let scaled = ServiceGoal::new(&made(3, 1, 2), WaitGoal::Scaled).after_write(&made(5, 1, 1));
    let updated = ServiceGoal::new(&made(3, 1, 2), WaitGoal::Updated).after_write(&made(5, 2, 1));
    let planner = |expected: &ServiceGoal, service: v1::Service| {
        let rollout = rollout(2, "", "");
        let running = v1::Task { revision: service.revision, ..task(1, 1, TaskState::Running) };
        ServiceSnapshot::of(v1::Service { rollout, ..service }, vec![running]).evaluate(expected)
    };
    assert_eq!(planner(&created, made(5, 1, 1)), WaitOutcome::Reached);
    assert_eq!(
        planner(&created, made(6, 1, 1)),
        WaitOutcome::Reached,
        "what was changed says nothing of its tasks"
    );
    let later = broken("another client changed it: it is at revision 2");
    assert_eq!(planner(&created, made(6, 2, 1)), later);
    let other = broken("another client scaled it: it has 3 replicas, not 1");
    assert_eq!(planner(&created, made(6, 1, 3)), other);
    assert_eq!(planner(&scaled, made(4, 1, 1)), WaitOutcome::Waiting, "as it was before it was scaled");
    assert_eq!(planner(&scaled, made(6, 2, 1)), WaitOutcome::Reached, "another revision, as many tasks");
    assert_eq!(planner(&scaled, made(6, 1, 3)), other);
    assert_eq!(planner(&updated, made(4, 1, 1)), WaitOutcome::Waiting);
    assert_eq!(planner(&updated, made(6, 2, 1)), WaitOutcome::Reached);
    assert_eq!(planner(&updated, made(6, 2, 3)), WaitOutcome::Waiting, "others want more of its tasks");
    assert_eq!(planner(&updated, made(6, 3, 1)), broken("another client changed it: it is at revision 3"));
}

#[test]
fn update_summary_shows_progress() {
    let expected = ServiceGoal::new(&at(3, None), WaitGoal::Updated);
    let mut picture =
        ServiceSnapshot::of(at(3, rollout(1, "", "web.2 pulls")), vec![task(1, 2, TaskState::Preparing)]);
    assert_eq!(picture.summary(&expected), "service web: 1 of 2 updated");
    let lines: Vec<String> = picture
        .waiting_for(WaitGoal::Updated)
        .into_iter()
        .map(|(name, line)| format!("{name}: {line}"))
        .collect();
    assert_eq!(lines, ["update: web.2 pulls", "web.2: PREPARING on node-1"]);
    // A change that does not say how far it is leaves what is known.
    picture.update(Change::Service(at(3, None)));
    assert_eq!(picture.summary(&expected), "service web: 1 of 2 updated");
    let starting = ServiceSnapshot::of(at(3, rollout(2, "", "")), new_tasks(TaskState::Starting));
    assert_eq!(starting.summary(&expected), "service web: 2 of 2 updated, 1 ready");
    let done = ServiceSnapshot::of(at(3, rollout(2, "", "")), new_tasks(TaskState::Running));
    assert_eq!(done.summary(&expected), "service web: 2 of 2 updated");
}

#[test]
fn new_failed_task_ends_waiting() {
    let reason = "command \"x\" is not in the image".to_owned();
    let rejected = v1::Task { reason, ..task(1, 1, TaskState::Rejected) };
    let why = "web.1: REJECTED on node-1: command \"x\" is not in the image".to_owned();
    check(1, vec![rejected.clone()], WaitOutcome::Failed(vec![why]));
    let failed = v1::Task { attempt: 4, reason: "exited with 1".into(), ..task(1, 1, TaskState::Failed) };
    let why = "web.1: FAILED on node-1, attempt 4: exited with 1".to_owned();
    check(1, vec![failed, task(2, 1, TaskState::Pending)], WaitOutcome::Failed(vec![why]));

    let service = service(1);
    let known = [rejected.id.clone()].into();
    let expected = ServiceGoal { finished_before: known, ..ServiceGoal::new(&service, WaitGoal::Running) };
    let picture = ServiceSnapshot::of(service, vec![rejected, task(2, 1, TaskState::Running)]);
    assert_eq!(picture.evaluate(&expected), WaitOutcome::Reached);
}

/// Runs, and its check failed so often in a row.
fn failing(number: u64, slot: u32, health: v1::Health, failed: u64) -> v1::Task {
    let probe = v1::health_check::Probe::Tcp(v1::TcpProbe { port: 80 });
    let health_check = Some(v1::HealthCheck { probe: Some(probe), ..Default::default() });
    let spec = v1::TaskSpec { image: "nginx".into(), health: health_check, ..Default::default() };
    let output = "connection refused on port 80".to_owned();
    let result = |at| v1::CheckResult { at, duration_us: 300, ok: false, output: output.clone() };
    let checks = (1..=failed).map(result).collect();
    let running = task(number, slot, TaskState::Running);
    v1::Task { ready: false, health: health.into(), spec: Some(spec), checks, ..running }
}

#[test]
fn unhealthy_task_ends_waiting() {
    let starting = failing(1, 1, v1::Health::Starting, 2);
    check(1, vec![starting.clone()], WaitOutcome::Waiting);
    let picture = ServiceSnapshot::of(service(1), vec![starting.clone()]);
    let waiting = "health check: connection refused on port 80 (2 of 3), on node-1".to_owned();
    assert_eq!(picture.waiting_for(WaitGoal::Running), [("web.1".to_owned(), waiting)]);

    let reason = "unhealthy: connection refused on port 80 (3 consecutive failures)";
    let unhealthy = v1::Task { reason: reason.into(), ..failing(1, 1, v1::Health::Unhealthy, 3) };
    let why = format!("web.1: {reason}, on node-1");
    check(1, vec![unhealthy.clone()], WaitOutcome::Failed(vec![why]));
    // One that was there before is replaced, and its replacement is what is waited for.
    let service = service(1);
    let known = [unhealthy.id.clone()].into();
    let expected = ServiceGoal { finished_before: known, ..ServiceGoal::new(&service, WaitGoal::Running) };
    let mut picture = ServiceSnapshot::of(service, vec![unhealthy, task(2, 1, TaskState::Starting)]);
    assert_eq!(picture.evaluate(&expected), WaitOutcome::Waiting);
    picture.update(Change::Task(task(2, 1, TaskState::Running)));
    assert_eq!(picture.evaluate(&expected), WaitOutcome::Reached);
}

#[test]
fn change_without_checks_keeps_check_results() {
    let mut picture = ServiceSnapshot::of(service(1), vec![failing(1, 1, v1::Health::Starting, 1)]);
    picture.update(Change::Task(failing(1, 1, v1::Health::Starting, 0)));
    let line = |picture: &ServiceSnapshot| picture.waiting_for(WaitGoal::Running)[0].1.clone();
    assert!(line(&picture).starts_with("health check: connection refused on port 80 (1 of 3)"));
    // The next attempt has its own results.
    picture.update(Change::Task(v1::Task { attempt: 2, ..failing(1, 1, v1::Health::Starting, 0) }));
    assert_eq!(line(&picture), "health check: no result yet, on node-1, attempt 2");
}

#[test]
fn removed_service_reaches_only_goal_gone() {
    let there = service(1);
    let (running, gone) =
        (ServiceGoal::new(&there, WaitGoal::Running), ServiceGoal::new(&there, WaitGoal::Gone));
    assert_eq!(ServiceSnapshot::default().evaluate(&gone), WaitOutcome::Waiting);
    assert_eq!(ServiceSnapshot::of(there.clone(), vec![]).evaluate(&gone), WaitOutcome::Waiting);
    assert_eq!(ServiceSnapshot::removed().evaluate(&gone), WaitOutcome::Reached);
    let broken = |why: &str| WaitOutcome::Failed(vec![why.to_owned()]);
    assert_eq!(ServiceSnapshot::removed().evaluate(&running), broken("the service was removed"));
    let removing = v1::Service { removing: true, ..there };
    assert_eq!(
        ServiceSnapshot::of(removing, vec![]).evaluate(&running),
        broken("the service is being removed")
    );
}

#[test]
fn changes_and_fetch_give_equal_snapshots() {
    let mut picture = ServiceSnapshot::of(service(1), vec![task(1, 1, TaskState::Failed)]);
    let expected = ServiceGoal::new(&service(1), WaitGoal::Running);
    let desired = ServiceGoal { finished_before: [format!("{ID}-1")].into(), replicas: None, ..expected };
    picture.update(Change::RemovedTask(format!("{ID}-1")));
    picture.update(Change::Task(task(2, 1, TaskState::Starting)));
    assert_eq!(picture.evaluate(&desired), WaitOutcome::Waiting);
    assert_eq!(picture.summary(&desired), "service web: 0 of 1 ready");
    picture.update(Change::Task(task(2, 1, TaskState::Running)));
    assert_eq!(picture.evaluate(&desired), WaitOutcome::Reached);
    picture.update(Change::Service(service(2)));
    assert_eq!(picture.evaluate(&desired), WaitOutcome::Waiting);
    picture.update(Change::RemovedService(ID.to_owned()));
    let gone = ServiceGoal { goal: WaitGoal::Gone, ..desired };
    assert_eq!(picture.evaluate(&gone), WaitOutcome::Reached);
    assert_eq!(picture.summary(&gone), "service web: removed");
}

#[test]
fn older_change_is_ignored() {
    let failed = v1::Task { attempt: 2, ..task(1, 1, TaskState::Failed) };
    let mut picture = ServiceSnapshot::of(service(1), vec![failed.clone()]);
    let expected = ServiceGoal::new(&service(1), WaitGoal::Running);
    for old in [task(1, 1, TaskState::Running), v1::Task { attempt: 2, ..task(1, 1, TaskState::Running) }] {
        picture.update(Change::Task(old));
        assert!(matches!(picture.evaluate(&expected), WaitOutcome::Failed(_)));
    }
    // The next attempt starts from the beginning.
    let mut picture = ServiceSnapshot::of(service(1), vec![task(1, 1, TaskState::Running)]);
    picture.update(Change::Task(v1::Task { attempt: 2, ..task(1, 1, TaskState::Starting) }));
    assert_eq!(picture.evaluate(&expected), WaitOutcome::Waiting);
}

#[test]
fn newest_task_of_each_slot_is_described() {
    let pending = v1::Task {
        node_name: String::new(),
        reason: "0 of 1 nodes fit: 1 lacks memory".into(),
        attempt: 0,
        ..task(10, 1, TaskState::Pending)
    };
    let tasks = vec![
        task(9, 1, TaskState::Failed),
        pending,
        v1::Task { ready: false, ..task(2, 2, TaskState::Running) },
        task(3, 3, TaskState::Running),
        v1::Task { lost_since: Some(1), attempt: 2, ..task(4, 4, TaskState::Starting) },
        v1::Task { removed: true, ..task(5, 5, TaskState::Shutdown) },
        v1::Task {
            desired: v1::DesiredTaskState::Shutdown.into(),
            ready: false,
            ..task(6, 6, TaskState::Running)
        },
    ];
    let picture = ServiceSnapshot::of(service(4), tasks);
    let lines = |goal| picture.waiting_for(goal).into_iter().map(|(name, line)| format!("{name} {line}"));
    let expected = [
        "web.1 PENDING: 0 of 1 nodes fit: 1 lacks memory",
        "web.2 RUNNING, not ready on node-1",
        "web.4 LOST on node-1, attempt 2",
        "web.6 STOPPING on node-1",
    ];
    assert_eq!(lines(WaitGoal::Running).collect::<Vec<_>>(), expected);
    assert_eq!(lines(WaitGoal::Gone).nth(2).as_deref(), Some("web.3 RUNNING on node-1"));
    let gone = ServiceGoal::new(&service(4), WaitGoal::Gone);
    assert_eq!(picture.summary(&gone), "service web: 6 tasks remaining");
}

#[test]
fn reason_does_not_repeat_state_and_node() {
    let line = |state, reason: &str| {
        let reason = reason.into();
        task_line(&v1::Task { ready: false, reason, ..task(1, 1, state) })
    };
    assert_eq!(line(TaskState::Preparing, "preparing on node node-1"), "PREPARING on node-1");
    assert_eq!(line(TaskState::Ready, "starting on node node-1"), "READY on node-1: starting");
    let replaces = line(TaskState::Ready, "ready on node node-1, waiting to replace the previous task");
    assert_eq!(replaces, "READY on node-1: ready, waiting to replace the previous task");
    let other = line(TaskState::Starting, "volume db is on node node-2");
    assert_eq!(other, "STARTING on node-1: volume db is on node node-2");
    let stopping = v1::Task {
        desired: v1::DesiredTaskState::Remove.into(),
        reason: "stopping: sent SIGKILL".into(),
        ..task(1, 1, TaskState::Running)
    };
    assert_eq!(task_line(&stopping), "STOPPING on node-1: sent SIGKILL");
}

#[test]
fn removal_names_nodes_that_did_not_confirm() {
    let stopping = |number, node: &str, reason: &str| v1::Task {
        desired: v1::DesiredTaskState::Remove.into(),
        node_name: node.into(),
        reason: reason.into(),
        ..task(number, u32::try_from(number).unwrap(), TaskState::Running)
    };
    let tasks = vec![
        stopping(1, "n1", "stopping: grace period of 10s since 10:00:00 UTC"),
        stopping(2, "n2", "stopping on node n2"),
        v1::Task { lost_since: Some(1), ..stopping(3, "n3", "stopping: sent SIGKILL") },
        stopping(4, "n3", ""),
        v1::Task { removed: true, ..stopping(5, "n4", "") },
        stopping(6, "", ""),
    ];
    let found: Vec<String> = ServiceSnapshot::of(service(0), tasks)
        .silent_nodes()
        .into_iter()
        .map(|(node, line)| format!("{node}: {}", line.split(';').next().unwrap()))
        .collect();
    let expected =
        ["node n2: has not confirmed the end of web.2", "node n3: has not confirmed the end of web.3, web.4"];
    assert_eq!(found, expected);
}

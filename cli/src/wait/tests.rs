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
        desired: v1::Desired::Running.into(),
        state: v1::TaskState::from(state).into(),
        attempt: 1,
        ready: state == TaskState::Running,
        ..Default::default()
    }
}

#[track_caller]
fn check(replicas: i64, tasks: Vec<v1::Task>, wanted: Verdict) {
    let service = service(replicas);
    let running = Wanted::new(&service, Goal::Running);
    assert_eq!(Picture::of(service, tasks).judge(&running), wanted);
}

#[test]
fn every_slot_must_serve_and_no_other_task_be_left() {
    use TaskState::{Running, Shutdown, Starting};
    check(0, vec![], Verdict::Reached);
    check(2, vec![task(1, 1, Running)], Verdict::Waiting);
    check(2, vec![task(1, 1, Running), task(2, 2, Starting)], Verdict::Waiting);
    check(2, vec![task(1, 1, Running), task(2, 2, Running)], Verdict::Reached);
    // Two in one slot are not two slots.
    check(2, vec![task(1, 1, Running), task(2, 1, Running)], Verdict::Waiting);
    // Scaled down: the third is still stopping, then gone.
    check(1, vec![task(1, 1, Running), task(2, 2, Shutdown)], Verdict::Waiting);
    let gone = v1::Task { removed: true, ..task(2, 2, Shutdown) };
    check(1, vec![task(1, 1, Running), gone], Verdict::Reached);
    // An old task of a slot does not matter once the new one serves.
    check(1, vec![task(1, 1, Shutdown), task(2, 1, Running)], Verdict::Reached);
}

#[test]
fn a_task_that_runs_does_not_serve_for_many_reasons() {
    let running = || task(1, 1, TaskState::Running);
    check(1, vec![v1::Task { ready: false, ..running() }], Verdict::Waiting);
    check(1, vec![v1::Task { lost_since: Some(5), ..running() }], Verdict::Waiting);
    check(1, vec![v1::Task { desired: v1::Desired::Shutdown.into(), ..running() }], Verdict::Waiting);
    let other = Some(v1::TaskSpec { image: "other".into(), ..Default::default() });
    check(1, vec![v1::Task { revision: 0, spec: other, ..running() }], Verdict::Waiting);
}

#[test]
fn a_task_that_ended_well_for_good_is_all_there_is_to_wait_for() {
    let complete = task(1, 1, TaskState::Complete);
    check(1, vec![complete.clone()], Verdict::Reached);
    check(2, vec![complete.clone(), task(2, 2, TaskState::Starting)], Verdict::Waiting);
    check(1, vec![v1::Task { desired: v1::Desired::Remove.into(), ..complete.clone() }], Verdict::Waiting);
    let picture = Picture::of(service(1), vec![complete]);
    assert_eq!(picture.waiting_for(Goal::Running), []);
    assert_eq!(picture.waiting_for(Goal::Gone).len(), 1);
}

/// What a change of where tasks may run leaves as it is.
#[test]
fn an_older_revision_that_runs_the_same_serves() {
    let mut there = service(1);
    there.revision = 2;
    let wanted = Wanted::new(&there, Goal::Running);
    let running = v1::Task { spec: there.spec.clone().unwrap().task, ..task(1, 1, TaskState::Running) };
    assert_eq!(Picture::of(there.clone(), vec![running.clone()]).judge(&wanted), Verdict::Reached);
    // Nothing says that the looked-up service is newer than a task that was heard of since.
    let later = v1::Task { revision: 3, ..running };
    assert_eq!(Picture::of(there, vec![later]).judge(&wanted), Verdict::Waiting);
}

#[test]
fn a_global_service_has_as_many_tasks_as_the_manager_counts() {
    let mut there = service(1);
    there.spec.as_mut().unwrap().mode = Some(v1::service_spec::Mode::Global(v1::Global {}));
    there.wanted = 2;
    let wanted = Wanted::new(&there, Goal::Running);
    let judge = |tasks| Picture::of(there.clone(), tasks).judge(&wanted);
    let running = |slot| task(u64::from(slot), slot, TaskState::Running);
    assert_eq!(judge(vec![running(7)]), Verdict::Waiting);
    assert_eq!(judge(vec![running(7), running(300)]), Verdict::Reached);
    let summary = Picture::of(there.clone(), vec![running(7)]).summary(&wanted);
    assert_eq!(summary, "service web: 1 of 2 ready");
}

fn rollout(updated: u32, stopped: &str, waiting: &str) -> Option<v1::Rollout> {
    let (stopped, waiting) = (stopped.to_owned(), waiting.to_owned());
    Some(v1::Rollout { updated, total: 2, stopped, waiting })
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
fn an_update_is_over_when_nothing_is_left_to_replace_and_what_is_new_serves() {
    let wanted = Wanted::new(&at(3, None), Goal::Updated);
    let judge = |service, tasks| Picture::of(service, tasks).judge(&wanted);
    let running = || new_tasks(TaskState::Running);
    assert_eq!(judge(at(3, None), running()), Verdict::Waiting);
    assert_eq!(judge(at(3, rollout(1, "", "web.2 pulls")), running()), Verdict::Waiting);
    assert_eq!(judge(at(3, rollout(2, "", "web.2 is removed")), running()), Verdict::Waiting);
    assert_eq!(judge(at(3, rollout(2, "", "")), running()), Verdict::Reached);
    assert_eq!(judge(at(3, rollout(2, "", "")), new_tasks(TaskState::Starting)), Verdict::Waiting);
    // What another manager answers may be older than what was done.
    assert_eq!(judge(at(2, rollout(2, "", "")), running()), Verdict::Waiting);
    let broken = |why: &str| Verdict::Broken(vec![why.to_owned()]);
    assert_eq!(judge(at(3, rollout(1, "web.2 failed", "")), running()), broken("web.2 failed"));
    let later = broken("somebody changed it in the meantime: it is at revision 4");
    assert_eq!(judge(at(4, rollout(0, "", "")), running()), later);
    // Where nothing ran before there is nothing to replace, and what is new can still fail.
    let failed = new_tasks(TaskState::Failed);
    let second_failed = broken("web.2: FAILED on node-1");
    assert_eq!(judge(at(3, rollout(2, "", "")), failed.clone()), second_failed);
    let wanted = Wanted { known: [failed[1].id.clone()].into(), ..wanted };
    let picture = Picture::of(at(3, rollout(2, "", "")), failed);
    assert_eq!(picture.judge(&wanted), Verdict::Waiting);
}

#[test]
fn a_write_that_others_superseded_is_not_waited_for() {
    let made = |version, revision, replicas| v1::Service { version, revision, ..service(replicas) };
    let broken = |why: &str| Verdict::Broken(vec![why.to_owned()]);
    let created = Wanted::new(&made(5, 1, 1), Goal::Running);
    let scaled = Wanted::new(&made(3, 1, 2), Goal::Scaled).made_by(&made(5, 1, 1));
    let updated = Wanted::new(&made(3, 1, 2), Goal::Updated).made_by(&made(5, 2, 1));
    let judge = |wanted: &Wanted, service: v1::Service| {
        let rollout = rollout(2, "", "");
        let running = v1::Task { revision: service.revision, ..task(1, 1, TaskState::Running) };
        Picture::of(v1::Service { rollout, ..service }, vec![running]).judge(wanted)
    };
    assert_eq!(judge(&created, made(5, 1, 1)), Verdict::Reached);
    assert_eq!(
        judge(&created, made(6, 1, 1)),
        Verdict::Reached,
        "what was changed says nothing of its tasks"
    );
    let later = broken("somebody changed it in the meantime: it is at revision 2");
    assert_eq!(judge(&created, made(6, 2, 1)), later);
    let other = broken("somebody scaled it in the meantime: it has 3 tasks, not 1");
    assert_eq!(judge(&created, made(6, 1, 3)), other);
    assert_eq!(judge(&scaled, made(4, 1, 1)), Verdict::Waiting, "as it was before it was scaled");
    assert_eq!(judge(&scaled, made(6, 2, 1)), Verdict::Reached, "another revision, as many tasks");
    assert_eq!(judge(&scaled, made(6, 1, 3)), other);
    assert_eq!(judge(&updated, made(4, 1, 1)), Verdict::Waiting);
    assert_eq!(judge(&updated, made(6, 2, 1)), Verdict::Reached);
    assert_eq!(judge(&updated, made(6, 2, 3)), Verdict::Waiting, "others want more of its tasks");
    assert_eq!(
        judge(&updated, made(6, 3, 1)),
        broken("somebody changed it in the meantime: it is at revision 3")
    );
}

#[test]
fn an_update_says_how_far_it_is() {
    let wanted = Wanted::new(&at(3, None), Goal::Updated);
    let mut picture =
        Picture::of(at(3, rollout(1, "", "web.2 pulls")), vec![task(1, 2, TaskState::Preparing)]);
    assert_eq!(picture.summary(&wanted), "service web: 1 of 2 updated");
    let lines: Vec<String> = picture
        .waiting_for(Goal::Updated)
        .into_iter()
        .map(|(name, line)| format!("{name}: {line}"))
        .collect();
    assert_eq!(lines, ["update: web.2 pulls", "web.2: PREPARING on node-1"]);
    // A change that does not say how far it is leaves what is known.
    picture.apply(Change::Service(at(3, None)));
    assert_eq!(picture.summary(&wanted), "service web: 1 of 2 updated");
    let starting = Picture::of(at(3, rollout(2, "", "")), new_tasks(TaskState::Starting));
    assert_eq!(starting.summary(&wanted), "service web: 2 of 2 updated, 1 ready");
    let done = Picture::of(at(3, rollout(2, "", "")), new_tasks(TaskState::Running));
    assert_eq!(done.summary(&wanted), "service web: 2 of 2 updated");
}

#[test]
fn a_task_that_was_given_up_ends_the_waiting_unless_it_is_an_old_story() {
    let reason = "command \"x\" is not in the image".to_owned();
    let rejected = v1::Task { reason, ..task(1, 1, TaskState::Rejected) };
    let why = "web.1: REJECTED on node-1: command \"x\" is not in the image".to_owned();
    check(1, vec![rejected.clone()], Verdict::Broken(vec![why]));
    let failed = v1::Task { attempt: 4, reason: "exited with 1".into(), ..task(1, 1, TaskState::Failed) };
    let why = "web.1: FAILED on node-1, attempt 4: exited with 1".to_owned();
    check(1, vec![failed, task(2, 1, TaskState::Pending)], Verdict::Broken(vec![why]));

    let service = service(1);
    let known = [rejected.id.clone()].into();
    let wanted = Wanted { known, ..Wanted::new(&service, Goal::Running) };
    let picture = Picture::of(service, vec![rejected, task(2, 1, TaskState::Running)]);
    assert_eq!(picture.judge(&wanted), Verdict::Reached);
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
fn a_check_that_fails_is_named_and_ends_the_waiting_when_it_fails_too_often() {
    let starting = failing(1, 1, v1::Health::Starting, 2);
    check(1, vec![starting.clone()], Verdict::Waiting);
    let picture = Picture::of(service(1), vec![starting.clone()]);
    let waiting = "health check: connection refused on port 80 (2 of 3), on node-1".to_owned();
    assert_eq!(picture.waiting_for(Goal::Running), [("web.1".to_owned(), waiting)]);

    let reason = "unhealthy: connection refused on port 80 (3 failures in a row)";
    let unhealthy = v1::Task { reason: reason.into(), ..failing(1, 1, v1::Health::Unhealthy, 3) };
    let why = format!("web.1: {reason}, on node-1");
    check(1, vec![unhealthy.clone()], Verdict::Broken(vec![why]));
    // One that was there before is replaced, and its replacement is what is waited for.
    let service = service(1);
    let known = [unhealthy.id.clone()].into();
    let wanted = Wanted { known, ..Wanted::new(&service, Goal::Running) };
    let mut picture = Picture::of(service, vec![unhealthy, task(2, 1, TaskState::Starting)]);
    assert_eq!(picture.judge(&wanted), Verdict::Waiting);
    picture.apply(Change::Task(task(2, 1, TaskState::Running)));
    assert_eq!(picture.judge(&wanted), Verdict::Reached);
}

#[test]
fn what_checks_said_is_not_forgotten_when_a_change_does_not_say_it() {
    let mut picture = Picture::of(service(1), vec![failing(1, 1, v1::Health::Starting, 1)]);
    picture.apply(Change::Task(failing(1, 1, v1::Health::Starting, 0)));
    let line = |picture: &Picture| picture.waiting_for(Goal::Running)[0].1.clone();
    assert!(line(&picture).starts_with("health check: connection refused on port 80 (1 of 3)"));
    // The next attempt has its own results.
    picture.apply(Change::Task(v1::Task { attempt: 2, ..failing(1, 1, v1::Health::Starting, 0) }));
    assert_eq!(line(&picture), "health check: no result yet, on node-1, attempt 2");
}

#[test]
fn a_service_that_goes_away_is_what_was_wanted_or_is_not() {
    let there = service(1);
    let (running, gone) = (Wanted::new(&there, Goal::Running), Wanted::new(&there, Goal::Gone));
    assert_eq!(Picture::default().judge(&gone), Verdict::Waiting);
    assert_eq!(Picture::of(there.clone(), vec![]).judge(&gone), Verdict::Waiting);
    assert_eq!(Picture::gone().judge(&gone), Verdict::Reached);
    let broken = |why: &str| Verdict::Broken(vec![why.to_owned()]);
    assert_eq!(Picture::gone().judge(&running), broken("it was removed in the meantime"));
    let removing = v1::Service { removing: true, ..there };
    assert_eq!(Picture::of(removing, vec![]).judge(&running), broken("it is being removed"));
}

#[test]
fn changes_lead_to_the_same_picture_as_looking() {
    let mut picture = Picture::of(service(1), vec![task(1, 1, TaskState::Failed)]);
    let wanted = Wanted::new(&service(1), Goal::Running);
    let wanted = Wanted { known: [format!("{ID}-1")].into(), replicas: None, ..wanted };
    picture.apply(Change::RemovedTask(format!("{ID}-1")));
    picture.apply(Change::Task(task(2, 1, TaskState::Starting)));
    assert_eq!(picture.judge(&wanted), Verdict::Waiting);
    assert_eq!(picture.summary(&wanted), "service web: 0 of 1 ready");
    picture.apply(Change::Task(task(2, 1, TaskState::Running)));
    assert_eq!(picture.judge(&wanted), Verdict::Reached);
    picture.apply(Change::Service(service(2)));
    assert_eq!(picture.judge(&wanted), Verdict::Waiting);
    picture.apply(Change::RemovedService(ID.to_owned()));
    let gone = Wanted { goal: Goal::Gone, ..wanted };
    assert_eq!(picture.judge(&gone), Verdict::Reached);
    assert_eq!(picture.summary(&gone), "service web: gone");
}

#[test]
fn an_old_change_does_not_turn_the_clock_back() {
    let failed = v1::Task { attempt: 2, ..task(1, 1, TaskState::Failed) };
    let mut picture = Picture::of(service(1), vec![failed.clone()]);
    let wanted = Wanted::new(&service(1), Goal::Running);
    for old in [task(1, 1, TaskState::Running), v1::Task { attempt: 2, ..task(1, 1, TaskState::Running) }] {
        picture.apply(Change::Task(old));
        assert!(matches!(picture.judge(&wanted), Verdict::Broken(_)));
    }
    // The next attempt starts from the beginning.
    let mut picture = Picture::of(service(1), vec![task(1, 1, TaskState::Running)]);
    picture.apply(Change::Task(v1::Task { attempt: 2, ..task(1, 1, TaskState::Starting) }));
    assert_eq!(picture.judge(&wanted), Verdict::Waiting);
}

#[test]
fn each_slot_says_what_its_newest_task_waits_for() {
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
    ];
    let picture = Picture::of(service(4), tasks);
    let lines = |goal| picture.waiting_for(goal).into_iter().map(|(name, line)| format!("{name} {line}"));
    let wanted = [
        "web.1 PENDING: 0 of 1 nodes fit: 1 lacks memory",
        "web.2 RUNNING, not ready on node-1",
        "web.4 LOST on node-1, attempt 2",
    ];
    assert_eq!(lines(Goal::Running).collect::<Vec<_>>(), wanted);
    assert_eq!(lines(Goal::Gone).nth(2).as_deref(), Some("web.3 RUNNING on node-1"));
    let gone = Wanted::new(&service(4), Goal::Gone);
    assert_eq!(picture.summary(&gone), "service web: 5 tasks left");
}

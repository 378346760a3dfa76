//! Hooks of a task.

use super::*;
use warren_types::LifecycleHook;

fn hooked(desired: DesiredTaskState) -> TaskAssignment {
    let mut task = task(desired);
    task.spec.post_start = vec![LifecycleHook::new(vec!["/set-up".into()])];
    task.spec.pre_stop = vec![LifecycleHook::new(vec!["/shut-down".into()])];
    task
}

/// A started process that gets no traffic yet.
fn started() -> ObservedTask {
    ObservedTask { ports: PortState::Reserved, ..running_task() }
}

/// Executes actions until hooks end.
fn run_until_hooks(task: &TaskAssignment, found: &mut ObservedTask) -> Vec<ActionKind> {
    let mut kinds = Vec::new();
    while let NextStep::Do(action) = step(Some(task), found, NOW) {
        kinds.push(action.kind());
        match action {
            Action::Inspect => found.record_inspection(found.container, None),
            action => found.record_success(&action, NOW),
        }
    }
    kinds
}

#[test]
fn task_is_ready_after_its_post_start_hooks() {
    let task = hooked(DesiredTaskState::Running);
    let mut found = ObservedTask { ports: PortState::Unknown, ..running_task() };
    let report = |found: &ObservedTask| build_report(task.id, Some(&task), found);
    assert_eq!(run_until_hooks(&task, &mut found), [ActionKind::ReservePorts, ActionKind::RunHooks]);
    assert!(!report(&found).ready);
    assert_eq!(report(&found).reason, "waiting for its post_start hooks");
    found.record_hooks_end(HookKind::PostStart, None);
    assert_eq!(run_until_hooks(&task, &mut found), [ActionKind::RecordHistory, ActionKind::RouteTraffic]);
    assert!(report(&found).ready);
    // The next agent knows it from the record.
    let history: AttemptHistory = found.history.to_string().parse().unwrap();
    let mut next = ObservedTask { history, ..ObservedTask { ports: PortState::Unknown, ..running_task() } };
    assert_eq!(run_until_hooks(&task, &mut next), [ActionKind::RouteTraffic]);
}

#[test]
fn failed_post_start_hook_ends_the_task() {
    let task = hooked(DesiredTaskState::Running);
    let mut found = started();
    run_until_hooks(&task, &mut found);
    found.record_hooks_end(HookKind::PostStart, Some("hook 1 (/set-up) exited with code 3".into()));
    let kinds = run_until_hooks(&task, &mut found);
    let expected =
        [ActionKind::Inspect, ActionKind::RecordHistory, ActionKind::ReleasePorts, ActionKind::SignalStop];
    assert_eq!(kinds, expected, "without pre_stop hooks");
    found.container = exited(143);
    let report = build_report(task.id, Some(&task), &found);
    assert_eq!(report.state, warren_types::TaskState::Failed);
    assert_eq!(report.reason, "post_start hook 1 (/set-up) exited with code 3");
}

/// The process has ended, which is why its hook failed: it is restarted like any other.
#[test]
fn process_that_ended_during_its_hooks_has_failed_itself() {
    let task = hooked(DesiredTaskState::Running);
    let mut found = started();
    run_until_hooks(&task, &mut found);
    found.record_hooks_end(HookKind::PostStart, Some("did not end".into()));
    assert_eq!(step(Some(&task), &found, NOW), NextStep::Do(Action::Inspect));
    found.record_inspection(exited(1), None);
    let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, NOW) else { panic!() };
    assert!(matches!(history.phase, AttemptPhase::Waiting { .. }), "{history:?}");
    found.record_success(&Action::EnsureContainer, NOW);
    assert_eq!(found.post_start, HookProgress::Pending);
}

/// The stop signal follows the pre_stop hooks, within the grace period of both.
#[test]
fn pre_stop_hooks_precede_the_stop_signal() {
    let mut task = hooked(DesiredTaskState::Shutdown);
    task.spec.stop_grace = Duration::from_secs(30);
    let mut found = running_task();
    found.history = found.history.with_hooks_done();
    assert_eq!(run_until_hooks(&task, &mut found), [ActionKind::ReleasePorts, ActionKind::RunHooks]);
    assert_eq!(step(Some(&task), &found, NOW), NextStep::WaitUntil(NOW + Duration::from_secs(30)));
    assert_eq!(build_report(task.id, Some(&task), &found).reason, "stopping: running its pre_stop hooks");

    let mut late = found.clone();
    let end = NOW + Duration::from_secs(30);
    assert_eq!(step(Some(&task), &late, end), NextStep::Do(Action::SignalStop));
    late.record_success(&Action::SignalStop, end);
    assert_eq!(step(Some(&task), &late, end), NextStep::WaitUntil(end + GRACE_AFTER_HOOKS));

    let ended = NOW + Duration::from_secs(10);
    found.record_hooks_end(HookKind::PreStop, Some("hook 1 (/shut-down) exited with code 1".into()));
    found.record_inspection(found.container, None);
    assert_eq!(step(Some(&task), &found, ended), NextStep::Do(Action::SignalStop));
    found.record_success(&Action::SignalStop, ended);
    assert_eq!(
        step(Some(&task), &found, ended),
        NextStep::WaitUntil(end),
        "the hook has used 10 s of the 30"
    );
    found.record_inspection(exited(0), None);
    let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, ended) else { panic!() };
    let AttemptPhase::Ended { reason, .. } = history.phase else { panic!() };
    assert_eq!(reason, "stopped by the manager; pre_stop hook 1 (/shut-down) exited with code 1");
}

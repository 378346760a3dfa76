//! A task whose node is disconnected.

use warren_types::{OnDisconnect, TaskState};

use super::*;

const DISCONNECT_LIMIT: Duration = Duration::from_secs(30);

fn task_with_limit(desired: DesiredTaskState) -> TaskAssignment {
    let mut task = task(desired);
    task.spec.on_disconnect = OnDisconnect::StopAfter(DISCONNECT_LIMIT);
    task
}

fn disconnected(seconds: u64, found: ObservedTask) -> ObservedTask {
    ObservedTask { disconnected_for: Some(Duration::from_secs(seconds)), ..found }
}

#[test]
fn keep_policy_keeps_running() {
    check(RUN, &disconnected(u64::MAX, running_task()), NextStep::Settled);
}

#[test]
fn stop_after_rechecks_at_deadline() {
    let task = task_with_limit(DesiredTaskState::Running);
    for (found, expected) in [
        (running_task(), NextStep::Settled),
        (disconnected(0, running_task()), NextStep::WaitUntil(NOW + DISCONNECT_LIMIT)),
        (disconnected(29, running_task()), NextStep::WaitUntil(NOW + Duration::from_secs(1))),
        (disconnected(30, running_task()), NextStep::Do(Action::ReleasePorts)),
        (
            ObservedTask { disconnected_for: Some(Duration::MAX), ..running_task() },
            NextStep::Do(Action::ReleasePorts),
        ),
    ] {
        assert_eq!(step(Some(&task), &found, NOW), expected, "{:?}", found.disconnected_for);
    }
    let preparing = disconnected(29, fresh(ContainerState::Absent, AttemptHistory::default()));
    assert_eq!(step(Some(&task), &preparing, NOW), NextStep::Do(Action::EnsureImage), "it goes on meanwhile");
}

#[test]
fn expired_stop_after_stops_with_reason() {
    let task = task_with_limit(DesiredTaskState::Running);
    let verbs = path_of(Some(&task), disconnected(30, running_task()));
    let expected = [
        ActionKind::ReleasePorts,
        ActionKind::SignalStop,
        ActionKind::Inspect,
        ActionKind::RecordHistory,
        ActionKind::DeleteProcess,
        ActionKind::RemoveLayer,
        ActionKind::RemoveSecretObjects,
        ActionKind::RemoveNetwork,
    ];
    let looked = verbs.iter().filter(|verb| **verb != ActionKind::Inspect);
    assert_eq!(
        looked.collect::<Vec<_>>(),
        expected.iter().filter(|verb| **verb != ActionKind::Inspect).collect::<Vec<_>>()
    );
    let stop = Some(SentStop { at: seconds_ago(1), killed_at: None });
    let mut found = ObservedTask {
        stop,
        ports: PortState::Released,
        container: exited(143),
        ..disconnected(31, running_task())
    };
    let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, NOW) else {
        panic!("not recorded")
    };
    found.record_success(&Action::RecordHistory(history), NOW);
    found.record_success(&Action::DeleteProcess, NOW);
    // Also after it reconnects.
    found.disconnected_for = None;
    let text = crate::build_report(task.id, Some(&task), &found);
    assert_eq!(
        (text.state, text.ready, text.exit.map(|exit| exit.code)),
        (TaskState::Shutdown, false, Some(143))
    );
    assert_eq!(text.reason, "stopped by the node after 30s without a manager (--on-disconnect)");
    let verbs = path_of(Some(&task), found);
    assert!(verbs.iter().all(|verb| !verb.is_required_to_run()), "it does not run again: {verbs:?}");
}

#[test]
fn reconnect_does_not_cancel_kill() {
    let task = task_with_limit(DesiredTaskState::Running);
    let stopping = |since, disconnected_for| {
        let stop = Some(SentStop { at: seconds_ago(since), killed_at: None });
        ObservedTask { stop, ports: PortState::Released, disconnected_for, ..running_task() }
    };
    for disconnected_for in [Some(DISCONNECT_LIMIT), Some(Duration::ZERO), None] {
        let expected = NextStep::WaitUntil(seconds_ago(3) + DEFAULT_STOP_GRACE);
        assert_eq!(step(Some(&task), &stopping(3, disconnected_for), NOW), expected, "{disconnected_for:?}");
        assert_eq!(
            step(Some(&task), &stopping(10, disconnected_for), NOW),
            NextStep::Do(Action::Kill),
            "{disconnected_for:?}"
        );
    }
}

#[test]
fn stopped_task_waits_for_manager() {
    let task = task_with_limit(DesiredTaskState::Running);
    let waiting = AttemptHistory {
        attempt: 2,
        phase: AttemptPhase::Waiting { since: seconds_ago(9), until: seconds_ago(1) },
        ..AttemptHistory::default()
    };
    for found in [
        fresh(ContainerState::Absent, AttemptHistory::default()),
        fresh(ContainerState::Created, AttemptHistory::default()),
        fresh(ContainerState::Recorded, waiting.clone()),
    ] {
        let found = ObservedTask { ports: PortState::Released, ..found };
        assert_eq!(step(Some(&task), &disconnected(30, found.clone()), NOW), NextStep::Settled, "{found:?}");
        assert!(matches!(step(Some(&task), &found, NOW), NextStep::Do(_)), "a manager is there: {found:?}");
    }
    for ports in [PortState::Routed, PortState::Unknown] {
        let serving = ObservedTask { ports, ..fresh(ContainerState::Recorded, waiting.clone()) };
        assert_eq!(step(Some(&task), &disconnected(30, serving), NOW), NextStep::Do(Action::ReservePorts));
    }
}

#[test]
fn process_lost_while_stopping_is_shutdown() {
    let task = task_with_limit(DesiredTaskState::Running);
    let stop = Some(SentStop { at: seconds_ago(3), killed_at: None });
    for disconnected_for in [Some(DISCONNECT_LIMIT), None] {
        let found = ObservedTask {
            stop,
            ports: PortState::Released,
            container: ContainerState::Recorded,
            disconnected_for,
            ..running_task()
        };
        let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, NOW) else {
            panic!("not recorded")
        };
        assert_eq!(history.terminal_state(), Some(TerminalState::Shutdown));
    }
}

/// A process that exited by itself meanwhile is handled like any other.
#[test]
fn own_exit_while_disconnected_is_recorded() {
    let task = task_with_limit(DesiredTaskState::Running);
    let found =
        ObservedTask { container: exited(1), ports: PortState::Reserved, ..disconnected(60, running_task()) };
    let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, NOW) else {
        panic!("not recorded")
    };
    assert_eq!((history.attempt, history.terminal_state()), (2, None));
    let verbs = path_of(Some(&task), found);
    assert!(verbs.iter().all(|verb| !verb.is_required_to_run()), "{verbs:?}");
}

#[test]
fn shutdown_proceeds_without_manager() {
    for desired in [DesiredTaskState::Shutdown, DesiredTaskState::Remove] {
        let task = task_with_limit(desired);
        let verbs = path_of(Some(&task), running_task());
        assert_eq!(path_of(Some(&task), disconnected(3600, running_task())), verbs);
    }
}

//! A task that its node ends because of its writable layer.

use warren_types::OnDisconnect;

use super::*;

const REASON: &str = "its writable layer has 2.3 GB of 2 GB (--storage-limit)";

fn evicted(found: ObservedTask) -> ObservedTask {
    ObservedTask { eviction: Some(REASON.into()), ..found }
}

#[test]
fn evicted_task_is_killed_and_loses_its_layer_before_its_end_is_recorded() {
    use ActionKind::*;
    let killed = [
        Kill,
        Inspect,
        RemoveLayer,
        ReservePorts,
        RecordHistory,
        DeleteProcess,
        ReleasePorts,
        RemoveSecretObjects,
        RemoveNetwork,
    ];
    assert_eq!(path(RUN, evicted(running_task())), killed);
    let mut alone = task(DesiredTaskState::Running);
    alone.spec.on_disconnect = OnDisconnect::StopAfter(Duration::from_secs(30));
    let disconnected = ObservedTask { disconnected_for: Some(Duration::MAX), ..evicted(running_task()) };
    assert_eq!(path_of(Some(&alone), disconnected), killed);
    // Between two attempts its layer fills the disk as well.
    let waiting = AttemptHistory {
        attempt: 2,
        phase: AttemptPhase::Waiting { since: seconds_ago(9), until: NOW + Duration::from_secs(60) },
        ..AttemptHistory::default()
    };
    let rest = [RemoveLayer, RecordHistory, ReleasePorts, RemoveSecretObjects, RemoveNetwork];
    assert_eq!(path(RUN, evicted(fresh(ContainerState::Recorded, waiting))), rest);
}

#[test]
fn evicted_task_that_is_being_stopped_is_killed_at_once() {
    use ActionKind::*;
    let signalled = ObservedTask {
        stop: Some(SentStop { at: seconds_ago(1), killed_at: None }),
        ports: PortState::Released,
        ..running_task()
    };
    let mut slow = task(DesiredTaskState::Shutdown);
    slow.spec.stop_grace = Duration::from_secs(3600);
    let grace_end = NOW + Duration::from_secs(3599);
    assert_eq!(step(Some(&slow), &signalled, NOW), NextStep::WaitUntil(grace_end));
    assert_eq!(step(Some(&slow), &evicted(signalled.clone()), NOW), NextStep::Do(Action::Kill));
    let killed = [
        Kill,
        Inspect,
        RemoveLayer,
        RecordHistory,
        DeleteProcess,
        ReleasePorts,
        RemoveSecretObjects,
        RemoveNetwork,
    ];
    assert_eq!(path(STOP, evicted(running_task())), killed);
    let removed = [
        Kill,
        Inspect,
        RemoveLayer,
        RecordHistory,
        DeleteProcess,
        RemoveContainer,
        ReleasePorts,
        RemoveSecretObjects,
        RemoveNetwork,
        RemoveFiles,
    ];
    for desired in [REMOVE, None] {
        assert_eq!(path(desired, evicted(running_task())), removed);
    }
    let ended = ObservedTask {
        container: exited(137),
        stop: Some(SentStop { at: seconds_ago(1), killed_at: Some(NOW) }),
        layer: ResourceState::Absent,
        ..evicted(running_task())
    };
    let NextStep::Do(Action::RecordHistory(history)) = step(Some(&slow), &ended, NOW) else {
        panic!("its end is not recorded");
    };
    let AttemptPhase::Ended { terminal_state, reason, .. } = history.phase else {
        panic!("it goes on: {history:?}");
    };
    assert_eq!(terminal_state, TerminalState::Shutdown);
    assert_eq!(reason, format!("stopped by the manager; killed: {REASON}"));
}

#[test]
fn evicted_task_has_failed_whatever_its_restart_policy() {
    let found = ObservedTask {
        container: exited(137),
        ports: PortState::Reserved,
        layer: ResourceState::Absent,
        ..evicted(running_task())
    };
    // Its layer cannot be removed: that does not keep it from ending.
    let failing = ObservedTask {
        layer: ResourceState::Unknown,
        failures: trouble(ActionKind::RemoveLayer, FailureKind::Transient, 1),
        ..found.clone()
    };
    for condition in RestartCondition::ALL {
        let mut task = task(DesiredTaskState::Running);
        task.spec.restart.condition = condition;
        for found in [&found, &failing] {
            let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), found, NOW) else {
                panic!("its end is not recorded");
            };
            assert_eq!(history.exit, Some(TaskExit { code: 137, out_of_memory: false }));
            let AttemptPhase::Ended { terminal_state, reason, .. } = history.phase else {
                panic!("it goes on: {history:?}");
            };
            assert_eq!((terminal_state, reason.as_str()), (TerminalState::Failed, REASON));
        }
    }
}

#[test]
fn process_that_survives_is_killed_again() {
    let killed = |seconds| {
        let stop = SentStop { at: seconds_ago(seconds), killed_at: Some(seconds_ago(seconds)) };
        ObservedTask { stop: Some(stop), ..evicted(running_task()) }
    };
    check(RUN, &killed(3), NextStep::WaitUntil(NOW + Duration::from_secs(7)));
    check(RUN, &killed(10), NextStep::Do(Action::Kill));
}

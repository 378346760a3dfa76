mod disconnected;
mod eviction;
mod hooks;

use std::collections::BTreeMap;

use warren_types::fixtures::{image_digest as digest, published_port, task_assignment};
use warren_types::spec::{
    HealthCheck, Mount, MountSource, Probe, RestartCondition, RestartPolicy, SecretObjectMount,
};
use warren_types::{Id, ServiceId, TaskId, TaskNetworkMode, TaskSpec};

use super::*;
use crate::action::ActionKind;
use crate::observed_task::{FailedAction, FailureKind, HealthObservation, SentStop};
use crate::report::build_report;

const NOW: Timestamp = Timestamp(1_000_000);

fn seconds_ago(seconds: u64) -> Timestamp {
    Timestamp(NOW.0 - seconds * 1000)
}

fn task(desired: DesiredTaskState) -> TaskAssignment {
    let (digest, ports) = (Some(digest('a')), vec![published_port(8080)]);
    TaskAssignment {
        digest,
        ports,
        desired,
        ..task_assignment(TaskId { service: ServiceId(Id(1)), number: 1 })
    }
}

/// A running task with all its resources.
fn running_task() -> ObservedTask {
    ObservedTask {
        freshness: Freshness::Fresh,
        container: ContainerState::Running { since: seconds_ago(100) },
        image: ImageState::Present(digest('a')),
        container_image: None,
        network: ResourceState::Present,
        files: ResourceState::Present,
        volumes: ResourceState::Present,
        secret_objects: ResourceState::Present,
        layer: ResourceState::Present,
        observed_health: None,
        ports: PortState::Routed,
        history: AttemptHistory::default().with_start(seconds_ago(100), 4),
        drain_start: None,
        withdrawn_at: None,
        post_start: HookProgress::Pending,
        pre_stop: HookProgress::Pending,
        stop: None,
        failures: BTreeMap::new(),
        accepted_at: seconds_ago(200),
        disconnected_for: None,
        awaited_service: None,
        eviction: None,
    }
}

fn fresh(container: ContainerState, history: AttemptHistory) -> ObservedTask {
    ObservedTask { freshness: Freshness::Fresh, container, history, ..ObservedTask::new(seconds_ago(200)) }
}

fn exited(code: i32) -> ContainerState {
    ContainerState::Stopped { exit: TaskExit { code, out_of_memory: false }, at: NOW }
}

fn trouble(verb: ActionKind, kind: FailureKind, failures: u32) -> BTreeMap<ActionKind, FailedAction> {
    [(verb, FailedAction { kind, reason: "no".into(), consecutive: failures, at: NOW })].into()
}

#[track_caller]
fn check(desired: Option<DesiredTaskState>, found: &ObservedTask, expected: NextStep) {
    let task = desired.map(task);
    let answer = step(task.as_ref(), found, NOW);
    assert_eq!(answer, expected);
    assert_eq!(step(task.as_ref(), found, NOW), answer, "asking twice");
}

/// The actions from `found` until the task settles when every action succeeds immediately.
fn path(desired: Option<DesiredTaskState>, found: ObservedTask) -> Vec<ActionKind> {
    path_of(desired.map(task).as_ref(), found)
}

/// As [`path`]; an image whose digest is not pinned is `a`.
fn path_of(task: Option<&TaskAssignment>, mut found: ObservedTask) -> Vec<ActionKind> {
    let mut verbs = Vec::new();
    while let NextStep::Do(action) = step(task, &found, NOW) {
        verbs.push(action.kind());
        assert!(verbs.len() < 32, "no end: {verbs:?}");
        let container = match (&action, found.container) {
            (Action::SignalStop | Action::Kill, _) => exited(143),
            (_, container) => container,
        };
        match action {
            Action::Inspect => found.record_inspection(container, None),
            Action::EnsureImage => {
                found.record_image(task.and_then(resolved_digest).unwrap_or_else(|| digest('a')))
            }
            action => {
                found.container = container;
                found.record_success(&action, NOW);
            }
        }
    }
    verbs
}

const RUN: Option<DesiredTaskState> = Some(DesiredTaskState::Running);
const STOP: Option<DesiredTaskState> = Some(DesiredTaskState::Shutdown);
const REMOVE: Option<DesiredTaskState> = Some(DesiredTaskState::Remove);

#[test]
fn start_actions_are_ordered() {
    use ActionKind::*;
    let preparing = [Inspect, EnsureImage, EnsureNetwork, EnsureFiles, ReservePorts, EnsureContainer];
    assert_eq!(path(Some(DesiredTaskState::Ready), ObservedTask::new(NOW)), preparing);
    let running = [&preparing[..], &[Start, RouteTraffic, RecordHistory]].concat();
    assert_eq!(path(RUN, ObservedTask::new(NOW)), running);
    assert_eq!(path(RUN, running_task()), []);
    // Only the start waits for a bootstrap service, and a process that runs is not touched.
    let held = |found| ObservedTask { awaited_service: Some("dns".parse().unwrap()), ..found };
    assert_eq!(path(RUN, held(ObservedTask::new(NOW))), preparing);
    assert_eq!(path(RUN, held(running_task())), []);
}

#[test]
fn container_waits_for_resolved_digest() {
    use ActionKind::*;
    let unsettled = |desired| TaskAssignment { digest: None, ..task(desired) };
    for desired in [DesiredTaskState::Ready, DesiredTaskState::Running] {
        let prepared = [Inspect, EnsureImage, EnsureNetwork, EnsureFiles, ReservePorts];
        assert_eq!(path_of(Some(&unsettled(desired)), ObservedTask::new(NOW)), prepared);
    }
    let prepared = ObservedTask {
        network: ResourceState::Present,
        files: ResourceState::Present,
        ports: PortState::Reserved,
        image: ImageState::Present(digest('a')),
        ..fresh(ContainerState::Absent, AttemptHistory::default())
    };
    assert_eq!(step(Some(&unsettled(DesiredTaskState::Running)), &prepared, NOW), NextStep::Settled);
    check(RUN, &prepared, NextStep::Do(Action::EnsureContainer));
    let another = ObservedTask { image: ImageState::Present(digest('b')), ..prepared.clone() };
    check(RUN, &another, NextStep::Do(Action::EnsureImage));
    let arriving =
        ObservedTask { image: ImageState::Pulling { progress: "1 of 2".into() }, ..prepared.clone() };
    check(RUN, &arriving, NextStep::Do(Action::EnsureImage));
    let named = format!("demo@{}", digest('a'));
    let mut by_itself = unsettled(DesiredTaskState::Running);
    by_itself.spec = TaskSpec::new(named.parse().unwrap());
    assert_eq!(step(Some(&by_itself), &prepared, NOW), NextStep::Do(Action::EnsureContainer));
}

#[test]
fn existing_container_needs_no_image() {
    let unsettled = TaskAssignment { digest: None, ..task(DesiredTaskState::Running) };
    let found = |container, history: AttemptHistory| ObservedTask {
        image: ImageState::Unknown,
        ports: PortState::Reserved,
        ..ObservedTask {
            network: ResourceState::Present,
            files: ResourceState::Present,
            ..fresh(container, history)
        }
    };
    let created = found(ContainerState::Created, AttemptHistory::default());
    assert_eq!(step(Some(&unsettled), &created, NOW), NextStep::Do(Action::Start));
    let again = AttemptHistory { attempt: 2, ..AttemptHistory::default() };
    let mut recorded = found(ContainerState::Recorded, again);
    assert_eq!(step(Some(&unsettled), &recorded, NOW), NextStep::Do(Action::EnsureContainer));
    recorded.record_failure(&Action::EnsureContainer, FailureKind::Transient, "no image".into(), NOW);
    recorded.record_inspection(ContainerState::Recorded, None);
    assert_eq!(step(Some(&unsettled), &recorded, NOW), NextStep::Do(Action::EnsureImage), "it may have gone");
    recorded.record_image(digest('a'));
    let retry = NextStep::WaitUntil(NOW + Duration::from_millis(250));
    assert_eq!(step(Some(&unsettled), &recorded, NOW), retry, "having it again is no progress yet");
}

#[test]
fn completed_task_is_not_restarted() {
    for (condition, code, expected) in [
        (RestartCondition::None, 0, TerminalState::Completed),
        (RestartCondition::OnFailure, 0, TerminalState::Completed),
        (RestartCondition::None, 3, TerminalState::Failed),
    ] {
        let mut task = task(DesiredTaskState::Running);
        task.spec.restart = RestartPolicy { condition, ..RestartPolicy::default() };
        let found = ObservedTask { container: exited(code), ports: PortState::Reserved, ..running_task() };
        let NextStep::Do(Action::RecordHistory(history)) = step(Some(&task), &found, NOW) else {
            panic!("the end is not recorded");
        };
        assert_eq!(history.terminal_state(), Some(expected));
        use ActionKind::*;
        let rest =
            [RecordHistory, DeleteProcess, ReleasePorts, RemoveLayer, RemoveSecretObjects, RemoveNetwork];
        assert_eq!(path_of(Some(&task), found), rest);
    }
}

#[test]
fn stop_actions_are_ordered() {
    use ActionKind::*;
    let stopped = [
        ReleasePorts,
        SignalStop,
        RecordHistory,
        DeleteProcess,
        RemoveLayer,
        RemoveSecretObjects,
        RemoveNetwork,
    ];
    assert_eq!(path(STOP, running_task()), stopped);
    let removed = [
        ReleasePorts,
        SignalStop,
        RecordHistory,
        DeleteProcess,
        RemoveContainer,
        RemoveSecretObjects,
        RemoveNetwork,
        RemoveFiles,
    ];
    assert_eq!(path(REMOVE, running_task()), removed);
    assert_eq!(path(None, running_task()), removed);
    let never_made = [Inspect, RecordHistory, ReleasePorts, RemoveSecretObjects, RemoveNetwork, RemoveFiles];
    assert_eq!(path(REMOVE, ObservedTask::new(NOW)), never_made);
}

#[test]
fn restarted_agent_keeps_process_and_ensures_resources() {
    use ActionKind::*;
    let found = fresh(
        ContainerState::Running { since: seconds_ago(5) },
        AttemptHistory::default().with_start(seconds_ago(5), 4),
    );
    assert_eq!(path(RUN, found.clone()), [EnsureNetwork, EnsureFiles, RouteTraffic]);
    let unrecorded = ObservedTask { history: AttemptHistory::default(), ..found };
    assert_eq!(path(RUN, unrecorded), [EnsureNetwork, EnsureFiles, RouteTraffic, RecordHistory]);
}

/// A task with every kind of resource.
fn full_task() -> TaskAssignment {
    let mut task = task(DesiredTaskState::Running);
    let source = MountSource::Volume { name: "data".into(), subpath: None, no_copy: false };
    task.spec.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    task.spec.secrets = vec![SecretObjectMount::new("db".parse().unwrap())];
    task.spec.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    task
}

#[test]
fn volumes_follow_image_and_secrets_come_last() {
    use ActionKind::*;
    let task = full_task();
    let up = [
        EnsureImage,
        EnsureNetwork,
        EnsureFiles,
        ReservePorts,
        EnsureVolumes,
        EnsureSecretObjects,
        EnsureContainer,
        Start,
        RecordHistory,
    ];
    assert_eq!(path_of(Some(&task), fresh(ContainerState::Absent, AttemptHistory::default())), up);
    let unsettled = TaskAssignment { digest: None, ..task.clone() };
    assert_eq!(path_of(Some(&unsettled), fresh(ContainerState::Absent, AttemptHistory::default())), up[..4]);
    // A restart in place needs both again, since they may be gone; a running process needs neither.
    let again = AttemptHistory { attempt: 2, ..AttemptHistory::default() };
    assert_eq!(path_of(Some(&task), fresh(ContainerState::Recorded, again)), up[1..]);
    let adopted = fresh(
        ContainerState::Running { since: seconds_ago(5) },
        AttemptHistory::default().with_start(seconds_ago(5), 4),
    );
    assert_eq!(path_of(Some(&task), adopted), [EnsureNetwork, EnsureFiles, ReservePorts]);
}

fn checked(health: Health) -> Option<HealthObservation> {
    Some(HealthObservation { health, reason: "why".into() })
}

#[test]
fn traffic_is_routed_only_while_healthy() {
    use Health::{Healthy, Starting, Unhealthy};
    let task = full_task();
    let recorded = |health| AttemptHistory::default().with_start(seconds_ago(100), 4).with_health(health);
    let (serve, hold) = (Some(Action::RouteTraffic), Some(Action::ReservePorts));
    let record = |health| Some(Action::RecordHistory(recorded(health)));
    for (ports, recorded_health, found, expected) in [
        (PortState::Reserved, Health::None, None, None),
        (PortState::Reserved, Health::None, checked(Starting), None),
        (PortState::Reserved, Health::None, checked(Healthy), serve.clone()),
        (PortState::Routed, Health::None, checked(Healthy), record(Healthy)),
        (PortState::Routed, Healthy, checked(Healthy), None),
        (PortState::Routed, Healthy, checked(Unhealthy), hold.clone()),
        (PortState::Reserved, Healthy, checked(Unhealthy), record(Unhealthy)),
        (PortState::Reserved, Unhealthy, checked(Unhealthy), None),
        (PortState::Reserved, Unhealthy, checked(Healthy), serve.clone()),
        // What an earlier agent knew.
        (PortState::Unknown, Health::None, None, hold.clone()),
        (PortState::Unknown, Healthy, None, serve.clone()),
        (PortState::Unknown, Unhealthy, None, hold.clone()),
    ] {
        let text = format!("{ports:?} {recorded_health:?} {found:?}");
        let found = ObservedTask {
            ports,
            history: recorded(recorded_health),
            observed_health: found,
            ..running_task()
        };
        let answer = step(Some(&task), &found, NOW);
        assert_eq!(answer, expected.map_or(NextStep::Settled, NextStep::Do), "{text}");
    }
    // Neither damaged resources nor an unavailable containerd delay the withdrawal.
    let failing = ObservedTask {
        observed_health: checked(Unhealthy),
        network: ResourceState::Unknown,
        ..running_task()
    };
    assert_eq!(step(Some(&task), &failing, NOW), NextStep::Do(Action::ReservePorts));
    let unseen = ObservedTask { freshness: Freshness::Stale, ..failing };
    assert_eq!(step(Some(&task), &unseen, NOW), NextStep::Do(Action::ReservePorts));
    let held = ObservedTask { ports: PortState::Reserved, ..unseen };
    assert_eq!(step(Some(&task), &held, NOW), NextStep::Do(Action::Inspect));
}

#[test]
fn health_is_reset_with_new_process() {
    let task = full_task();
    let mut found = ObservedTask { observed_health: checked(Health::Unhealthy), ..running_task() };
    found.record_inspection(ContainerState::Running { since: NOW }, None);
    assert_eq!(found.health(Some(&task)), Health::Unhealthy);
    found.record_inspection(exited(1), None);
    assert_eq!((found.health(Some(&task)), found.observed_health.clone()), (Health::None, None));
    found.record_health(HealthObservation { health: Health::Healthy, reason: String::new() });
    assert_eq!(found.observed_health, None, "it came too late");
    found.record_success(&Action::Start, NOW);
    found.history = found.history.with_pending().with_start(NOW, 4);
    assert_eq!(found.health(Some(&task)), Health::Starting, "a restart starts the checks again");
    assert_eq!(found.health(None), Health::None);
    let plain = TaskAssignment { spec: TaskSpec::new("demo:1".parse().unwrap()), ..task };
    assert_eq!(found.health(Some(&plain)), Health::None);
}

#[test]
fn failed_container_creation_ensures_resources_again() {
    let mut found = ObservedTask {
        container: ContainerState::Recorded,
        history: AttemptHistory::default(),
        ..running_task()
    };
    found.record_failure(
        &Action::EnsureContainer,
        FailureKind::Transient,
        "no such file".into(),
        seconds_ago(60),
    );
    found.freshness = Freshness::Fresh;
    found.ports = PortState::Reserved;
    use ActionKind::*;
    let again = [EnsureImage, EnsureVolumes, EnsureSecretObjects, EnsureContainer, Start, RecordHistory];
    assert_eq!(path_of(Some(&full_task()), found), again);
}

#[test]
fn exit_is_recorded_before_process_is_deleted() {
    let found = ObservedTask { container: exited(1), ..running_task() };
    check(RUN, &found, NextStep::Do(Action::ReservePorts));
    let held = ObservedTask { ports: PortState::Reserved, ..found };
    let until = NOW + Duration::from_secs(1);
    let history = AttemptHistory {
        attempt: 2,
        phase: AttemptPhase::Waiting { since: NOW, until },
        exit: Some(TaskExit { code: 1, out_of_memory: false }),
        delay: Duration::from_secs(1),
        ..held.history.clone()
    };
    check(RUN, &held, NextStep::Do(Action::RecordHistory(history.clone())));
    let recorded = ObservedTask { history: history.clone(), ..held };
    check(RUN, &recorded, NextStep::Do(Action::DeleteProcess));
    let waiting = ObservedTask { container: ContainerState::Recorded, ..recorded };
    check(RUN, &waiting, NextStep::WaitUntil(until));
    let due = step(Some(&task(DesiredTaskState::Running)), &waiting, until);
    assert_eq!(due, NextStep::Do(Action::RecordHistory(history.with_pending())));
    let opened = ObservedTask { history: history.with_pending(), ..waiting };
    check(RUN, &opened, NextStep::Do(Action::EnsureContainer));
}

#[test]
fn vanished_process_counts_as_failed_attempt() {
    let found =
        ObservedTask { container: ContainerState::Recorded, ports: PortState::Reserved, ..running_task() };
    let NextStep::Do(Action::RecordHistory(history)) =
        step(Some(&task(DesiredTaskState::Running)), &found, NOW)
    else {
        panic!("the loss is not recorded");
    };
    assert_eq!((history.attempt, history.exit), (2, None));
    assert!(matches!(history.phase, AttemptPhase::Waiting { .. }));
}

#[test]
fn terminal_task_is_not_restarted() {
    for terminal_state in
        [TerminalState::Completed, TerminalState::Failed, TerminalState::Shutdown, TerminalState::Rejected]
    {
        let history = AttemptHistory::default().with_end(seconds_ago(5), terminal_state, "why".into());
        let found = fresh(ContainerState::Recorded, history);
        use ActionKind::{ReleasePorts, RemoveLayer, RemoveNetwork, RemoveSecretObjects};
        let rest = [ReleasePorts, RemoveLayer, RemoveSecretObjects, RemoveNetwork];
        assert_eq!(path(RUN, found.clone()), rest, "{terminal_state:?}");
        let absent = ObservedTask { container: ContainerState::Absent, ..found };
        let rest = [ReleasePorts, RemoveSecretObjects, RemoveNetwork];
        assert_eq!(path(RUN, absent), rest, "{terminal_state:?}");
    }
}

#[test]
fn process_is_killed_after_stop_grace() {
    let stopping = |at, killed_at| ObservedTask {
        ports: PortState::Released,
        stop: Some(SentStop { at, killed_at }),
        ..running_task()
    };
    check(STOP, &stopping(seconds_ago(4), None), NextStep::WaitUntil(NOW + Duration::from_secs(6)));
    check(STOP, &stopping(seconds_ago(10), None), NextStep::Do(Action::Kill));
    check(
        STOP,
        &stopping(seconds_ago(13), Some(seconds_ago(3))),
        NextStep::WaitUntil(NOW + Duration::from_secs(7)),
    );
    check(STOP, &stopping(seconds_ago(20), Some(seconds_ago(10))), NextStep::Do(Action::Kill));
    let set_back = NOW + Duration::from_secs(3600);
    check(STOP, &stopping(set_back, None), NextStep::Do(Action::Kill));
}

#[test]
fn transient_failure_is_retried_with_backoff() {
    let failing = |failures| ObservedTask {
        failures: trouble(ActionKind::EnsureNetwork, FailureKind::Transient, failures),
        image: ImageState::Present(digest('a')),
        ..fresh(ContainerState::Absent, AttemptHistory::default())
    };
    for (failures, delay) in [(1, 250), (2, 500), (3, 1000), (7, 10_000), (1000, 10_000)] {
        let expected = NextStep::WaitUntil(NOW + Duration::from_millis(delay));
        check(RUN, &failing(failures), expected);
    }
    let mut over = failing(3);
    over.reset_retry_delays();
    check(RUN, &over, NextStep::Do(Action::EnsureNetwork));
}

#[test]
fn permanent_failure_rejects_unstarted_task() {
    let failing = |container| ObservedTask {
        failures: trouble(ActionKind::ReservePorts, FailureKind::Permanent, 1),
        ..fresh(container, AttemptHistory::default())
    };
    let reason = "reserving published ports: no".to_string();
    let rejected = AttemptHistory::default().with_end(NOW, TerminalState::Rejected, reason);
    check(RUN, &failing(ContainerState::Absent), NextStep::Do(Action::RecordHistory(rejected)));
    let running = ObservedTask {
        failures: trouble(ActionKind::RouteTraffic, FailureKind::Permanent, 1),
        ports: PortState::Reserved,
        ..running_task()
    };
    check(RUN, &running, NextStep::WaitUntil(NOW + Duration::from_millis(250)));
}

#[test]
fn clients_go_elsewhere_before_the_stop_signal() {
    let stopped = task(DesiredTaskState::Shutdown);
    // The answers and reasons after some times since the stop was requested.
    let drain = |task: &TaskAssignment, found: ObservedTask, steps: &[(Duration, bool)]| {
        let mut found = found;
        found.record_inputs(Some(task), None, false, NOW);
        assert_eq!(step(Some(task), &found, NOW), NextStep::Do(Action::ReleasePorts));
        found.record_success(&Action::ReleasePorts, NOW);
        let mut answers = Vec::new();
        for (later, is_withdrawn) in steps {
            found.record_inputs(Some(task), None, *is_withdrawn, NOW + *later);
            let reason = build_report(task.id, Some(task), &found).reason;
            answers.push((step(Some(task), &found, NOW + *later), reason));
        }
        answers
    };
    let (soon, delay) = (Duration::from_millis(100), stopped.spec.drain_delay);
    let answers = drain(
        &stopped,
        running_task(),
        &[(soon, false), (2 * soon, true), (3 * soon, true), (2 * soon + delay, true)],
    );
    assert_eq!(answers[0].0, NextStep::WaitUntil(NOW + WITHDRAWAL_TIMEOUT + delay));
    let reason = &answers[0].1;
    assert!(reason.starts_with("stopping: waiting since ") && reason.ends_with("no new clients"), "{reason}");
    for (answer, reason) in &answers[1..3] {
        assert_eq!(*answer, NextStep::WaitUntil(NOW + 2 * soon + delay));
        assert!(reason.starts_with("stopping: drain delay of 2s since "), "{reason}");
    }
    assert_eq!(answers[3].0, NextStep::Do(Action::SignalStop));
    let unacknowledged = drain(&stopped, running_task(), &[(WITHDRAWAL_TIMEOUT + delay, false)]);
    assert_eq!(unacknowledged[0].0, NextStep::Do(Action::SignalStop));
    // Nobody was sent to these.
    let unhealthy = HealthObservation { health: Health::Unhealthy, reason: String::new() };
    let unhealthy = ObservedTask { observed_health: Some(unhealthy), ..running_task() };
    let mut checked = stopped.clone();
    checked.spec.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    let now = [(Duration::ZERO, false)];
    assert_eq!(drain(&checked, unhealthy, &now)[0].0, NextStep::Do(Action::SignalStop));
    let mut alone = stopped;
    alone.ports.clear();
    alone.spec.network = TaskNetworkMode::Host;
    assert_eq!(drain(&alone, running_task(), &now)[0].0, NextStep::Do(Action::SignalStop));
}

#[test]
fn stop_proceeds_when_traffic_removal_fails() {
    let found = ObservedTask {
        failures: trouble(ActionKind::ReleasePorts, FailureKind::Transient, 1),
        ..running_task()
    };
    check(REMOVE, &found, NextStep::Do(Action::SignalStop));
    let signalled = ObservedTask { stop: Some(SentStop { at: NOW, killed_at: None }), ..found };
    check(REMOVE, &signalled, NextStep::WaitUntil(NOW + Duration::from_millis(250)));
}

#[test]
fn removal_continues_after_permanent_failure() {
    for verb in [ActionKind::RemoveNetwork, ActionKind::EnsureContainer] {
        let found = ObservedTask {
            failures: trouble(verb, FailureKind::Permanent, 1),
            ports: PortState::Released,
            ..fresh(
                ContainerState::Absent,
                AttemptHistory::default().with_end(NOW, TerminalState::Shutdown, String::new()),
            )
        };
        let answer = step(Some(&task(DesiredTaskState::Remove)), &found, NOW);
        assert!(matches!(answer, NextStep::Do(Action::RemoveSecretObjects)), "{answer:?}");
        let later = ObservedTask { secret_objects: ResourceState::Absent, ..found };
        let answer = step(Some(&task(DesiredTaskState::Remove)), &later, NOW);
        assert!(matches!(answer, NextStep::Do(Action::RemoveNetwork | Action::RemoveFiles)), "{answer:?}");
    }
}

#[test]
fn clock_set_back_does_not_block_restart() {
    let until = NOW + Duration::from_secs(86_400);
    let history = AttemptHistory {
        attempt: 2,
        phase: AttemptPhase::Waiting { since: NOW, until },
        ..AttemptHistory::default()
    };
    let found = fresh(ContainerState::Recorded, history.clone());
    check(RUN, &found, NextStep::Do(Action::RecordHistory(history.with_pending())));
}

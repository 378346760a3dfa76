use std::time::Duration;

use warren_types::fixtures::{image_digest, task_assignment};
use warren_types::spec::{HealthCheck, Probe};
use warren_types::{Health, Id, ServiceId};

use super::*;
use crate::action::Action;
use crate::attempt_history::{AttemptHistory, TerminalState};
use crate::observed_task::{FailureKind, HealthObservation, SentStop};

const AT: Timestamp = Timestamp(1_700_000_000_000);

fn task(desired: DesiredTaskState) -> TaskAssignment {
    TaskAssignment { desired, ..task_assignment(TaskId { service: ServiceId(Id(1)), number: 1 }) }
}

fn fresh(container: ContainerState, attempts: AttemptHistory) -> ObservedTask {
    ObservedTask { freshness: Freshness::Fresh, container, history: attempts, ..ObservedTask::new(AT) }
}

#[track_caller]
fn check(
    desired: DesiredTaskState,
    found: &ObservedTask,
    attempt: u32,
    state: TaskState,
    ready: bool,
    reason: &str,
) {
    let task = task(desired);
    let output = build_report(task.id, Some(&task), found);
    assert_eq!((output.attempt, output.state, output.ready), (attempt, state, ready));
    assert_eq!(output.reason, reason);
}

#[test]
fn startup_states_are_reported() {
    check(DesiredTaskState::Running, &ObservedTask::new(AT), 1, TaskState::Accepted, false, "");
    let made = fresh(ContainerState::Created, AttemptHistory::default());
    check(
        DesiredTaskState::Running,
        &fresh(ContainerState::Absent, AttemptHistory::default()),
        1,
        TaskState::Preparing,
        false,
        "",
    );
    check(DesiredTaskState::Ready, &made, 1, TaskState::Ready, false, "");
    check(DesiredTaskState::Running, &made, 1, TaskState::Starting, false, "");
    let held = ObservedTask { awaited_service: Some("dns".parse().unwrap()), ..made };
    let reason = "waiting for bootstrap service \"dns\" on this node";
    check(DesiredTaskState::Running, &held, 1, TaskState::Starting, false, reason);
    let running = fresh(ContainerState::Running { since: AT }, AttemptHistory::default());
    check(DesiredTaskState::Running, &running, 1, TaskState::Running, true, "");
}

#[test]
fn task_is_ready_once_traffic_is_routed() {
    let mut task = task(DesiredTaskState::Running);
    task.ports = vec![warren_types::PublishedPort {
        host_ip: None,
        host_port: 80,
        container_port: 80,
        protocol: warren_types::Protocol::Tcp,
        mode: warren_types::PublishMode::Host,
        prefer_local: false,
        client_affinity: false,
    }];
    let running = fresh(ContainerState::Running { since: AT }, AttemptHistory::default());
    assert!(!build_report(task.id, Some(&task), &running).ready);
    let serving = ObservedTask { ports: PortState::Routed, ..running };
    assert!(build_report(task.id, Some(&task), &serving).ready);
}

#[test]
fn waiting_task_reports_reason_and_time() {
    let phase = AttemptPhase::Waiting { since: AT, until: AT + Duration::from_secs(2) };
    let exit = Some(TaskExit { code: 1, out_of_memory: false });
    let waiting = fresh(
        ContainerState::Recorded,
        AttemptHistory { attempt: 3, phase, exit, ..AttemptHistory::default() },
    );
    let reason = "exited with code 1; attempt 3 starts at 22:13:22 UTC";
    check(DesiredTaskState::Running, &waiting, 3, TaskState::Starting, false, reason);
    let mut with_secret = task(DesiredTaskState::Running);
    with_secret.spec.secrets.push(warren_types::SecretObjectMount::new("db".parse().unwrap()));
    let hinted = build_report(with_secret.id, Some(&with_secret), &waiting).reason;
    let start = format!("{reason}; if it could not read its secrets: db has mode 0400");
    assert!(hinted.starts_with(&start), "{hinted}");
    let opened = ObservedTask { history: waiting.history.with_pending(), ..waiting };
    let reason = "exited with code 1; attempt 3 is being started";
    check(DesiredTaskState::Running, &opened, 3, TaskState::Starting, false, reason);
}

#[test]
fn next_attempt_is_reported_while_waiting() {
    let until = AT + Duration::from_secs(2);
    let attempts = AttemptHistory {
        attempt: 2,
        phase: AttemptPhase::Waiting { since: AT, until },
        ..AttemptHistory::default()
    };
    let waiting = fresh(ContainerState::Recorded, attempts);
    let reported = |desired, found: &ObservedTask| {
        let task = task(desired);
        build_report(task.id, Some(&task), found).next_attempt
    };
    assert_eq!(reported(DesiredTaskState::Running, &waiting), Some(until));
    assert_eq!(reported(DesiredTaskState::Remove, &waiting), None);
    let opened = ObservedTask { history: waiting.history.with_pending(), ..waiting };
    assert_eq!(reported(DesiredTaskState::Running, &opened), None);
}

#[test]
fn pull_progress_then_digest_is_reported() {
    let digest = image_digest('a');
    let mut found = fresh(ContainerState::Absent, AttemptHistory::default());
    found.record_pull_progress("pulling image: 1 of 2 layers, 3 of 9 MiB".into());
    let pulling = "pulling image: 1 of 2 layers, 3 of 9 MiB";
    check(DesiredTaskState::Ready, &found, 1, TaskState::Preparing, false, pulling);
    found.record_failure(&Action::EnsureImage, FailureKind::Transient, "the registry is away".into(), AT);
    let failed = "pulling image: the registry is away";
    check(DesiredTaskState::Ready, &found, 1, TaskState::Preparing, false, failed);
    found.record_pull_progress(pulling.into());
    let retried = "pulling image: 1 of 2 layers, 3 of 9 MiB; the registry is away";
    check(DesiredTaskState::Ready, &found, 1, TaskState::Preparing, false, retried);
    found.record_image(digest.clone());
    let waits = "waiting for the manager to pin the image digest";
    check(DesiredTaskState::Ready, &found, 1, TaskState::Preparing, false, waits);
    check(DesiredTaskState::Remove, &found, 1, TaskState::Preparing, false, "");

    let reported =
        |task: &TaskAssignment, found: &ObservedTask| build_report(task.id, Some(task), found).image;
    let mut unsettled = task(DesiredTaskState::Ready);
    assert_eq!(reported(&unsettled, &found), None, "managers resolve it");
    unsettled.spec.resolve_image = ImageResolver::Worker;
    assert_eq!(reported(&unsettled, &found), Some(digest.clone()));
    let settled = TaskAssignment { digest: Some(digest), ..unsettled.clone() };
    assert_eq!(reported(&settled, &found), None, "managers know it");
    assert_eq!(build_report(settled.id, Some(&settled), &found).reason, "");
    assert_eq!(reported(&task(DesiredTaskState::Remove), &found), None);
    let history = found.history.with_end(AT, TerminalState::Rejected, String::new());
    assert_eq!(
        reported(&unsettled, &ObservedTask { history, ..found }),
        None,
        "what was rejected settles nothing"
    );
    // An agent that finds a container has not looked up its image.
    let made_from: Option<ImageDigest> = settled.digest.clone();
    let mut found = ObservedTask { container_image: made_from.clone(), ..ObservedTask::new(AT) };
    assert_eq!(reported(&unsettled, &found), None, "the container is gone");
    for container in [ContainerState::Recorded, ContainerState::Running { since: AT }] {
        found.container = container;
        assert_eq!((reported(&unsettled, &found), reported(&settled, &found)), (made_from.clone(), None));
    }
}

#[test]
fn failure_is_reported_without_state_change() {
    let mut found = fresh(ContainerState::Running { since: AT }, AttemptHistory::default().with_start(AT, 4));
    let down = "containerd does not answer".to_string();
    found.record_failure(&Action::Inspect, FailureKind::Transient, down.clone(), AT);
    let reason = "inspecting container: containerd does not answer";
    check(DesiredTaskState::Running, &found, 1, TaskState::Running, true, reason);
    found.record_failure(&Action::Inspect, FailureKind::Transient, down, AT);
    check(DesiredTaskState::Running, &found, 1, TaskState::Running, true, reason);
}

#[test]
fn terminal_state_is_final() {
    for verdict in
        [TerminalState::Shutdown, TerminalState::Completed, TerminalState::Failed, TerminalState::Rejected]
    {
        let found = fresh(
            ContainerState::Recorded,
            AttemptHistory::default().with_end(AT, verdict, "because".into()),
        );
        for desired in DesiredTaskState::ALL {
            check(desired, &found, 1, verdict.state(), false, "because");
        }
    }
}

#[test]
fn stopping_is_reported() {
    let mut found = fresh(ContainerState::Running { since: AT }, AttemptHistory::default().with_start(AT, 4));
    check(DesiredTaskState::Shutdown, &found, 1, TaskState::Running, false, "");
    found.stop = Some(SentStop { at: AT, killed_at: None });
    check(
        DesiredTaskState::Shutdown,
        &found,
        1,
        TaskState::Running,
        false,
        "stopping: grace period of 10s since 22:13:20 UTC",
    );
    found.stop = Some(SentStop { at: AT, killed_at: Some(AT) });
    let reason = "stopping: sent SIGKILL at 22:13:20 UTC, process still running";
    check(DesiredTaskState::Remove, &found, 1, TaskState::Running, false, reason);
}

#[test]
fn task_is_ready_while_checks_succeed() {
    let mut task = task(DesiredTaskState::Running);
    task.spec.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    let history = |health| AttemptHistory::default().with_start(AT, 4).with_health(health);
    let checked = |health, reason: &str| Some(HealthObservation { health, reason: reason.into() });
    let refused = "no health check has succeeded yet: refused";
    let waiting = "no health check has succeeded yet";
    let adopted = "unhealthy: reported before the agent restarted; checking again";
    use Health::{Healthy, Starting, Unhealthy};
    for (recorded_health, found, health, reason, is_told) in [
        (Health::None, None, Starting, waiting, true),
        (Health::None, checked(Starting, refused), Starting, refused, true),
        (Health::None, checked(Healthy, ""), Healthy, "", false),
        (Healthy, checked(Healthy, ""), Healthy, "", true),
        (Healthy, checked(Unhealthy, "unhealthy: refused"), Unhealthy, "unhealthy: refused", false),
        (Unhealthy, checked(Unhealthy, "unhealthy: refused"), Unhealthy, "unhealthy: refused", true),
        (Healthy, None, Healthy, "", true),
        (Unhealthy, None, Unhealthy, adopted, true),
    ] {
        let found = ObservedTask {
            observed_health: found,
            ..fresh(ContainerState::Running { since: AT }, history(recorded_health))
        };
        let output = build_report(task.id, Some(&task), &found);
        let expected = (health, reason, health == Healthy);
        assert_eq!((output.health, output.reason.as_str(), output.ready), expected);
        assert_eq!(should_report(Some(&task), &found), is_told, "{output:?}");
    }
    let failing = fresh(ContainerState::Running { since: AT }, history(Healthy));
    let mut failing = ObservedTask { observed_health: checked(Unhealthy, "unhealthy: refused"), ..failing };
    failing.record_failure(
        &Action::RecordHistory(history(Unhealthy)),
        FailureKind::Transient,
        "away".into(),
        AT,
    );
    assert!(should_report(Some(&task), &failing), "what cannot be recorded is told");
    let going = TaskAssignment { desired: DesiredTaskState::Shutdown, ..task };
    let text = build_report(going.id, Some(&going), &failing);
    assert_eq!((text.health, text.ready), (Health::None, false));
    failing.failures.clear();
    assert!(should_report(Some(&going), &failing));
}

#[test]
fn removed_requires_all_resources_gone() {
    let gone = ObservedTask {
        network: ResourceState::Absent,
        files: ResourceState::Absent,
        secret_objects: ResourceState::Absent,
        ports: PortState::Released,
        ..fresh(
            ContainerState::Absent,
            AttemptHistory::default().with_end(AT, TerminalState::Shutdown, String::new()),
        )
    };
    let removed = |desired: Option<DesiredTaskState>, found: &ObservedTask| {
        let task_id = task(DesiredTaskState::Remove).id;
        build_report(task_id, desired.map(task).as_ref(), found).removed
    };
    assert!(removed(Some(DesiredTaskState::Remove), &gone) && removed(None, &gone));
    assert!(!removed(Some(DesiredTaskState::Shutdown), &gone));
    let left = [
        ObservedTask { freshness: Freshness::Stale, ..gone.clone() },
        ObservedTask { container: ContainerState::Recorded, ..gone.clone() },
        ObservedTask { network: ResourceState::Unknown, ..gone.clone() },
        ObservedTask { files: ResourceState::Present, ..gone.clone() },
        ObservedTask { secret_objects: ResourceState::Unknown, ..gone.clone() },
        ObservedTask { ports: PortState::Reserved, ..gone.clone() },
        ObservedTask { history: AttemptHistory::default(), ..gone.clone() },
    ];
    for found in left {
        assert!(!removed(Some(DesiredTaskState::Remove), &found), "{found:?}");
    }
}

mod alone;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use warren_types::spec::{
    ContentMount, HealthCheck, Mount, MountSource, Probe, RestartCondition, RestartPolicy,
};
use warren_types::{Id, Protocol, PublishMode, PublishedPort, ServiceId, TaskId, TaskSpec};

use super::*;
use crate::action::Verb;
use crate::found::{Checked, Severity, StopSent, Trouble};

const NOW: Timestamp = Timestamp(1_000_000);

fn digest(digit: char) -> ImageDigest {
    format!("sha256:{}", digit.to_string().repeat(64)).parse().unwrap()
}

fn ago(seconds: u64) -> Timestamp {
    Timestamp(NOW.0 - seconds * 1000)
}

fn task(desired: Desired) -> TaskAssignment {
    let port = PublishedPort {
        host_ip: None,
        host_port: 8080,
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    TaskAssignment {
        id: TaskId { service: ServiceId(Id(1)), number: 1 },
        service: "web".parse().unwrap(),
        slot: 1,
        revision: 1,
        spec: TaskSpec::new("demo:1".parse().unwrap()),
        digest: Some(digest('a')),
        ports: vec![port],
        address: Ipv4Addr::new(10, 210, 0, 2),
        desired,
        service_labels: BTreeMap::new(),
        volumes: Vec::new(),
    }
}

/// A running task with everything in place.
fn up() -> Found {
    Found {
        sight: Sight::Fresh,
        container: Container::Running { since: ago(100) },
        image: Image::Present(digest('a')),
        made_from: None,
        network: Presence::Present,
        files: Presence::Present,
        volumes: Presence::Present,
        contents: Presence::Present,
        checked: None,
        ports: Ports::Serving,
        ledger: Ledger::first().started(ago(100), 4),
        stop: None,
        troubles: BTreeMap::new(),
        accepted_at: ago(200),
        alone_for: None,
    }
}

fn fresh(container: Container, ledger: Ledger) -> Found {
    Found { sight: Sight::Fresh, container, ledger, ..Found::new(ago(200)) }
}

fn exited(code: i32) -> Container {
    Container::Stopped { exit: Exit { code, out_of_memory: false }, at: NOW }
}

fn trouble(verb: Verb, severity: Severity, failures: u32) -> BTreeMap<Verb, Trouble> {
    [(verb, Trouble { severity, reason: "no".into(), failures, at: NOW })].into()
}

#[track_caller]
fn check(desired: Option<Desired>, found: &Found, wanted: Step) {
    let task = desired.map(task);
    let answer = step(task.as_ref(), found, NOW);
    assert_eq!(answer, wanted);
    assert_eq!(step(task.as_ref(), found, NOW), answer, "asking twice");
}

/// The verbs that lead from `found` to rest when every action succeeds at once.
fn path(desired: Option<Desired>, found: Found) -> Vec<Verb> {
    path_of(desired.map(task).as_ref(), found)
}

/// As [`path`]; an image whose digest is not settled is `a`.
fn path_of(task: Option<&TaskAssignment>, mut found: Found) -> Vec<Verb> {
    let mut verbs = Vec::new();
    while let Step::Do(action) = step(task, &found, NOW) {
        verbs.push(action.verb());
        assert!(verbs.len() < 32, "no end: {verbs:?}");
        let container = match (&action, found.container) {
            (Action::SignalStop | Action::Kill, _) => exited(143),
            (_, container) => container,
        };
        match action {
            Action::Inspect => found.inspected(container, None),
            Action::EnsureImage => found.obtained(task.and_then(pin).unwrap_or_else(|| digest('a'))),
            action => {
                found.container = container;
                found.succeeded(&action, NOW);
            }
        }
    }
    verbs
}

const RUN: Option<Desired> = Some(Desired::Running);
const STOP: Option<Desired> = Some(Desired::Shutdown);
const REMOVE: Option<Desired> = Some(Desired::Remove);

#[test]
fn a_task_is_brought_up_in_order() {
    use Verb::*;
    let preparing = [Inspect, EnsureImage, EnsureNetwork, EnsureFiles, HoldPorts, EnsureContainer];
    assert_eq!(path(Some(Desired::Ready), Found::new(NOW)), preparing);
    let running = [&preparing[..], &[Start, Serve, RecordLedger]].concat();
    assert_eq!(path(RUN, Found::new(NOW)), running);
    assert_eq!(path(RUN, up()), []);
}

#[test]
fn nothing_is_made_of_an_image_before_it_is_settled_what_it_is() {
    use Verb::*;
    let unsettled = |desired| TaskAssignment { digest: None, ..task(desired) };
    for desired in [Desired::Ready, Desired::Running] {
        let prepared = [Inspect, EnsureImage, EnsureNetwork, EnsureFiles, HoldPorts];
        assert_eq!(path_of(Some(&unsettled(desired)), Found::new(NOW)), prepared);
    }
    let prepared = Found {
        network: Presence::Present,
        files: Presence::Present,
        ports: Ports::Held,
        image: Image::Present(digest('a')),
        ..fresh(Container::Absent, Ledger::first())
    };
    assert_eq!(step(Some(&unsettled(Desired::Running)), &prepared, NOW), Step::Settled);
    check(RUN, &prepared, Step::Do(Action::EnsureContainer));
    let another = Found { image: Image::Present(digest('b')), ..prepared.clone() };
    check(RUN, &another, Step::Do(Action::EnsureImage));
    let arriving = Found { image: Image::Arriving { said: "1 of 2".into() }, ..prepared.clone() };
    check(RUN, &arriving, Step::Do(Action::EnsureImage));
    let named = format!("demo@{}", digest('a'));
    let mut by_itself = unsettled(Desired::Running);
    by_itself.spec = TaskSpec::new(named.parse().unwrap());
    assert_eq!(step(Some(&by_itself), &prepared, NOW), Step::Do(Action::EnsureContainer));
}

#[test]
fn a_container_that_is_there_needs_no_image() {
    let unsettled = TaskAssignment { digest: None, ..task(Desired::Running) };
    let found = |container, ledger: Ledger| Found {
        image: Image::Unknown,
        ports: Ports::Held,
        ..Found { network: Presence::Present, files: Presence::Present, ..fresh(container, ledger) }
    };
    let created = found(Container::Created, Ledger::first());
    assert_eq!(step(Some(&unsettled), &created, NOW), Step::Do(Action::Start));
    let again = Ledger { attempt: 2, ..Ledger::first() };
    let mut recorded = found(Container::Recorded, again);
    assert_eq!(step(Some(&unsettled), &recorded, NOW), Step::Do(Action::EnsureContainer));
    recorded.failed(&Action::EnsureContainer, Severity::Transient, "no image".into(), NOW);
    recorded.inspected(Container::Recorded, None);
    assert_eq!(step(Some(&unsettled), &recorded, NOW), Step::Do(Action::EnsureImage), "it may have gone");
    recorded.obtained(digest('a'));
    let retry = Step::WaitUntil(NOW + Duration::from_millis(250));
    assert_eq!(step(Some(&unsettled), &recorded, NOW), retry, "having it again is no progress yet");
}

#[test]
fn a_process_that_did_its_work_is_not_started_again() {
    for (condition, code, wanted) in [
        (RestartCondition::None, 0, Verdict::Completed),
        (RestartCondition::OnFailure, 0, Verdict::Completed),
        (RestartCondition::None, 3, Verdict::Failed),
    ] {
        let mut task = task(Desired::Running);
        task.spec.restart = RestartPolicy { condition, ..RestartPolicy::default() };
        let found = Found { container: exited(code), ports: Ports::Held, ..up() };
        let Step::Do(Action::RecordLedger(ledger)) = step(Some(&task), &found, NOW) else {
            panic!("the end is not recorded");
        };
        assert_eq!(ledger.verdict(), Some(wanted));
        use Verb::{DeleteProcess, RecordLedger, ReleasePorts, RemoveContents, RemoveNetwork};
        let rest = [RecordLedger, DeleteProcess, ReleasePorts, RemoveContents, RemoveNetwork];
        assert_eq!(path_of(Some(&task), found), rest);
    }
}

#[test]
fn a_task_is_taken_down_in_order() {
    use Verb::*;
    let stopped = [ReleasePorts, SignalStop, RecordLedger, DeleteProcess, RemoveContents, RemoveNetwork];
    assert_eq!(path(STOP, up()), stopped);
    let removed = [
        ReleasePorts,
        SignalStop,
        RecordLedger,
        DeleteProcess,
        RemoveContainer,
        RemoveContents,
        RemoveNetwork,
        RemoveFiles,
    ];
    assert_eq!(path(REMOVE, up()), removed);
    assert_eq!(path(None, up()), removed);
    let never_made = [Inspect, RecordLedger, ReleasePorts, RemoveContents, RemoveNetwork, RemoveFiles];
    assert_eq!(path(REMOVE, Found::new(NOW)), never_made);
}

#[test]
fn a_new_agent_keeps_what_runs_and_makes_its_surroundings_again() {
    use Verb::*;
    let found = fresh(Container::Running { since: ago(5) }, Ledger::first().started(ago(5), 4));
    assert_eq!(path(RUN, found.clone()), [EnsureNetwork, EnsureFiles, Serve]);
    let unrecorded = Found { ledger: Ledger::first(), ..found };
    assert_eq!(path(RUN, unrecorded), [EnsureNetwork, EnsureFiles, Serve, RecordLedger]);
}

/// Everything that a task can have around it.
fn full() -> TaskAssignment {
    let mut task = task(Desired::Running);
    let source = MountSource::Volume { name: "data".into(), subpath: None, no_copy: false };
    task.spec.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    task.spec.secrets = vec![ContentMount::new("db".parse().unwrap())];
    task.spec.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    task
}

#[test]
fn volumes_come_after_the_image_is_settled_and_secrets_last() {
    use Verb::*;
    let task = full();
    let up = [
        EnsureImage,
        EnsureNetwork,
        EnsureFiles,
        HoldPorts,
        EnsureVolumes,
        EnsureContents,
        EnsureContainer,
        Start,
        RecordLedger,
    ];
    assert_eq!(path_of(Some(&task), fresh(Container::Absent, Ledger::first())), up);
    let unsettled = TaskAssignment { digest: None, ..task.clone() };
    assert_eq!(path_of(Some(&unsettled), fresh(Container::Absent, Ledger::first())), up[..4]);
    // A restart in place needs both again, since they may be gone; a process that runs needs neither.
    let again = Ledger { attempt: 2, ..Ledger::first() };
    assert_eq!(path_of(Some(&task), fresh(Container::Recorded, again)), up[1..]);
    let adopted = fresh(Container::Running { since: ago(5) }, Ledger::first().started(ago(5), 4));
    assert_eq!(path_of(Some(&task), adopted), [EnsureNetwork, EnsureFiles, HoldPorts]);
}

fn checked(health: Health) -> Option<Checked> {
    Some(Checked { health, reason: "why".into() })
}

#[test]
fn a_task_gets_traffic_only_while_its_checks_succeed() {
    use Health::{Healthy, Starting, Unhealthy};
    let task = full();
    let recorded = |health| Ledger::first().started(ago(100), 4).found_to_be(health);
    let (serve, hold) = (Some(Action::Serve), Some(Action::HoldPorts));
    let record = |health| Some(Action::RecordLedger(recorded(health)));
    for (ports, of_ledger, found, wanted) in [
        (Ports::Held, Health::None, None, None),
        (Ports::Held, Health::None, checked(Starting), None),
        (Ports::Held, Health::None, checked(Healthy), serve.clone()),
        (Ports::Serving, Health::None, checked(Healthy), record(Healthy)),
        (Ports::Serving, Healthy, checked(Healthy), None),
        (Ports::Serving, Healthy, checked(Unhealthy), hold.clone()),
        (Ports::Held, Healthy, checked(Unhealthy), record(Unhealthy)),
        (Ports::Held, Unhealthy, checked(Unhealthy), None),
        (Ports::Held, Unhealthy, checked(Healthy), serve.clone()),
        // What an earlier agent knew.
        (Ports::Unknown, Health::None, None, hold.clone()),
        (Ports::Unknown, Healthy, None, serve.clone()),
        (Ports::Unknown, Unhealthy, None, hold.clone()),
    ] {
        let said = format!("{ports:?} {of_ledger:?} {found:?}");
        let found = Found { ports, ledger: recorded(of_ledger), checked: found, ..up() };
        let answer = step(Some(&task), &found, NOW);
        assert_eq!(answer, wanted.map_or(Step::Settled, Step::Do), "{said}");
    }
    // Neither damage nor a containerd that does not answer holds up what withdraws it.
    let failing = Found { checked: checked(Unhealthy), network: Presence::Unknown, ..up() };
    assert_eq!(step(Some(&task), &failing, NOW), Step::Do(Action::HoldPorts));
    let unseen = Found { sight: Sight::Stale, ..failing };
    assert_eq!(step(Some(&task), &unseen, NOW), Step::Do(Action::HoldPorts));
    let held = Found { ports: Ports::Held, ..unseen };
    assert_eq!(step(Some(&task), &held, NOW), Step::Do(Action::Inspect));
}

#[test]
fn what_checks_said_of_a_process_ends_with_it() {
    let task = full();
    let mut found = Found { checked: checked(Health::Unhealthy), ..up() };
    found.inspected(Container::Running { since: NOW }, None);
    assert_eq!(found.health(Some(&task)), Health::Unhealthy);
    found.inspected(exited(1), None);
    assert_eq!((found.health(Some(&task)), found.checked.clone()), (Health::None, None));
    found.checked(Checked { health: Health::Healthy, reason: String::new() });
    assert_eq!(found.checked, None, "it came too late");
    found.succeeded(&Action::Start, NOW);
    found.ledger = found.ledger.opened().started(NOW, 4);
    assert_eq!(found.health(Some(&task)), Health::Starting, "a restart begins anew");
    assert_eq!(found.health(None), Health::None);
    let plain = TaskAssignment { spec: TaskSpec::new("demo:1".parse().unwrap()), ..task };
    assert_eq!(found.health(Some(&plain)), Health::None);
}

#[test]
fn what_a_container_could_not_be_made_of_is_made_again() {
    let mut found = Found { container: Container::Recorded, ledger: Ledger::first(), ..up() };
    found.failed(&Action::EnsureContainer, Severity::Transient, "no such file".into(), ago(60));
    found.sight = Sight::Fresh;
    found.ports = Ports::Held;
    use Verb::*;
    let again = [EnsureImage, EnsureVolumes, EnsureContents, EnsureContainer, Start, RecordLedger];
    assert_eq!(path_of(Some(&full()), found), again);
}

#[test]
fn an_exit_is_recorded_then_cleared_then_waited_for() {
    let found = Found { container: exited(1), ..up() };
    check(RUN, &found, Step::Do(Action::HoldPorts));
    let held = Found { ports: Ports::Held, ..found };
    let until = NOW + Duration::from_secs(1);
    let ledger = Ledger {
        attempt: 2,
        phase: Phase::Waiting { since: NOW, until },
        exit: Some(Exit { code: 1, out_of_memory: false }),
        delay: Duration::from_secs(1),
        ..held.ledger.clone()
    };
    check(RUN, &held, Step::Do(Action::RecordLedger(ledger.clone())));
    let recorded = Found { ledger: ledger.clone(), ..held };
    check(RUN, &recorded, Step::Do(Action::DeleteProcess));
    let waiting = Found { container: Container::Recorded, ..recorded };
    check(RUN, &waiting, Step::WaitUntil(until));
    let due = step(Some(&task(Desired::Running)), &waiting, until);
    assert_eq!(due, Step::Do(Action::RecordLedger(ledger.opened())));
    let opened = Found { ledger: ledger.opened(), ..waiting };
    check(RUN, &opened, Step::Do(Action::EnsureContainer));
}

#[test]
fn a_process_that_vanished_is_another_attempt() {
    let found = Found { container: Container::Recorded, ports: Ports::Held, ..up() };
    let Step::Do(Action::RecordLedger(ledger)) = step(Some(&task(Desired::Running)), &found, NOW) else {
        panic!("the loss is not recorded");
    };
    assert_eq!((ledger.attempt, ledger.exit), (2, None));
    assert!(matches!(ledger.phase, Phase::Waiting { .. }));
}

#[test]
fn what_has_ended_is_not_started_again() {
    for verdict in [Verdict::Completed, Verdict::Failed, Verdict::Shutdown, Verdict::Rejected] {
        let ledger = Ledger::first().ended(ago(5), verdict, "why".into());
        let found = fresh(Container::Recorded, ledger);
        let rest = [Verb::ReleasePorts, Verb::RemoveContents, Verb::RemoveNetwork];
        assert_eq!(path(RUN, found.clone()), rest, "{verdict:?}");
        let absent = Found { container: Container::Absent, ..found };
        assert_eq!(path(RUN, absent), rest, "{verdict:?}");
    }
}

#[test]
fn a_process_gets_its_grace_and_is_killed_after_it() {
    let stopping =
        |at, killed_at| Found { ports: Ports::Released, stop: Some(StopSent { at, killed_at }), ..up() };
    check(STOP, &stopping(ago(4), None), Step::WaitUntil(NOW + Duration::from_secs(6)));
    check(STOP, &stopping(ago(10), None), Step::Do(Action::Kill));
    check(STOP, &stopping(ago(13), Some(ago(3))), Step::WaitUntil(NOW + Duration::from_secs(7)));
    check(STOP, &stopping(ago(20), Some(ago(10))), Step::Do(Action::Kill));
    let set_back = NOW + Duration::from_secs(3600);
    check(STOP, &stopping(set_back, None), Step::Do(Action::Kill));
}

#[test]
fn transient_failures_are_tried_again_with_growing_delays() {
    let failing = |failures| Found {
        troubles: trouble(Verb::EnsureNetwork, Severity::Transient, failures),
        image: Image::Present(digest('a')),
        ..fresh(Container::Absent, Ledger::first())
    };
    for (failures, delay) in [(1, 250), (2, 500), (3, 1000), (7, 10_000), (1000, 10_000)] {
        let wanted = Step::WaitUntil(NOW + Duration::from_millis(delay));
        check(RUN, &failing(failures), wanted);
    }
    let mut over = failing(3);
    over.forget_delays();
    check(RUN, &over, Step::Do(Action::EnsureNetwork));
}

#[test]
fn permanent_failures_reject_what_does_not_run() {
    let failing = |container| Found {
        troubles: trouble(Verb::HoldPorts, Severity::Permanent, 1),
        ..fresh(container, Ledger::first())
    };
    let reason = "taking the published ports: no".to_string();
    let rejected = Ledger::first().ended(NOW, Verdict::Rejected, reason);
    check(RUN, &failing(Container::Absent), Step::Do(Action::RecordLedger(rejected)));
    let running =
        Found { troubles: trouble(Verb::Serve, Severity::Permanent, 1), ports: Ports::Held, ..up() };
    check(RUN, &running, Step::WaitUntil(NOW + Duration::from_millis(250)));
}

#[test]
fn failing_to_withdraw_traffic_does_not_keep_a_process_running() {
    let found = Found { troubles: trouble(Verb::ReleasePorts, Severity::Transient, 1), ..up() };
    check(REMOVE, &found, Step::Do(Action::SignalStop));
    let signalled = Found { stop: Some(StopSent { at: NOW, killed_at: None }), ..found };
    check(REMOVE, &signalled, Step::WaitUntil(NOW + Duration::from_millis(250)));
}

#[test]
fn removal_goes_on_whatever_failed_for_good() {
    for verb in [Verb::RemoveNetwork, Verb::EnsureContainer] {
        let found = Found {
            troubles: trouble(verb, Severity::Permanent, 1),
            ports: Ports::Released,
            ..fresh(Container::Absent, Ledger::first().ended(NOW, Verdict::Shutdown, String::new()))
        };
        let answer = step(Some(&task(Desired::Remove)), &found, NOW);
        assert!(matches!(answer, Step::Do(Action::RemoveContents)), "{answer:?}");
        let later = Found { contents: Presence::Absent, ..found };
        let answer = step(Some(&task(Desired::Remove)), &later, NOW);
        assert!(matches!(answer, Step::Do(Action::RemoveNetwork | Action::RemoveFiles)), "{answer:?}");
    }
}

#[test]
fn a_clock_set_back_does_not_stop_restarts() {
    let until = NOW + Duration::from_secs(86_400);
    let ledger = Ledger { attempt: 2, phase: Phase::Waiting { since: NOW, until }, ..Ledger::first() };
    let found = fresh(Container::Recorded, ledger.clone());
    check(RUN, &found, Step::Do(Action::RecordLedger(ledger.opened())));
}

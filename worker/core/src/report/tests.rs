use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use warren_types::spec::{HealthCheck, Probe};
use warren_types::{Health, Id, ServiceId, TaskSpec};

use super::*;
use crate::action::Action;
use crate::found::{Checked, Severity, StopSent};
use crate::ledger::{Ledger, Verdict};

const AT: Timestamp = Timestamp(1_700_000_000_000);

fn task(desired: Desired) -> TaskAssignment {
    TaskAssignment {
        id: TaskId { service: ServiceId(Id(1)), number: 1 },
        service: "web".parse().unwrap(),
        slot: 1,
        revision: 1,
        spec: TaskSpec::new("demo:1".parse().unwrap()),
        digest: None,
        ports: Vec::new(),
        address: Ipv4Addr::new(10, 210, 0, 2),
        desired,
        service_labels: BTreeMap::new(),
        volumes: Vec::new(),
    }
}

fn fresh(container: Container, ledger: Ledger) -> Found {
    Found { sight: Sight::Fresh, container, ledger, ..Found::new(AT) }
}

#[track_caller]
fn check(desired: Desired, found: &Found, attempt: u32, state: TaskState, ready: bool, reason: &str) {
    let task = task(desired);
    let said = report(task.id, Some(&task), found);
    assert_eq!((said.attempt, said.state, said.ready), (attempt, state, ready));
    assert_eq!(said.reason, reason);
}

#[test]
fn the_way_up_is_told() {
    check(Desired::Running, &Found::new(AT), 1, TaskState::Accepted, false, "");
    let made = fresh(Container::Created, Ledger::first());
    check(Desired::Running, &fresh(Container::Absent, Ledger::first()), 1, TaskState::Preparing, false, "");
    check(Desired::Ready, &made, 1, TaskState::Ready, false, "");
    check(Desired::Running, &made, 1, TaskState::Starting, false, "");
    let running = fresh(Container::Running { since: AT }, Ledger::first());
    check(Desired::Running, &running, 1, TaskState::Running, true, "");
}

#[test]
fn a_task_with_ports_is_ready_once_they_lead_to_it() {
    let mut task = task(Desired::Running);
    task.ports = vec![warren_types::PublishedPort {
        host_ip: None,
        host_port: 80,
        container_port: 80,
        protocol: warren_types::Protocol::Tcp,
        mode: warren_types::PublishMode::Host,
    }];
    let running = fresh(Container::Running { since: AT }, Ledger::first());
    assert!(!report(task.id, Some(&task), &running).ready);
    let serving = Found { ports: Ports::Serving, ..running };
    assert!(report(task.id, Some(&task), &serving).ready);
}

#[test]
fn waiting_for_the_next_attempt_says_why_and_until_when() {
    let phase = Phase::Waiting { since: AT, until: AT + Duration::from_secs(2) };
    let exit = Some(Exit { code: 1, out_of_memory: false });
    let waiting = fresh(Container::Recorded, Ledger { attempt: 3, phase, exit, ..Ledger::first() });
    let reason = "exited with code 1; attempt 3 starts at 22:13:22 UTC";
    check(Desired::Running, &waiting, 3, TaskState::Starting, false, reason);
    let opened = Found { ledger: waiting.ledger.opened(), ..waiting };
    let reason = "exited with code 1; attempt 3 is being started";
    check(Desired::Running, &opened, 3, TaskState::Starting, false, reason);
}

#[test]
fn the_next_attempts_time_is_told_while_it_is_waited_for() {
    let until = AT + Duration::from_secs(2);
    let ledger = Ledger { attempt: 2, phase: Phase::Waiting { since: AT, until }, ..Ledger::first() };
    let waiting = fresh(Container::Recorded, ledger);
    let told = |desired, found: &Found| {
        let task = task(desired);
        report(task.id, Some(&task), found).next_attempt
    };
    assert_eq!(told(Desired::Running, &waiting), Some(until));
    assert_eq!(told(Desired::Remove, &waiting), None);
    let opened = Found { ledger: waiting.ledger.opened(), ..waiting };
    assert_eq!(told(Desired::Running, &opened), None);
}

#[test]
fn a_pull_is_told_as_it_goes_on_and_then_what_the_image_is() {
    let digest: ImageDigest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
    let mut found = fresh(Container::Absent, Ledger::first());
    found.arriving("pulling: 1 of 2 layers, 3 of 9 MiB".into());
    let pulling = "pulling: 1 of 2 layers, 3 of 9 MiB";
    check(Desired::Ready, &found, 1, TaskState::Preparing, false, pulling);
    found.failed(&Action::EnsureImage, Severity::Transient, "the registry is away".into(), AT);
    let failed = "getting the image: the registry is away";
    check(Desired::Ready, &found, 1, TaskState::Preparing, false, failed);
    found.obtained(digest.clone());
    let waits = "has its image; waits until managers have noted which one the revision runs";
    check(Desired::Ready, &found, 1, TaskState::Preparing, false, waits);
    check(Desired::Remove, &found, 1, TaskState::Preparing, false, "");

    let told = |task: &TaskAssignment, found: &Found| report(task.id, Some(task), found).image;
    let unsettled = task(Desired::Ready);
    assert_eq!(told(&unsettled, &found), Some(digest.clone()));
    let settled = TaskAssignment { digest: Some(digest), ..unsettled.clone() };
    assert_eq!(told(&settled, &found), None, "managers know it");
    assert_eq!(report(settled.id, Some(&settled), &found).reason, "");
    assert_eq!(told(&task(Desired::Remove), &found), None);
    let ledger = found.ledger.ended(AT, Verdict::Rejected, String::new());
    assert_eq!(told(&unsettled, &Found { ledger, ..found }), None, "what was rejected settles nothing");
    // An agent that finds a container has not got its image.
    let made_from: Option<ImageDigest> = settled.digest.clone();
    let mut found = Found { made_from: made_from.clone(), ..Found::new(AT) };
    assert_eq!(told(&unsettled, &found), None, "the container is gone");
    for container in [Container::Recorded, Container::Running { since: AT }] {
        found.container = container;
        assert_eq!((told(&unsettled, &found), told(&settled, &found)), (made_from.clone(), None));
    }
}

#[test]
fn trouble_is_told_and_keeps_the_state() {
    let mut found = fresh(Container::Running { since: AT }, Ledger::first().started(AT, 4));
    let down = "containerd does not answer".to_string();
    found.failed(&Action::Inspect, Severity::Transient, down.clone(), AT);
    let reason = "looking at the container: containerd does not answer";
    check(Desired::Running, &found, 1, TaskState::Running, true, reason);
    found.failed(&Action::Inspect, Severity::Transient, down, AT);
    check(Desired::Running, &found, 1, TaskState::Running, true, reason);
}

#[test]
fn a_verdict_is_the_last_word() {
    for verdict in [Verdict::Shutdown, Verdict::Completed, Verdict::Failed, Verdict::Rejected] {
        let found = fresh(Container::Recorded, Ledger::first().ended(AT, verdict, "because".into()));
        for desired in Desired::ALL {
            check(desired, &found, 1, verdict.state(), false, "because");
        }
    }
}

#[test]
fn stopping_is_told() {
    let mut found = fresh(Container::Running { since: AT }, Ledger::first().started(AT, 4));
    check(Desired::Shutdown, &found, 1, TaskState::Running, false, "");
    found.stop = Some(StopSent { at: AT, killed_at: None });
    check(Desired::Shutdown, &found, 1, TaskState::Running, false, "stopping: has 10s from 22:13:20 UTC");
    found.stop = Some(StopSent { at: AT, killed_at: Some(AT) });
    let reason = "killed at 22:13:20 UTC, but it has not ended yet";
    check(Desired::Remove, &found, 1, TaskState::Running, false, reason);
}

#[test]
fn a_task_with_checks_is_ready_while_they_succeed() {
    let mut task = task(Desired::Running);
    task.spec.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    let ledger = |health| Ledger::first().started(AT, 4).found_to_be(health);
    let checked = |health, reason: &str| Some(Checked { health, reason: reason.into() });
    let refused = "no check has succeeded yet: refused";
    let waiting = "no check has succeeded yet";
    let adopted = "unhealthy, as an earlier agent of the node found; it is asked again";
    use Health::{Healthy, Starting, Unhealthy};
    for (of_ledger, found, health, reason, is_told) in [
        (Health::None, None, Starting, waiting, true),
        (Health::None, checked(Starting, refused), Starting, refused, true),
        (Health::None, checked(Healthy, ""), Healthy, "", false),
        (Healthy, checked(Healthy, ""), Healthy, "", true),
        (Healthy, checked(Unhealthy, "unhealthy: refused"), Unhealthy, "unhealthy: refused", false),
        (Unhealthy, checked(Unhealthy, "unhealthy: refused"), Unhealthy, "unhealthy: refused", true),
        (Healthy, None, Healthy, "", true),
        (Unhealthy, None, Unhealthy, adopted, true),
    ] {
        let found = Found { checked: found, ..fresh(Container::Running { since: AT }, ledger(of_ledger)) };
        let said = report(task.id, Some(&task), &found);
        let wanted = (health, reason, health == Healthy);
        assert_eq!((said.health, said.reason.as_str(), said.ready), wanted);
        assert_eq!(is_worth_telling(Some(&task), &found), is_told, "{said:?}");
    }
    let failing = fresh(Container::Running { since: AT }, ledger(Healthy));
    let mut failing = Found { checked: checked(Unhealthy, "unhealthy: refused"), ..failing };
    failing.failed(&Action::RecordLedger(ledger(Unhealthy)), Severity::Transient, "away".into(), AT);
    assert!(is_worth_telling(Some(&task), &failing), "what cannot be recorded is told");
    let going = TaskAssignment { desired: Desired::Shutdown, ..task };
    let said = report(going.id, Some(&going), &failing);
    assert_eq!((said.health, said.ready), (Health::None, false));
    failing.troubles.clear();
    assert!(is_worth_telling(Some(&going), &failing));
}

#[test]
fn removed_needs_everything_gone() {
    let gone = Found {
        network: Presence::Absent,
        files: Presence::Absent,
        contents: Presence::Absent,
        ports: Ports::Released,
        ..fresh(Container::Absent, Ledger::first().ended(AT, Verdict::Shutdown, String::new()))
    };
    let removed = |desired: Option<Desired>, found: &Found| {
        let task_id = task(Desired::Remove).id;
        report(task_id, desired.map(task).as_ref(), found).removed
    };
    assert!(removed(Some(Desired::Remove), &gone) && removed(None, &gone));
    assert!(!removed(Some(Desired::Shutdown), &gone));
    let left = [
        Found { sight: Sight::Stale, ..gone.clone() },
        Found { container: Container::Recorded, ..gone.clone() },
        Found { network: Presence::Unknown, ..gone.clone() },
        Found { files: Presence::Present, ..gone.clone() },
        Found { contents: Presence::Unknown, ..gone.clone() },
        Found { ports: Ports::Held, ..gone.clone() },
        Found { ledger: Ledger::first(), ..gone.clone() },
    ];
    for found in left {
        assert!(!removed(Some(Desired::Remove), &found), "{found:?}");
    }
}

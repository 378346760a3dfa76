//! What a task does whose node has no manager.

use warren_types::{OnDisconnect, TaskState};

use super::*;
use crate::report;

const PATIENCE: Duration = Duration::from_secs(30);

fn wanting(desired: Desired) -> TaskAssignment {
    let mut task = task(desired);
    task.spec.on_disconnect = OnDisconnect::StopAfter(PATIENCE);
    task
}

fn alone(seconds: u64, found: Found) -> Found {
    Found { alone_for: Some(Duration::from_secs(seconds)), ..found }
}

#[test]
fn a_task_that_does_not_mind_runs_on() {
    check(RUN, &alone(u64::MAX, up()), Step::Settled);
}

#[test]
fn one_that_minds_is_looked_at_again_when_its_time_is_over() {
    let task = wanting(Desired::Running);
    for (found, wanted) in [
        (up(), Step::Settled),
        (alone(0, up()), Step::WaitUntil(NOW + PATIENCE)),
        (alone(29, up()), Step::WaitUntil(NOW + Duration::from_secs(1))),
        (alone(30, up()), Step::Do(Action::ReleasePorts)),
        (Found { alone_for: Some(Duration::MAX), ..up() }, Step::Do(Action::ReleasePorts)),
    ] {
        assert_eq!(step(Some(&task), &found, NOW), wanted, "{:?}", found.alone_for);
    }
    let preparing = alone(29, fresh(Container::Absent, Ledger::first()));
    assert_eq!(step(Some(&task), &preparing, NOW), Step::Do(Action::EnsureImage), "it goes on meanwhile");
}

#[test]
fn its_process_is_stopped_and_the_record_says_why() {
    let task = wanting(Desired::Running);
    let verbs = path_of(Some(&task), alone(30, up()));
    let wanted = [
        Verb::ReleasePorts,
        Verb::SignalStop,
        Verb::Inspect,
        Verb::RecordLedger,
        Verb::DeleteProcess,
        Verb::RemoveContents,
        Verb::RemoveNetwork,
    ];
    let looked = verbs.iter().filter(|verb| **verb != Verb::Inspect);
    assert_eq!(
        looked.collect::<Vec<_>>(),
        wanted.iter().filter(|verb| **verb != Verb::Inspect).collect::<Vec<_>>()
    );
    let stop = Some(StopSent { at: ago(1), killed_at: None });
    let mut found = Found { stop, ports: Ports::Released, container: exited(143), ..alone(31, up()) };
    let Step::Do(Action::RecordLedger(ledger)) = step(Some(&task), &found, NOW) else {
        panic!("not recorded")
    };
    found.succeeded(&Action::RecordLedger(ledger), NOW);
    found.succeeded(&Action::DeleteProcess, NOW);
    // Also to the manager that it finds again.
    found.alone_for = None;
    let said = report(task.id, Some(&task), &found);
    assert_eq!(
        (said.state, said.ready, said.exit.map(|exit| exit.code)),
        (TaskState::Shutdown, false, Some(143))
    );
    assert_eq!(said.reason, "stopped by its node, which had no manager for 30s (--on-disconnect)");
    let verbs = path_of(Some(&task), found);
    assert!(verbs.iter().all(|verb| !verb.brings_up()), "it does not run again: {verbs:?}");
}

#[test]
fn one_that_is_deaf_is_killed_and_a_manager_that_comes_meanwhile_changes_nothing() {
    let task = wanting(Desired::Running);
    let stopping = |since, alone_for| {
        let stop = Some(StopSent { at: ago(since), killed_at: None });
        Found { stop, ports: Ports::Released, alone_for, ..up() }
    };
    for alone_for in [Some(PATIENCE), Some(Duration::ZERO), None] {
        let wanted = Step::WaitUntil(ago(3) + DEFAULT_STOP_GRACE);
        assert_eq!(step(Some(&task), &stopping(3, alone_for), NOW), wanted, "{alone_for:?}");
        assert_eq!(step(Some(&task), &stopping(10, alone_for), NOW), Step::Do(Action::Kill), "{alone_for:?}");
    }
}

#[test]
fn one_that_does_not_run_waits_for_a_manager() {
    let task = wanting(Desired::Running);
    let waiting =
        Ledger { attempt: 2, phase: Phase::Waiting { since: ago(9), until: ago(1) }, ..Ledger::first() };
    for found in [
        fresh(Container::Absent, Ledger::first()),
        fresh(Container::Created, Ledger::first()),
        fresh(Container::Recorded, waiting.clone()),
    ] {
        let found = Found { ports: Ports::Released, ..found };
        assert_eq!(step(Some(&task), &alone(30, found.clone()), NOW), Step::Settled, "{found:?}");
        assert!(matches!(step(Some(&task), &found, NOW), Step::Do(_)), "a manager is there: {found:?}");
    }
    for ports in [Ports::Serving, Ports::Unknown] {
        let serving = Found { ports, ..fresh(Container::Recorded, waiting.clone()) };
        assert_eq!(step(Some(&task), &alone(30, serving), NOW), Step::Do(Action::HoldPorts));
    }
}

#[test]
fn a_process_that_is_lost_while_it_is_stopped_was_stopped() {
    let task = wanting(Desired::Running);
    let stop = Some(StopSent { at: ago(3), killed_at: None });
    for alone_for in [Some(PATIENCE), None] {
        let found = Found { stop, ports: Ports::Released, container: Container::Recorded, alone_for, ..up() };
        let Step::Do(Action::RecordLedger(ledger)) = step(Some(&task), &found, NOW) else {
            panic!("not recorded")
        };
        assert_eq!(ledger.verdict(), Some(Verdict::Shutdown));
    }
}

/// A process that ended by itself meanwhile is no different from any other that did.
#[test]
fn an_end_of_its_own_is_recorded_as_ever_and_starts_nothing() {
    let task = wanting(Desired::Running);
    let found = Found { container: exited(1), ports: Ports::Held, ..alone(60, up()) };
    let Step::Do(Action::RecordLedger(ledger)) = step(Some(&task), &found, NOW) else {
        panic!("not recorded")
    };
    assert_eq!((ledger.attempt, ledger.verdict()), (2, None));
    let verbs = path_of(Some(&task), found);
    assert!(verbs.iter().all(|verb| !verb.brings_up()), "{verbs:?}");
}

#[test]
fn what_managers_wanted_stopped_is_stopped_whether_they_are_there_or_not() {
    for desired in [Desired::Shutdown, Desired::Remove] {
        let task = wanting(desired);
        let verbs = path_of(Some(&task), up());
        assert_eq!(path_of(Some(&task), alone(3600, up())), verbs);
    }
}

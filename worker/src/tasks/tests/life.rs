//! What happens to tasks while the agent lives, and when it is restarted.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use futures::future::join_all;
use tokio::time::Instant;
use warren_network::{HostPort, PortHolder};
use warren_runtime::ContainerId;
use warren_runtime::fake::{Failure, Fault, Operation, Script};
use warren_types::{Desired, NodeCondition, RestartCondition, TaskState};

use super::*;
use crate::samples::{port, task};

fn container(number: u64) -> ContainerId {
    ContainerId::parse(&task_id(number).to_string()).unwrap()
}

fn publishing(number: u64) -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(number) }
}

fn desired(desired: Desired, task: TaskAssignment) -> TaskAssignment {
    TaskAssignment { desired, ..task }
}

#[tokio::test(start_paused = true)]
async fn tasks_come_up_share_their_port_and_go() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![publishing(1), publishing(2)]));
    agent.ready(1).await;
    agent.ready(2).await;
    let backends: Vec<usize> = machine.network.ports().values().map(|backends| backends.len()).collect();
    assert_eq!(backends, [2]);
    agent.want(vec![desired(Desired::Remove, publishing(1)), publishing(2)]);
    let last = agent.removed(1).await;
    assert_eq!((last.state, last.exit.unwrap().code), (TaskState::Shutdown, 143));
    let backends: Vec<usize> = machine.network.ports().values().map(|backends| backends.len()).collect();
    assert_eq!(backends, [1]);
    agent.want(vec![publishing(2)]);
    eventually("forgotten", || async { agent.reporter.newest(&task_id(1)).is_none() }).await;
    agent.want(vec![]);
    eventually("empty", || async { machine.left().await.is_empty() }).await;
}

/// Its actor lives on, and what it said last was that nothing is left of the task.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_wanted_again_in_another_life_of_the_cluster_is_heard_of() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    agent.want(vec![desired(Desired::Remove, task(1))]);
    agent.removed(1).await;
    agent.want(vec![task(1)]);
    let anew = agent.until(1, |report| !report.removed).await;
    assert_eq!(anew.task, task_id(1));
}

#[tokio::test(start_paused = true)]
async fn a_prepared_task_waits_for_its_word() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![desired(Desired::Ready, task(1))]));
    agent.until(1, |report| report.state == TaskState::Ready).await;
    assert_eq!(machine.runtime.calls(Operation::Start), 0);
    agent.want(vec![task(1)]);
    agent.ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_takes_over_what_runs() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![publishing(1)]));
    first.ready(1).await;
    let pid = machine.pid(1).await;
    first.kill().await;
    // With a cache, without one but with settings, and without anything at all.
    for known in [cached(vec![publishing(1)]), cached(vec![]), Wishes::default()] {
        let has_settings = known.settings.is_some();
        let next = machine.immortal(known);
        let running = next.until(1, |report| report.state == TaskState::Running).await;
        if has_settings {
            next.ready(1).await;
        } else {
            assert!(!running.ready);
        }
        // Long enough for every loop to have looked.
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!((machine.pid(1).await, machine.runtime.calls(Operation::Start)), (pid, 1));
        next.kill().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_says_of_what_serves_only_that_it_serves() {
    let machine = Machine::new();
    let tasks = || vec![publishing(1), task(2)];
    let first = machine.immortal(wishing(tasks()));
    first.ready(1).await;
    first.ready(2).await;
    first.kill().await;
    let next = machine.agent(cached(tasks()), Life::laying_for(Duration::from_millis(500)));
    let mut told = BTreeSet::new();
    while told.len() < 2 {
        let batch = timeout(PATIENCE, next.reporter.next_batch()).await.unwrap();
        // What was before is no news: managers know that it runs.
        for report in batch.reports.into_iter().filter(|report| report.state >= TaskState::Running) {
            assert!(report.ready && report.reason.is_empty(), "{report:?}");
            told.insert(report.task);
        }
        next.reporter.stored(batch.number);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_make_its_network_says_so_of_what_runs() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![publishing(1)]));
    first.ready(1).await;
    first.kill().await;
    // Longer than anybody waits for the network.
    let next = machine.agent(cached(vec![publishing(1)]), Life::laying_for(Duration::from_secs(10)));
    let running = next.until(1, |report| report.state == TaskState::Running).await;
    assert!(!running.ready && running.reason.contains("not made yet"), "{running:?}");
    next.ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_goes_once_a_manager_has_said_so() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![task(1)]));
    first.ready(1).await;
    first.kill().await;
    let next = machine.immortal(cached(vec![]));
    next.ready(1).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(machine.pid(1).await.is_some(), "a cache is no word of a manager");
    next.wishes.send_modify(|wishes| wishes.confirmed = true);
    eventually("empty", || async { machine.left().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_is_visible_and_given_up_also_by_the_next_agent() {
    let machine = Machine::new();
    let script = Script { exit_after: Some((Duration::from_millis(10), 3)), ..Script::default() };
    machine.runtime.script_image(&image(), script);
    let agent = machine.immortal(wishing(vec![task(1)]));
    let waiting = agent.until(1, |report| report.reason.contains("attempt 3 starts at")).await;
    assert_eq!((waiting.attempt, waiting.state), (3, TaskState::Starting));
    assert!(waiting.reason.starts_with("exited with code 3; "), "{}", waiting.reason);
    let failed = agent.until(1, |report| report.state == TaskState::Failed).await;
    assert_eq!((failed.attempt, failed.exit.unwrap().code), (4, 3));
    assert!(failed.reason.contains("4 attempts in") && failed.reason.ends_with("given up"), "{failed:?}");
    agent.kill().await;
    let next = machine.immortal(wishing(vec![task(1)]));
    let still = next.until(1, |report| report.state == TaskState::Failed).await;
    assert_eq!((still.attempt, &still.reason), (4, &failed.reason));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(machine.runtime.calls(Operation::Start), 4);
}

fn restarting(condition: RestartCondition, mut task: TaskAssignment) -> TaskAssignment {
    task.spec.restart.condition = condition;
    task
}

#[tokio::test(start_paused = true)]
async fn the_spec_says_after_which_ends_a_task_is_started_again() {
    use RestartCondition as C;
    let machine = Machine::new();
    let tasks = vec![
        restarting(C::None, task(1)),
        restarting(C::None, task(2)),
        restarting(C::OnFailure, task(3)),
        restarting(C::OnFailure, task(4)),
        restarting(C::Any, task(5)),
    ];
    let agent = machine.immortal(wishing(tasks));
    for number in 1..=5 {
        agent.ready(number).await;
    }
    for (number, code) in [(1, 0), (2, 137), (3, 0), (4, 3), (5, 0)] {
        assert!(machine.runtime.end_process(&container(number), code, false));
    }
    for (number, state, reason) in [
        (1, TaskState::Complete, "exited with code 0"),
        (2, TaskState::Failed, "killed by signal 9 (SIGKILL); not to be restarted"),
        (3, TaskState::Complete, "exited with code 0"),
    ] {
        let ended = agent.until(number, |report| report.state == state).await;
        assert_eq!((ended.reason.as_str(), ended.attempt, ended.next_attempt), (reason, 1, None));
    }
    let waits = [4, 5].map(|number| agent.until(number, |report| report.next_attempt.is_some()));
    for (number, waiting) in [4, 5].into_iter().zip(join_all(waits).await) {
        let delay = waiting.next_attempt.unwrap().since(waiting.since);
        assert_eq!((waiting.state, waiting.attempt, delay), (TaskState::Starting, 2, Duration::from_secs(1)));
        let again = agent.until(number, |report| report.ready).await;
        assert_eq!((again.attempt, again.next_attempt), (2, None));
    }
    agent.kill().await;
    let next = machine.immortal(wishing(vec![restarting(C::None, task(1))]));
    next.until(1, |report| report.state == TaskState::Complete).await;
    assert_eq!(machine.runtime.calls(Operation::Start), 7);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_run_is_rejected_with_the_reason() {
    let machine = Machine::new();
    let mut broken = task(1);
    broken.spec.image = "Not:An:Image".parse().unwrap();
    let agent = machine.immortal(wishing(vec![broken]));
    let rejected = agent.until(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("task.image: \"Not:An:Image\" is not"), "{}", rejected.reason);

    let broken =
        Script { create_error: Some(Failure::CommandNotFound("/serve".into())), ..Script::default() };
    machine.runtime.script_container(&container(2), broken);
    let at = HostPort::new(None, NonZeroU16::new(8080).unwrap());
    machine.network.occupy(at, PortHolder { pid: 7, name: "nginx".into() });
    agent.want(vec![task(1), task(2), publishing(3)]);
    let rejected = agent.until(2, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("\"/serve\""), "{}", rejected.reason);
    let rejected = agent.until(3, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("8080/tcp is in use by process nginx (pid 7)"), "{}", rejected.reason);
    assert_eq!(machine.runtime.calls(Operation::Start), 0);
    agent.want(vec![]);
    eventually("empty", || async { machine.left().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn faults_of_the_moment_are_tried_again() {
    let machine = Machine::new();
    let operations = [
        Operation::Inspect,
        Operation::EnsureCreated,
        Operation::Start,
        Operation::SetLedger,
        Operation::Signal,
        Operation::DeleteProcess,
        Operation::Remove,
    ];
    for operation in operations {
        machine.runtime.fail_next(operation, Fault::Before(Failure::Timeout));
        machine.runtime.fail_next(operation, Fault::After(Failure::Unavailable));
    }
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    assert_eq!(machine.pid(1).await, Some(10_001));
    agent.want(vec![desired(Desired::Remove, task(1))]);
    agent.removed(1).await;
    assert_eq!(machine.left().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn tasks_keep_their_state_while_containerd_is_away() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    machine.runtime.set_reachable(false);
    eventually("noticed", || async { agent.health.has(NodeCondition::RuntimeDown) }).await;
    agent.want(vec![task(1), task(2)]);
    let waiting = agent.until(2, |report| report.reason.contains("not available")).await;
    assert_eq!(waiting.state, TaskState::Accepted);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let kept = agent.reporter.newest(&task_id(1)).unwrap();
    assert_eq!((kept.state, kept.ready), (TaskState::Running, true));
    let back = Instant::now();
    machine.runtime.set_reachable(true);
    agent.ready(2).await;
    assert!(back.elapsed() < Duration::from_secs(2), "work resumes at once");
    eventually("over", || async { !agent.health.has(NodeCondition::RuntimeDown) }).await;
    assert_eq!(agent.until(1, |report| report.reason.is_empty()).await.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_loss_without_an_event_is_found_by_the_list() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    assert!(machine.runtime.lose_process(&container(1)));
    let lost = Instant::now();
    let again = agent.until(1, |report| report.attempt == 2 && report.ready).await;
    assert!(lost.elapsed() < Duration::from_secs(30));
    assert_eq!(again.exit, None);
    let names: Vec<&str> = agent.loops.snapshot().iter().map(|status| status.name).collect();
    assert_eq!(names, ["worker.network", "worker.relist", "worker.sweep"]);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_listen_is_killed_after_its_grace() {
    let machine = Machine::new();
    machine.runtime.script_image(&image(), Script { ignores_signals: true, ..Script::default() });
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    let asked = Instant::now();
    agent.want(vec![desired(Desired::Shutdown, task(1))]);
    let stopping = agent.until(1, |report| report.reason.starts_with("stopping")).await;
    assert!(!stopping.ready);
    let stopped = agent.until(1, |report| report.state == TaskState::Shutdown).await;
    assert_eq!((asked.elapsed().as_secs(), stopped.exit.unwrap().code), (10, 137));
    assert!(stopped.reason.contains("killed") && !stopped.removed, "{stopped:?}");
    agent.want(vec![desired(Desired::Remove, task(1))]);
    agent.removed(1).await;
    assert_eq!(machine.left().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_without_a_subnet_says_what_is_missing() {
    let machine = Machine::new();
    let agent = machine.immortal(Wishes { settings: None, ..wishing(vec![task(1)]) });
    let waiting = agent.until(1, |report| report.reason.contains("subnet")).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    agent.want(vec![task(1)]);
    agent.ready(1).await;
}

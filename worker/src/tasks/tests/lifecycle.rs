//! Tasks while the agent runs, and when it is restarted.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use futures::future::join_all;
use tokio::time::Instant;
use warren_network::{HostPort, PortHolder, TransportProtocol};
use warren_runtime::fake::{ContainerScript, FakeFailure, FaultPoint, RuntimeOperation};
use warren_types::{DesiredTaskState, NodeCondition, RestartCondition, TaskState};

use super::*;
use crate::fixtures::{port, retained_log, task};

fn publishing(number: u64) -> TaskAssignment {
    TaskAssignment { ports: vec![port(8080)], ..task(number) }
}

fn desired(desired: DesiredTaskState, task: TaskAssignment) -> TaskAssignment {
    TaskAssignment { desired, ..task }
}

#[tokio::test(start_paused = true)]
async fn tasks_start_share_port_and_are_removed() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![publishing(1), publishing(2)]));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    let backends: Vec<usize> = machine.network.ports().values().map(|backends| backends.len()).collect();
    assert_eq!(backends, [2]);
    agent.assign(vec![desired(DesiredTaskState::Remove, publishing(1)), publishing(2)]);
    let last = agent.wait_removed(1).await;
    assert_eq!((last.state, last.exit.unwrap().code), (TaskState::Shutdown, 143));
    let backends: Vec<usize> = machine.network.ports().values().map(|backends| backends.len()).collect();
    assert_eq!(backends, [1]);
    agent.assign(vec![publishing(2)]);
    eventually("forgotten", || async { agent.reporter.latest(&task_id(1)).is_none() }).await;
    agent.assign(vec![]);
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

/// Output as the logger of the container writes it.
fn write_log(machine: &Machine, number: u64) -> std::path::PathBuf {
    let dir = TaskDirs::new(machine.dir.path().join("tasks")).log_dir(&task_id(number));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(warren_container_logs::segment::segment_path(&dir, 1), "said").unwrap();
    dir
}

#[tokio::test(start_paused = true)]
async fn log_is_retained_until_managers_drop_it() {
    // Logs are removed earlier on a disk that is nearly full.
    let machine = Machine { dir: tempfile::tempdir_in("/dev/shm").unwrap(), ..Machine::new() };
    let agent = machine.agent_without_crash(assigned(vec![task(1), task(2)]));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    let logs = [1, 2].map(|number| write_log(&machine, number));
    let remove = |number| desired(DesiredTaskState::Remove, task(number));
    agent.assign(vec![remove(1), remove(2)]);
    agent.wait_removed(1).await;
    agent.wait_removed(2).await;
    assert!(logs.iter().all(|log| log.exists()));
    let retaining = |numbers: &[u64]| {
        let logs = numbers.iter().map(|number| (task_id(*number), retained_log(*number)));
        DesiredState { retained: logs.collect(), ..assigned(vec![]) }
    };
    agent.desired_state.send_replace(retaining(&[1]));
    eventually("removed the other", || async { !logs[1].exists() }).await;
    agent.kill().await;
    // Before a manager confirms it, nothing is removed.
    let agent = machine.agent_without_crash(DesiredState { is_confirmed: false, ..assigned(vec![]) });
    sleep(Duration::from_secs(100)).await;
    assert!(logs[0].exists());
    agent.desired_state.send_replace(retaining(&[1]));
    sleep(Duration::from_secs(100)).await;
    assert!(logs[0].exists());
    agent.desired_state.send_replace(retaining(&[]));
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn old_log_is_removed() {
    let machine = Machine::new();
    let log = write_log(&machine, 1);
    let path = warren_container_logs::segment::segment_path(&log, 1);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - warren_types::LOG_RETENTION).unwrap();
    let retained = [(task_id(1), retained_log(1))].into();
    let _agent = machine.agent_without_crash(DesiredState { retained, ..assigned(vec![]) });
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

/// Its actor is still running, and its last report was that nothing is left of the task.
#[tokio::test(start_paused = true)]
async fn task_desired_again_in_new_incarnation_is_reported() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    agent.assign(vec![desired(DesiredTaskState::Remove, task(1))]);
    agent.wait_removed(1).await;
    agent.assign(vec![task(1)]);
    let second_report = agent.wait_for_report(1, |report| !report.removed).await;
    assert_eq!(second_report.task, task_id(1));
}

#[tokio::test(start_paused = true)]
async fn prepared_task_waits_for_start() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![desired(DesiredTaskState::Ready, task(1))]));
    agent.wait_for_report(1, |report| report.state == TaskState::Ready).await;
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 0);
    agent.assign(vec![task(1)]);
    agent.wait_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_adopts_running_tasks() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![publishing(1)]));
    first.wait_ready(1).await;
    let pid = machine.pid(1).await;
    first.kill().await;
    // With a cache, without one but with settings, and without either.
    for known in [cached(vec![publishing(1)]), cached(vec![]), DesiredState::default()] {
        let has_settings = known.settings.is_some();
        let next = machine.agent_without_crash(known);
        let running = next.wait_for_report(1, |report| report.state == TaskState::Running).await;
        if has_settings {
            next.wait_ready(1).await;
        } else {
            assert!(!running.ready);
        }
        // Long enough for a run of every background task.
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!((machine.pid(1).await, machine.runtime.call_count(RuntimeOperation::Start)), (pid, 1));
        next.kill().await;
    }
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_reports_serving_tasks_as_ready_at_once() {
    let machine = Machine::new();
    let tasks = || vec![publishing(1), task(2)];
    let first = machine.agent_without_crash(assigned(tasks()));
    first.wait_ready(1).await;
    first.wait_ready(2).await;
    first.kill().await;
    let next =
        machine.agent(cached(tasks()), CrashPlan::with_network_setup_delay(Duration::from_millis(500)));
    let mut sent = BTreeSet::new();
    while sent.len() < 2 {
        let batch = timeout(TIMEOUT, next.reporter.next_batch()).await.unwrap();
        // Earlier events are not reported: managers know that it runs.
        for report in batch.reports.into_iter().filter(|report| report.state >= TaskState::Running) {
            assert!(report.ready && report.reason.is_empty(), "{report:?}");
            sent.insert(report.task);
        }
        next.reporter.acknowledge(batch.number);
    }
}

#[tokio::test(start_paused = true)]
async fn network_failure_is_reported_for_running_tasks() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![publishing(1)]));
    first.wait_ready(1).await;
    first.kill().await;
    // Longer than the timeout of the network.
    let next = machine
        .agent(cached(vec![publishing(1)]), CrashPlan::with_network_setup_delay(Duration::from_secs(10)));
    let running = next.wait_for_report(1, |report| report.state == TaskState::Running).await;
    assert!(!running.ready && running.reason.contains("not ready yet"), "{running:?}");
    next.wait_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn undesired_tasks_are_removed_after_first_assignment() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![task(1)]));
    first.wait_ready(1).await;
    first.kill().await;
    let next = machine.agent_without_crash(cached(vec![]));
    next.wait_ready(1).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(machine.pid(1).await.is_some(), "a cache is no word of a manager");
    next.desired_state.send_modify(|desired_state| desired_state.is_confirmed = true);
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn crash_loop_is_reported_and_ends_across_agent_restart() {
    let machine = Machine::new();
    let script =
        ContainerScript { exit_after: Some((Duration::from_millis(10), 3)), ..ContainerScript::default() };
    machine.runtime.script_image(&image(), script);
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    let waiting = agent.wait_for_report(1, |report| report.reason.contains("attempt 3 starts at")).await;
    assert_eq!((waiting.attempt, waiting.state), (3, TaskState::Starting));
    assert!(waiting.reason.starts_with("exited with code 3; "), "{}", waiting.reason);
    let failed = agent.wait_for_report(1, |report| report.state == TaskState::Failed).await;
    assert_eq!((failed.attempt, failed.exit.unwrap().code), (4, 3));
    assert!(failed.reason.contains("4 attempts in") && failed.reason.ends_with("given up"), "{failed:?}");
    agent.kill().await;
    let next = machine.agent_without_crash(assigned(vec![task(1)]));
    let still = next.wait_for_report(1, |report| report.state == TaskState::Failed).await;
    assert_eq!((still.attempt, &still.reason), (4, &failed.reason));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 4);
}

fn restarting(condition: RestartCondition, mut task: TaskAssignment) -> TaskAssignment {
    task.spec.restart.condition = condition;
    task
}

#[tokio::test(start_paused = true)]
async fn restart_condition_is_honoured() {
    use RestartCondition as C;
    let machine = Machine::new();
    let tasks = vec![
        restarting(C::None, task(1)),
        restarting(C::None, task(2)),
        restarting(C::OnFailure, task(3)),
        restarting(C::OnFailure, task(4)),
        restarting(C::Any, task(5)),
    ];
    let agent = machine.agent_without_crash(assigned(tasks));
    for number in 1..=5 {
        agent.wait_ready(number).await;
    }
    for (number, code) in [(1, 0), (2, 137), (3, 0), (4, 3), (5, 0)] {
        assert!(machine.runtime.end_process(&container(number), code, false));
    }
    for (number, state, reason) in [
        (1, TaskState::Complete, "exited with code 0"),
        (2, TaskState::Failed, "killed by signal 9 (SIGKILL); not restarted"),
        (3, TaskState::Complete, "exited with code 0"),
    ] {
        let ended = agent.wait_for_report(number, |report| report.state == state).await;
        assert_eq!((ended.reason.as_str(), ended.attempt, ended.next_attempt), (reason, 1, None));
    }
    let waits = [4, 5].map(|number| agent.wait_for_report(number, |report| report.next_attempt.is_some()));
    for (number, waiting) in [4, 5].into_iter().zip(join_all(waits).await) {
        let delay = waiting.next_attempt.unwrap().saturating_since(waiting.since);
        assert_eq!((waiting.state, waiting.attempt, delay), (TaskState::Starting, 2, Duration::from_secs(1)));
        let again = agent.wait_for_report(number, |report| report.ready).await;
        assert_eq!((again.attempt, again.next_attempt), (2, None));
    }
    agent.kill().await;
    let next = machine.agent_without_crash(assigned(vec![restarting(C::None, task(1))]));
    next.wait_for_report(1, |report| report.state == TaskState::Complete).await;
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 7);
}

#[tokio::test(start_paused = true)]
async fn invalid_task_is_rejected_with_reason() {
    let machine = Machine::new();
    let mut broken = task(1);
    broken.spec.image = "Not:An:Image".parse().unwrap();
    let agent = machine.agent_without_crash(assigned(vec![broken]));
    let rejected = agent.wait_for_report(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("task.image: \"Not:An:Image\" is not"), "{}", rejected.reason);

    let broken = ContainerScript {
        create_error: Some(FakeFailure::CommandNotFound("/serve".into())),
        ..ContainerScript::default()
    };
    machine.runtime.script_container(&container(2), broken);
    let at = HostPort::new(None, NonZeroU16::new(8080).unwrap(), TransportProtocol::Tcp);
    machine.network.occupy(at, PortHolder { pid: 7, name: "nginx".into() });
    agent.assign(vec![task(1), task(2), publishing(3)]);
    let rejected = agent.wait_for_report(2, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("\"/serve\""), "{}", rejected.reason);
    let rejected = agent.wait_for_report(3, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("8080/tcp is in use by process nginx (pid 7)"), "{}", rejected.reason);
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 0);
    agent.assign(vec![]);
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried() {
    let machine = Machine::new();
    let operations = [
        RuntimeOperation::Inspect,
        RuntimeOperation::EnsureCreated,
        RuntimeOperation::Start,
        RuntimeOperation::SetAttemptHistory,
        RuntimeOperation::Signal,
        RuntimeOperation::DeleteProcess,
        RuntimeOperation::Remove,
    ];
    for operation in operations {
        machine.runtime.fail_next(operation, FaultPoint::Before(FakeFailure::Timeout));
        machine.runtime.fail_next(operation, FaultPoint::After(FakeFailure::Unavailable));
    }
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    assert_eq!(machine.pid(1).await, Some(10_001));
    agent.assign(vec![desired(DesiredTaskState::Remove, task(1))]);
    agent.wait_removed(1).await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn state_is_kept_while_containerd_is_unavailable() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    machine.runtime.set_reachable(false);
    eventually("noticed", || async { agent.conditions.is_active(NodeCondition::RuntimeUnavailable) }).await;
    agent.assign(vec![task(1), task(2)]);
    let waiting = agent.wait_for_report(2, |report| report.reason.contains("not available")).await;
    assert_eq!(waiting.state, TaskState::Accepted);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let kept = agent.reporter.latest(&task_id(1)).unwrap();
    assert_eq!((kept.state, kept.ready), (TaskState::Running, true));
    let back = Instant::now();
    machine.runtime.set_reachable(true);
    agent.wait_ready(2).await;
    assert!(back.elapsed() < Duration::from_secs(2), "work resumes at once");
    eventually("over", || async { !agent.conditions.is_active(NodeCondition::RuntimeUnavailable) }).await;
    assert_eq!(agent.wait_for_report(1, |report| report.reason.is_empty()).await.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn relist_finds_lost_container() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    assert!(machine.runtime.lose_process(&container(1)));
    let lost = Instant::now();
    let again = agent.wait_for_report(1, |report| report.attempt == 2 && report.ready).await;
    assert!(lost.elapsed() < Duration::from_secs(30));
    assert_eq!(again.exit, None);
    let names: Vec<&str> = agent.background_tasks.snapshot().iter().map(|status| status.name).collect();
    let expected = [
        "worker.disk-pressure",
        "worker.network",
        "worker.relist",
        "worker.storage-limits",
        "worker.sweep",
        "worker.task-logs",
    ];
    assert_eq!(names, expected);
}

#[tokio::test(start_paused = true)]
async fn process_ignoring_stop_signal_is_killed_after_grace() {
    let machine = Machine::new();
    machine
        .runtime
        .script_image(&image(), ContainerScript { ignores_signals: true, ..ContainerScript::default() });
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    let asked = Instant::now();
    agent.assign(vec![desired(DesiredTaskState::Shutdown, task(1))]);
    let stopping = agent.wait_for_report(1, |report| report.reason.starts_with("stopping")).await;
    assert!(!stopping.ready);
    let stopped = agent.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    // The drain delay and the grace period.
    assert_eq!((asked.elapsed().as_secs(), stopped.exit.unwrap().code), (2 + 10, 137));
    assert!(stopped.reason.contains("killed") && !stopped.removed, "{stopped:?}");
    agent.assign(vec![desired(DesiredTaskState::Remove, task(1))]);
    agent.wait_removed(1).await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn task_without_subnet_reports_reason() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(DesiredState { settings: None, ..assigned(vec![task(1)]) });
    let waiting = agent.wait_for_report(1, |report| report.reason.contains("subnet")).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    agent.assign(vec![task(1)]);
    agent.wait_ready(1).await;
}

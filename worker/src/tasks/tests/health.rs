//! Tasks with checks, secrets and volumes.

use tokio::time::Instant;
use warren_runtime::fake::RuntimeOperation;
use warren_types::spec::{EnvVar, HealthCheck, Mount, MountSource, Probe, SecretObjectMount};
use warren_types::{DesiredTaskState, Health, TaskState, VolumeAssignment};

use super::*;
use crate::fixtures::{port, task};

const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// A task that publishes a port and is checked every ten seconds.
fn checked(number: u64) -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(number) };
    let probe = Probe::Exec { command: vec!["/check".into(), "-q".into()] };
    task.spec.health = Some(HealthCheck { interval: CHECK_INTERVAL, ..HealthCheck::new(probe) });
    task
}

/// With a secret and a volume.
fn full(number: u64) -> TaskAssignment {
    let mut task = checked(number);
    task.spec.secrets = vec![SecretObjectMount::new("db".parse().unwrap())];
    let source = MountSource::Volume { name: "{{.Service.Name}}".into(), subpath: None, no_copy: true };
    task.spec.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    task.volumes = vec![VolumeAssignment { name: "web".parse().unwrap(), options: BTreeMap::new() }];
    task
}

fn backends(machine: &Machine) -> usize {
    machine.network.ports().values().map(|backends| backends.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn task_is_ready_after_first_good_check() {
    let machine = Machine::new();
    machine.exec.set_answer(task_id(1), 1, "not yet");
    let agent = machine.agent_without_crash(assigned(vec![checked(1)]));
    let expected = "no health check has succeeded yet: exited with code 1";
    let starting = agent.wait_for_report(1, |report| report.reason == expected).await;
    assert_eq!(
        (starting.state, starting.health, starting.ready),
        (TaskState::Running, Health::Starting, false)
    );
    assert_eq!((machine.network.ports().len(), backends(&machine)), (1, 0), "held, without traffic");
    machine.exec.set_answer(task_id(1), 0, "");
    let since = Instant::now();
    let ready = agent.wait_ready(1).await;
    assert_eq!((ready.health, ready.reason.as_str(), backends(&machine)), (Health::Healthy, "", 1));
    assert!(since.elapsed() <= Duration::from_secs(1), "asked every second until then");
    let (target, command) = machine.exec.executed()[0].clone();
    assert_eq!(command, ["/check", "-q"]);
    assert_eq!((target.container, target.address), (task_id(1).to_string(), task(1).address));
}

#[tokio::test(start_paused = true)]
async fn unhealthy_task_gets_no_traffic_until_healthy() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![checked(1), checked(2)]));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    let since = Instant::now();
    machine.exec.set_answer(task_id(1), 7, "stuck");
    let failing = agent.wait_for_report(1, |report| report.health == Health::Unhealthy).await;
    assert!(since.elapsed() <= 3 * CHECK_INTERVAL, "{:?}", since.elapsed());
    let reason = "unhealthy: exited with code 7 (3 consecutive failures)";
    assert_eq!((failing.ready, failing.state, failing.reason.as_str()), (false, TaskState::Running, reason));
    assert_eq!(backends(&machine), 1, "the other one has all");
    // Unchanged health is not reported again.
    tokio::time::sleep(10 * CHECK_INTERVAL).await;
    assert_eq!(agent.reporter.latest(&task_id(1)), Some(failing));
    machine.exec.set_answer(task_id(1), 0, "");
    let well = agent.wait_ready(1).await;
    assert_eq!((well.health, well.attempt, backends(&machine)), (Health::Healthy, 1, 2));
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 2);
}

#[tokio::test(start_paused = true)]
async fn restarted_container_is_starting() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![full(1)]));
    agent.wait_ready(1).await;
    machine.exec.set_answer(task_id(1), 1, "");
    machine.secret_objects.set_disconnected(true);
    assert!(machine.runtime.end_process(&container(1), 1, false));
    let again =
        agent.wait_for_report(1, |report| report.attempt == 2 && report.state == TaskState::Running).await;
    assert_eq!((again.health, again.ready, backends(&machine)), (Health::Starting, false, 0));
    assert_eq!(machine.secret_objects.fetch_count(), 1, "its secrets were there");
    machine.exec.set_answer(task_id(1), 0, "");
    assert_eq!(agent.wait_ready(1).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_keeps_health() {
    for (code, kept) in [(0, Health::Healthy), (1, Health::Unhealthy)] {
        let machine = Machine::new();
        let first = machine.agent_without_crash(assigned(vec![checked(1)]));
        first.wait_ready(1).await;
        machine.exec.set_answer(task_id(1), code, "");
        first.wait_for_report(1, |report| report.health == kept).await;
        first.kill().await;
        // A check would find it too, but later.
        machine.exec.set_answer(task_id(1), 1 - code, "");
        let next = machine
            .agent(cached(vec![checked(1)]), CrashPlan::with_network_setup_delay(Duration::from_millis(200)));
        let output = next.wait_for_report(1, |report| report.state == TaskState::Running).await;
        assert_eq!((output.health, output.ready), (kept, kept == Health::Healthy));
        assert_eq!(backends(&machine), usize::from(output.ready));
        let other = if code == 0 { Health::Unhealthy } else { Health::Healthy };
        next.wait_for_report(1, |report| report.health == other).await;
        assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_are_removed_with_container_and_volumes_stay() {
    let machine = Machine::new();
    machine.secret_objects.add_orphan(task_id(9));
    let mut expected = full(1);
    expected.spec.env =
        vec![EnvVar { name: "WHO".into(), value: "{{.Task.Name}}@{{.Node.Hostname}}".into() }];
    let agent = machine.agent_without_crash(assigned(vec![expected.clone()]));
    agent.wait_ready(1).await;
    eventually("swept", || async { !machine.secret_objects.tasks().contains(&task_id(9)) }).await;
    let spec = machine.runtime.last_spec(&container(1)).unwrap();
    assert_eq!(spec.env, [("WHO".to_string(), "web.1@n1".to_string())]);
    let targets: Vec<_> = spec.mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/data", "/run/secrets/db"]);
    expected.desired = DesiredTaskState::Shutdown;
    agent.assign(vec![expected.clone()]);
    agent.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    eventually("gone", || async { machine.secret_objects.tasks().is_empty() }).await;
    expected.desired = DesiredTaskState::Remove;
    agent.assign(vec![expected]);
    agent.wait_removed(1).await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn task_with_secrets_waits_for_manager_after_reboot() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![full(1)]));
    first.wait_ready(1).await;
    first.kill().await;
    assert!(machine.runtime.lose_process(&container(1)));
    machine.secret_objects.lose_all();
    machine.secret_objects.set_disconnected(true);
    let next = machine.agent_without_crash(cached(vec![full(1)]));
    let waiting = next.wait_for_report(1, |report| report.reason.contains("waiting for a manager")).await;
    assert_eq!((waiting.state, waiting.attempt), (TaskState::Starting, 2));
    let expected = "fetching secrets and configs: waiting for a manager to send secrets: not connected";
    assert!(waiting.reason.ends_with(expected), "{}", waiting.reason);
    machine.secret_objects.set_disconnected(false);
    assert_eq!(next.wait_ready(1).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn empty_template_is_rejected_by_field() {
    let machine = Machine::new();
    let mut broken = task(1);
    broken.spec.env = vec![EnvVar { name: "A".into(), value: "{{.Node.Labels.rack}}".into() }];
    let agent = machine.agent_without_crash(assigned(vec![broken]));
    let rejected = agent.wait_for_report(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("task.env[0].value: the node has no label rack"), "{}", rejected.reason);
}

#[tokio::test(start_paused = true)]
async fn check_results_are_in_heartbeat() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![checked(1)]));
    agent.wait_ready(1).await;
    machine.exec.set_answer(task_id(1), 3, "no database");
    agent.wait_for_report(1, |report| report.health == Health::Unhealthy).await;
    let reported = agent.check_context.results.take_unreported();
    assert_eq!(reported.len(), 1);
    let (task, results) = &reported[0];
    assert_eq!(*task, task_id(1));
    let last = results.last().unwrap();
    assert_eq!((last.succeeded, last.output.as_str()), (false, "exited with code 3: no database"));
    assert!(results[0].succeeded && results.len() == 4, "{results:?}");
    assert!(agent.check_context.results.take_unreported().is_empty());
    agent.assign(vec![]);
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

//! Tasks with checks, secrets and volumes.

use tokio::time::Instant;
use warren_runtime::ContainerId;
use warren_runtime::fake::Operation;
use warren_types::spec::{ContentMount, EnvVar, HealthCheck, Mount, MountSource, Probe};
use warren_types::{Desired, Health, TaskState, VolumeAssignment};

use super::*;
use crate::samples::{port, task};

const EVERY: Duration = Duration::from_secs(10);

/// A task that publishes a port and is checked every ten seconds.
fn checked(number: u64) -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(number) };
    let probe = Probe::Exec { command: vec!["/check".into(), "-q".into()] };
    task.spec.health = Some(HealthCheck { interval: EVERY, ..HealthCheck::new(probe) });
    task
}

/// With a secret and a volume.
fn full(number: u64) -> TaskAssignment {
    let mut task = checked(number);
    task.spec.secrets = vec![ContentMount::new("db".parse().unwrap())];
    let source = MountSource::Volume { name: "{{.Service.Name}}".into(), subpath: None, no_copy: true };
    task.spec.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    task.volumes = vec![VolumeAssignment { name: "web".parse().unwrap(), options: BTreeMap::new() }];
    task
}

fn container(number: u64) -> ContainerId {
    ContainerId::parse(&task_id(number).to_string()).unwrap()
}

fn backends(machine: &Machine) -> usize {
    machine.network.ports().values().map(|backends| backends.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn a_task_is_ready_with_its_first_good_check() {
    let machine = Machine::new();
    machine.exec.answers(task_id(1), 1, "not yet");
    let agent = machine.immortal(wishing(vec![checked(1)]));
    let wanted = "no check has succeeded yet: exited with code 1";
    let starting = agent.until(1, |report| report.reason == wanted).await;
    assert_eq!(
        (starting.state, starting.health, starting.ready),
        (TaskState::Running, Health::Starting, false)
    );
    assert_eq!((machine.network.ports().len(), backends(&machine)), (1, 0), "held, without traffic");
    machine.exec.answers(task_id(1), 0, "");
    let since = Instant::now();
    let ready = agent.ready(1).await;
    assert_eq!((ready.health, ready.reason.as_str(), backends(&machine)), (Health::Healthy, "", 1));
    assert!(since.elapsed() <= Duration::from_secs(1), "asked every second until then");
    let (target, command) = machine.exec.ran()[0].clone();
    assert_eq!(command, ["/check", "-q"]);
    assert_eq!((target.container, target.address), (task_id(1).to_string(), task(1).address));
    assert_eq!(Some(target.pid), machine.pid(1).await);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_its_checks_gets_no_traffic_until_it_is_well_again() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![checked(1), checked(2)]));
    agent.ready(1).await;
    agent.ready(2).await;
    let since = Instant::now();
    machine.exec.answers(task_id(1), 7, "stuck");
    let failing = agent.until(1, |report| report.health == Health::Unhealthy).await;
    assert!(since.elapsed() <= 3 * EVERY, "{:?}", since.elapsed());
    let reason = "unhealthy: exited with code 7 (3 failures in a row)";
    assert_eq!((failing.ready, failing.state, failing.reason.as_str()), (false, TaskState::Running, reason));
    assert_eq!(backends(&machine), 1, "the other one has all");
    // Nothing is told again while it stays so.
    tokio::time::sleep(10 * EVERY).await;
    assert_eq!(agent.reporter.newest(&task_id(1)), Some(failing));
    machine.exec.answers(task_id(1), 0, "");
    let well = agent.ready(1).await;
    assert_eq!((well.health, well.attempt, backends(&machine)), (Health::Healthy, 1, 2));
    assert_eq!(machine.runtime.calls(Operation::Start), 2);
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_place_begins_with_starting() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![full(1)]));
    agent.ready(1).await;
    machine.exec.answers(task_id(1), 1, "");
    machine.contents.set_alone(true);
    assert!(machine.runtime.end_process(&container(1), 1, false));
    let again = agent.until(1, |report| report.attempt == 2 && report.state == TaskState::Running).await;
    assert_eq!((again.health, again.ready, backends(&machine)), (Health::Starting, false, 0));
    assert_eq!(machine.contents.fetched(), 1, "its secrets were there");
    machine.exec.answers(task_id(1), 0, "");
    assert_eq!(agent.ready(1).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_keeps_what_checks_found() {
    for (code, kept) in [(0, Health::Healthy), (1, Health::Unhealthy)] {
        let machine = Machine::new();
        let first = machine.immortal(wishing(vec![checked(1)]));
        first.ready(1).await;
        machine.exec.answers(task_id(1), code, "");
        first.until(1, |report| report.health == kept).await;
        first.kill().await;
        // It would be found otherwise by a check, which takes its time.
        machine.exec.answers(task_id(1), 1 - code, "");
        let next = machine.agent(cached(vec![checked(1)]), Life::laying_for(Duration::from_millis(200)));
        let said = next.until(1, |report| report.state == TaskState::Running).await;
        assert_eq!((said.health, said.ready), (kept, kept == Health::Healthy));
        assert_eq!(backends(&machine), usize::from(said.ready));
        let other = if code == 0 { Health::Unhealthy } else { Health::Healthy };
        next.until(1, |report| report.health == other).await;
        assert_eq!(machine.runtime.calls(Operation::Start), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn secrets_and_volumes_come_with_the_container_and_secrets_go_with_it() {
    let machine = Machine::new();
    machine.contents.leave(task_id(9));
    let mut wanted = full(1);
    wanted.spec.env = vec![EnvVar { name: "WHO".into(), value: "{{.Task.Name}}@{{.Node.Hostname}}".into() }];
    let agent = machine.immortal(wishing(vec![wanted.clone()]));
    agent.ready(1).await;
    eventually("swept", || async { !machine.contents.tasks().contains(&task_id(9)) }).await;
    let spec = machine.runtime.asked(&container(1)).unwrap();
    assert_eq!(spec.env, [("WHO".to_string(), "web.1@n1".to_string())]);
    let targets: Vec<_> = spec.mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/data", "/run/secrets/db"]);
    wanted.desired = Desired::Shutdown;
    agent.want(vec![wanted.clone()]);
    agent.until(1, |report| report.state == TaskState::Shutdown).await;
    eventually("gone", || async { machine.contents.tasks().is_empty() }).await;
    wanted.desired = Desired::Remove;
    agent.want(vec![wanted]);
    agent.removed(1).await;
    assert_eq!(machine.left().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn after_a_reboot_a_task_waits_for_a_manager_and_says_so() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![full(1)]));
    first.ready(1).await;
    first.kill().await;
    assert!(machine.runtime.lose_process(&container(1)));
    machine.contents.lose_all();
    machine.contents.set_alone(true);
    let next = machine.immortal(cached(vec![full(1)]));
    let waiting = next.until(1, |report| report.reason.contains("waiting for a manager")).await;
    assert_eq!((waiting.state, waiting.attempt), (TaskState::Starting, 2));
    let wanted = "getting its secrets and configs: waiting for a manager: its secrets are not on this node";
    assert!(waiting.reason.ends_with(wanted), "{}", waiting.reason);
    machine.contents.set_alone(false);
    assert_eq!(next.ready(1).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_template_that_stands_for_nothing_is_rejected_by_its_name() {
    let machine = Machine::new();
    let mut broken = task(1);
    broken.spec.env = vec![EnvVar { name: "A".into(), value: "{{.Node.Labels.rack}}".into() }];
    let agent = machine.immortal(wishing(vec![broken]));
    let rejected = agent.until(1, |report| report.state == TaskState::Rejected).await;
    assert!(rejected.reason.contains("task.env[0].value: the node has no label rack"), "{}", rejected.reason);
}

#[tokio::test(start_paused = true)]
async fn results_are_there_for_heartbeats() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![checked(1)]));
    agent.ready(1).await;
    machine.exec.answers(task_id(1), 3, "no database");
    agent.until(1, |report| report.health == Health::Unhealthy).await;
    let told = agent.checking.results.take();
    assert_eq!(told.len(), 1);
    let (task, results) = &told[0];
    assert_eq!(*task, task_id(1));
    let last = results.last().unwrap();
    assert_eq!((last.good, last.output.as_str()), (false, "exited with code 3: no database"));
    assert!(results[0].good && results.len() == 4, "{results:?}");
    assert!(agent.checking.results.take().is_empty());
    agent.want(vec![]);
    eventually("empty", || async { machine.left().await.is_empty() }).await;
}

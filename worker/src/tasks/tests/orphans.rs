//! Orphans are removed while the agent runs.

use tokio::time::Instant;
use warren_runtime::fake::{FakeFailure, FaultPoint, RuntimeOperation};
use warren_runtime::{ContainerId, ContainerOwner, ContainerSpec, PrivateUsers};
use warren_types::{DesiredTaskState, IdRange};

use super::*;
use crate::fixtures::task;

/// Less than between two periodic sweeps.
const BEFORE_NEXT_SWEEP: Duration = Duration::from_secs(2);

impl Machine {
    /// Creates a container that loses its record, as when a creation ends after a removal.
    async fn make_orphan(&self) {
        let owner = ContainerOwner { task: "orphan".into(), attempt: 1, spec_hash: "hash".into() };
        let spec = ContainerSpec::new(ContainerId::parse("orphan").unwrap(), owner, image());
        self.runtime.ensure_created(&spec).await.unwrap();
        assert!(self.runtime.make_orphan(&spec.id));
    }

    /// Waits until the orphan is removed; returns how long that took.
    async fn wait_for_sweep(&self) -> Duration {
        let begun = Instant::now();
        eventually("swept", || async { self.runtime.orphans().is_empty() }).await;
        begun.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn orphan_is_removed_without_event() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    let pid = machine.pid(1).await;
    for _again in 0..2 {
        machine.make_orphan().await;
        assert!(machine.wait_for_sweep().await < Duration::from_secs(20));
    }
    assert_eq!(machine.pid(1).await, pid);
    agent.assign(vec![]);
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn orphan_is_removed_when_containerd_returns() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    machine.make_orphan().await;
    machine.runtime.set_reachable(false);
    let names =
        || agent.background_tasks.snapshot().into_iter().filter(|status| status.failures > 0).map(|s| s.name);
    eventually("a sweep has failed", || async { names().any(|name| name == "worker.sweep") }).await;
    assert!(!machine.runtime.orphans().is_empty());
    machine.runtime.set_reachable(true);
    assert!(machine.wait_for_sweep().await < BEFORE_NEXT_SWEEP);
}

#[tokio::test(start_paused = true)]
async fn failed_removal_triggers_sweep() {
    let faults = [
        None,
        Some(FaultPoint::Before(FakeFailure::Timeout)),
        // This one leaves no container to remove.
        Some(FaultPoint::After(FakeFailure::Unavailable)),
    ];
    for fault in faults {
        let machine = Machine::new();
        let agent = machine.agent_without_crash(assigned(vec![task(1)]));
        agent.wait_ready(1).await;
        assert_eq!(machine.runtime.call_count(RuntimeOperation::SweepOrphans), 1, "the first is over");
        machine.make_orphan().await;
        fault.iter().for_each(|fault| machine.runtime.fail_next(RuntimeOperation::Remove, fault.clone()));
        let mut removed = TaskAssignment { desired: DesiredTaskState::Remove, ..task(1) };
        removed.spec.drain_delay = Duration::ZERO;
        agent.assign(vec![removed]);
        let swept = machine.wait_for_sweep().await;
        assert_eq!(swept < BEFORE_NEXT_SWEEP, fault.is_some(), "{fault:?}: {swept:?}");
        agent.wait_removed(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn killed_sweep_is_finished_by_next_agent() {
    let machine = Machine::new();
    machine.make_orphan().await;
    for calls in 0..4 {
        let agent = machine.agent(assigned(vec![]), CrashPlan::after_calls(calls, false));
        eventually("dead or done", || async {
            agent.crash_plan.has_crashed() || machine.runtime.orphans().is_empty()
        })
        .await;
        agent.kill().await;
    }
    let agent = machine.agent_without_crash(assigned(vec![]));
    machine.wait_for_sweep().await;
    agent.kill().await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn ids_of_users_are_recorded_from_containers_and_freed_with_their_task() {
    let machine = Machine::new();
    let directory = |first: u32, number| {
        machine.dir.path().join("user-namespaces").join(format!("{first}.{}", task_id(number)))
    };
    let users = PrivateUsers { ids: IdRange { first: 1_000_000 }, directory: "/run/users".into() };
    let owner = ContainerOwner { task: task_id(1).to_string(), attempt: 1, spec_hash: "hash".into() };
    let spec = ContainerSpec {
        assignment: serde_json::to_vec(&task(1)).unwrap(),
        labels: [("warren/cluster".to_owned(), settings().cluster.to_string())].into(),
        user_namespace: Some(users),
        ..ContainerSpec::new(container(1), owner, image())
    };
    machine.runtime.ensure_created(&spec).await.unwrap();
    let unknown = directory(2_000_000, 9);
    std::fs::create_dir_all(&unknown).unwrap();
    let agent = machine.agent_without_crash(cached(vec![]));
    eventually("recorded", || async { directory(1_000_000, 1).is_dir() }).await;
    agent.wait_ready(1).await;
    assert!(unknown.is_dir(), "managers may know its task");
    agent.assign(vec![task(1)]);
    eventually("swept", || async { !unknown.exists() }).await;
    let namespace = directory(1_000_000, 1).join("net");
    std::fs::write(&namespace, "").unwrap();
    agent.assign(vec![TaskAssignment { desired: DesiredTaskState::Shutdown, ..task(1) }]);
    eventually("its namespace is removed", || async { !namespace.exists() }).await;
    assert!(directory(1_000_000, 1).is_dir(), "its ids are not free");
    agent.assign(vec![TaskAssignment { desired: DesiredTaskState::Remove, ..task(1) }]);
    agent.wait_removed(1).await;
    assert!(!directory(1_000_000, 1).exists());
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

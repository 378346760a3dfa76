//! What nobody owns goes while the agent lives.

use tokio::time::Instant;
use warren_runtime::fake::{Failure, Fault, Operation};
use warren_runtime::{ContainerId, ContainerSpec, Owner};
use warren_types::Desired;

use super::*;
use crate::samples::task;

/// Less than between two sweeps that nothing gave a reason for.
const AT_ONCE: Duration = Duration::from_secs(2);

impl Machine {
    /// Lets a container come to be that loses its record, as when a creation ends after a removal.
    async fn make_orphan(&self) {
        let owner = Owner { task: "orphan".into(), attempt: 1, spec_hash: "hash".into() };
        let spec = ContainerSpec::new(ContainerId::parse("orphan").unwrap(), owner, image());
        self.runtime.ensure_created(&spec).await.unwrap();
        assert!(self.runtime.orphan(&spec.id));
    }

    /// Waits until the orphan is gone; says how long that took.
    async fn swept(&self) -> Duration {
        let begun = Instant::now();
        eventually("swept", || async { self.runtime.orphans().is_empty() }).await;
        begun.elapsed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_stray_goes_without_any_event() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    let pid = machine.pid(1).await;
    for _again in 0..2 {
        machine.make_orphan().await;
        assert!(machine.swept().await < Duration::from_secs(20));
    }
    assert_eq!(machine.pid(1).await, pid);
    agent.want(vec![]);
    eventually("empty", || async { machine.left().await.is_empty() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_stray_goes_as_soon_as_containerd_is_back() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![task(1)]));
    agent.ready(1).await;
    machine.make_orphan().await;
    machine.runtime.set_reachable(false);
    let names = || agent.loops.snapshot().into_iter().filter(|status| status.failures > 0).map(|s| s.name);
    eventually("a sweep has failed", || async { names().any(|name| name == "worker.sweep") }).await;
    assert!(!machine.runtime.orphans().is_empty());
    machine.runtime.set_reachable(true);
    assert!(machine.swept().await < AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_met_an_error_is_followed_by_a_sweep() {
    let faults = [
        None,
        Some(Fault::Before(Failure::Timeout)),
        // This one leaves no container to remove.
        Some(Fault::After(Failure::Unavailable)),
    ];
    for fault in faults {
        let machine = Machine::new();
        let agent = machine.immortal(wishing(vec![task(1)]));
        agent.ready(1).await;
        assert_eq!(machine.runtime.calls(Operation::SweepStrays), 1, "the first is over");
        machine.make_orphan().await;
        fault.iter().for_each(|fault| machine.runtime.fail_next(Operation::Remove, fault.clone()));
        agent.want(vec![TaskAssignment { desired: Desired::Remove, ..task(1) }]);
        let swept = machine.swept().await;
        assert_eq!(swept < AT_ONCE, fault.is_some(), "{fault:?}: {swept:?}");
        agent.removed(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_while_it_sweeps_leaves_the_rest_to_the_next() {
    let machine = Machine::new();
    machine.make_orphan().await;
    for calls in 0..4 {
        let agent = machine.agent(wishing(vec![]), Life::of(calls, false));
        eventually("dead or done", || async { agent.life.is_over() || machine.runtime.orphans().is_empty() })
            .await;
        agent.kill().await;
    }
    let agent = machine.immortal(wishing(vec![]));
    machine.swept().await;
    agent.kill().await;
    assert_eq!(machine.left().await, Vec::<String>::new());
}

//! The agent is killed before and after each of its calls.

use warren_types::DesiredTaskState;
use warren_types::spec::{HealthCheck, Probe, SecretObjectMount};

use super::*;
use crate::fixtures::{port, task};

/// With ports, a secret and a check, whose first result is there some milliseconds after the start.
fn publishing() -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(1) };
    task.spec.secrets = vec![SecretObjectMount::new("db".parse().unwrap())];
    task.spec.health = Some(HealthCheck::new(Probe::Exec { command: vec!["/check".into()] }));
    task
}

fn removing() -> TaskAssignment {
    TaskAssignment { desired: DesiredTaskState::Remove, ..publishing() }
}

/// Runs an agent until it is killed, or until `done`. Returns whether it was killed.
async fn crashes<F: Future<Output = bool>>(agent: Agent, done: impl Fn() -> F) -> bool {
    let (plan, over) = (Arc::clone(&agent.crash_plan), agent.crash_plan.clone());
    eventually("dead or done", || {
        let done = done();
        let over = Arc::clone(&over);
        async move { over.has_crashed() || done.await }
    })
    .await;
    let died = plan.has_crashed();
    agent.kill().await;
    died
}

#[tokio::test(start_paused = true)]
async fn interrupted_start_is_finished_by_next_agent() {
    let mut deaths = 0;
    for last_takes_effect in [false, true] {
        for calls in 0.. {
            let machine = Machine::new();
            let agent =
                machine.agent(assigned(vec![publishing()]), CrashPlan::after_calls(calls, last_takes_effect));
            let (network, reporter) = (Arc::clone(&machine.network), Arc::clone(&agent.reporter));
            let died = crashes(agent, || {
                let ready = reporter.latest(&task_id(1)).is_some_and(|report| report.ready);
                let serving = network.ports().values().any(|backends| !backends.is_empty());
                async move { ready && serving }
            })
            .await;
            let next = machine.agent_without_crash(assigned(vec![publishing()]));
            let report = next.wait_ready(1).await;
            assert_eq!(report.attempt, 1, "killed after {calls} calls");
            assert_eq!(machine.pid(1).await, Some(10_001), "only one process was ever made");
            next.assign(vec![removing()]);
            next.wait_removed(1).await;
            assert_eq!(machine.leftovers().await, Vec::<String>::new());
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 12, "the agent was killed at {deaths} places");
}

#[tokio::test(start_paused = true)]
async fn interrupted_removal_is_finished_by_next_agent() {
    let mut deaths = 0;
    for last_takes_effect in [false, true] {
        for calls in 0.. {
            let machine = Machine::new();
            let first = machine.agent_without_crash(assigned(vec![publishing()]));
            first.wait_ready(1).await;
            first.kill().await;
            let agent =
                machine.agent(assigned(vec![removing()]), CrashPlan::after_calls(calls, last_takes_effect));
            let reporter = Arc::clone(&agent.reporter);
            let died = crashes(agent, || {
                let removed = reporter.latest(&task_id(1)).is_some_and(|report| report.removed);
                async move { removed }
            })
            .await;
            let next = machine.agent_without_crash(assigned(vec![removing()]));
            next.wait_removed(1).await;
            assert_eq!(machine.leftovers().await, Vec::<String>::new(), "killed after {calls} calls");
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 10, "the agent was killed at {deaths} places");
}

#[tokio::test(start_paused = true)]
async fn task_removed_while_agent_was_down_leaves_nothing() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![publishing()]));
    first.wait_ready(1).await;
    first.kill().await;
    let next = machine.agent_without_crash(assigned(vec![]));
    eventually("empty", || async { machine.leftovers().await.is_empty() }).await;
    next.assign(vec![task(2)]);
    next.wait_ready(2).await;
    assert_eq!(next.reporter.latest(&task_id(1)), None, "no session accepts it");
}

//! The agent is killed before and after each of its calls.

use warren_types::Desired;
use warren_types::spec::{ContentMount, HealthCheck, Probe};

use super::*;
use crate::samples::{port, task};

/// With ports, a secret and a check, whose first result is there some milliseconds after the start.
fn publishing() -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(1) };
    task.spec.secrets = vec![ContentMount::new("db".parse().unwrap())];
    task.spec.health = Some(HealthCheck::new(Probe::Exec { command: vec!["/check".into()] }));
    task
}

fn removing() -> TaskAssignment {
    TaskAssignment { desired: Desired::Remove, ..publishing() }
}

/// Lets an agent work until it dies, or until `done`. Whether it died.
async fn dies<F: Future<Output = bool>>(agent: Agent, done: impl Fn() -> F) -> bool {
    let (life, over) = (Arc::clone(&agent.life), agent.life.clone());
    eventually("dead or done", || {
        let done = done();
        let over = Arc::clone(&over);
        async move { over.is_over() || done.await }
    })
    .await;
    let died = life.is_over();
    agent.kill().await;
    died
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_cut_short_anywhere_is_finished_by_the_next_agent() {
    let mut deaths = 0;
    for last_takes_effect in [false, true] {
        for calls in 0.. {
            let machine = Machine::new();
            let agent = machine.agent(wishing(vec![publishing()]), Life::of(calls, last_takes_effect));
            let (network, reporter) = (Arc::clone(&machine.network), Arc::clone(&agent.reporter));
            let died = dies(agent, || {
                let ready = reporter.newest(&task_id(1)).is_some_and(|report| report.ready);
                let serving = network.ports().values().any(|backends| !backends.is_empty());
                async move { ready && serving }
            })
            .await;
            let next = machine.immortal(wishing(vec![publishing()]));
            let report = next.ready(1).await;
            assert_eq!(report.attempt, 1, "killed after {calls} calls");
            assert_eq!(machine.pid(1).await, Some(10_001), "only one process was ever made");
            next.want(vec![removing()]);
            next.removed(1).await;
            assert_eq!(machine.left().await, Vec::<String>::new());
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 12, "the agent was killed at {deaths} places");
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_cut_short_anywhere_is_finished_by_the_next_agent() {
    let mut deaths = 0;
    for last_takes_effect in [false, true] {
        for calls in 0.. {
            let machine = Machine::new();
            let first = machine.immortal(wishing(vec![publishing()]));
            first.ready(1).await;
            first.kill().await;
            let agent = machine.agent(wishing(vec![removing()]), Life::of(calls, last_takes_effect));
            let reporter = Arc::clone(&agent.reporter);
            let died = dies(agent, || {
                let removed = reporter.newest(&task_id(1)).is_some_and(|report| report.removed);
                async move { removed }
            })
            .await;
            let next = machine.immortal(wishing(vec![removing()]));
            next.removed(1).await;
            assert_eq!(machine.left().await, Vec::<String>::new(), "killed after {calls} calls");
            if !died {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 10, "the agent was killed at {deaths} places");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_gone_while_the_agent_was_dead_leaves_nothing() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![publishing()]));
    first.ready(1).await;
    first.kill().await;
    let next = machine.immortal(wishing(vec![]));
    eventually("empty", || async { machine.left().await.is_empty() }).await;
    next.want(vec![task(2)]);
    next.ready(2).await;
    assert_eq!(next.reporter.newest(&task_id(1)), None, "nobody wants to hear of it");
}

//! Tasks of bootstrap services start before others when an agent starts.

use warren_types::TaskState;

use super::*;
use crate::fixtures::task;

fn bootstrap(number: u64) -> TaskAssignment {
    TaskAssignment { bootstrap: true, service: "dns".parse().unwrap(), ..task(number) }
}

/// The other task is prepared and says what it waits for.
async fn wait_held(agent: &Agent) {
    let reason = "waiting for bootstrap service \"dns\" on this node";
    let held = agent.wait_for_report(2, |report| report.reason == reason).await;
    assert_eq!((held.state, held.ready), (TaskState::Starting, false));
}

#[tokio::test]
async fn bootstrap_task_starts_first_after_a_reboot() {
    let machine = Machine::new();
    // It cannot start before its image is known.
    let missing = TaskAssignment { digest: None, ..bootstrap(1) };
    let agent = machine.agent_without_crash(cached(vec![missing, task(2)]));
    wait_held(&agent).await;
    assert_eq!(machine.pid(2).await, None);
    agent.assign(vec![bootstrap(1), task(2)]);
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    // From then on no task waits, whatever happens to the bootstrap service.
    let missing = TaskAssignment { digest: None, ..bootstrap(3) };
    agent.assign(vec![bootstrap(1), task(2), missing, task(4)]);
    agent.wait_ready(4).await;
    let before = machine.pid(2).await;
    agent.kill().await;
    let missing = TaskAssignment { digest: None, ..bootstrap(3) };
    let agent = machine.agent_without_crash(cached(vec![missing, task(2)]));
    agent.wait_ready(2).await;
    assert_eq!(machine.pid(2).await, before, "a task that runs is not touched");
}

#[tokio::test(start_paused = true)]
async fn bootstrap_task_that_does_not_start_holds_others_for_a_minute() {
    let machine = Machine::new();
    let missing = TaskAssignment { digest: None, ..bootstrap(1) };
    let agent = machine.agent_without_crash(cached(vec![missing, task(2)]));
    wait_held(&agent).await;
    let begun = tokio::time::Instant::now();
    agent.wait_ready(2).await;
    assert!(begun.elapsed() > Duration::from_secs(50), "{:?}", begun.elapsed());
}

//! Tasks of a node that has no manager.

use tokio::time::Instant;
use warren_types::{OnDisconnect, TaskState};

use super::*;
use crate::samples::{port, task};

const PATIENT: Duration = Duration::from_secs(30);

/// A task that is stopped when there is no manager for [`PATIENT`].
fn minding(number: u64) -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(number) };
    task.spec.on_disconnect = OnDisconnect::StopAfter(PATIENT);
    task
}

fn alone(before: Duration) -> Standing {
    Standing::Alone { since: Instant::now(), before }
}

#[tokio::test(start_paused = true)]
async fn who_minds_is_stopped_in_time_and_the_others_run_on() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![minding(1), task(2)]));
    agent.ready(1).await;
    agent.ready(2).await;
    let before = machine.pid(2).await;
    agent.standing.send_replace(alone(Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert!(machine.pid(1).await.is_some(), "its time is not over");
    let said = agent.until(1, |report| report.state == TaskState::Shutdown).await;
    assert!(said.reason.contains("had no manager for 30s"), "{}", said.reason);
    assert_eq!((machine.pid(1).await, machine.pid(2).await), (None, before));
    assert!(machine.network.ports().is_empty(), "it gets no traffic");
    // Found again by a manager, it says so and stays ended, whatever is wanted.
    agent.standing.send_replace(Standing::Attended);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(machine.pid(1).await, None);
    agent.want(vec![task(2)]);
    eventually("forgotten", || async { agent.reporter.newest(&task_id(1)).is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_comes_in_time_changes_nothing() {
    let machine = Machine::new();
    let agent = machine.immortal(wishing(vec![minding(1)]));
    agent.ready(1).await;
    let before = machine.pid(1).await;
    for _ in 0..3 {
        agent.standing.send_replace(alone(Duration::ZERO));
        tokio::time::sleep(PATIENT - Duration::from_secs(1)).await;
        agent.standing.send_replace(Standing::Attended);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(machine.pid(1).await, before);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_alone_goes_on_counting() {
    let machine = Machine::new();
    let first = machine.immortal(wishing(vec![minding(1)]));
    first.ready(1).await;
    first.kill().await;
    let second = machine.immortal(cached(vec![minding(1), minding(2)]));
    second.ready(1).await;
    second.standing.send_replace(alone(Duration::MAX));
    second.until(1, |report| report.state == TaskState::Shutdown).await;
    second.kill().await;
    // The next one knows from the record that it is over, and starts nothing else either.
    let third = machine.immortal(cached(vec![minding(1), minding(3)]));
    third.standing.send_replace(alone(Duration::MAX));
    third.until(1, |report| report.state == TaskState::Shutdown).await;
    tokio::time::sleep(PATIENT).await;
    assert_eq!((machine.pid(1).await, machine.pid(3).await), (None, None));
    third.standing.send_replace(Standing::Attended);
    third.ready(3).await;
    assert_eq!(machine.pid(1).await, None);
}

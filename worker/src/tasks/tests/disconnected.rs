//! Tasks of a node without a manager.

use tokio::time::Instant;
use warren_types::{OnDisconnect, TaskState};

use super::*;
use crate::fixtures::{port, task};

const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A task that is stopped without a manager for [`DISCONNECT_TIMEOUT`].
fn stopping_on_disconnect(number: u64) -> TaskAssignment {
    let mut task = TaskAssignment { ports: vec![port(8080)], ..task(number) };
    task.spec.on_disconnect = OnDisconnect::StopAfter(DISCONNECT_TIMEOUT);
    task
}

fn disconnected(before: Duration) -> NodeConnectivity {
    NodeConnectivity::Disconnected { since: Instant::now(), earlier: before }
}

#[tokio::test(start_paused = true)]
async fn disconnected_task_is_stopped_after_timeout_and_others_run() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![stopping_on_disconnect(1), task(2)]));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    let before = machine.pid(2).await;
    agent.connectivity.send_replace(disconnected(Duration::from_secs(10)));
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert!(machine.pid(1).await.is_some(), "its time is not over");
    let output = agent.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    assert!(output.reason.contains("after 30s without a manager"), "{}", output.reason);
    assert_eq!((machine.pid(1).await, machine.pid(2).await), (None, before));
    assert!(machine.network.ports().is_empty(), "it gets no traffic");
    // Reconnected to a manager, it reports that and stays ended, whatever is desired.
    agent.connectivity.send_replace(NodeConnectivity::Connected);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(machine.pid(1).await, None);
    agent.assign(vec![task(2)]);
    eventually("forgotten", || async { agent.reporter.latest(&task_id(1)).is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn reconnection_in_time_keeps_task() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![stopping_on_disconnect(1)]));
    agent.wait_ready(1).await;
    let before = machine.pid(1).await;
    for _ in 0..3 {
        agent.connectivity.send_replace(disconnected(Duration::ZERO));
        tokio::time::sleep(DISCONNECT_TIMEOUT - Duration::from_secs(1)).await;
        agent.connectivity.send_replace(NodeConnectivity::Connected);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(machine.pid(1).await, before);
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_continues_disconnect_timeout() {
    let machine = Machine::new();
    let first = machine.agent_without_crash(assigned(vec![stopping_on_disconnect(1)]));
    first.wait_ready(1).await;
    first.kill().await;
    let second =
        machine.agent_without_crash(cached(vec![stopping_on_disconnect(1), stopping_on_disconnect(2)]));
    second.wait_ready(1).await;
    second.connectivity.send_replace(disconnected(Duration::MAX));
    second.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    second.kill().await;
    // The next agent knows from the record that it is over, and starts nothing else either.
    let third =
        machine.agent_without_crash(cached(vec![stopping_on_disconnect(1), stopping_on_disconnect(3)]));
    third.connectivity.send_replace(disconnected(Duration::MAX));
    third.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    tokio::time::sleep(DISCONNECT_TIMEOUT).await;
    assert_eq!((machine.pid(1).await, machine.pid(3).await), (None, None));
    third.connectivity.send_replace(NodeConnectivity::Connected);
    third.wait_ready(3).await;
    assert_eq!(machine.pid(1).await, None);
}

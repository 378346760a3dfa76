//! Writable layers of tasks.

use warren_runtime::LayerUsage;
use warren_runtime::fake::{FakeFailure, FaultPoint, RuntimeOperation};
use warren_types::{Bytes, DesiredTaskState, TaskState};

use super::*;
use crate::fixtures::task;

fn limited(number: u64) -> TaskAssignment {
    let mut task = task(number);
    task.spec.storage_limit = Some(Bytes(20_000_000));
    task
}

fn fill(machine: &Machine, number: u64, bytes: u64) {
    let usage = LayerUsage { bytes: Bytes(bytes), inodes: 9, ..LayerUsage::default() };
    machine.runtime.set_layer_usage(&container(number), usage);
}

/// What the layer of a task has; `None` without one.
async fn found(machine: &Machine, number: u64) -> Option<u64> {
    machine.runtime.layer_usage(&container(number)).await.unwrap().map(|usage| usage.bytes.0)
}

#[tokio::test(start_paused = true)]
async fn task_beyond_its_storage_limit_fails_and_frees_its_layer() {
    let machine = Machine::new();
    let tasks = || vec![limited(1), task(2), limited(3)];
    let agent = machine.agent_without_crash(assigned(tasks()));
    for number in 1..=3 {
        agent.wait_ready(number).await;
    }
    let pids = [machine.pid(2).await, machine.pid(3).await];
    fill(&machine, 1, 20_000_000);
    fill(&machine, 2, 1 << 40);
    // Long enough for several measurements.
    sleep(Duration::from_secs(60)).await;
    assert!(agent.reporter.latest(&task_id(1)).unwrap().ready, "it has no more than its limit");
    fill(&machine, 1, 100_000_000);
    // A node whose disk is full cannot record anything before the layer is gone.
    machine.runtime.fail_next(RuntimeOperation::RemoveLayer, FaultPoint::Before(FakeFailure::Timeout));
    machine.runtime.fail_next(RuntimeOperation::SetAttemptHistory, FaultPoint::Before(FakeFailure::Timeout));
    let failed = agent.wait_for_report(1, |report| report.state == TaskState::Failed).await;
    assert!(
        failed.reason.starts_with("its writable layer has 100 MB of 20 MB (--storage-limit)"),
        "{failed:?}"
    );
    assert_eq!((failed.exit.unwrap().code, failed.attempt, failed.next_attempt), (137, 1, None));
    eventually("freed", || async { found(&machine, 1).await.is_none_or(|bytes| bytes == 0) }).await;
    assert_eq!([machine.pid(2).await, machine.pid(3).await], pids);
    agent.kill().await;
    let next = machine.agent_without_crash(assigned(tasks()));
    let still = next.wait_for_report(1, |report| report.state == TaskState::Failed).await;
    assert!(failed.reason.starts_with(&still.reason), "{still:?}");
    next.wait_ready(3).await;
    assert_eq!(machine.runtime.call_count(RuntimeOperation::Start), 3, "it does not run again");
}

#[tokio::test(start_paused = true)]
async fn ended_task_keeps_its_record_and_no_layer() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    fill(&machine, 1, 5000);
    let stopped = TaskAssignment { desired: DesiredTaskState::Shutdown, ..task(1) };
    agent.assign(vec![stopped]);
    agent.wait_for_report(1, |report| report.state == TaskState::Shutdown).await;
    eventually("freed", || async { found(&machine, 1).await.is_none() }).await;
    assert!(machine.runtime.inspect(&container(1)).await.unwrap().is_some());
}

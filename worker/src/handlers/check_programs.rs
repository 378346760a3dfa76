//! Runs the programs of health checks in containers.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;
use warren_health::{Exec, ExecResult, ExecStatus, MAX_OUTPUT, ProbeTarget};
use warren_runtime::{ContainerId, Error, ExecProcess, ExecSpec, Runtime};

/// Output written before the exit is already in the pipe; a remaining child process may still hold it open.
const LAST_OUTPUT: Duration = Duration::from_millis(10);

/// Programs in the containers of a runtime.
pub(crate) struct CheckPrograms(pub Arc<dyn Runtime>);

#[tonic::async_trait]
impl Exec for CheckPrograms {
    async fn run(&self, target: &ProbeTarget, command: &[String], within: Duration) -> ExecResult {
        let spec = ExecSpec { command: command.to_vec(), combined: true, ..ExecSpec::default() };
        // Its start has another deadline: a busy node is no result for the task.
        let started = match ContainerId::parse(&target.container) {
            Ok(id) => self.0.exec(&id, &spec).await,
            Err(error) => Err(error),
        };
        let process = match started {
            Ok(process) => process,
            Err(error) => return ExecResult { status: not_started(error), output: String::new() },
        };
        let mut output = Vec::new();
        let status = timeout(within, finish(process, &mut output)).await;
        let output = String::from_utf8_lossy(&output).into_owned();
        ExecResult { status: status.unwrap_or(ExecStatus::TimedOut), output }
    }
}

fn not_started(error: Error) -> ExecStatus {
    match error {
        Error::CommandNotFound { command, reason } => {
            ExecStatus::Failed(format!("{command:?} cannot be run: {reason}"))
        }
        Error::Failed { reason, .. } => ExecStatus::Failed(reason),
        Error::InvalidSpec { .. } => ExecStatus::Failed(error.to_string()),
        // The node or its runtime is not available, or the container has ended.
        _ => ExecStatus::NotStarted(error.to_string()),
    }
}

/// Waits for the end of a program, and keeps the beginning of its output.
async fn finish(process: ExecProcess, kept: &mut Vec<u8>) -> ExecStatus {
    let ExecProcess { mut stdout, handle, .. } = process;
    let exit = handle.wait();
    tokio::pin!(exit);
    let code = loop {
        tokio::select! {
            code = &mut exit => break code,
            is_open = append_bounded(&mut stdout, kept) => if !is_open { break exit.await },
        }
    };
    let rest = async { while kept.len() < MAX_OUTPUT && append_bounded(&mut stdout, kept).await {} };
    // Remaining child processes may write forever.
    let _ = timeout(LAST_OUTPUT, rest).await;
    match code {
        Ok(code) => ExecStatus::Exited(code.cast_signed()),
        Err(error) => ExecStatus::NotStarted(error.to_string()),
    }
}

/// Reads once and stores what fits. `false` at the end.
async fn append_bounded(output: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    let count = output.read(&mut buffer).await.unwrap_or(0);
    let room = MAX_OUTPUT.saturating_sub(kept.len());
    kept.extend(&buffer[..count.min(room)]);
    count > 0
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::FakeRuntime;

    use super::*;

    #[tokio::test]
    async fn check_in_missing_container_is_inconclusive() {
        let programs = CheckPrograms(Arc::new(FakeRuntime::new()));
        let netns = "/nowhere".into();
        let target = ProbeTarget { container: "a-1".into(), netns, address: "10.0.0.1".parse().unwrap() };
        let ran = programs.run(&target, &["exit".into()], Duration::from_secs(9)).await;
        assert!(matches!(&ran.status, ExecStatus::NotStarted(reason) if reason.contains("a-1")), "{ran:?}");
        let target = ProbeTarget { container: "../x".into(), ..target };
        let ran = programs.run(&target, &["exit".into()], Duration::from_secs(9)).await;
        assert!(matches!(ran.status, ExecStatus::Failed(_)), "{ran:?}");
    }
}

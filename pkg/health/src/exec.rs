//! Runs programs in containers with `warren-exec` (`pkg/container-programs`), ten times cheaper than a runtime exec.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::timeout;
use warren_container_programs::plan::{ExecOutcome, ExecPlan};

use crate::outcome::is_resource_exhausted;
use crate::{Exec, ExecResult, ExecStatus, MAX_OUTPUT, ProbeTarget};

/// Time beyond the check's timeout, to enter the container on a busy machine and to end a late program.
const ANSWER_SLACK: Duration = Duration::from_secs(10);
/// Output written before the exit is already in the pipe; a remaining child process may still hold it open.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time for a killed `warren-exec` to exit. In a paused container it exits only after the container
/// resumes.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit of an answer of `warren-exec`.
const MAX_ANSWER: u64 = 4096;

/// Provides the exec settings of containers.
#[async_trait::async_trait]
pub trait ExecPlanSource: Send + Sync + 'static {
    /// User, limits and namespaces for a further process of the container: a complete plan except for the
    /// process, the program and the timeout.
    ///
    /// # Errors
    /// The reason why it is unavailable, as text.
    async fn exec_plan(&self, container: &str) -> Result<ExecPlan, String>;
}

/// Runs programs in containers.
pub struct ContainerExec {
    program: PathBuf,
    plans: Arc<dyn ExecPlanSource>,
}

impl ContainerExec {
    /// `program` is the path of `warren-exec`.
    pub fn new(program: PathBuf, setups: Arc<dyn ExecPlanSource>) -> Self {
        Self { program, plans: setups }
    }

    async fn read_answer(
        &self,
        plan: &ExecPlan,
        within: Duration,
    ) -> io::Result<(Option<ExecOutcome>, String)> {
        let mut command = Command::new(&self.program);
        // The environment of this process is not inherited; the plan is sent over a private pipe.
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let ((mut input, output), errors) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
        // `input` stays open until the answer arrives: closing it ends the program.
        let exchange = async {
            let written = input.write_all(&plan.encode()).await;
            let (line, output) = read_outputs(output, errors).await?;
            // If the program ended without reading, its answer has the reason; without an answer, the pipe
            // error has it.
            if line.is_empty() {
                written?;
            }
            Ok::<_, io::Error>((line, output))
        };
        let exchange = timeout(within + ANSWER_SLACK, exchange).await;
        if exchange.is_err() {
            child.start_kill()?;
        }
        // A process that does not end is reaped by the runtime and blocks no other check.
        if let Ok(ended) = timeout(KILL_TIMEOUT, child.wait()).await {
            ended?;
        }
        drop(input);
        let (line, output) = exchange.map_err(|_| io::Error::other("timed out without an answer"))??;
        Ok((ExecOutcome::parse(&line), output))
    }
}

/// The answer, and the beginning of the program's output.
async fn read_outputs(mut output: ChildStdout, errors: ChildStderr) -> io::Result<(String, String)> {
    let (mut kept, mut line) = (Vec::new(), String::new());
    // The answer ends with `warren-exec`; the output ends with the last process that holds the pipe.
    let mut errors = errors.take(MAX_ANSWER);
    let answer = errors.read_to_string(&mut line);
    tokio::pin!(answer);
    loop {
        tokio::select! {
            read = &mut answer => {
                read?;
                break;
            }
            more = append_bounded(&mut output, &mut kept) => if !more? {
                answer.as_mut().await?;
                break;
            },
        }
    }
    let rest = async {
        while kept.len() < MAX_OUTPUT && append_bounded(&mut output, &mut kept).await? {}
        io::Result::Ok(())
    };
    // Remaining child processes may write forever.
    let _ = timeout(POLL_INTERVAL, rest).await;
    Ok((line, String::from_utf8_lossy(&kept).into_owned()))
}

/// Reads once and stores what fits. `false` at the end.
async fn append_bounded(output: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let count = output.read(&mut buffer).await?;
    let room = MAX_OUTPUT.saturating_sub(kept.len());
    kept.extend(&buffer[..count.min(room)]);
    Ok(count > 0)
}

#[async_trait::async_trait]
impl Exec for ContainerExec {
    async fn run(&self, target: &ProbeTarget, command: &[String], within: Duration) -> ExecResult {
        let failed =
            |reason: String| ExecResult { status: ExecStatus::Failed(reason), output: String::new() };
        let setup = match self.plans.exec_plan(&target.container).await {
            Ok(setup) => setup,
            // The runtime does not answer; this is no result for the task.
            Err(reason) => {
                return ExecResult { status: ExecStatus::NotStarted(reason), output: String::new() };
            }
        };
        let plan = ExecPlan {
            pid: target.pid,
            timeout_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1),
            arguments: command.iter().map(|word| word.clone().into_bytes()).collect(),
            ..setup
        };
        match self.read_answer(&plan, within).await {
            Ok((Some(ExecOutcome::Exited(code)), output)) => {
                ExecResult { status: ExecStatus::Exited(code), output }
            }
            Ok((Some(ExecOutcome::TimedOut), output)) => ExecResult { status: ExecStatus::TimedOut, output },
            Ok((Some(ExecOutcome::Failed(reason)), _)) => failed(reason),
            Ok((None, _)) => failed("the check process ended without an answer".to_owned()),
            Err(error) => {
                let reason = format!("cannot run a check with {}: {error}", self.program.display());
                let status = if is_resource_exhausted(&error) {
                    ExecStatus::NotStarted(reason)
                } else {
                    ExecStatus::Failed(reason)
                };
                ExecResult { status, output: String::new() }
            }
        }
    }
}

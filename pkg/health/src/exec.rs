//! Programs in containers, run by `warren-exec` (`pkg/logger`), which costs a tenth of what the runtime's own way does.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::timeout;
use warren_logger::plan::{Answer, Plan};

use crate::outcome::is_scarcity;
use crate::{Ending, Exec, MAX_OUTPUT, Ran, Target};

/// Beyond its own time, for entering the container on a busy machine and for ending what is late.
const SLACK: Duration = Duration::from_secs(10);
/// What was written before the end is in the pipe already; something that the program left behind may still have it
/// open.
const REST: Duration = Duration::from_millis(10);
/// For a killed `warren-exec` to be gone. One in a container that was just paused only ends when that goes on.
const END: Duration = Duration::from_secs(1);
/// The longest answer of `warren-exec`.
const LONGEST_ANSWER: u64 = 4096;

/// Knows how the processes of containers run.
#[async_trait::async_trait]
pub trait Setups: Send + Sync + 'static {
    /// As whom and within which bounds a further process of the container runs: all of a plan but the process, the
    /// program and the time.
    ///
    /// # Errors
    /// Why that is not known, in words.
    async fn setup(&self, container: &str) -> Result<Plan, String>;
}

/// Runs programs in containers.
pub struct InContainers {
    program: PathBuf,
    setups: Arc<dyn Setups>,
}

impl InContainers {
    /// `program` is where `warren-exec` is installed.
    pub fn new(program: PathBuf, setups: Arc<dyn Setups>) -> Self {
        Self { program, setups }
    }

    async fn answer(&self, plan: &Plan, within: Duration) -> io::Result<(Option<Answer>, String)> {
        let mut command = Command::new(&self.program);
        // Nothing of this process is told; the plan goes where nobody else can read it.
        command.env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).zip(child.stderr.take());
        let ((mut input, output), errors) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
        // `input` stays open until the answer is there: when it closes, the program is ended.
        let told = async {
            let written = input.write_all(&plan.encode()).await;
            let (line, output) = listen(output, errors).await?;
            // Where it ended without reading, its answer says why; where there is none, the pipe does.
            if line.is_empty() {
                written?;
            }
            Ok::<_, io::Error>((line, output))
        };
        let told = timeout(within + SLACK, told).await;
        if told.is_err() {
            child.start_kill()?;
        }
        // One that does not end is waited for by the runtime's reaper, and holds nobody's turn.
        if let Ok(ended) = timeout(END, child.wait()).await {
            ended?;
        }
        drop(input);
        let (line, output) = told.map_err(|_| io::Error::other("it did not answer"))??;
        Ok((Answer::parse(&line), output))
    }
}

/// The answer, and the beginning of what the program wrote.
async fn listen(mut output: ChildStdout, errors: ChildStderr) -> io::Result<(String, String)> {
    let (mut kept, mut line) = (Vec::new(), String::new());
    // It ends with `warren-exec`; the output ends with the last process that has it.
    let mut errors = errors.take(LONGEST_ANSWER);
    let answer = errors.read_to_string(&mut line);
    tokio::pin!(answer);
    loop {
        tokio::select! {
            read = &mut answer => {
                read?;
                break;
            }
            more = keep(&mut output, &mut kept) => if !more? {
                answer.as_mut().await?;
                break;
            },
        }
    }
    let rest = async {
        while kept.len() < MAX_OUTPUT && keep(&mut output, &mut kept).await? {}
        io::Result::Ok(())
    };
    // What is left behind may write for ever.
    let _ = timeout(REST, rest).await;
    Ok((line, String::from_utf8_lossy(&kept).into_owned()))
}

/// Reads once, and keeps as much as has room. `false` at the end.
async fn keep(output: &mut (impl AsyncRead + Unpin), kept: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let count = output.read(&mut buffer).await?;
    let room = MAX_OUTPUT.saturating_sub(kept.len());
    kept.extend(&buffer[..count.min(room)]);
    Ok(count > 0)
}

#[async_trait::async_trait]
impl Exec for InContainers {
    async fn run(&self, target: &Target, command: &[String], within: Duration) -> Ran {
        let failed = |reason: String| Ran { ending: Ending::Failed(reason), output: String::new() };
        let setup = match self.setups.setup(&target.container).await {
            Ok(setup) => setup,
            // The runtime does not answer, which says nothing of the task.
            Err(reason) => return Ran { ending: Ending::Unable(reason), output: String::new() },
        };
        let plan = Plan {
            pid: target.pid,
            timeout_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1),
            arguments: command.iter().map(|word| word.clone().into_bytes()).collect(),
            ..setup
        };
        match self.answer(&plan, within).await {
            Ok((Some(Answer::Exited(code)), output)) => Ran { ending: Ending::Exited(code), output },
            Ok((Some(Answer::Late), output)) => Ran { ending: Ending::TimedOut, output },
            Ok((Some(Answer::Failed(reason)), _)) => failed(reason),
            Ok((None, _)) => failed("the check's process ended without an answer".to_owned()),
            Err(error) => {
                let reason = format!("cannot run a check with {}: {error}", self.program.display());
                let ending =
                    if is_scarcity(&error) { Ending::Unable(reason) } else { Ending::Failed(reason) };
                Ran { ending, output: String::new() }
            }
        }
    }
}

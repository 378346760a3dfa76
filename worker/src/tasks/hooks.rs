//! Hooks of a task, which run in its container next to its actor: they may take long, and the actor goes on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use warren_runtime::{ContainerId, ExecOutput, ExecSpec, Runtime};
use warren_task::HookKind;
use warren_types::LifecycleHook;

/// Time for all post_start hooks of a process.
pub(super) const POST_START_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The last bytes of the output of a hook that are kept for the reason of its failure.
const MAX_OUTPUT: usize = 512;
/// Output written before the exit is already in the pipe; a remaining child process may still hold it open.
const OUTPUT_WAIT: Duration = Duration::from_millis(100);

/// Hooks to run one after the other.
pub(super) struct HookRequest {
    pub kind: HookKind,
    pub container: ContainerId,
    pub hooks: Vec<LifecycleHook>,
    /// For all of them.
    pub limit: Duration,
}

/// Hooks that run. They end when this is dropped.
pub(super) struct HookRun {
    pub kind: HookKind,
    work: JoinHandle<()>,
    result: watch::Receiver<Option<Result<(), String>>>,
}

impl Drop for HookRun {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl HookRun {
    pub fn start(request: HookRequest, runtime: Arc<dyn Runtime>) -> Self {
        let (sender, result) = watch::channel(None);
        let kind = request.kind;
        let work = tokio::spawn(async move {
            let ended = timeout(request.limit, run_all(&request, &*runtime)).await;
            let late = || Err(format!("did not end within {}s", request.limit.as_secs()));
            sender.send_replace(Some(ended.unwrap_or_else(|_| late())));
        });
        Self { kind, work, result }
    }

    /// The result, once they have ended: what failed.
    pub fn result(&self) -> Option<Result<(), String>> {
        self.result.borrow().clone()
    }

    /// Waits for the end.
    pub async fn ended(&mut self) {
        if self.result.wait_for(Option::is_some).await.is_err() {
            std::future::pending().await
        }
    }
}

async fn run_all(request: &HookRequest, runtime: &dyn Runtime) -> Result<(), String> {
    for (number, hook) in (1..).zip(&request.hooks) {
        let program = hook.command.first().map(String::as_str).unwrap_or_default();
        let named = |why: String| format!("hook {number} ({program}) {why}");
        run(&request.container, hook, runtime).await.map_err(named)?;
    }
    Ok(())
}

async fn run(container: &ContainerId, hook: &LifecycleHook, runtime: &dyn Runtime) -> Result<(), String> {
    let LifecycleHook { command, env, workdir, user } = hook.clone();
    let spec = ExecSpec {
        command,
        environment: env
            .into_iter()
            .map(|variable| format!("{}={}", variable.name, variable.value))
            .collect(),
        user,
        directory: workdir,
        combined: true,
        ..ExecSpec::default()
    };
    let process = runtime.exec(container, &spec).await.map_err(|error| format!("was not run: {error}"))?;
    let mut tail = Vec::new();
    let ended = {
        let reading = read(process.stdout, &mut tail);
        tokio::pin!(reading);
        tokio::select! {
            ended = process.handle.wait() => {
                // Remaining child processes may write forever.
                let _ = timeout(OUTPUT_WAIT, reading).await;
                ended
            }
            () = &mut reading => process.handle.wait().await,
        }
    };
    match ended {
        Ok(0) => Ok(()),
        Ok(code) => {
            let output = String::from_utf8_lossy(&tail);
            let separator = if output.trim().is_empty() { "" } else { ": " };
            Err(format!("exited with code {code}{separator}{}", output.trim()))
        }
        Err(error) => Err(format!("did not end: {error}")),
    }
}

/// Reads to the end and keeps the last bytes.
async fn read(mut output: ExecOutput, tail: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = AsyncReadExt::read(&mut output, &mut buffer).await {
        tail.extend(&buffer[..count]);
        let surplus = tail.len().saturating_sub(MAX_OUTPUT);
        tail.drain(..surplus);
    }
}

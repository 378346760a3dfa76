//! Waits until the managers have replaced something, which they do by themselves.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::Error;

use crate::failure::{CommandError, ExitKind, from_client};
use crate::progress::ProgressOutput;
use crate::view::duration;
use crate::wait::is_transient;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How far it is.
pub struct ShownProgress {
    pub is_complete: bool,
    pub summary: String,
    /// Who is waited for, with what to do.
    pub lines: Vec<(String, String)>,
}

/// Shows how far it is until it is complete, and returns its last status. `what` failed if it is not complete in time,
/// and `hint` says what to do then.
pub async fn wait_complete<S>(
    (what, hint): (&str, &str),
    timeout: Duration,
    begun: S,
    fetch: impl AsyncFn() -> Result<S, Error>,
    progress_of: impl Fn(&S) -> ShownProgress,
) -> Result<S, CommandError> {
    let deadline = Instant::now() + timeout;
    let (mut output, mut seen) = (ProgressOutput::new(), begun);
    let mut progress = progress_of(&seen);
    while Instant::now() < deadline {
        if progress.is_complete {
            output.end(&progress.summary);
            return Ok(seen);
        }
        output.show(&progress.summary, &progress.lines);
        sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
        match timeout_at(deadline, fetch()).await {
            Err(_) => break,
            Ok(Ok(newer)) => {
                progress = progress_of(&newer);
                seen = newer;
            }
            Ok(Err(error)) if is_transient(&error) => {}
            Ok(Err(error)) => return Err(from_client(what, error)),
        }
    }
    let lines = progress.lines.iter().map(|(name, line)| format!("{name}: {line}"));
    let why: Vec<String> = [progress.summary.clone()].into_iter().chain(lines).collect();
    let what = format!("{what} after {}", duration(timeout));
    Err(CommandError::new(ExitKind::TimedOut, what, why.join("\n"), hint))
}

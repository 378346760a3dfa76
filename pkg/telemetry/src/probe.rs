//! Probes of `/health` and `/ready`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::time::timeout;

/// Deadline of a probe, after which it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

type ProbeFn = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A check of a component. Runs at each request and must inspect the current state.
#[derive(Clone)]
pub struct StatusProbe {
    name: &'static str,
    check: ProbeFn,
}

impl StatusProbe {
    /// A probe with a short name, like `raft`. `check` returns a human-readable problem, which is prefixed with the
    /// name. Its future is dropped after two seconds, which must be harmless.
    pub fn new<F, Fut>(name: &'static str, check: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { name, check: Arc::new(move || Box::pin(check())) }
    }

    /// Runs the probe. `Err` is one line with the name and the problem.
    async fn run(&self) -> Result<(), String> {
        // In a separate task, so that a panic is a failure of the probe.
        let asked = tokio::spawn((self.check)());
        let stop = asked.abort_handle();
        let why = match timeout(DEADLINE, asked).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(why))) => why,
            Ok(Err(broken)) => format!("the check panicked: {broken}"),
            Err(_) => {
                stop.abort();
                format!("no answer within {DEADLINE:?}")
            }
        };
        Err(format!("{}: {why}", self.name))
    }
}

impl fmt::Debug for StatusProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}

/// Runs all probes concurrently; returns the problems in the order of the probes.
pub(crate) async fn run_all(probes: &[StatusProbe]) -> Vec<String> {
    join_all(probes.iter().map(StatusProbe::run)).await.into_iter().filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_failed_probe_is_reported() {
        let probes = [
            StatusProbe::new("good", || async { Ok(()) }),
            StatusProbe::new("containerd", || async { Err("does not answer".to_owned()) }),
            StatusProbe::new("hanging", std::future::pending),
            StatusProbe::new("broken", || async { panic!("on purpose") }),
        ];
        let wrong = run_all(&probes).await;
        assert_eq!(wrong[..2], ["containerd: does not answer", "hanging: no answer within 2s"]);
        assert!(wrong[2].starts_with("broken: the check panicked"), "{wrong:?}");
        assert_eq!(wrong.len(), 3);
        assert!(run_all(&[]).await.is_empty());
    }
}

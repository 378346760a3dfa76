//! Questions whose answers make `/health` and `/ready`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::time::timeout;

/// A probe that does not answer within this says that it does not.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// One question about a part of a node. It is asked anew at each request, and must look at the thing itself.
#[derive(Clone)]
pub struct Probe {
    name: &'static str,
    check: Check,
}

impl Probe {
    /// A probe with a short name, like `raft`. `check` says in words what is wrong, for a person who reads
    /// `raft: ` before it. Dropping its future must be harmless: one that takes longer than two seconds is.
    pub fn new<F, Fut>(name: &'static str, check: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { name, check: Arc::new(move || Box::pin(check())) }
    }

    /// Asks. `Err` has one line with the probe's name and what is wrong.
    async fn ask(&self) -> Result<(), String> {
        // In a task of its own, so that a panic is an answer too.
        let asked = tokio::spawn((self.check)());
        let stop = asked.abort_handle();
        let why = match timeout(DEADLINE, asked).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(why))) => why,
            Ok(Err(broken)) => format!("the check itself broke off: {broken}"),
            Err(_) => {
                stop.abort();
                format!("no answer within {DEADLINE:?}")
            }
        };
        Err(format!("{}: {why}", self.name))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}

/// Asks all at once; what is wrong, in the order of the probes.
pub(crate) async fn ask_all(probes: &[Probe]) -> Vec<String> {
    join_all(probes.iter().map(Probe::ask)).await.into_iter().filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_probe_is_asked_and_each_failure_is_told_in_words() {
        let probes = [
            Probe::new("good", || async { Ok(()) }),
            Probe::new("containerd", || async { Err("does not answer".to_owned()) }),
            Probe::new("hanging", std::future::pending),
            Probe::new("broken", || async { panic!("on purpose") }),
        ];
        let wrong = ask_all(&probes).await;
        assert_eq!(wrong[..2], ["containerd: does not answer", "hanging: no answer within 2s"]);
        assert!(wrong[2].starts_with("broken: the check itself broke off"), "{wrong:?}");
        assert_eq!(wrong.len(), 3);
        assert!(ask_all(&[]).await.is_empty());
    }
}

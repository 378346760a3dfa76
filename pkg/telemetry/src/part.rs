//! The parts of a node, and what they say together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::probe::{Probe, ask_all};

/// What one part of a node shows.
#[derive(Debug, Default)]
pub struct Part {
    /// Its metrics. The parts of one node must not use the same names.
    pub metrics: Registry,
    /// Whether it works at all: a part that fails these helps nobody, and may as well be started again.
    pub health: Vec<Probe>,
    /// Whether it can do its work now: what fails may come right without it.
    pub readiness: Vec<Probe>,
}

/// By name; `None` while one is being started.
type Parts = BTreeMap<&'static str, Option<Arc<Part>>>;

/// Everything that one node shows. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Telemetry {
    parts: Arc<Mutex<Parts>>,
}

impl Telemetry {
    /// Of a node with these parts, like `manager` and `worker`. Until each of them is there, the node is not ready.
    pub fn of(parts: &[&'static str]) -> Self {
        let parts = parts.iter().map(|name| (*name, None)).collect();
        Self { parts: Arc::new(Mutex::new(parts)) }
    }

    /// A part has started. Another one of that name is replaced.
    pub fn add(&self, name: &'static str, part: Part) {
        self.parts().insert(name, Some(Arc::new(part)));
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self) -> Vec<(&'static str, Arc<Part>)> {
        let parts = self.parts();
        parts.iter().filter_map(|(name, part)| Some((*name, Arc::clone(part.as_ref()?)))).collect()
    }

    /// What does not work, one line each; nothing when the process works.
    pub async fn unhealthy(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, part) in self.started() {
            wrong.extend(ask_all(&part.health).await.iter().map(|why| format!("{name}: {why}")));
        }
        wrong
    }

    /// What keeps the node from its work, one line each; nothing when it is ready.
    pub async fn unready(&self) -> Vec<String> {
        let missing: Vec<_> = {
            let parts = self.parts();
            let missing = parts.iter().filter(|(_, part)| part.is_none());
            missing.map(|(name, _)| format!("{name}: is being started")).collect()
        };
        let mut wrong = missing;
        for (name, part) in self.started() {
            wrong.extend(ask_all(&part.readiness).await.iter().map(|why| format!("{name}: {why}")));
        }
        wrong
    }

    /// All metrics as OpenMetrics 1.0 text, which Prometheus reads. Computes them, so it may take some milliseconds.
    ///
    /// # Errors
    /// A collector failed.
    pub fn metrics(&self) -> Result<String, fmt::Error> {
        let mut text = String::with_capacity(16 << 10);
        for (_, part) in self.started() {
            encode_registry(&mut text, &part.metrics)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn part(metric: &str, wrong: Option<&'static str>) -> Part {
        let mut part = Part::default();
        part.metrics.register(metric, "For a test", Counter::<u64>::default());
        let check = move || async move { wrong.map_or(Ok(()), |why| Err(why.to_owned())) };
        part.readiness.push(Probe::new("session", check));
        part.health.push(Probe::new("loops", check));
        part
    }

    #[tokio::test]
    async fn a_node_is_ready_when_all_its_parts_are_there_and_ready() {
        let node = Telemetry::of(&["manager", "worker"]);
        assert_eq!(node.unready().await, ["manager: is being started", "worker: is being started"]);
        assert!(node.unhealthy().await.is_empty(), "a process that starts works");
        node.add("manager", part("a", None));
        node.add("worker", part("b", Some("none yet")));
        assert_eq!(node.unready().await, ["worker: session: none yet"]);
        assert_eq!(node.unhealthy().await, ["worker: loops: none yet"]);
        node.add("worker", part("b", None));
        assert!(node.unready().await.is_empty() && node.unhealthy().await.is_empty());
    }

    #[test]
    fn the_parts_metrics_are_one_text() {
        let node = Telemetry::of(&["manager", "worker"]);
        assert_eq!(node.metrics().unwrap(), "# EOF\n");
        node.add("worker", part("b", None));
        node.add("manager", part("a", None));
        let wanted = "# HELP a For a test.\n# TYPE a counter\na_total 0\n\
                      # HELP b For a test.\n# TYPE b counter\nb_total 0\n# EOF\n";
        assert_eq!(node.metrics().unwrap(), wanted);
    }
}

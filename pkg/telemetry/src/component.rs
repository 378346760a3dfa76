//! The components of a node, and their combined telemetry.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;

use crate::probe::{StatusProbe, run_all};

/// Telemetry of a component of a node.
#[derive(Debug, Default)]
pub struct TelemetryComponent {
    /// Its metrics. Names must be unique among the components of a node.
    pub metrics: Registry,
    /// Liveness probes: a component that fails them should be restarted.
    pub health: Vec<StatusProbe>,
    /// Readiness probes: a failure may recover without a restart.
    pub readiness: Vec<StatusProbe>,
}

/// By name; `None` while starting.
type ComponentMap = BTreeMap<&'static str, Option<Arc<TelemetryComponent>>>;

/// Telemetry of a node. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Telemetry {
    components: Arc<Mutex<ComponentMap>>,
}

impl Telemetry {
    /// For a node with these components, like `manager` and `worker`. The node is not ready until each was added.
    pub fn with_components(parts: &[&'static str]) -> Self {
        let parts = parts.iter().map(|name| (*name, None)).collect();
        Self { components: Arc::new(Mutex::new(parts)) }
    }

    /// Adds a started component, or replaces the one with the same name.
    pub fn add(&self, name: &'static str, part: TelemetryComponent) {
        self.parts().insert(name, Some(Arc::new(part)));
    }

    fn parts(&self) -> MutexGuard<'_, ComponentMap> {
        self.components.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self) -> Vec<(&'static str, Arc<TelemetryComponent>)> {
        let parts = self.parts();
        parts.iter().filter_map(|(name, part)| Some((*name, Arc::clone(part.as_ref()?)))).collect()
    }

    /// Failed liveness probes, one line each.
    pub async fn unhealthy(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, part) in self.started() {
            wrong.extend(run_all(&part.health).await.iter().map(|why| format!("{name}: {why}")));
        }
        wrong
    }

    /// Failed readiness probes, one line each.
    pub async fn unready(&self) -> Vec<String> {
        let missing: Vec<_> = {
            let parts = self.parts();
            let missing = parts.iter().filter(|(_, part)| part.is_none());
            missing.map(|(name, _)| format!("{name}: is being started")).collect()
        };
        let mut wrong = missing;
        for (name, part) in self.started() {
            wrong.extend(run_all(&part.readiness).await.iter().map(|why| format!("{name}: {why}")));
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

    fn part(metric: &str, wrong: Option<&'static str>) -> TelemetryComponent {
        let mut part = TelemetryComponent::default();
        part.metrics.register(metric, "For a test", Counter::<u64>::default());
        let check = move || async move { wrong.map_or(Ok(()), |why| Err(why.to_owned())) };
        part.readiness.push(StatusProbe::new("session", check));
        part.health.push(StatusProbe::new("loops", check));
        part
    }

    #[tokio::test]
    async fn node_is_ready_when_every_component_is() {
        let node = Telemetry::with_components(&["manager", "worker"]);
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
    fn component_metrics_are_merged() {
        let node = Telemetry::with_components(&["manager", "worker"]);
        assert_eq!(node.metrics().unwrap(), "# EOF\n");
        node.add("worker", part("b", None));
        node.add("manager", part("a", None));
        let expected = "# HELP a For a test.\n# TYPE a counter\na_total 0\n\
                      # HELP b For a test.\n# TYPE b counter\nb_total 0\n# EOF\n";
        assert_eq!(node.metrics().unwrap(), expected);
    }
}

//! Telemetry of a worker: metrics, health and readiness.

use std::sync::Arc;
use std::time::Duration;

use warren_daemon::error_chain;
use warren_telemetry::{StatusProbe, TelemetryComponent, background_task_probe};

use super::Worker;
use crate::node::metrics::{MetricSources, register};
use crate::node::monitor::MONITOR;
use crate::tasks::supervisor::RELIST_TASK;
use crate::tasks::{NETWORK_PENDING, NodeNetworkState};

/// Time without a run after which a background task is unhealthy. Containers are listed every 20 seconds,
/// which may take 30 and more if a supervisor does not answer.
const STALE_AFTER: Duration = Duration::from_secs(120);

impl Worker {
    /// Metrics; health: all background tasks run; readiness: there is a session and a network, and containerd
    /// answers, which is checked each time.
    pub fn telemetry(&self) -> TelemetryComponent {
        let (background_tasks, clock) = (self.background_tasks.clone(), Arc::clone(&self.clock));
        let goes_round =
            |name| background_task_probe(name, background_tasks.clone(), Arc::clone(&clock), STALE_AFTER);
        let networks = Arc::clone(&self.task_networks);
        let sources = MetricSources {
            stats: Arc::clone(&self.stats),
            meter: Arc::clone(&self.meter),
            desired_state: self.desired_state.clone(),
            background_tasks: background_tasks.clone(),
            dns: Arc::new(move || networks.dns_counters()),
        };
        TelemetryComponent {
            metrics: register(&self.metrics, sources),
            health: vec![goes_round(RELIST_TASK), goes_round(MONITOR)],
            readiness: vec![self.session_probe(), self.runtime_probe(), self.network_probe()],
        }
    }

    fn session_probe(&self) -> StatusProbe {
        let connected = self.is_connected.clone();
        StatusProbe::new("session", move || {
            let connected = *connected.borrow();
            let none = || "not connected to a manager".to_owned();
            std::future::ready(connected.then_some(()).ok_or_else(none))
        })
    }

    fn runtime_probe(&self) -> StatusProbe {
        let runtime = Arc::clone(&self.backends.runtime);
        StatusProbe::new("containerd", move || {
            let runtime = Arc::clone(&runtime);
            async move { runtime.info().await.map(drop).map_err(|error| error_chain(&error)) }
        })
    }

    fn network_probe(&self) -> StatusProbe {
        let ground = self.node_network.clone();
        StatusProbe::new("network", move || {
            let ready = match &*ground.borrow() {
                NodeNetworkState::Ready => Ok(()),
                NodeNetworkState::Pending => Err(NETWORK_PENDING.to_owned()),
                NodeNetworkState::NotReady(reason) => Err(reason.clone()),
            };
            std::future::ready(ready)
        })
    }
}

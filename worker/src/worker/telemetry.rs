//! What a worker shows to monitoring, and the questions that tell whether it works.

use std::sync::Arc;
use std::time::Duration;

use warren_process::chain;
use warren_telemetry::{Part, Probe, loop_probe};

use super::Worker;
use crate::node::metrics::{Sources, register};
use crate::node::watch::VITALS;
use crate::tasks::supervisor::RELIST;
use crate::tasks::{Ground, NOT_YET};

/// How long a loop may go without a new run. A list of the containers is asked for every 20 seconds, and may take 30
/// and some for those whose supervisor does not answer.
const PATIENCE: Duration = Duration::from_secs(120);

impl Worker {
    /// Its metrics; whether its loops go round (health); and whether it can take tasks: it has a session and a network,
    /// and containerd, which is asked each time, answers (readiness).
    pub fn telemetry(&self) -> Part {
        let (loops, clock) = (self.loops.clone(), Arc::clone(&self.clock));
        let goes_round = |name| loop_probe(name, loops.clone(), Arc::clone(&clock), PATIENCE);
        let sources = Sources {
            stats: Arc::clone(&self.stats),
            meter: Arc::clone(&self.meter),
            wishes: self.wishes.clone(),
            loops: loops.clone(),
        };
        Part {
            metrics: register(&self.metrics, sources),
            health: vec![goes_round(RELIST), goes_round(VITALS)],
            readiness: vec![self.session_probe(), self.runtime_probe(), self.network_probe()],
        }
    }

    fn session_probe(&self) -> Probe {
        let connected = self.connected.clone();
        Probe::new("session", move || {
            let connected = *connected.borrow();
            let none = || "there is none with a manager".to_owned();
            std::future::ready(connected.then_some(()).ok_or_else(none))
        })
    }

    fn runtime_probe(&self) -> Probe {
        let runtime = Arc::clone(&self.doors.runtime);
        Probe::new("containerd", move || {
            let runtime = Arc::clone(&runtime);
            async move { runtime.info().await.map(drop).map_err(|error| chain(&error)) }
        })
    }

    fn network_probe(&self) -> Probe {
        let ground = self.ground.clone();
        Probe::new("network", move || {
            let ready = match &*ground.borrow() {
                Ground::Laid => Ok(()),
                Ground::Awaited => Err(NOT_YET.to_owned()),
                Ground::Missing(reason) => Err(reason.clone()),
            };
            std::future::ready(ready)
        })
    }
}

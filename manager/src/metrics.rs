//! What a manager shows to monitoring: its metrics, and whether it works and can do its work.
//!
//! Almost everything is read at a scrape from what the manager has anyway; what happens and leaves no trace is counted
//! by the handles in [`Metrics`].

mod census;
mod group;
pub mod requests;
pub mod scheduler;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};
use warren_consensus::Durability;
use warren_control::{Clock, Loops};
use warren_telemetry::{
    Collector, DescriptorEncoder, Kind, LoopMetrics, Part, Probe, Registry as Shown, loop_probe,
    write_series, write_value,
};
use warren_types::{Bytes, MemberId};

use crate::agreement::Agreement;
use crate::controllers::wake::SWEEP_LOOP;
use crate::durability;
use crate::session::Registry;
use crate::session::leader::is_lost;
use crate::store::Store;
use census::Census;
use requests::RequestMetrics;
use scheduler::SchedulerMetrics;

/// The driver goes round twenty times a second, and writes the disk between; one that has not for so long hangs, or
/// its disk does.
const DRIVER_PATIENCE: Duration = Duration::from_secs(10);
/// With less free on the disk, a write of the log would soon find no room.
const ROOM: Bytes = Bytes(1 << 20);
/// How long the sweep of all keys, which is due every 30 seconds, may not have begun.
const SWEEP_PATIENCE: Duration = Duration::from_secs(120);

/// What is counted. Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Of the API.
    pub requests: RequestMetrics,
    /// Of the scheduler.
    pub scheduler: SchedulerMetrics,
}

/// What is read at a scrape.
#[derive(Clone)]
pub struct Sources {
    /// The replicated state, and how the log does.
    pub store: Store,
    /// Who is connected.
    pub registry: Registry,
    /// The background loops.
    pub loops: Loops,
    /// The clock that the loops are recorded by.
    pub clock: Arc<dyn Clock>,
    /// The directory with the log.
    pub dir: PathBuf,
    /// This member, and what came of the comparison of its state with others.
    pub compared: (MemberId, Agreement),
}

/// A manager's part of what a node shows.
pub fn part(metrics: &Metrics, sources: &Sources) -> Part {
    let Sources { store, registry, loops, clock, dir, compared } = sources.clone();
    let mut shown = Shown::default();
    metrics.requests.register(&mut shown);
    metrics.scheduler.register(&mut shown);
    let help = "From a proposed write to its effect in this manager's state";
    shown.register("warren_raft_commit_duration_seconds", help, store.commits().clone());
    shown.register_collector(Box::new(LoopMetrics::new("warren_controller", loops.clone())));
    let (own, agreement) = compared;
    let page =
        Page { store: store.clone(), registry, agreement: agreement.clone(), census: Census::default() };
    shown.register_collector(Box::new(page));
    Part {
        metrics: shown,
        health: vec![
            driver_probe(store.clone()),
            loop_probe(SWEEP_LOOP, loops, clock, SWEEP_PATIENCE),
            state_probe(own, agreement),
            durability_probe(store.clone()),
        ],
        readiness: vec![leader_probe(store.clone()), log_probe(store), disk_probe(dir)],
    }
}

/// The raft driver, which every read and write of the cluster stands on, goes round.
fn driver_probe(store: Store) -> Probe {
    Probe::new("raft", move || std::future::ready(goes_round(store.since_last_round())))
}

fn goes_round(silent: Duration) -> Result<(), String> {
    let hangs = || format!("the driver has not gone round for {} s", silent.as_secs());
    (silent <= DRIVER_PATIENCE).then_some(()).ok_or_else(hangs)
}

/// This manager's state is that of the others, as far as they could be compared.
fn state_probe(own: MemberId, agreement: Agreement) -> Probe {
    Probe::new("state", move || {
        let difference = agreement.difference(own);
        std::future::ready(difference.map_or(Ok(()), |difference| Err(difference.to_string())))
    })
}

/// What was acknowledged is there, as far as this manager knows.
fn durability_probe(store: Store) -> Probe {
    Probe::new("durability", move || {
        std::future::ready(durability::problem(store.read().durability).map_or(Ok(()), Err))
    })
}

/// This manager leads, or hears of the one that does.
fn leader_probe(store: Store) -> Probe {
    Probe::new("leader", move || {
        let role = store.read().role;
        let hears = role.leader_id.is_some() && !is_lost(&store);
        let known = if role.leader { role.may_plan } else { hears };
        std::future::ready(known.then_some(()).ok_or_else(|| "this manager knows of none".to_owned()))
    })
}

/// The log could be written when it last had to be.
fn log_probe(store: Store) -> Probe {
    Probe::new("log", move || {
        let held = store.read().held.clone();
        std::future::ready(held.map_or(Ok(()), |held| Err(held.why.to_string())))
    })
}

/// The log could be written now: a manager without anything to write would learn of a full disk only with the next
/// write.
fn disk_probe(dir: PathBuf) -> Probe {
    Probe::new("disk", move || {
        let found = statvfs(&dir).map_err(|error| format!("{} cannot be looked at: {error}", dir.display()));
        let free = found.map(|found| {
            let free = Bytes(found.fragment_size().saturating_mul(found.blocks_free()));
            (free, found.flags().contains(FsFlags::ST_RDONLY))
        });
        std::future::ready(free.and_then(|(free, read_only)| has_room(&dir, free, read_only)))
    })
}

fn has_room(dir: &Path, free: Bytes, read_only: bool) -> Result<(), String> {
    match (read_only, free < ROOM) {
        (true, _) => Err(format!("the disk with {} can only be read", dir.display())),
        (false, true) => Err(format!("the disk of this manager is full: {} has {free} free", dir.display())),
        (false, false) => Ok(()),
    }
}

/// Everything that is computed at a scrape.
struct Page {
    store: Store,
    registry: Registry,
    agreement: Agreement,
    census: Census,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let published = self.store.read();
        let mut write =
            |kind, name: &str, help: &str, value: f64| write_value(encoder, kind, (name, help), value);
        write(Kind::Gauge, "warren_raft_term", "The newest term seen.", published.role.term as f64)?;
        let help = "The last entry that is in this manager's state.";
        write(Kind::Gauge, "warren_raft_applied_index", help, published.index as f64)?;
        let help = "1 while the log cannot be written, else 0.";
        write(Kind::Gauge, "warren_raft_held", help, flag(published.held.is_some()))?;
        let help = "1 while this manager's log lacks what it acknowledged, so that it does not vote, else 0.";
        let Durability { regressed, lost } = published.durability;
        write(Kind::Gauge, "warren_raft_regressed", help, flag(regressed.is_some()))?;
        let help = "1 if acknowledged entries may have been lost, as far as this manager knows, else 0.";
        write(Kind::Gauge, "warren_raft_acknowledged_lost", help, flag(lost.is_some()))?;
        let help = "Bytes of entries and hard state that were written to the log.";
        write(Kind::Counter, "warren_raft_log_written_bytes", help, published.log.bytes as f64)?;
        let help = "Durable writes of the log.";
        write(Kind::Counter, "warren_raft_log_writes", help, published.log.writes as f64)?;
        group::encode(encoder, &published, &self.store.peers(), &self.agreement)?;
        let mut write =
            |kind, name: &str, help: &str, value: f64| write_value(encoder, kind, (name, help), value);
        let counts = self.census.of(&published);
        write(Kind::Gauge, "warren_services", "Services there are.", counts.services as f64)?;
        let help = "Tasks that have no node yet.";
        write(Kind::Gauge, "warren_scheduler_unplaced", help, counts.unplaced as f64)?;
        let help = "Workers that are connected to this manager.";
        write(Kind::Gauge, "warren_sessions", help, self.registry.count() as f64)?;
        let nodes = counts.nodes.iter();
        let nodes = nodes.map(|(status, count)| (vec![("status", (*status).to_owned())], *count as f64));
        write_series(encoder, Kind::Gauge, ("warren_nodes", "Nodes by status."), nodes)?;
        let tasks = counts.tasks.iter();
        let tasks = tasks.map(|(state, count)| (vec![("state", (*state).to_owned())], *count as f64));
        let help = "Tasks by how far they are, records of ended ones included.";
        write_series(encoder, Kind::Gauge, ("warren_tasks", help), tasks)
    }
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[cfg(test)]
mod tests;

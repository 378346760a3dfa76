//! The metrics and health checks of a manager.
//!
//! Almost all metrics are computed at a scrape from existing state; events without a trace in it are counted
//! with the handles in [`ManagerMetrics`].

mod object_counts;
mod replication;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statvfs::{FsFlags, statvfs};
use warren_api::audit::Auditor;
use warren_api::request_metrics::RequestMetrics;
use warren_consensus::DurabilityStatus;
use warren_control::{BackgroundTasks, Clock};
use warren_session::SessionRegistry;
use warren_session::leader::LeaderWatch;
use warren_store::Store;
use warren_store::durability;
use warren_store::state_comparison::StateComparison;
use warren_telemetry::{
    BackgroundTaskMetrics, Collector, DescriptorEncoder, MetricKind, Registry as Shown, StatusProbe,
    TelemetryComponent, background_task_probe, write_series, write_value,
};
use warren_types::{Bytes, MemberId};

use self::object_counts::ObjectCountCache;
use crate::controllers::scheduler_metrics::SchedulerMetrics;
use crate::controllers::verification::VerificationMetrics;
use crate::controllers::wake_up_dispatcher::RESYNC_TASK;

/// The driver iterates twenty times a second and writes to the disk in between; without an iteration for this
/// time, it or its disk hangs.
const DRIVER_STALL_LIMIT: Duration = Duration::from_secs(10);
/// With less free disk space, a log write would soon fail.
const MIN_FREE_BYTES: Bytes = Bytes(1 << 20);
/// Maximum delay of the resync of all keys, which is due every 30 seconds.
const RESYNC_STALL_LIMIT: Duration = Duration::from_secs(120);

/// Counted metrics. Cheap to clone; all clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct ManagerMetrics {
    /// Requests of the API.
    pub requests: RequestMetrics,
    /// Runs of the scheduler.
    pub scheduler: SchedulerMetrics,
    /// Results of the checks of nodes.
    pub verification: VerificationMetrics,
}

/// Sources that are read at a scrape.
#[derive(Clone)]
pub struct ManagerMetricSources {
    /// The replicated state and the log status.
    pub store: Store,
    /// Whether the leader is lost.
    pub leader: LeaderWatch,
    /// The connected workers.
    pub registry: SessionRegistry,
    /// The background tasks.
    pub background_tasks: BackgroundTasks,
    /// The clock of the background task records.
    pub clock: Arc<dyn Clock>,
    /// The directory of the log.
    pub log_dir: PathBuf,
    /// This member, and the comparison of its state with the others.
    pub state_comparison: (MemberId, StateComparison),
    /// The audit log.
    pub audit: Auditor,
}

/// The manager's component of a node's telemetry.
pub fn telemetry_component(metrics: &ManagerMetrics, sources: &ManagerMetricSources) -> TelemetryComponent {
    let ManagerMetricSources {
        store,
        leader,
        registry,
        background_tasks: tasks_run,
        clock,
        log_dir: dir,
        state_comparison: compared,
        audit,
    } = sources.clone();
    let mut shown = Shown::default();
    metrics.requests.register(&mut shown);
    metrics.scheduler.register(&mut shown);
    metrics.verification.register(&mut shown);
    let help = "Time from proposing a write to applying it locally";
    shown.register("warren_raft_commit_duration_seconds", help, store.commit_latency().clone());
    shown.register_collector(Box::new(BackgroundTaskMetrics::new(
        "warren_background_task",
        tasks_run.clone(),
    )));
    let (own, agreement) = compared;
    let page = ManagerCollector {
        store: store.clone(),
        registry,
        state_comparison: agreement.clone(),
        object_counts: ObjectCountCache::default(),
    };
    shown.register_collector(Box::new(page));
    TelemetryComponent {
        metrics: shown,
        health: vec![
            driver_probe(store.clone()),
            background_task_probe(RESYNC_TASK, tasks_run, clock, RESYNC_STALL_LIMIT),
            state_probe(own, agreement),
            durability_probe(store.clone()),
            audit_probe(audit),
        ],
        readiness: vec![leader_probe(store.clone(), leader), log_probe(store), disk_probe(dir)],
    }
}

/// Checks that the raft driver, which all reads and writes depend on, makes progress.
fn driver_probe(store: Store) -> StatusProbe {
    StatusProbe::new("raft", move || std::future::ready(check_driver_progress(store.since_last_turn())))
}

fn check_driver_progress(silent: Duration) -> Result<(), String> {
    let hangs = || format!("raft driver made no progress for {} s", silent.as_secs());
    (silent <= DRIVER_STALL_LIMIT).then_some(()).ok_or_else(hangs)
}

/// Checks that this manager's state matches the others, as far as they could be compared.
fn state_probe(own: MemberId, agreement: StateComparison) -> StatusProbe {
    StatusProbe::new("state", move || {
        let difference = agreement.divergence(own);
        std::future::ready(difference.map_or(Ok(()), |difference| Err(difference.to_string())))
    })
}

/// Checks that audit lines can be written.
fn audit_probe(audit: Auditor) -> StatusProbe {
    StatusProbe::new("audit", move || std::future::ready(audit.failure().map_or(Ok(()), Err)))
}

/// Checks that no acknowledged entries are missing.
fn durability_probe(store: Store) -> StatusProbe {
    StatusProbe::new("durability", move || {
        std::future::ready(durability::describe_problem(store.read().durability).map_or(Ok(()), Err))
    })
}

/// Checks that this manager is the leader or has one.
fn leader_probe(store: Store, leader: LeaderWatch) -> StatusProbe {
    StatusProbe::new("leader", move || {
        let role = store.read().role;
        let knows_leader = role.leader_id.is_some() && !leader.is_lost();
        let is_ok = if role.is_leader { role.can_plan } else { knows_leader };
        std::future::ready(is_ok.then_some(()).ok_or_else(|| "no known leader".to_owned()))
    })
}

/// Checks that the last log write succeeded.
fn log_probe(store: Store) -> StatusProbe {
    StatusProbe::new("log", move || {
        let stall = store.read().write_stall.clone();
        std::future::ready(stall.map_or(Ok(()), |stall| Err(stall.reason.to_string())))
    })
}

/// Checks that the log could be written now: without this, an idle manager would detect a full disk only with
/// its next write.
fn disk_probe(dir: PathBuf) -> StatusProbe {
    StatusProbe::new("disk", move || {
        let found = statvfs(&dir).map_err(|error| format!("cannot stat {}: {error}", dir.display()));
        let free = found.map(|found| {
            let free = Bytes(found.fragment_size().saturating_mul(found.blocks_free()));
            (free, found.flags().contains(FsFlags::ST_RDONLY))
        });
        std::future::ready(free.and_then(|(free, read_only)| check_free_space(&dir, free, read_only)))
    })
}

fn check_free_space(dir: &Path, free: Bytes, read_only: bool) -> Result<(), String> {
    match (read_only, free < MIN_FREE_BYTES) {
        (true, _) => Err(format!("{} is on a read-only file system", dir.display())),
        (false, true) => Err(format!("the disk of this manager is full: {} has {free} free", dir.display())),
        (false, false) => Ok(()),
    }
}

/// Computes all metrics at a scrape.
struct ManagerCollector {
    store: Store,
    registry: SessionRegistry,
    state_comparison: StateComparison,
    object_counts: ObjectCountCache,
}

impl fmt::Debug for ManagerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManagerCollector")
    }
}

impl Collector for ManagerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let published = self.store.read();
        let mut write =
            |kind, name: &str, help: &str, value: f64| write_value(encoder, kind, (name, help), value);
        write(MetricKind::Gauge, "warren_raft_term", "Current raft term.", published.role.term as f64)?;
        let help = "Index of the last applied entry.";
        write(MetricKind::Gauge, "warren_raft_applied_index", help, published.index as f64)?;
        let help = "1 while the log cannot be written, else 0.";
        write(
            MetricKind::Gauge,
            "warren_raft_log_write_stalled",
            help,
            bool_value(published.write_stall.is_some()),
        )?;
        let help = "1 while this manager's log lacks entries it acknowledged; it does not vote then.";
        let DurabilityStatus { missing_entry: regressed, lost_entry: lost } = published.durability;
        write(MetricKind::Gauge, "warren_raft_log_missing_entries", help, bool_value(regressed.is_some()))?;
        let help = "1 if acknowledged entries may have been lost, by the records of this manager, else 0.";
        write(MetricKind::Gauge, "warren_raft_acknowledged_entries_lost", help, bool_value(lost.is_some()))?;
        let help = "Bytes of entries and hard state written to the log.";
        write(MetricKind::Counter, "warren_raft_log_written_bytes", help, published.log.bytes as f64)?;
        let help = "Durable log writes.";
        write(MetricKind::Counter, "warren_raft_log_writes", help, published.log.writes as f64)?;
        replication::encode(encoder, &published, &self.store.peers(), &self.state_comparison)?;
        let mut write =
            |kind, name: &str, help: &str, value: f64| write_value(encoder, kind, (name, help), value);
        let counts = self.object_counts.get(&published);
        write(MetricKind::Gauge, "warren_services", "Number of services.", counts.services as f64)?;
        let help = "Tasks without a node.";
        write(MetricKind::Gauge, "warren_scheduler_pending_tasks", help, counts.unplaced as f64)?;
        let help = "Workers connected to this manager.";
        write(MetricKind::Gauge, "warren_sessions", help, self.registry.count() as f64)?;
        let nodes = counts.nodes.iter();
        let nodes = nodes.map(|(status, count)| (vec![("status", (*status).to_owned())], *count as f64));
        write_series(encoder, MetricKind::Gauge, ("warren_nodes", "Nodes by status."), nodes)?;
        let tasks = counts.tasks.iter();
        let tasks = tasks.map(|(state, count)| (vec![("state", (*state).to_owned())], *count as f64));
        let help = "Tasks by state, including terminal ones.";
        write_series(encoder, MetricKind::Gauge, ("warren_tasks", help), tasks)
    }
}

fn bool_value(is: bool) -> f64 {
    f64::from(u8::from(is))
}

#[cfg(test)]
mod tests;

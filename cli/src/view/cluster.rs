//! The cluster as a manager sees it, and the background loops of all managers and nodes.

use std::time::Duration;

use serde::Serialize;
use warren_proto::v1;
use warren_types::Timestamp;

use super::{Time, age, duration, given};
use crate::output::{Column, Row, column};

/// Counts are of the cluster; index, term and log are of the manager that was asked.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InfoView {
    id: String,
    created_at: Time,
    ranges: Vec<String>,
    /// Rises when the cluster begins anew, from a backup or with one manager.
    incarnation: u64,
    managers: u32,
    nodes: u32,
    nodes_ready: u32,
    services: u32,
    tasks: u32,
    tasks_running: u32,
    manager_id: String,
    manager_address: String,
    version: String,
    leader: bool,
    /// Who leads, as far as that manager knows; left out where it knows of nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_name: Option<String>,
    term: u64,
    applied_index: u64,
    /// Of all it has applied: the same on every manager at the same index.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    log_engine: String,
    log_writes: u64,
    log_bytes_written: u64,
    /// Left out while the log can be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_held: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_held_since: Option<Time>,
    /// What join tokens carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_digest: Option<String>,
}

impl InfoView {
    /// What the manager at `address` answered.
    pub fn new(wire: v1::InfoResponse, address: &str) -> Self {
        Self {
            id: wire.cluster_id,
            created_at: Time::new(wire.created_at),
            ranges: wire.ranges,
            incarnation: wire.incarnation,
            managers: wire.managers,
            nodes: wire.nodes,
            nodes_ready: wire.nodes_ready,
            services: wire.services,
            tasks: wire.tasks,
            tasks_running: wire.tasks_running,
            manager_id: wire.manager_id,
            manager_address: address.to_owned(),
            version: wire.version,
            leader: wire.leader,
            leader_id: given(wire.leader_id),
            leader_name: given(wire.leader_name),
            term: wire.term,
            applied_index: wire.applied_index,
            digest: given(wire.digest),
            log_engine: wire.log_engine,
            log_writes: wire.log_writes,
            log_bytes_written: wire.log_bytes_written,
            log_held: given(wire.log_held),
            log_held_since: wire.log_held_since.map(Time::new),
            ca_digest: given(wire.ca_digest),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoopView {
    name: String,
    /// Whose it is, or which heard of it from the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    /// Whose it is; left out for a manager's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Left out for a loop that runs only when woken.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run_at: Option<Time>,
    last_duration: String,
    #[serde(skip)]
    took: Duration,
    runs: u64,
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

impl From<v1::Loop> for LoopView {
    fn from(wire: v1::Loop) -> Self {
        let v1::Loop {
            name,
            interval_ms,
            running,
            last_run_at,
            last_duration_us,
            last_error,
            runs,
            failures,
            node,
            manager,
        } = wire;
        let took = Duration::from_micros(last_duration_us);
        Self {
            took,
            name,
            manager: given(manager),
            node: given(node),
            interval: (interval_ms != 0).then(|| duration(Duration::from_millis(interval_ms))),
            running,
            last_run_at: last_run_at.map(Time::new),
            last_duration: duration(took),
            runs,
            failures,
            last_error: given(last_error),
        }
    }
}

/// A manager of whose loops nothing is known.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SilentView {
    manager: String,
    /// Why not.
    unknown: String,
}

/// What `cluster loops` lists.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum LoopLine {
    /// A loop.
    Known(LoopView),
    /// In place of all loops of a manager and of the nodes that are connected to it.
    Silent(SilentView),
}

impl From<v1::Loop> for LoopLine {
    fn from(wire: v1::Loop) -> Self {
        Self::Known(wire.into())
    }
}

impl From<v1::SilentManager> for LoopLine {
    fn from(v1::SilentManager { name, why }: v1::SilentManager) -> Self {
        Self::Silent(SilentView { manager: name, unknown: why })
    }
}

impl Row for LoopLine {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("MANAGER"),
        column("NODE"),
        column("INTERVAL"),
        column("RUNNING"),
        column("LAST RUN"),
        column("TOOK"),
        column("RUNS"),
        column("FAILURES"),
        column("LAST ERROR"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        match self {
            Self::Known(known) => known.cells(now),
            Self::Silent(SilentView { manager, unknown }) => {
                let mut cells = vec![String::new(); Self::COLUMNS.len()];
                (cells[0], cells[1]) = ("(unknown)".to_owned(), manager.clone());
                *cells.last_mut().expect("there are columns") = unknown.clone();
                cells
            }
        }
    }
}

impl LoopView {
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name.clone(),
            self.manager.clone().unwrap_or_default(),
            self.node.clone().unwrap_or_default(),
            self.interval.clone().unwrap_or_else(|| "when woken".to_owned()),
            if self.running { "yes" } else { "no" }.to_owned(),
            self.last_run_at.map_or_else(|| "never".to_owned(), |at| age(at.0, now)),
            self.last_run_at.map_or_else(String::new, |_| format!("{:.1?}", self.took)),
            self.runs.to_string(),
            self.failures.to_string(),
            self.last_error.clone().unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::{rendered, shown};

    #[test]
    fn loops_have_a_line_each() {
        let every = v1::Loop {
            name: "liveness".into(),
            interval_ms: 1000,
            running: true,
            last_run_at: Some(1000),
            last_duration_us: 1500,
            last_error: "no leader".into(),
            runs: 12,
            failures: 1,
            node: String::new(),
            manager: "m1".into(),
        };
        let (name, node, manager) = ("garbage".into(), "node-1".into(), "m1".into());
        let woken = v1::Loop { name, node, manager, ..Default::default() };
        let away = v1::SilentManager { name: "m2".into(), why: "it is away".into() };
        let loops = [LoopLine::from(every), woken.into(), away.into()];
        insta::assert_snapshot!(shown(&loops, false, Timestamp(3000)), @r"
        NAME        MANAGER   NODE     INTERVAL     RUNNING   LAST RUN   TOOK    RUNS   FAILURES   LAST ERROR
        liveness    m1                 1s           yes       2s         1.5ms   12     1          no leader
        garbage     m1        node-1   when woken   no        never              0      0
        (unknown)   m2                                                                             it is away
        ");
        insta::assert_snapshot!(rendered(Format::Yaml, &loops), @r#"
        - name: liveness
          manager: m1
          interval: 1s
          running: true
          lastRunAt: "1970-01-01T00:00:01.000Z"
          lastDuration: 1ms500us
          runs: 12
          failures: 1
          lastError: no leader
        - name: garbage
          manager: m1
          node: node-1
          running: false
          lastDuration: 0s
          runs: 0
          failures: 0
        - manager: m2
          unknown: it is away
        "#);
    }

    #[test]
    fn the_cluster_is_one_document() {
        let info = v1::InfoResponse {
            cluster_id: "c".into(),
            ranges: vec!["10.210.0.0/16".into()],
            log_engine: "sled".into(),
            leader_name: "m2".into(),
            digest: "00ff".into(),
            managers: 3,
            incarnation: 2,
            ..Default::default()
        };
        insta::assert_snapshot!(rendered(Format::Yaml, &InfoView::new(info, "/run/warren/warren.sock")), @r#"
        id: c
        createdAt: "1970-01-01T00:00:00.000Z"
        ranges:
        - 10.210.0.0/16
        incarnation: 2
        managers: 3
        nodes: 0
        nodesReady: 0
        services: 0
        tasks: 0
        tasksRunning: 0
        managerId: ""
        managerAddress: /run/warren/warren.sock
        version: ""
        leader: false
        leaderName: m2
        term: 0
        appliedIndex: 0
        digest: 00ff
        logEngine: sled
        logWrites: 0
        logBytesWritten: 0
        "#);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_told() {
        let why = "the disk of this manager is full: /d has 0B free".to_owned();
        let info = v1::InfoResponse { log_held: why, log_held_since: Some(1000), ..Default::default() };
        let shown = rendered(Format::Yaml, &InfoView::new(info, "a:1"));
        let told = shown.lines().rev().take(2).collect::<Vec<_>>();
        insta::assert_debug_snapshot!(told, @r#"
        [
            "logHeldSince: \"1970-01-01T00:00:01.000Z\"",
            "logHeld: \"the disk of this manager is full: /d has 0B free\"",
        ]
        "#);
    }
}

//! The cluster as reported by a manager, and the background tasks of all managers and nodes.

use std::time::Duration;

use serde::Serialize;
use warren_proto::convert::{data_plane as data_plane_of, or_default, user_namespace};
use warren_proto::v1;
use warren_types::{
    AdmissionPolicy, DEFAULT_NODE_CERTIFICATE_LIFETIME, DataPlane, Timestamp, UserNamespace,
    VerificationSettings,
};

use super::{TimeView, age, duration, invalid_response, non_empty};
use crate::failure::CommandError;
use crate::output::{Column, FilterKey, ListedRow, TableRow, column};

/// Counts are of the cluster; index, term and log are of the manager that answered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfoView {
    id: String,
    created_at: TimeView,
    ranges: Vec<String>,
    /// Whether packets between nodes are encrypted; absent if the manager that answered does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_between_nodes: Option<&'static str>,
    /// Increases when the cluster is restored or forced to a new cluster.
    incarnation: u64,
    settings: ClusterSettingsView,
    /// Changes with each change of the settings.
    settings_version: u64,
    /// Whether managers lock the keys on their disks: on or off; absent if the manager that answered does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    autolock: Option<&'static str>,
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
    /// Leader as known by that manager; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_name: Option<String>,
    term: u64,
    applied_index: u64,
    /// Digest of the applied state: equal on every manager at the same index.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    log_engine: String,
    log_writes: u64,
    log_bytes_written: u64,
    /// Absent while the log can be written.
    #[serde(skip_serializing_if = "Option::is_none")]
    write_stall_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_stall_since: Option<TimeView>,
    /// Digest of the CA certificate, as in join tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_digest: Option<String>,
}

impl ClusterInfoView {
    /// From the response of the manager at `address`.
    pub fn new(wire: v1::InfoResponse, address: &str) -> Self {
        let settings: ClusterSettingsView = wire.settings.unwrap_or_default().into();
        Self {
            traffic_between_nodes: settings.data_plane.map(DataPlane::describe),
            id: wire.cluster_id,
            created_at: TimeView::new(wire.created_at),
            ranges: wire.ranges,
            incarnation: wire.incarnation,
            settings,
            settings_version: wire.settings_version,
            autolock: wire.autolock.map(|is_on| if is_on { "on" } else { "off" }),
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
            leader_id: non_empty(wire.leader_id),
            leader_name: non_empty(wire.leader_name),
            term: wire.term,
            applied_index: wire.applied_index,
            digest: non_empty(wire.digest),
            log_engine: wire.log_engine,
            log_writes: wire.log_writes,
            log_bytes_written: wire.log_bytes_written,
            write_stall_reason: non_empty(wire.log_write_stall),
            write_stall_since: wire.log_write_stalled_since.map(TimeView::new),
            ca_digest: non_empty(wire.ca_digest),
        }
    }

    /// The settings alone.
    pub fn settings(&self) -> &ClusterSettingsView {
        &self.settings
    }
}

/// A setting is absent if the manager that answered does not have it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSettingsView {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_replicas_per_service: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_history_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_plane: Option<DataPlane>,
    /// Also absent while nothing of it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<VerificationSettingsView>,
    /// Also absent while it is host.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_user_namespace: Option<UserNamespace>,
    /// Also absent while it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_new_privileges: Option<bool>,
    /// Also absent while it is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_certificate_lifetime: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VerificationSettingsView {
    enabled: bool,
    remove_after: u32,
    timeout: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    checks: Vec<String>,
}

impl VerificationSettingsView {
    /// `None` for the default.
    fn new(wire: v1::VerificationSettings) -> Option<Self> {
        let v1::VerificationSettings { enabled, remove_after, timeout_ms, checks, check_rm: _ } = wire;
        let (enabled, remove_after) = (enabled.unwrap_or_default(), remove_after.unwrap_or_default());
        let timeout = Duration::from_millis(timeout_ms.unwrap_or_default());
        let is_default = !enabled
            && remove_after == 0
            && checks.is_empty()
            && timeout == VerificationSettings::default().timeout;
        (!is_default).then(|| Self { enabled, remove_after, timeout: duration(timeout), checks })
    }
}

impl From<v1::ClusterSettings> for ClusterSettingsView {
    fn from(wire: v1::ClusterSettings) -> Self {
        let v1::ClusterSettings {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            // `cluster policy show` prints it.
            admission_policy: _,
            default_user_namespace,
            no_new_privileges,
            node_certificate_lifetime_ms,
            range_add: _,
        } = wire;
        // One of a newer manager is not shown.
        let data_plane = data_plane.and_then(|kind| data_plane_of(kind).ok());
        let verification = verification.and_then(VerificationSettingsView::new);
        let default_user_namespace = default_user_namespace.and_then(|kind| user_namespace(kind).ok());
        let default_user_namespace = default_user_namespace.filter(|kind| *kind != UserNamespace::Host);
        let lifetime = node_certificate_lifetime_ms.map(Duration::from_millis);
        let lifetime = lifetime.filter(|lifetime| *lifetime != DEFAULT_NODE_CERTIFICATE_LIFETIME);
        Self {
            max_replicas_per_service,
            task_history_limit,
            data_plane,
            verification,
            default_user_namespace,
            no_new_privileges: no_new_privileges.filter(|is_on| *is_on),
            node_certificate_lifetime: lifetime.map(days),
        }
    }
}

/// `30d`; what are not whole days as other durations.
fn days(lifetime: Duration) -> String {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let days = lifetime.as_secs() / DAY.as_secs();
    if u32::try_from(days).is_ok_and(|days| DAY * days == lifetime) {
        return format!("{days}d");
    }
    duration(lifetime)
}

/// The admission policy; a manager whose version has none enforces the default.
pub fn admission_policy(info: &v1::InfoResponse) -> Result<AdmissionPolicy, CommandError> {
    let policy = info.settings.as_ref().and_then(|settings| settings.admission_policy.clone());
    or_default::from_wire(policy).map_err(invalid_response("the admission policy"))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackgroundTaskView {
    name: String,
    /// The manager that runs it, or that the node is connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    /// The node that runs it; absent for tasks of a manager.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Absent for a task that runs only when triggered.
    #[serde(skip_serializing_if = "Option::is_none")]
    interval: Option<String>,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_run_at: Option<TimeView>,
    last_duration: String,
    #[serde(skip)]
    last_duration_exact: Duration,
    runs: u64,
    failures: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

impl From<v1::BackgroundTask> for BackgroundTaskView {
    fn from(wire: v1::BackgroundTask) -> Self {
        let v1::BackgroundTask {
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
            consecutive_failures: _,
        } = wire;
        let took = Duration::from_micros(last_duration_us);
        Self {
            last_duration_exact: took,
            name,
            manager: non_empty(manager),
            node: non_empty(node),
            interval: (interval_ms != 0).then(|| duration(Duration::from_millis(interval_ms))),
            running,
            last_run_at: last_run_at.map(TimeView::new),
            last_duration: duration(took),
            runs,
            failures,
            last_error: non_empty(last_error),
        }
    }
}

/// A manager whose background tasks could not be fetched.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UnknownManagerView {
    manager: String,
    /// Reason.
    reason: String,
}

/// A row of `cluster background-tasks`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum BackgroundTaskRow {
    /// A background task.
    Known(BackgroundTaskView),
    /// Stands for all tasks of an unreachable manager and of its nodes.
    Unknown(UnknownManagerView),
}

impl From<v1::BackgroundTask> for BackgroundTaskRow {
    fn from(wire: v1::BackgroundTask) -> Self {
        Self::Known(wire.into())
    }
}

impl From<v1::UnreachableManager> for BackgroundTaskRow {
    fn from(v1::UnreachableManager { name, reason: why }: v1::UnreachableManager) -> Self {
        Self::Unknown(UnknownManagerView { manager: name, reason: why })
    }
}

impl BackgroundTaskRow {
    /// Its name; that of the manager for the tasks of an unreachable one.
    fn name(&self) -> &str {
        match self {
            Self::Known(known) => &known.name,
            Self::Unknown(unknown) => &unknown.manager,
        }
    }
}

impl TableRow for BackgroundTaskRow {
    const COLUMNS: &'static [Column] = &[
        column("NAME"),
        column("MANAGER"),
        column("NODE"),
        column("INTERVAL"),
        column("RUNNING"),
        column("LAST RUN"),
        column("TOOK").measured(),
        column("RUNS").measured(),
        column("FAILURES"),
        column("LAST ERROR"),
    ];

    fn cells(&self, _: bool, now: Timestamp) -> Vec<String> {
        match self {
            Self::Known(known) => known.cells(now),
            Self::Unknown(UnknownManagerView { manager, reason: unknown }) => {
                let mut cells = vec![String::new(); Self::COLUMNS.len()];
                (cells[0], cells[1]) = ("(unknown)".to_owned(), manager.clone());
                *cells.last_mut().expect("there are columns") = unknown.clone();
                cells
            }
        }
    }
}

impl BackgroundTaskView {
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name.clone(),
            self.manager.clone().unwrap_or_default(),
            self.node.clone().unwrap_or_default(),
            self.interval.clone().unwrap_or_else(|| "on trigger".to_owned()),
            if self.running { "yes" } else { "no" }.to_owned(),
            self.last_run_at.map_or_else(|| "never".to_owned(), |at| age(at.0, now)),
            self.last_run_at.map_or_else(String::new, |_| format!("{:.1?}", self.last_duration_exact)),
            self.runs.to_string(),
            self.failures.to_string(),
            self.last_error.clone().unwrap_or_default(),
        ]
    }
}

impl ListedRow for BackgroundTaskRow {
    const FILTER_KEYS: &'static [FilterKey<Self>] = &[("name", |it, name| it.name().starts_with(name))];

    fn key(&self) -> String {
        self.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::output::tests::{rendered, table_text_of};

    #[test]
    fn background_tasks_have_a_row_each() {
        let every = v1::BackgroundTask {
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
            consecutive_failures: 1,
        };
        let (name, node, manager) = ("garbage".into(), "node-1".into(), "m1".into());
        let woken = v1::BackgroundTask { name, node, manager, ..Default::default() };
        let away = v1::UnreachableManager { name: "m2".into(), reason: "it is away".into() };
        let background_tasks = [BackgroundTaskRow::from(every), woken.into(), away.into()];
        insta::assert_snapshot!(table_text_of(&background_tasks, false, Timestamp(3000)), @r"
        NAME        MANAGER   NODE     INTERVAL     RUNNING   LAST RUN   TOOK    RUNS   FAILURES   LAST ERROR
        liveness    m1                 1s           yes       2s         1.5ms   12     1          no leader
        garbage     m1        node-1   on trigger   no        never              0      0
        (unknown)   m2                                                                             it is away
        ");
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &background_tasks), @r#"
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
          reason: it is away
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
            settings: Some((&warren_types::ClusterSettings::default()).into()),
            settings_version: 7,
            ..Default::default()
        };
        let view = ClusterInfoView::new(info, "/run/warren/warren.sock");
        insta::assert_snapshot!(rendered(OutputFormat::Yaml, &view), @r#"
        id: c
        createdAt: "1970-01-01T00:00:00.000Z"
        ranges:
        - 10.210.0.0/16
        trafficBetweenNodes: not encrypted (VXLAN)
        incarnation: 2
        settings:
          maxReplicasPerService: 10000
          taskHistoryLimit: 5
          dataPlane: vxlan
        settingsVersion: 7
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
    fn write_stall_is_shown() {
        let why = "the disk of this manager is full: /d has 0B free".to_owned();
        let info = v1::InfoResponse {
            log_write_stall: why,
            log_write_stalled_since: Some(1000),
            ..Default::default()
        };
        let shown = rendered(OutputFormat::Yaml, &ClusterInfoView::new(info, "a:1"));
        let last = shown.lines().rev().take(2).collect::<Vec<_>>();
        insta::assert_debug_snapshot!(last, @r#"
        [
            "writeStallSince: \"1970-01-01T00:00:01.000Z\"",
            "writeStallReason: \"the disk of this manager is full: /d has 0B free\"",
        ]
        "#);
    }
}

//! Node reports that are not replicated: those received by the local sessions, and, queried per request,
//! those received by other managers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use warren_core::State;
use warren_proto::v1;
use warren_session::task_telemetry::TaskTelemetry;
use warren_types::{MemberId, NodeId, NodeStatus, TaskId, TaskReport};

use super::Api;

/// Timeout of the query to another manager; without a reply its reports are left out.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum reply of another manager: enough for ten thousand nodes and their tasks.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// Reports of nodes connected to other managers, for one request.
#[derive(Debug, Default)]
pub struct RemoteNodeReports(BTreeMap<NodeId, RemoteNodeReport>);

#[derive(Debug, Default)]
struct RemoteNodeReport {
    usage: Option<v1::NodeUsage>,
    telemetry: BTreeMap<TaskId, TaskTelemetry>,
    progress: BTreeMap<TaskId, TaskReport>,
    program_digest: String,
}

impl RemoteNodeReport {
    /// Reports that cannot be parsed are left out.
    fn from_wire(node: v1::NodeReport) -> Self {
        let v1::NodeReport { usage, tasks, progress, program_digest, .. } = node;
        let telemetry = tasks.into_iter().filter_map(|v1::TaskStats { task_id, usage, checks }| {
            Some((task_id.parse().ok()?, TaskTelemetry { usage, checks }))
        });
        let reports = progress.into_iter().filter_map(|report| TaskReport::try_from(report).ok());
        let progress = reports.map(|report| (report.task, report)).collect();
        Self { usage, telemetry: telemetry.collect(), progress, program_digest }
    }
}

impl RemoteNodeReports {
    fn from_wire(answers: impl IntoIterator<Item = v1::ListNodeReportsResponse>) -> Self {
        let nodes = answers.into_iter().flat_map(|answer| answer.nodes);
        let reports =
            nodes.filter_map(|node| Some((node.node_id.parse().ok()?, RemoteNodeReport::from_wire(node))));
        Self(reports.collect())
    }
}

impl Api {
    /// Queries the managers of these nodes for their reports, except for nodes with a local session.
    pub(super) async fn fetch_node_reports(
        &self,
        state: &State,
        nodes: impl IntoIterator<Item = NodeId>,
    ) -> RemoteNodeReports {
        let mut nodes_by_manager = BTreeMap::<MemberId, BTreeSet<NodeId>>::new();
        for id in nodes {
            let node = state.node(&id).filter(|node| node.status == NodeStatus::Ready);
            let manager = node.and_then(|node| node.manager).filter(|manager| *manager != self.member_id);
            if let Some(manager) = manager.filter(|_| !self.registry.is_connected(id)) {
                nodes_by_manager.entry(manager).or_default().insert(id);
            }
        }
        let mut answers = JoinSet::new();
        for (manager, nodes) in nodes_by_manager {
            let Some(client) = self.peers.client(manager) else { continue };
            let mut client = client.max_decoding_message_size(MAX_REPLY_BYTES);
            let nodes = nodes.iter().map(NodeId::to_string).collect();
            let request = v1::ListNodeReportsRequest { nodes, ..Default::default() };
            answers.spawn(async move {
                let answer = timeout(REPLY_TIMEOUT, client.list_node_reports(request)).await.ok()?;
                let failed =
                    |status: &tonic::Status| tracing::debug!(manager, %status, "skipping node reports of manager");
                answer.inspect_err(failed).ok().map(tonic::Response::into_inner)
            });
        }
        RemoteNodeReports::from_wire(answers.join_all().await.into_iter().flatten())
    }

    /// The reports received by the local sessions, for another manager.
    pub fn local_node_reports(&self, request: &v1::ListNodeReportsRequest) -> v1::ListNodeReportsResponse {
        if request.background_tasks_only {
            return self.local_background_tasks();
        }
        if let Some(query) = &request.image {
            return self.local_image_holders(query);
        }
        let named: BTreeSet<NodeId> = request.nodes.iter().filter_map(|id| id.parse().ok()).collect();
        let of = (!request.nodes.is_empty()).then_some(&named);
        v1::ListNodeReportsResponse { nodes: self.registry.node_reports(of), background_tasks: Vec::new() }
    }

    /// Resource usage of the node.
    pub(super) fn node_usage(&self, remote: &RemoteNodeReports, node: NodeId) -> Option<v1::NodeUsage> {
        self.registry.usage(node).or_else(|| remote.0.get(&node)?.usage.clone())
    }

    /// Digest of the program that the node runs; empty if it is unknown.
    pub(super) fn program_digest(&self, remote: &RemoteNodeReports, node: NodeId) -> String {
        let from_remote = || remote.0.get(&node).map(|report| report.program_digest.clone());
        self.registry.program_digest(node).or_else(from_remote).unwrap_or_default()
    }

    /// Resource usage and health checks of a task on the node.
    pub(super) fn task_telemetry(
        &self,
        remote: &RemoteNodeReports,
        node: NodeId,
        task: &TaskId,
    ) -> TaskTelemetry {
        let from_remote = || remote.0.get(&node)?.telemetry.get(task).cloned();
        self.registry.task_telemetry(node, task).or_else(from_remote).unwrap_or_default()
    }

    /// The newest report on a task of the node that is not replicated.
    pub(super) fn task_progress(
        &self,
        remote: &RemoteNodeReports,
        node: NodeId,
        task: &TaskId,
    ) -> Option<TaskReport> {
        let from_remote = || remote.0.get(&node)?.progress.get(task).cloned();
        let local = self.registry.progress(node, task);
        local.or_else(from_remote).or_else(|| self.registry.remote_progress().progress(node, task))
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{Id, ServiceId};

    use super::*;

    #[test]
    fn unreadable_report_fields_are_skipped() {
        let task = TaskId { service: ServiceId(Id(1)), number: 1 };
        let vitals = |task_id: String| v1::TaskStats { task_id, ..Default::default() };
        let report = |task_id: String| v1::TaskReport {
            task_id,
            state: v1::TaskState::Starting.into(),
            ..Default::default()
        };
        let node = |node_id: String| v1::NodeReport {
            node_id,
            usage: Some(v1::NodeUsage::default()),
            background_tasks: Vec::new(),
            tasks: vec![vitals("!".into()), vitals(task.to_string())],
            progress: vec![report("!".into()), report(task.to_string())],
            images: Vec::new(),
            program_digest: "sha256:1".into(),
        };
        let id = NodeId(Id(7));
        let nodes = vec![node("!".into()), node(id.to_string())];
        let RemoteNodeReports(heard) = RemoteNodeReports::from_wire([v1::ListNodeReportsResponse {
            nodes,
            background_tasks: Vec::new(),
        }]);
        assert_eq!(heard.keys().collect::<Vec<_>>(), [&id]);
        let reported = &heard[&id];
        assert!(reported.usage.is_some() && reported.program_digest == "sha256:1");
        assert_eq!(reported.telemetry.keys().collect::<Vec<_>>(), [&task]);
        assert_eq!(reported.progress.keys().collect::<Vec<_>>(), [&task]);
    }
}

//! What is known of nodes beside the replicated state: what their sessions here heard, and, asked for each answer, what
//! those of other managers heard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use warren_core::State;
use warren_proto::v1;
use warren_types::{MemberId, NodeId, NodeStatus, TaskId, TaskReport};

use super::Api;
use crate::session::vitals::Vitals;

/// How long another manager may take to say what it heard; what does not come is left out.
const WORD: Duration = Duration::from_secs(1);
/// Largest answer of another manager: of ten thousand nodes and their tasks.
const MAX_ANSWER: usize = 64 << 20;

/// What other managers heard of their nodes, for one answer.
#[derive(Debug, Default)]
pub struct Heard(BTreeMap<NodeId, Told>);

#[derive(Debug, Default)]
struct Told {
    usage: Option<v1::NodeUsage>,
    vitals: BTreeMap<TaskId, Vitals>,
    progress: BTreeMap<TaskId, TaskReport>,
}

impl Told {
    /// What cannot be read is left out, as if it had not come.
    fn read(node: v1::HeardNode) -> Self {
        let v1::HeardNode { node_id: _, usage, loops: _, tasks, progress } = node;
        let vitals = tasks.into_iter().filter_map(|v1::TaskVitals { task_id, usage, checks }| {
            Some((task_id.parse().ok()?, Vitals { usage, checks }))
        });
        let reports = progress.into_iter().filter_map(|report| TaskReport::try_from(report).ok());
        let progress = reports.map(|report| (report.task, report)).collect();
        Self { usage, vitals: vitals.collect(), progress }
    }
}

impl Heard {
    fn read(answers: impl IntoIterator<Item = v1::HeardResponse>) -> Self {
        let nodes = answers.into_iter().flat_map(|answer| answer.nodes);
        let told = nodes.filter_map(|node| Some((node.node_id.parse().ok()?, Told::read(node))));
        Self(told.collect())
    }
}

impl Api {
    /// Asks the managers of these nodes what they heard of them; nothing is asked about nodes with a session here.
    pub(super) async fn hear(&self, state: &State, nodes: impl IntoIterator<Item = NodeId>) -> Heard {
        let mut asked = BTreeMap::<MemberId, BTreeSet<NodeId>>::new();
        for id in nodes {
            let node = state.node(&id).filter(|node| node.status == NodeStatus::Ready);
            let manager = node.and_then(|node| node.manager).filter(|manager| *manager != self.member);
            if let Some(manager) = manager.filter(|_| !self.registry.has(id)) {
                asked.entry(manager).or_default().insert(id);
            }
        }
        let mut answers = JoinSet::new();
        for (manager, nodes) in asked {
            let Some(client) = self.peers.client(manager) else { continue };
            let mut client = client.max_decoding_message_size(MAX_ANSWER);
            let nodes = nodes.iter().map(NodeId::to_string).collect();
            let request = v1::HeardRequest { nodes, loops_only: false };
            answers.spawn(async move {
                let answer = timeout(WORD, client.heard(request)).await.ok()?;
                let failed =
                    |status: &tonic::Status| tracing::debug!(manager, %status, "what it heard is left out");
                answer.inspect_err(failed).ok().map(tonic::Response::into_inner)
            });
        }
        Heard::read(answers.join_all().await.into_iter().flatten())
    }

    /// What this manager's sessions heard, for another one.
    pub fn tell_heard(&self, request: &v1::HeardRequest) -> v1::HeardResponse {
        if request.loops_only {
            return self.tell_loops();
        }
        let named: BTreeSet<NodeId> = request.nodes.iter().filter_map(|id| id.parse().ok()).collect();
        let of = (!request.nodes.is_empty()).then_some(&named);
        v1::HeardResponse { nodes: self.registry.told(of), loops: Vec::new() }
    }

    /// How the node does.
    pub(super) fn usage_of(&self, heard: &Heard, node: NodeId) -> Option<v1::NodeUsage> {
        self.registry.usage(node).or_else(|| heard.0.get(&node)?.usage.clone())
    }

    /// How a task on the node does.
    pub(super) fn vitals_of(&self, heard: &Heard, node: NodeId, task: &TaskId) -> Vitals {
        let elsewhere = || heard.0.get(&node)?.vitals.get(task).cloned();
        self.registry.vitals(node, task).or_else(elsewhere).unwrap_or_default()
    }

    /// The newest word on a task of the node that is not replicated.
    pub(super) fn progress_of(&self, heard: &Heard, node: NodeId, task: &TaskId) -> Option<TaskReport> {
        let asked = || heard.0.get(&node)?.progress.get(task).cloned();
        let here = self.registry.progress(node, task);
        here.or_else(asked).or_else(|| self.registry.elsewhere().progress(node, task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, ServiceId};

    #[test]
    fn what_cannot_be_read_of_an_answer_is_left_out() {
        let task = TaskId { service: ServiceId(Id(1)), number: 1 };
        let vitals = |task_id: String| v1::TaskVitals { task_id, ..Default::default() };
        let report = |task_id: String| v1::TaskReport {
            task_id,
            state: v1::TaskState::Starting.into(),
            ..Default::default()
        };
        let node = |node_id: String| v1::HeardNode {
            node_id,
            usage: Some(v1::NodeUsage::default()),
            loops: Vec::new(),
            tasks: vec![vitals("!".into()), vitals(task.to_string())],
            progress: vec![report("!".into()), report(task.to_string())],
        };
        let id = NodeId(Id(7));
        let nodes = vec![node("!".into()), node(id.to_string())];
        let Heard(heard) = Heard::read([v1::HeardResponse { nodes, loops: Vec::new() }]);
        assert_eq!(heard.keys().collect::<Vec<_>>(), [&id]);
        let told = &heard[&id];
        assert!(told.usage.is_some());
        assert_eq!(told.vitals.keys().collect::<Vec<_>>(), [&task]);
        assert_eq!(told.progress.keys().collect::<Vec<_>>(), [&task]);
    }
}

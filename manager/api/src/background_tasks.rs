//! Lists the background tasks of all managers and of the agents connected to them. Each manager reports its
//! own tasks and those of its sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_control::{BackgroundTaskState, BackgroundTaskStatus};
use warren_core::State;
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use warren_types::{MemberId, NodeId};

use super::Api;

/// Timeout of the query to another manager. A manager that does not reply in time is listed as silent.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum reply of another manager: enough for ten thousand nodes.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// The reply of each manager, or the reason why there is none.
type ManagerReplies = BTreeMap<MemberId, Result<v1::ListNodeReportsResponse, String>>;

async fn query_manager(client: Option<PeersClient<Channel>>) -> Result<v1::ListNodeReportsResponse, String> {
    let client = client.ok_or("no connection")?;
    let request = v1::ListNodeReportsRequest { background_tasks_only: true, ..Default::default() };
    let mut client = client.max_decoding_message_size(MAX_REPLY_BYTES);
    let answer = timeout(REPLY_TIMEOUT, client.list_node_reports(request)).await;
    let answer = answer.map_err(|_| format!("no reply within {} s", REPLY_TIMEOUT.as_secs()))?;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

impl Api {
    /// The background tasks of all reachable managers, or of that one, and the managers that did not reply.
    pub(super) async fn background_tasks_of(
        &self,
        only: Option<MemberId>,
    ) -> v1::ListBackgroundTasksResponse {
        let published = self.store.read();
        let state = &published.state;
        let is_asked = |member: MemberId| only.is_none_or(|only| only == member);
        let mut queries = JoinSet::new();
        let others = state.members().map(|member| member.member_id).filter(|id| *id != self.member_id);
        for member in others.filter(|id| is_asked(*id)) {
            let client = self.peers.client(member);
            queries.spawn(async move { (member, query_manager(client).await) });
        }
        let mut replies: ManagerReplies = queries.join_all().await.into_iter().collect();
        if is_asked(self.member_id) {
            replies.insert(self.member_id, Ok(self.local_background_tasks()));
        }
        merge(state, replies)
    }

    /// This manager's background tasks and those reported by its sessions.
    pub(super) fn local_background_tasks(&self) -> v1::ListNodeReportsResponse {
        let tasks_run = self.background_tasks.snapshot().into_iter().map(show).collect();
        let reported = self.registry.background_tasks().into_iter();
        let nodes = reported.map(|(node, loops)| v1::NodeReport {
            node_id: node.to_string(),
            background_tasks: loops,
            ..Default::default()
        });
        v1::ListNodeReportsResponse { nodes: nodes.collect(), background_tasks: tasks_run }
    }
}

/// Merges the replies by manager: its own tasks first, then those of the nodes connected to it.
fn merge(state: &State, replies: ManagerReplies) -> v1::ListBackgroundTasksResponse {
    let mut answer = v1::ListBackgroundTasksResponse::default();
    for (member, reply) in replies {
        let manager =
            state.member(member).map_or_else(|| member.to_string(), |member| member.name.to_string());
        let v1::ListNodeReportsResponse { nodes, background_tasks: tasks_run } = match reply {
            Ok(reply) => reply,
            Err(why) => {
                answer.silent.push(v1::UnreachableManager { name: manager, reason: why });
                continue;
            }
        };
        answer
            .background_tasks
            .extend(tasks_run.into_iter().map(|own| v1::BackgroundTask { manager: manager.clone(), ..own }));
        for v1::NodeReport { node_id, background_tasks: loops, .. } in nodes {
            let Ok(id) = node_id.parse::<NodeId>() else { continue };
            let node = state.node(&id);
            // The node moved to another manager, which reports its newer tasks.
            if node.is_some_and(|node| node.manager != Some(member)) {
                continue;
            }
            let node = node.map_or(node_id, |node| node.name.to_string());
            let of_node = |task| v1::BackgroundTask { node: node.clone(), manager: manager.clone(), ..task };
            answer.background_tasks.extend(loops.into_iter().map(of_node));
        }
    }
    answer
}

fn show(status: BackgroundTaskStatus) -> v1::BackgroundTask {
    let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    v1::BackgroundTask {
        name: status.name.into(),
        interval_ms: status.interval.map(|d| whole(d.as_millis())).unwrap_or_default(),
        running: status.state == BackgroundTaskState::Running,
        last_run_at: status.last_run_unix_millis,
        last_duration_us: status.last_duration.map(|d| whole(d.as_micros())).unwrap_or_default(),
        last_error: status.last_failure.map(|failure| failure.error).unwrap_or_default(),
        runs: status.runs,
        failures: status.failures,
        node: String::new(),
        manager: String::new(),
        consecutive_failures: status.consecutive_failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_core::{Command, FEATURE_LEVEL};
    use warren_types::{ClusterId, Id, ManagerId, NodeDescription, NodeRole, Timestamp};

    const AT: Timestamp = Timestamp(1);

    /// The manager m1, with which node n7 has its session, and n8 has none.
    fn state() -> State {
        let node = |number: u128| Command::RegisterNode {
            id: NodeId(Id(number)),
            name: format!("n{number}").parse().unwrap(),
            role: NodeRole::Worker,
            description: NodeDescription::default(),
            taints: Default::default(),
            at: AT,
        };
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let (node_id, description) = (NodeId(Id(7)), NodeDescription::default());
        let commands = [
            Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: "10.0.0.1:8080".parse().unwrap(),
                level: FEATURE_LEVEL,
                at: AT,
            },
            node(7),
            node(8),
            Command::OpenSession { node: node_id, description, manager: 1, at: AT },
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        state
    }

    fn reply(own: &[&str], nodes: &[(u128, &str)]) -> v1::ListNodeReportsResponse {
        let named = |name: &str| v1::BackgroundTask { name: name.to_owned(), ..Default::default() };
        let node = |(number, name): &(u128, &str)| v1::NodeReport {
            node_id: NodeId(Id(*number)).to_string(),
            background_tasks: vec![named(name)],
            ..Default::default()
        };
        v1::ListNodeReportsResponse {
            nodes: nodes.iter().map(node).collect(),
            background_tasks: own.iter().map(|it| named(it)).collect(),
        }
    }

    #[test]
    fn tasks_name_their_owner_and_unreachable_managers_are_listed() {
        let unreadable = v1::NodeReport { node_id: "!".into(), ..Default::default() };
        let mut first = reply(&["planner"], &[(7, "relist"), (8, "old")]);
        first.nodes.push(unreadable);
        let answers = BTreeMap::from([
            (1, Ok(first)),
            (2, Ok(reply(&["planner"], &[(7, "older"), (9, "unknown")]))),
            (3, Err("no connection".to_owned())),
        ]);
        let v1::ListBackgroundTasksResponse { background_tasks: loops, silent } = merge(&state(), answers);
        let whose: Vec<_> = loops.iter().map(|it| (&*it.manager, &*it.node, &*it.name)).collect();
        let unknown = NodeId(Id(9)).to_string();
        let expected =
            [("m1", "", "planner"), ("m1", "n7", "relist"), ("2", "", "planner"), ("2", &unknown, "unknown")];
        assert_eq!(whose, expected);
        let reason = "no connection".to_owned();
        assert_eq!(silent, [v1::UnreachableManager { name: "3".into(), reason }]);
    }
}

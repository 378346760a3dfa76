//! Nodes: get, list, update, verify, upgrade, remove.

mod upgrade;

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::{Code, Request, Response, Status, Streaming};
use warren_core::state::ObjectKind;
use warren_core::{Command, State};
use warren_proto::convert::{availability, read_field};
use warren_proto::status::Problem;
use warren_proto::v1::{self, nodes_server};
use warren_store::problem::status_of;
use warren_types::spec::{validate_labels, validate_taints};
use warren_types::{
    Availability, Member, MemberId, Node, NodeId, NodeRole, NodeStatus, Taint, TaintSelector, Violations,
};

use super::Api;
use super::audited_call::AuditedCall;
use super::node_reports::RemoteNodeReports;
use super::open_stream::resolve_nodes;
use super::paging::Page;

/// Whether the node runs on the machine of this manager: they have the same name. A node that is not READY
/// and whose address differs belonged to a removed manager, whose name another machine has now.
fn is_node_of_manager(node: &Node, member: &Member) -> bool {
    let is_same_machine =
        node.status == NodeStatus::Ready || member.address.host() == node.description.address;
    node.role == NodeRole::Manager && member.name == node.name && is_same_machine
}

/// The node on the manager's machine, if there is one.
pub(super) fn manager_node<'a>(state: &'a State, member: &Member) -> Option<&'a Node> {
    state.nodes().find(|node| is_node_of_manager(node, member)).map(|node| &**node)
}

/// The nodes on the machines of removed managers.
pub(super) fn nodes_of_removed_managers(state: &State) -> impl Iterator<Item = &Node> {
    // Before the first manager is registered there is no other one.
    let known = state.members().next().is_some();
    let left = move |node: &&Node| {
        known
            && node.role == NodeRole::Manager
            && !state.members().any(|member| is_node_of_manager(node, member))
    };
    state.nodes().map(|node| &**node).filter(left)
}

/// Rejects the removal of a node whose machine is a manager.
///
/// # Errors
/// `FailedPrecondition`, reason `NODE_IS_MANAGER`.
pub(super) fn check_removable(state: &State, node: &Node) -> Result<(), Status> {
    let unknown = state.members().next().is_none();
    let is_manager = unknown || state.members().any(|member| is_node_of_manager(node, member));
    if node.role != NodeRole::Manager || !is_manager {
        return Ok(());
    }
    let message = format!(
        "node {name} is a manager of the cluster and cannot be removed; drain it to stop its tasks, or \
         remove the manager first (`warren manager rm {name}`)",
        name = node.name
    );
    Err(Problem::new(Code::FailedPrecondition, "NODE_IS_MANAGER", message).into())
}

/// Why a worker is DOWN whose last manager left the cluster, and what to do; empty for any other node. The
/// worker only tries addresses it knows, and the manager `own` that a restore created may have an address
/// that no worker knows.
pub(super) fn unreachable_managers_hint(state: &State, node: &Node, own: MemberId) -> String {
    let left = node.manager.is_some_and(|manager| state.member(manager).is_none());
    let (true, NodeRole::Worker, NodeStatus::Down) = (left, node.role, node.status) else {
        return String::new();
    };
    let Some(own) = state.member(own) else { return String::new() };
    format!(
        "the manager of its last session left the cluster, and the node may know no other; if its machine \
         is running, stop the worker there and rejoin it as the same node: `warren worker join {} --token \
         TOKEN`, with a token from `warren token create --role worker`",
        own.address
    )
}

/// A parsed update, without the node it is for.
pub(super) struct NodeUpdate {
    pub(super) label_rm: BTreeSet<String>,
    pub(super) availability: Option<Availability>,
    pub(super) taint_add: BTreeSet<Taint>,
    pub(super) taint_rm: BTreeSet<TaintSelector>,
}

/// The taints of a request at `path`.
pub(super) fn read_taints(path: &str, given: Vec<String>, wrong: &mut Violations) -> BTreeSet<Taint> {
    let taints = read_field::<Vec<Taint>, _>(path, given).unwrap_or_else(|violations| {
        wrong.0.extend(violations.0);
        Vec::new()
    });
    validate_taints(path, &taints, wrong);
    taints.into_iter().collect()
}

pub(super) fn parse(request: &v1::UpdateNodeRequest) -> Result<NodeUpdate, Violations> {
    let mut wrong = Violations::default();
    let mut labels = Violations::default();
    validate_labels(&request.label_add, &mut labels);
    for mut violation in labels.0 {
        violation.path = violation.path.replacen("labels", "labelAdd", 1);
        wrong.0.push(violation);
    }
    let given = request.availability != i32::from(v1::Availability::Unspecified);
    let availability = given.then(|| availability(request.availability)).transpose();
    let availability = availability.unwrap_or_else(|unknown| {
        wrong.nest("availability", unknown);
        None
    });
    let taint_add = read_taints("taintAdd", request.taint_add.clone(), &mut wrong);
    let taint_rm = read_field("taint_rm", request.taint_rm.clone()).unwrap_or_else(|violations| {
        wrong.0.extend(violations.0);
        BTreeSet::new()
    });
    let label_rm = request.label_rm.iter().cloned().collect();
    wrong.into_result(NodeUpdate { label_rm, availability, taint_add, taint_rm })
}

#[tonic::async_trait]
impl nodes_server::Nodes for Api {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Node>, Status> {
        let published = self.read(&request).await?;
        let node = published.state.find_node(&request.get_ref().reference).map_err(status_of)?;
        let reports = self.fetch_node_reports(&published.state, [node.id]).await;
        Ok(Response::new(self.show_node(&published.state, node, &reports)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let page = Page::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.read(&request).await?;
        let all = published.state.nodes_after(page.after.as_ref());
        let (nodes, next_page_token) = page.cut(all, |node| node.name.clone());
        let reports = self.fetch_node_reports(&published.state, nodes.iter().map(|node| node.id)).await;
        let nodes = nodes.iter().map(|node| self.show_node(&published.state, node, &reports)).collect();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token }))
    }

    async fn update(&self, request: Request<v1::UpdateNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let caller = AuditedCall::of(&request);
        let request = request.into_inner();
        caller.named(ObjectKind::Node, &request.reference);
        let NodeUpdate { label_rm, availability, taint_add, taint_rm } =
            parse(&request).map_err(status_of)?;
        let id = self.read_latest().await?.state.find_node(&request.reference).map_err(status_of)?.id;
        let (version, label_add, at) = (request.version, request.label_add, self.clock.now());
        let command =
            Command::UpdateNode { id, version, label_add, label_rm, availability, taint_add, taint_rm, at };
        let updated: Arc<Node> = self.write(command).await?;
        caller.identified(ObjectKind::Node, id, &updated.name, updated.version);
        tracing::info!(%caller, node = %id, "node updated");
        let published = self.store.read();
        let reports = self.fetch_node_reports(&published.state, [id]).await;
        Ok(Response::new(self.show_node(&published.state, &updated, &reports)))
    }

    async fn verify(
        &self,
        request: Request<v1::VerifyNodesRequest>,
    ) -> Result<Response<v1::VerifyNodesResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let names = request.into_inner().references;
        caller.named(ObjectKind::Node, &names.join(","));
        let nodes = resolve_nodes(&self.read_latest().await?.state, &names, "be verified")?;
        let nodes: BTreeSet<NodeId> = nodes.into_keys().collect();
        let command = Command::RequestVerification { nodes: nodes.clone(), at: self.clock.now() };
        self.propose(command).await.map_err(status_of)?;
        tracing::info!(%caller, nodes = nodes.len(), "verification of nodes requested");
        let published = self.read_latest().await?;
        let nodes = nodes.iter().filter_map(|id| published.state.node(id));
        let none = RemoteNodeReports::default();
        let nodes = nodes.map(|node| self.show_node(&published.state, node, &none)).collect();
        Ok(Response::new(v1::VerifyNodesResponse { nodes }))
    }

    async fn upgrade(
        &self,
        request: Request<Streaming<v1::UpgradeNodeRequest>>,
    ) -> Result<Response<v1::UpgradeNodeResponse>, Status> {
        self.upgrade_program(request).await.map(Response::new)
    }

    async fn remove(&self, request: Request<v1::RemoveNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let caller = AuditedCall::of(&request);
        let request = request.into_inner();
        caller.named(ObjectKind::Node, &request.reference);
        let published = self.read_latest().await?;
        let node = published.state.find_node(&request.reference).map_err(status_of)?;
        caller.identified(ObjectKind::Node, node.id, &node.name, node.version);
        check_removable(&published.state, node)?;
        let command = Command::RemoveNode { id: node.id, force: request.force, at: self.clock.now() };
        let removed = self.delete(command, node).await?;
        tracing::info!(%caller, node = %removed.id, force = request.force, "node removed");
        Ok(Response::new(self.show_node(&published.state, &removed, &RemoteNodeReports::default())))
    }
}

#[cfg(test)]
mod tests {
    use warren_types::{ClusterId, Id, ManagerId, NodeDescription, NodeId, Timestamp};

    use super::*;

    #[test]
    fn node_of_current_manager_cannot_be_removed() {
        let (at, level) = (Timestamp(1), warren_core::FEATURE_LEVEL);
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let description = NodeDescription { address: "10.0.0.1".into(), ..NodeDescription::default() };
        let node = Command::RegisterNode {
            id: NodeId(Id(7)),
            name: "m1".parse().unwrap(),
            role: NodeRole::Manager,
            description,
            taints: Default::default(),
            at,
        };
        let member = Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: "10.0.0.1:8080".parse().unwrap(),
            level,
            at,
        };
        let commands = [Command::CreateCluster { id, ranges, feature_level: level, at }, node, member];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        let own = state.node(&NodeId(Id(7))).unwrap();
        for (name, role, host, status, stays) in [
            ("m1", NodeRole::Manager, "10.0.0.1", NodeStatus::Down, true),
            // The manager has moved, and its node does not have the new address yet.
            ("m1", NodeRole::Manager, "10.0.0.9", NodeStatus::Ready, true),
            ("m1", NodeRole::Manager, "10.0.0.9", NodeStatus::Down, false),
            ("m2", NodeRole::Manager, "10.0.0.1", NodeStatus::Ready, false),
            ("m1", NodeRole::Worker, "10.0.0.1", NodeStatus::Ready, false),
        ] {
            let mut node = Node::clone(own);
            (node.name, node.role, node.status) = (name.parse().unwrap(), role, status);
            node.description.address = host.into();
            assert_eq!(check_removable(&state, &node).is_err(), stays, "{name} {role:?} {host} {status:?}");
        }
        let member = state.member(1).unwrap().clone();
        assert_eq!(manager_node(&state, &member).map(|node| node.id), Some(NodeId(Id(7))));
        let other = Member { name: "m2".parse().unwrap(), ..Member::clone(&member) };
        assert!(manager_node(&state, &other).is_none());
    }

    #[test]
    fn stranded_worker_gets_rejoin_hint() {
        let (at, level) = (Timestamp(1), warren_core::FEATURE_LEVEL);
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let (worker, description) = (NodeId(Id(7)), NodeDescription::default());
        let (name, role) = ("w1".parse().unwrap(), NodeRole::Worker);
        let commands = [
            Command::CreateCluster { id, ranges, feature_level: level, at },
            Command::RegisterNode { id: worker, name, role, description, taints: Default::default(), at },
            Command::RegisterMember {
                member: 9_000,
                id: ManagerId(Id(11)),
                name: "m9".parse().unwrap(),
                address: "10.0.0.9:8080".parse().unwrap(),
                level,
                at,
            },
        ];
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        let known = Node::clone(state.node(&worker).unwrap());
        let reason = |manager, status, role| {
            unreachable_managers_hint(&state, &Node { manager, status, role, ..known.clone() }, 9_000)
        };
        let output = reason(Some(1), NodeStatus::Down, NodeRole::Worker);
        assert!(output.contains("`warren worker join 10.0.0.9:8080 --token TOKEN`"), "{output}");
        for (manager, status, role) in [
            (Some(9_000), NodeStatus::Down, NodeRole::Worker),
            (None, NodeStatus::Down, NodeRole::Worker),
            (Some(1), NodeStatus::Ready, NodeRole::Worker),
            (Some(1), NodeStatus::Down, NodeRole::Manager),
        ] {
            assert_eq!(reason(manager, status, role), "", "{manager:?} {status:?} {role:?}");
        }
    }

    #[test]
    fn node_of_removed_manager_is_listed() {
        let (at, level) = (Timestamp(1), warren_core::FEATURE_LEVEL);
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let node = |number: u128, role| Command::RegisterNode {
            id: NodeId(Id(number)),
            name: format!("m{number}").parse().unwrap(),
            role,
            description: NodeDescription {
                address: format!("10.0.0.{number}"),
                ..NodeDescription::default()
            },
            taints: Default::default(),
            at,
        };
        let first = Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: "10.0.0.1:8080".parse().unwrap(),
            level,
            at,
        };
        let commands = [
            Command::CreateCluster { id, ranges, feature_level: level, at },
            node(1, NodeRole::Manager),
            node(2, NodeRole::Manager),
            node(3, NodeRole::Worker),
            first,
        ];
        let mut state = State::new();
        let mut found = Vec::new();
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
            found = nodes_of_removed_managers(&state).map(|node| node.name.to_string()).collect();
            assert!(index == 5 || found.is_empty(), "no manager has reported its address yet: {found:?}");
        }
        assert_eq!(found, ["m2"]);
    }
}

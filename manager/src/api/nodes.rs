//! Nodes: read, change what people say of them, forget them.

use std::collections::BTreeSet;

use tonic::{Code, Request, Response, Status};
use warren_core::Command;
use warren_proto::convert::availability;
use warren_proto::status::Problem;
use warren_proto::v1::{self, nodes_server};
use warren_types::spec::validate_labels;
use warren_types::{Availability, Node, NodeId, NodeRole, Violations};

use super::Api;
use super::access::caller_of;
use super::paging::Page;
use super::problem::status_of;

/// Refuses what a cluster cannot do without: the machine of a manager.
///
/// # Errors
/// `FailedPrecondition`, reason `NODE_IS_MANAGER`.
pub(super) fn may_go(node: &Node) -> Result<(), Status> {
    if node.role != NodeRole::Manager {
        return Ok(());
    }
    let message = format!(
        "node {} is a manager of the cluster and stays one of its nodes; drain it to have it run nothing",
        node.name
    );
    Err(Problem::new(Code::FailedPrecondition, "NODE_IS_MANAGER", message).into())
}

/// What an update says, without which node it is about.
struct Update {
    label_rm: BTreeSet<String>,
    availability: Option<Availability>,
}

fn parse(request: &v1::UpdateNodeRequest) -> Result<Update, Violations> {
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
    wrong.into_result(Update { label_rm: request.label_rm.iter().cloned().collect(), availability })
}

impl Api {
    fn node_after(&self, id: NodeId) -> Result<v1::Node, Status> {
        let published = self.store.read();
        let node = published.state.find_node(&id.to_string()).map_err(status_of)?;
        Ok(self.show_node(&published.state, node))
    }
}

#[tonic::async_trait]
impl nodes_server::Nodes for Api {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Node>, Status> {
        let published = self.store.read();
        let node = published.state.find_node(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(self.show_node(&published.state, node)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let page = Page::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.store.read();
        let all = published.state.nodes_after(page.after.as_ref());
        let (nodes, next_page_token) = page.cut(all, |node| node.name.clone());
        let nodes = nodes.iter().map(|node| self.show_node(&published.state, node)).collect();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token }))
    }

    async fn update(&self, request: Request<v1::UpdateNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let caller = caller_of(&request);
        let request = request.into_inner();
        let Update { label_rm, availability } = parse(&request).map_err(status_of)?;
        let id = self.store.read().state.find_node(&request.reference).map_err(status_of)?.id;
        let (version, label_add, at) = (request.version, request.label_add, self.clock.now());
        let command = Command::UpdateNode { id, version, label_add, label_rm, availability, at };
        self.store.propose(command).await.map_err(status_of)?;
        tracing::info!(%caller, node = %id, "node updated");
        self.node_after(id).map(Response::new)
    }

    async fn remove(&self, request: Request<v1::RemoveNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let caller = caller_of(&request);
        let request = request.into_inner();
        let published = self.store.read();
        let node = published.state.find_node(&request.reference).map_err(status_of)?;
        may_go(node)?;
        let command = Command::RemoveNode { id: node.id, force: request.force, at: self.clock.now() };
        self.store.propose(command).await.map_err(status_of)?;
        tracing::info!(%caller, node = %node.id, force = request.force, "node removed");
        Ok(Response::new(self.show_node(&published.state, node)))
    }
}

//! Three nodes. Draining one moves its tasks to `node-2`, except from `stuck`.

use tonic::{Code, Request, Response, Status, Streaming};
use warren_proto::{Problem, v1};

use super::{FakeApi, FakeState, missing};

pub fn node(id: &str, name: &str) -> v1::Node {
    let description = v1::NodeDescription {
        resources: Some(v1::Resources { cpu_milli: 2000, memory_bytes: 1 << 30 }),
        disk_bytes: 40 << 30,
        ..Default::default()
    };
    v1::Node {
        id: id.into(),
        name: name.into(),
        description: Some(description),
        status: v1::NodeStatus::Ready.into(),
        role: v1::NodeRole::Worker.into(),
        availability: v1::Availability::Active.into(),
        program_digest: format!("sha256:{}", "0".repeat(64)),
        ..Default::default()
    }
}

impl FakeState {
    fn find_node(&self, reference: &str) -> Result<v1::Node, Status> {
        let known = |node: &&v1::Node| node.id == reference || node.name == reference;
        self.nodes.values().find(known).cloned().ok_or_else(|| missing("node", reference))
    }

    fn on_node(&self, node: &str) -> Vec<v1::Task> {
        self.tasks.values().filter(|task| task.node_id == node).cloned().collect()
    }
}

#[tonic::async_trait]
impl v1::nodes_server::Nodes for FakeApi {
    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Node>, Status> {
        let reference = request.into_inner().reference;
        if reference == "forbidden" {
            let message = "needs the role admin; the caller has the role viewer";
            return Err(Problem::new(Code::PermissionDenied, "DENIED", message).into());
        }
        if reference == "leaderless" {
            let message = "no manager led within 2s";
            return Err(Problem::new(Code::Unavailable, "NO_LEADER", message).into());
        }
        self.0.lock().unwrap().find_node(&reference).map(Response::new)
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListNodesResponse>, Status> {
        let nodes = self.0.lock().unwrap().nodes.values().cloned().collect();
        Ok(Response::new(v1::ListNodesResponse { nodes, next_page_token: String::new() }))
    }

    /// The checks of `node-2` fail.
    async fn verify(
        &self,
        request: Request<v1::VerifyNodesRequest>,
    ) -> Result<Response<v1::VerifyNodesResponse>, Status> {
        let names = request.into_inner().references;
        let mut state = self.0.lock().unwrap();
        for name in &names {
            state.find_node(name)?;
        }
        let mut nodes = Vec::new();
        for node in state.nodes.values_mut().filter(|node| names.is_empty() || names.contains(&node.name)) {
            let (mut result, mut verified) =
                (v1::NodeCheckResult::default(), v1::NodeVerification::default());
            let is_bad = node.name == "node-2";
            result.name = "gpu".into();
            result.message = if is_bad { "exited with code 1: no GPU".into() } else { String::new() };
            let outcome = if is_bad { v1::NodeCheckOutcome::Failed } else { v1::NodeCheckOutcome::Passed };
            result.outcome = outcome.into();
            let state = if is_bad { v1::VerificationState::Failed } else { v1::VerificationState::Verified };
            verified.state = state.into();
            (verified.requested, verified.answered, verified.results) = (7, 7, vec![result]);
            node.verification = Some(verified);
            nodes.push(node.clone());
        }
        Ok(Response::new(v1::VerifyNodesResponse { nodes }))
    }

    async fn upgrade(
        &self,
        _: Request<Streaming<v1::UpgradeNodeRequest>>,
    ) -> Result<Response<v1::UpgradeNodeResponse>, Status> {
        Err(Status::unimplemented("this manager upgrades nothing"))
    }

    async fn update(&self, request: Request<v1::UpdateNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let v1::UpdateNodeRequest {
            reference,
            label_add,
            label_rm,
            availability,
            taint_add,
            taint_rm,
            version: _,
        } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let mut node = state.find_node(&reference)?;
        node.labels.extend(label_add);
        node.labels.retain(|key, _| !label_rm.contains(key));
        node.taints.retain(|taint| !taint_rm.contains(taint));
        node.taints.extend(taint_add);
        if availability != 0 {
            node.availability = availability;
        }
        state.nodes.insert(node.id.clone(), node.clone());
        if availability == i32::from(v1::Availability::Drain) && node.name != "stuck" {
            for task in state.on_node(&node.id) {
                state.put_task(v1::Task { node_id: "n2".into(), node_name: "node-2".into(), ..task });
            }
        }
        Ok(Response::new(node))
    }

    async fn remove(&self, request: Request<v1::RemoveNodeRequest>) -> Result<Response<v1::Node>, Status> {
        let v1::RemoveNodeRequest { reference, force } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let node = state.find_node(&reference)?;
        let tasks = state.on_node(&node.id).len();
        if tasks > 0 && !force {
            let message = format!("{} is up and runs {tasks} tasks", node.name);
            return Err(Problem::new(Code::FailedPrecondition, "NODE_IN_USE", message).into());
        }
        state.nodes.remove(&node.id);
        Ok(Response::new(node))
    }
}

//! Nodes joining, renewing certificates, and leaving.
//!
//! A joining machine presents a join token, and a certificate request that proves possession of the key from
//! which its id is derived. The token's secret is never stored, logged or returned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use tonic::{Code, Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{Command, Refusal, State};
use warren_proto::status::Problem;
use warren_proto::v1::{self, membership_server};
use warren_security::{CertificateRequest, Identity, JoinToken, Role};
use warren_session::description;
use warren_session::server::calling_worker;
use warren_store::ProposeError;
use warren_store::problem::{node_removed, node_unknown, status_of, unexpected_answer};
use warren_types::{
    Availability, Node, NodeDescription, NodeId, NodeName, NodeRole, Taint, Timestamp, Violation, Violations,
};

use super::Api;
use super::audited_call::AuditedCall;
use super::authorization::check_own_key;
use super::nodes::{check_removable, read_taints};

/// Digits of the id in a generated name.
const NAME_DIGITS: usize = 8;

/// A parsed join request.
struct NodeJoin {
    token: JoinToken,
    request: CertificateRequest,
    name: NodeName,
    description: NodeDescription,
    taints: BTreeSet<Taint>,
}

impl NodeJoin {
    fn parse(request: v1::JoinRequest) -> Result<Self, Status> {
        let mut wrong = Violations::default();
        // Its errors contain no part of the token.
        let token = JoinToken::parse(&request.token).map_err(|why| wrong.add("token", why)).ok();
        let certificate = CertificateRequest::parse(&request.certificate_request);
        let certificate = certificate.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let id = certificate.as_ref().map(CertificateRequest::node_id);
        let name = match (request.name.as_str(), id) {
            ("", id) => format!("node-{:.NAME_DIGITS$}", id.map(|id| id.to_string()).unwrap_or_default()),
            (given, _) => given.to_owned(),
        };
        let name = name.parse().map_err(|why| wrong.add("name", why)).ok();
        let taints = read_taints("taints", request.taints, &mut wrong);
        wrong.into_result(()).map_err(status_of)?;
        let description = description::parse(request.description)?;
        let join = || Some(Self { token: token?, request: certificate?, name: name?, description, taints });
        Ok(join().expect("missing fields are violations"))
    }
}

pub(super) fn internal_error(error: impl std::error::Error) -> Status {
    tracing::error!(%error, "issuing a certificate failed");
    Problem::new(Code::Internal, "AUTHORITY", format!("the manager cannot issue a certificate: {error}"))
        .into()
}

/// Checks the token against the local state before proposing: a caller without a valid token must not cause
/// writes. A known node does not use up the token again.
pub(super) fn check_token(
    state: &State,
    token: &JoinToken,
    desired: NodeRole,
    is_known: bool,
    now: Timestamp,
) -> Result<(), Refusal> {
    let known = state.token_by_hash(&token.hash()).ok_or(Refusal::TokenNotFound)?;
    if known.role != desired {
        return Err(Refusal::TokenRoleMismatch { wanted: desired, found: known.role });
    }
    if known.is_expired(now) {
        return Err(Refusal::TokenExpired);
    }
    if known.is_exhausted() && !is_known {
        return Err(Refusal::TokenExhausted { uses: known.uses });
    }
    Ok(())
}

/// Number of tasks that hold the node.
fn tasks_on(state: &State, node: &NodeId) -> u32 {
    u32::try_from(state.tasks_on(node).count()).unwrap_or(u32::MAX)
}

impl Api {
    /// Checks that the token was made by this cluster.
    pub(super) fn check_token_cluster(&self, token: &JoinToken) -> Result<(), Status> {
        let roots = self.authority.load().roots();
        let expected = token.authority();
        if roots.digests().contains(&expected) {
            return Ok(());
        }
        let actual = roots.digests()[0];
        let message = format!(
            "the token belongs to another cluster, or is older than the cluster's CA: CA of the token {expected}, \
             CA of this cluster {actual}; create a token here"
        );
        Err(Problem::new(Code::PermissionDenied, "CLUSTER_MISMATCH", message).into())
    }

    /// Drains the node and returns how many tasks still hold it.
    async fn drain_node(&self, node: &Node) -> Result<u32, Status> {
        let id = node.id;
        if node.availability == Availability::Drain {
            // Already draining: repeated calls write nothing.
            return Ok(tasks_on(&self.store.read().state, &id));
        }
        let command = Command::UpdateNode {
            id,
            version: None,
            label_add: Default::default(),
            label_rm: Default::default(),
            availability: Some(Availability::Drain),
            taint_add: Default::default(),
            taint_rm: Default::default(),
            at: self.clock.now(),
        };
        self.propose(command).await.map_err(status_of)?;
        Ok(tasks_on(&self.store.read().state, &id))
    }
}

#[tonic::async_trait]
impl membership_server::Membership for Api {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let NodeJoin { token, request, name, description, taints } = NodeJoin::parse(request.into_inner())?;
        caller.named(ObjectKind::Node, name.as_str());
        let (id, hash, at) = (request.node_id(), token.hash(), self.clock.now());
        let log_rejection = |why: &dyn std::fmt::Display| {
            tracing::info!(%caller, node = %id, %why, "node join rejected");
        };
        self.check_token_cluster(&token).inspect_err(|status| log_rejection(&status.message()))?;
        let checks =
            |state: &State| check_token(state, &token, NodeRole::Worker, state.node(&id).is_some(), at);
        if checks(&self.store.read().state).is_err() {
            // A follower may not have applied the token yet.
            let checked = checks(&self.read_latest().await?.state);
            checked.inspect_err(|refusal| log_rejection(refusal)).map_err(status_of)?;
        }
        // Another machine has the node, like that of a manager: it is not to become this one.
        let listed = self.store.read().state.node(&id).and_then(|node| node.key);
        if listed.is_some_and(|key| key != request.key_hash()) {
            let refused = another_key();
            log_rejection(&refused.message());
            return Err(refused);
        }
        let command = Command::JoinNode { hash, id, name: name.clone(), description, taints, at };
        let joined = self.propose(command).await.map_err(|error| {
            log_rejection(&error);
            match error {
                ProposeError::Rejected(Refusal::AlreadyExists { .. }) => name_taken(&name),
                other => status_of(other),
            }
        })?;
        let node: Arc<Node> = joined.try_into().map_err(|other| unexpected_answer(&other))?;
        caller.identified(ObjectKind::Node, id, &name, node.version);
        let role = node.role;
        let lifetime = self.store.read().state.node_certificate_lifetime();
        let authority = self.authority.load();
        let certificate = authority.sign_node(role, &request, SystemTime::now(), lifetime);
        let certificate = certificate.map_err(internal_error)?;
        tracing::info!(%caller, node = %id, %name, "node joined");
        Ok(Response::new(v1::JoinResponse {
            cluster_id: authority.cluster().to_owned(),
            node_id: id.to_string(),
            node_name: name.to_string(),
            certificate,
        }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let wrong = |why| status_of(Violation::new("certificateRequest", why));
        let certificate = CertificateRequest::parse(&request.get_ref().certificate_request).map_err(wrong)?;
        // The request was made with the key from which the id follows; the certificate is of use to nobody else.
        check_own_key(&request, &certificate.key_hash())?;
        let id = certificate.node_id();
        let published = self.read_latest().await?;
        let Some(node) = published.state.node(&id) else {
            let removed = published.state.node_removed_at(&id).is_some();
            return Err(if removed { node_removed() } else { node_unknown() });
        };
        caller.identified(ObjectKind::Node, id, &node.name, node.version);
        let authority = self.authority.load();
        let identity = Identity::new(authority.cluster(), Role::Worker, id.to_string());
        let identity = identity.map_err(internal_error)?;
        if !identity.is_of_node(node, &certificate.key_hash()) {
            tracing::warn!(%caller, node = %id, "renewal for another key refused");
            return Err(another_key());
        }
        let lifetime = published.state.node_certificate_lifetime();
        let signed = authority.sign_node(NodeRole::Worker, &certificate, SystemTime::now(), lifetime);
        let certificate = signed.map_err(internal_error)?;
        // The audit has a bounded number of these.
        tracing::debug!(%caller, node = %id, "certificate renewed");
        let authorities = authority.roots().pem().to_owned();
        Ok(Response::new(v1::RenewResponse { certificate, authorities }))
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        let (caller, id) = (AuditedCall::of(&request), calling_worker(&request)?);
        let force = request.get_ref().force;
        let published = self.read_latest().await?;
        let Some(node) = published.state.node(&id) else {
            // The node left before, and the response was lost.
            return Ok(Response::new(v1::LeaveResponse { tasks: 0 }));
        };
        check_removable(&published.state, node)?;
        let tasks = if force { 0 } else { self.drain_node(node).await? };
        if tasks > 0 {
            tracing::info!(%caller, node = %id, tasks, "node is draining before it leaves");
            return Ok(Response::new(v1::LeaveResponse { tasks }));
        }
        let command = Command::RemoveNode { id, force, at: self.clock.now() };
        match self.propose(command).await {
            // A task was assigned in the meantime.
            Err(ProposeError::Rejected(Refusal::NodeInUse { tasks, .. })) => {
                Ok(Response::new(v1::LeaveResponse { tasks }))
            }
            Err(error) => Err(status_of(error)),
            Ok(_) => {
                tracing::info!(%caller, node = %id, force, "node left");
                Ok(Response::new(v1::LeaveResponse { tasks: 0 }))
            }
        }
    }
}

fn another_key() -> Status {
    let message = "the cluster lists another key for this node, which another machine has; to join, this machine needs \
                   an empty data directory, which makes it a new node";
    Problem::new(Code::PermissionDenied, "ANOTHER_KEY", message).into()
}

fn name_taken(name: &NodeName) -> Status {
    let message = format!("node {name} already exists; give this one another name with --node-name");
    Problem::new(Code::AlreadyExists, "NODE_EXISTS", message).into()
}

//! Becoming a node, staying one, and leaving.
//!
//! A stranger proves by a token that it may join, and by its certificate request that it has the key from which its
//! id is made. Nothing of a token's secret is kept, logged or answered.

use std::sync::Arc;
use std::time::SystemTime;

use tonic::{Code, Request, Response, Status};
use warren_core::{Command, Refusal, State};
use warren_proto::status::Problem;
use warren_proto::v1::{self, membership_server};
use warren_security::{CertificateRequest, Identity, Role, Token};
use warren_types::{
    Availability, Node, NodeDescription, NodeId, NodeName, NodeRole, Timestamp, Violation, Violations,
};

use super::access::{caller_of, worker_of};
use super::nodes::may_go;
use super::problem::{node_removed, node_unknown, status_of, unexpected};
use super::{Api, description};
use crate::store::ProposeError;

/// Digits of the id in a name that nobody gave.
const NAME_DIGITS: usize = 8;

/// What somebody who wants to join says.
struct Join {
    token: Token,
    request: CertificateRequest,
    name: NodeName,
    description: NodeDescription,
}

impl Join {
    fn parse(request: v1::JoinRequest) -> Result<Self, Status> {
        let mut wrong = Violations::default();
        // Its errors repeat nothing of the token.
        let token = Token::parse(&request.token).map_err(|why| wrong.add("token", why)).ok();
        let certificate = CertificateRequest::parse(&request.certificate_request);
        let certificate = certificate.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let id = certificate.as_ref().map(CertificateRequest::node_id);
        let name = match (request.name.as_str(), id) {
            ("", id) => format!("node-{:.NAME_DIGITS$}", id.map(|id| id.to_string()).unwrap_or_default()),
            (given, _) => given.to_owned(),
        };
        let name = name.parse().map_err(|why| wrong.add("name", why)).ok();
        wrong.into_result(()).map_err(status_of)?;
        let description = description::parse(request.description)?;
        let join = || Some(Self { token: token?, request: certificate?, name: name?, description });
        Ok(join().expect("what is missing was named"))
    }
}

pub(super) fn internal(error: impl std::error::Error) -> Status {
    tracing::error!(%error, "no certificate could be issued");
    Problem::new(Code::Internal, "AUTHORITY", format!("the manager cannot issue a certificate: {error}"))
        .into()
}

/// Refuses what the cluster would refuse as well, but without asking it: whoever has no token must not be able to make
/// it write. Who is known to the cluster already does not use the token once more.
pub(super) fn check_token(
    state: &State,
    token: &Token,
    wanted: NodeRole,
    is_known: bool,
    now: Timestamp,
) -> Result<(), Refusal> {
    let known = state.token_of(&token.hash()).ok_or(Refusal::TokenUnknown)?;
    if known.role != wanted {
        return Err(Refusal::TokenRole { wanted, found: known.role });
    }
    if known.is_expired(now) {
        return Err(Refusal::TokenExpired);
    }
    if known.is_used_up() && !is_known {
        return Err(Refusal::TokenUsedUp { uses: known.uses });
    }
    Ok(())
}

/// Tasks that hold the node.
fn tasks_on(state: &State, node: &NodeId) -> u32 {
    u32::try_from(state.tasks_on(node).count()).unwrap_or(u32::MAX)
}

impl Api {
    /// The token's cluster is this one.
    pub(super) fn check_cluster(&self, token: &Token) -> Result<(), Status> {
        let (wanted, found) = (token.authority(), self.authority.digest());
        if wanted == found {
            return Ok(());
        }
        let message = format!(
            "the token is of another cluster, with CA {wanted}; this one has CA {found}: make a token here"
        );
        Err(Problem::new(Code::PermissionDenied, "OTHER_CLUSTER", message).into())
    }

    /// Has the node run nothing any more; answers how many tasks still hold it.
    async fn drain(&self, node: &Node) -> Result<u32, Status> {
        let id = node.id;
        if node.availability == Availability::Drain {
            // It asks again and again, which is nothing to write down.
            return Ok(tasks_on(&self.store.read().state, &id));
        }
        let command = Command::UpdateNode {
            id,
            version: None,
            label_add: Default::default(),
            label_rm: Default::default(),
            availability: Some(Availability::Drain),
            at: self.clock.now(),
        };
        self.propose(command).await.map_err(status_of)?;
        Ok(tasks_on(&self.store.read().state, &id))
    }
}

#[tonic::async_trait]
impl membership_server::Membership for Api {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        let caller = caller_of(&request);
        let Join { token, request, name, description } = Join::parse(request.into_inner())?;
        let (id, hash, at) = (request.node_id(), token.hash(), self.clock.now());
        let not_let_in = |why: &dyn std::fmt::Display| {
            tracing::info!(%caller, node = %id, %why, "a machine was not let in");
        };
        self.check_cluster(&token).inspect_err(|status| not_let_in(&status.message()))?;
        let checks =
            |state: &State| check_token(state, &token, NodeRole::Worker, state.node(&id).is_some(), at);
        if checks(&self.store.read().state).is_err() {
            // A manager that follows may not have heard of the token yet.
            let checked = checks(&self.newest().await?.state);
            checked.inspect_err(|refusal| not_let_in(refusal)).map_err(status_of)?;
        }
        let command = Command::JoinNode { hash, id, name: name.clone(), description, at };
        let joined = self.propose(command).await.map_err(|error| {
            not_let_in(&error);
            match error {
                ProposeError::Rejected(Refusal::AlreadyExists { .. }) => name_taken(&name),
                other => status_of(other),
            }
        })?;
        let node: Arc<Node> = joined.try_into().map_err(|other| unexpected(&other))?;
        let role = node.role;
        let lifetime = Role::from(role).validity();
        let certificate = self.authority.sign_node(role, &request, SystemTime::now(), lifetime);
        let certificate = certificate.map_err(internal)?;
        tracing::info!(%caller, node = %id, %name, "a machine joined");
        Ok(Response::new(v1::JoinResponse {
            cluster_id: self.authority.cluster().to_owned(),
            node_id: id.to_string(),
            node_name: name.to_string(),
            certificate,
        }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let (caller, id) = (caller_of(&request), worker_of(&request)?);
        let wrong = |why| status_of(Violation::new("certificateRequest", why));
        let certificate = CertificateRequest::parse(&request.get_ref().certificate_request).map_err(wrong)?;
        let published = self.newest().await?;
        if published.state.node(&id).is_none() {
            let removed = published.state.removed_at(&id).is_some();
            return Err(if removed { node_removed() } else { node_unknown() });
        }
        let identity = Identity::new(self.authority.cluster(), Role::Worker, id.to_string());
        let identity = identity.map_err(internal)?;
        let certificate =
            self.authority.sign(&identity, &certificate, SystemTime::now()).map_err(internal)?;
        tracing::info!(%caller, node = %id, "certificate renewed");
        Ok(Response::new(v1::RenewResponse { certificate }))
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        let (caller, id) = (caller_of(&request), worker_of(&request)?);
        let force = request.get_ref().force;
        let published = self.newest().await?;
        let Some(node) = published.state.node(&id) else {
            // It left before, and its answer was lost.
            return Ok(Response::new(v1::LeaveResponse { tasks: 0 }));
        };
        may_go(&published.state, node)?;
        let tasks = if force { 0 } else { self.drain(node).await? };
        if tasks > 0 {
            tracing::info!(%caller, node = %id, tasks, "a node wants to leave");
            return Ok(Response::new(v1::LeaveResponse { tasks }));
        }
        let command = Command::RemoveNode { id, force, at: self.clock.now() };
        match self.propose(command).await {
            // One was placed there in the meantime.
            Err(ProposeError::Rejected(Refusal::NodeInUse { tasks, .. })) => {
                Ok(Response::new(v1::LeaveResponse { tasks }))
            }
            Err(error) => Err(status_of(error)),
            Ok(_) => {
                tracing::info!(%caller, node = %id, force, "a node left");
                Ok(Response::new(v1::LeaveResponse { tasks: 0 }))
            }
        }
    }
}

fn name_taken(name: &NodeName) -> Status {
    let message = format!("another node is called {name}; give this one another name with --node-name");
    Problem::new(Code::AlreadyExists, "NODE_EXISTS", message).into()
}

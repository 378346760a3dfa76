//! Managers: join, list, update, remove, leadership transfer and backup.
//!
//! A joining machine presents a join token, and a certificate request that proves possession of the key from
//! which its id is derived. It receives the CA key and the secret object key, so a manager token grants full
//! control of the cluster.

mod backup;
mod status;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};
use warren_consensus::{WaitReason, check_quorum_without};
use warren_core::state::ObjectKind;
use warren_core::{Command, DepartedManager, Refusal, State};
use warren_proto::convert::suffrage;
use warren_proto::status::Problem;
use warren_proto::v1::{self, managers_server};
use warren_replica::desired_members;
use warren_security::{CertificateRequest, JoinToken};
use warren_store::problem::{leader_unknown, status_of, unexpected_answer};
use warren_store::{ProposeError, PublishedState};
use warren_types::{ManagerAddress, ManagerId, Member, MemberId, NodeName, NodeRole, Suffrage, Violations};

use self::backup::BackupStream;
use self::status::ManagerStatuses;
use super::Api;
use super::audited_call::AuditedCall;
use super::membership::{check_token, internal_error};
use super::nodes::nodes_of_removed_managers;

/// Digits of the id in a generated name.
const NAME_DIGITS: usize = 8;
/// How long a new leader may take to contact the others before they count as unreachable, and the interval at
/// which it is asked meanwhile.
const LEADER_SETTLE_TIMEOUT: Duration = Duration::from_millis(1500);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// A parsed join request.
struct ManagerJoin {
    token: JoinToken,
    request: CertificateRequest,
    id: ManagerId,
    name: NodeName,
    address: ManagerAddress,
    level: u32,
}

impl ManagerJoin {
    fn parse(request: v1::JoinManagerRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        // Its errors contain no part of the token.
        let token = JoinToken::parse(&request.token).map_err(|why| wrong.add("token", why)).ok();
        let certificate = CertificateRequest::parse(&request.certificate_request);
        let certificate = certificate.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let id = certificate.as_ref().map(|request| ManagerId(request.node_id().0));
        let name = match (request.name.as_str(), id) {
            ("", id) => format!("manager-{:.NAME_DIGITS$}", id.map(|id| id.to_string()).unwrap_or_default()),
            (given, _) => given.to_owned(),
        };
        let name = name.parse().map_err(|why| wrong.add("name", why)).ok();
        let address = request.address.parse().map_err(|why| wrong.add("address", why)).ok();
        let (address, level) = (address, request.feature_level);
        let join = || {
            let (token, request, id) = (token?, certificate?, id?);
            Some(Self { token, request, id, name: name?, address: address?, level })
        };
        let join = join();
        let join = wrong.into_result(join)?;
        Ok(join.expect("missing fields are violations"))
    }
}

/// A parsed update, without the manager it is for.
struct ManagerUpdate {
    desired_suffrage: Option<Suffrage>,
    address: Option<ManagerAddress>,
}

impl ManagerUpdate {
    fn parse(request: &v1::UpdateManagerRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        let desired = suffrage(request.desired_suffrage).unwrap_or_else(|unknown| {
            wrong.0.extend(unknown.0);
            None
        });
        let address = Some(request.address.as_str()).filter(|address| !address.is_empty());
        let address = address.and_then(|text| text.parse().map_err(|why| wrong.add("address", why)).ok());
        if wrong.0.is_empty() && desired.is_none() && address.is_none() {
            wrong.add(
                "desiredSuffrage",
                "the update changes nothing; give the desired suffrage or the address",
            );
        }
        wrong.into_result(Self { desired_suffrage: desired, address })
    }
}

fn failed_precondition(reason: &str, message: String) -> Status {
    Problem::new(Code::FailedPrecondition, reason, message).into()
}

impl Api {
    /// Rejects the removal or demotion of a voter without which the others would have no quorum.
    async fn check_quorum_without(&self, member: &Member) -> Result<(), Status> {
        let deadline = Instant::now() + LEADER_SETTLE_TIMEOUT;
        loop {
            let published = self.read_latest().await?;
            let statuses = self.manager_statuses(&published.state).await;
            let PublishedState { state, members, .. } = &*published;
            let (leader, peers, applied) = statuses.leader().ok_or_else(leader_unknown)?;
            let loss = check_quorum_without(
                &desired_members(state),
                members,
                leader,
                &peers,
                applied,
                member.member_id,
            );
            let Some(why) = loss else { return Ok(()) };
            // A new leader has not contacted all members yet.
            if Instant::now() >= deadline {
                return Err(would_lose_quorum(state, member, why));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Whether a manager works: it replies, or the leader hears from it. It counts as stopped when two looks in a row
    /// found neither: one reply may be late, and a new leader has not heard from all others yet.
    async fn is_active(&self, state: &State, member: MemberId) -> Result<bool, Status> {
        let deadline = Instant::now() + LEADER_SETTLE_TIMEOUT;
        let mut was_silent = false;
        loop {
            let statuses = self.manager_statuses(state).await;
            if statuses.is_reachable(member) {
                return Ok(true);
            }
            let is_heard = statuses.is_heard_by_leader(member);
            let is_silent = is_heard == Some(false);
            if (is_silent && was_silent) || Instant::now() >= deadline {
                return is_heard.ok_or_else(leader_unknown);
            }
            was_silent = is_silent;
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Transfers leadership, on this manager or by a call to the leader.
    async fn transfer_to(&self, leader: MemberId, to: Option<MemberId>) -> Result<(), Status> {
        if leader == self.member_id {
            return self.store.transfer_leadership(to).await.map_err(status_of);
        }
        let mut client = self.peers.control_client(leader).ok_or_else(leader_unknown)?;
        client.transfer_leadership(v1::TransferRequest { to: to.unwrap_or(0) }).await.map(drop)
    }

    /// Rejects a joining machine that gives the address of a manager which is still reachable.
    async fn check_replacement(&self, join: &ManagerJoin) -> Result<(), Status> {
        let published = self.store.read();
        let state = &published.state;
        let has_address = |member: &&Arc<Member>| !member.removing && member.address == join.address;
        let owners: Vec<_> = state.members().filter(has_address).collect();
        if owners.is_empty() || state.member_of_manager(&join.id).is_some() {
            return Ok(());
        }
        let statuses = self.manager_statuses(state).await;
        let Some(other) = owners.iter().find(|member| statuses.is_reachable(member.member_id)) else {
            return Ok(());
        };
        let message = format!(
            "manager {} is active at {}: give the address of this machine with --advertise; if this is that \
             machine without its data, stop the old manager first",
            other.name, other.address
        );
        Err(Problem::new(Code::AlreadyExists, "ADDRESS_TAKEN", message).into())
    }

    /// Adds the machine as a member and returns it.
    async fn admit_member(&self, join: &ManagerJoin) -> Result<Arc<Member>, Status> {
        let ManagerJoin { token, id, name, address, level, .. } = join;
        self.check_token_cluster(token)?;
        let now = self.clock.now();
        let checks = |state: &State| {
            check_token(state, token, NodeRole::Manager, state.member_of_manager(id).is_some(), now)
        };
        if checks(&self.store.read().state).is_err() {
            // A follower may not have applied the token yet.
            checks(&self.read_latest().await?.state).map_err(status_of)?;
        }
        self.check_replacement(join).await?;
        let command = Command::JoinManager {
            hash: token.hash(),
            id: *id,
            name: name.clone(),
            address: address.clone(),
            level: *level,
            at: now,
        };
        match self.propose(command).await {
            Ok(answer) => answer.try_into().map_err(|other| unexpected_answer(&other)),
            Err(ProposeError::Rejected(Refusal::AlreadyExists { .. })) => {
                let published = self.store.read();
                let at = published.state.find_member(name.as_str()).map(|owner| owner.address.to_string());
                let at = at.unwrap_or_default();
                let message = format!(
                    "manager {name} already exists, at {at}; give this one another name with --node-name, \
                     or, if this is that machine without its data, give that address with --advertise"
                );
                Err(Problem::new(Code::AlreadyExists, "MANAGER_EXISTS", message).into())
            }
            Err(error) => Err(status_of(error)),
        }
    }
}

/// The error for a removal of the `missing` manager. A repeated removal by manager id is reported as already
/// done.
fn already_removed(state: &State, reference: &str, missing: Refusal) -> Status {
    match reference.parse().ok().and_then(|id: ManagerId| state.departed_manager(&id)) {
        None => status_of(missing),
        Some(DepartedManager { member, .. }) => {
            let message =
                format!("manager {reference} (member {member}) is already removed; nothing was changed");
            Problem::new(Code::NotFound, "ALREADY_REMOVED", message).into()
        }
    }
}

fn would_lose_quorum(state: &State, member: &Member, why: WaitReason) -> Status {
    let why = status::with_member_names(state, &why.to_string());
    let message = format!("removing the vote of manager {} would lose quorum: {why}", member.name);
    failed_precondition("WOULD_LOSE_QUORUM", message)
}

#[tonic::async_trait]
impl managers_server::Managers for Api {
    type BackupStream = BackupStream;

    async fn join(
        &self,
        request: Request<v1::JoinManagerRequest>,
    ) -> Result<Response<v1::JoinManagerResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let join = ManagerJoin::parse(request.into_inner()).map_err(status_of)?;
        caller.named(ObjectKind::Manager, join.name.as_str());
        let id = join.id;
        let admitted = self.admit_member(&join).await.inspect_err(|status| {
            tracing::info!(%caller, manager = %id, why = status.message(), "manager join rejected");
        })?;
        let authority = self.authority.load();
        let published = self.store.read();
        let lifetime = published.state.node_certificate_lifetime();
        let certificate = authority.sign_node(NodeRole::Manager, &join.request, SystemTime::now(), lifetime);
        let certificate = certificate.map_err(internal_error)?;
        let Member { member_id, name, address, .. } = &*admitted;
        caller.identified(ObjectKind::Manager, id, name, admitted.version);
        tracing::info!(%caller, manager = %id, member = member_id, %name, %address, "manager joined");
        let statuses = ManagerStatuses::not_queried();
        let managers = published.state.members().map(|member| statuses.show(&published, member)).collect();
        Ok(Response::new(v1::JoinManagerResponse {
            cluster_id: authority.cluster().to_owned(),
            manager_id: id.to_string(),
            name: name.to_string(),
            member_id: *member_id,
            certificate,
            authority: authority.to_pem().to_string(),
            secret_object_key: self.secret_object_key.reveal().as_bytes().to_vec().into(),
            initial_voters: self.founders.to_vec(),
            managers,
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListManagersRequest>,
    ) -> Result<Response<v1::ListManagersResponse>, Status> {
        let published = self.read(&request).await?;
        let statuses = self.manager_statuses(&published.state).await;
        // Entries applied during the query are newer than the replies.
        let managers = published.state.members().map(|member| statuses.show(&published, member)).collect();
        let remaining_nodes =
            nodes_of_removed_managers(&published.state).map(|node| node.name.to_string()).collect();
        Ok(Response::new(v1::ListManagersResponse {
            managers,
            term: statuses.latest_term(),
            remaining_nodes,
        }))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = AuditedCall::of(&request);
        let request = request.into_inner();
        let ManagerUpdate { desired_suffrage, address } =
            ManagerUpdate::parse(&request).map_err(status_of)?;
        caller.named(ObjectKind::Manager, &request.reference);
        let published = self.read_latest().await?;
        let known = published.state.find_member(&request.reference).map_err(status_of)?;
        let statuses = self.manager_statuses(&published.state).await;
        if desired_suffrage == Some(Suffrage::Learner) && known.desired_suffrage != Suffrage::Learner {
            self.check_quorum_without(known).await?;
        }
        let (member, version, at) = (known.member_id, request.version, self.clock.now());
        let moved = address.clone();
        let command = Command::UpdateMember { member, version, desired_suffrage, address, at };
        let stored: Arc<Member> = self.write(command).await?;
        caller.identified(ObjectKind::Manager, stored.manager_id, &stored.name, stored.version);
        let desired = desired_suffrage.map(Suffrage::as_str);
        let moved = moved.map(tracing::field::display);
        tracing::info!(%caller, manager = %stored.manager_id, member, desired, address = moved, "manager updated");
        Ok(Response::new(statuses.show(&self.store.read(), &stored)))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::RemoveManagerRequest { reference, force } = request.into_inner();
        caller.named(ObjectKind::Manager, &reference);
        let published = self.read_latest().await?;
        let known = published.state.find_member(&reference);
        let known = known.map_err(|missing| already_removed(&published.state, &reference, missing))?;
        let statuses = self.manager_statuses(&published.state).await;
        if !known.removing {
            if !force && self.is_active(&published.state, known.member_id).await? {
                let name = &known.name;
                let message = format!(
                    "manager {name} is active and would stop at once; drain and stop it first, or repeat \
                     this with --force"
                );
                return Err(failed_precondition("MANAGER_STILL_ACTIVE", message));
            }
            self.check_quorum_without(known).await?;
        }
        let (member, at) = (known.member_id, self.clock.now());
        let removed = self.delete(Command::RemoveMember { member, at }, known).await?;
        caller.identified(ObjectKind::Manager, removed.manager_id, &removed.name, removed.version);
        tracing::info!(%caller, manager = %removed.manager_id, member, name = %removed.name, force, "manager removed");
        // It may have left the configuration, and the state, already.
        let removed = Member { removing: true, ..Member::clone(&removed) };
        Ok(Response::new(statuses.show(&published, &removed)))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = AuditedCall::of(&request);
        caller.named(ObjectKind::Manager, &request.get_ref().to);
        let published = self.read_latest().await?;
        let to = match request.get_ref().to.as_str() {
            "" => None,
            reference => Some(published.state.find_member(reference).map_err(status_of)?),
        };
        let before = published.role.leader_id.ok_or_else(leader_unknown)?;
        if let Some(to) = to.filter(|to| !published.members.voters.contains(&to.member_id)) {
            let message =
                format!("manager {} is not a voter, only voters can lead; promote it first", to.name);
            return Err(failed_precondition("NOT_A_VOTER", message));
        }
        if to.is_none_or(|to| to.member_id != before) {
            self.transfer_to(before, to.map(|to| to.member_id)).await?;
            let has_new_leader =
                |published: &PublishedState| published.role.leader_id.is_some_and(|id| id != before);
            if !self.store.wait_until(has_new_leader, Instant::now() + TRANSFER_TIMEOUT).await {
                let message = format!(
                    "leadership transfer timed out after {TRANSFER_TIMEOUT:?}; see `warren manager ls`"
                );
                return Err(
                    Problem::new(Code::DeadlineExceeded, "LEADERSHIP_NOT_TRANSFERRED", message).into()
                );
            }
        }
        let leader_id = self.store.read().role.leader_id.ok_or_else(leader_unknown)?;
        let published = self.store.read();
        let leader = published.state.member(leader_id).ok_or_else(leader_unknown)?;
        tracing::info!(%caller, member = leader_id, name = %leader.name, "leadership transferred");
        let statuses = self.manager_statuses(&published.state).await;
        // The new leader may not report itself as leader yet, or not reply in time.
        Ok(Response::new(v1::Manager { leader: true, ..statuses.show(&published, leader) }))
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let caller = AuditedCall::of(&request);
        let stream = self.write_backup(request.into_inner()).await?;
        tracing::info!(%caller, "writing backup");
        Ok(Response::new(stream))
    }
}

#[cfg(test)]
mod tests;

//! Managers: joining, what they are and shall be, and a backup of all that they keep.
//!
//! A machine that joins proves by a token that it may, and by its certificate request that it has the key from which
//! its id is made. It gets all that makes a manager, so such tokens are worth as much as the cluster.

mod backup;
mod census;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Response, Status};
use warren_consensus::{Why, loses_quorum};
use warren_core::{Command, Departed, Refusal, State};
use warren_proto::convert::suffrage;
use warren_proto::status::Problem;
use warren_proto::v1::{self, managers_server};
use warren_security::{CertificateRequest, Identity, Role, Token};
use warren_types::{ManagerAddress, ManagerId, Member, MemberId, NodeName, NodeRole, Suffrage, Violations};

use self::backup::BackupStream;
use self::census::Census;
use super::Api;
use super::access::caller_of;
use super::membership::{check_token, internal};
use super::nodes::left_nodes;
use super::problem::{no_leader, status_of, unexpected};
use crate::controllers::members::wishes;
use crate::peers::server::transfer_problem;
use crate::store::{ProposeError, Published};

/// Digits of the id in a name that nobody gave.
const NAME_DIGITS: usize = 8;
/// How long a leader may take to hear of the others before it is believed that they do not answer, and how often it is
/// asked meanwhile.
const HEAR: Duration = Duration::from_millis(1500);
const LOOK: Duration = Duration::from_millis(250);
/// How long another manager may take to lead after this was asked for.
const TAKE_OVER: Duration = Duration::from_secs(5);

/// What a machine that wants to be a manager says.
struct Join {
    token: Token,
    request: CertificateRequest,
    id: ManagerId,
    name: NodeName,
    address: ManagerAddress,
    level: u32,
}

impl Join {
    fn parse(request: v1::JoinManagerRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        // Its errors repeat nothing of the token.
        let token = Token::parse(&request.token).map_err(|why| wrong.add("token", why)).ok();
        let certificate = CertificateRequest::parse(&request.certificate_request);
        let certificate = certificate.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let id = certificate.as_ref().map(|request| ManagerId(request.node_id().0));
        let name = match (request.name.as_str(), id) {
            ("", id) => format!("manager-{:.NAME_DIGITS$}", id.map(|id| id.to_string()).unwrap_or_default()),
            (given, _) => given.to_owned(),
        };
        let name = name.parse().map_err(|why| wrong.add("name", why)).ok();
        let address = request.address.parse().map_err(|why| wrong.add("address", why)).ok();
        let (address, level) = (address, request.level);
        let join = || {
            let (token, request, id) = (token?, certificate?, id?);
            Some(Self { token, request, id, name: name?, address: address?, level })
        };
        let join = join();
        let join = wrong.into_result(join)?;
        Ok(join.expect("what is missing was named"))
    }
}

/// What an update says, without which manager it is about.
struct Update {
    wanted: Option<Suffrage>,
    address: Option<ManagerAddress>,
}

impl Update {
    fn parse(request: &v1::UpdateManagerRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        let wanted = suffrage(request.wanted).unwrap_or_else(|unknown| {
            wrong.0.extend(unknown.0);
            None
        });
        let address = Some(request.address.as_str()).filter(|address| !address.is_empty());
        let address = address.and_then(|text| text.parse().map_err(|why| wrong.add("address", why)).ok());
        if wrong.0.is_empty() && wanted.is_none() && address.is_none() {
            wrong.add("wanted", "nothing is to be changed; give what the manager shall be, or its address");
        }
        wrong.into_result(Self { wanted, address })
    }
}

fn refused(reason: &str, message: String) -> Status {
    Problem::new(Code::FailedPrecondition, reason, message).into()
}

impl Api {
    /// Refuses to go on without a voter where the others could not.
    async fn can_go_without(&self, member: &Member) -> Result<(), Status> {
        let deadline = Instant::now() + HEAR;
        loop {
            let published = self.newest().await?;
            let census = self.census(&published.state).await;
            let Published { state, members, .. } = &*published;
            let (leader, peers, applied) = census.leader().ok_or_else(no_leader)?;
            let loss = loses_quorum(&wishes(state), members, leader, &peers, applied, member.member);
            let Some(why) = loss else { return Ok(()) };
            // A leader that has just begun has not heard of everybody.
            if Instant::now() >= deadline {
                return Err(would_lose_quorum(state, member, why));
            }
            sleep(LOOK).await;
        }
    }

    /// Hands over, here or where the leader is.
    async fn hand_over(&self, leader: MemberId, to: Option<MemberId>) -> Result<(), Status> {
        if leader == self.member {
            return self.store.transfer_leadership(to).await.map_err(transfer_problem);
        }
        let mut client = self.peers.control(leader).ok_or_else(no_leader)?;
        client.transfer_leadership(v1::TransferRequest { to: to.unwrap_or(0) }).await.map(drop)
    }

    /// Refuses a machine that would take the place of a manager which answers: it says that it is reached where that
    /// one is.
    async fn check_place(&self, join: &Join) -> Result<(), Status> {
        let published = self.store.read();
        let state = &published.state;
        let is_there = |member: &&Arc<Member>| !member.removing && member.address == join.address;
        let there: Vec<_> = state.members().filter(is_there).collect();
        if there.is_empty() || state.member_of(&join.id).is_some() {
            return Ok(());
        }
        let census = self.census(state).await;
        let Some(other) = there.iter().find(|member| census.answers(member.member)) else { return Ok(()) };
        let message = format!(
            "manager {} answers at {}: give the address of this machine with --advertise; if it is that machine \
             without its data, stop what answers there first",
            other.name, other.address
        );
        Err(Problem::new(Code::AlreadyExists, "ADDRESS_TAKEN", message).into())
    }

    /// Makes a machine a member; answers the member.
    async fn admit(&self, join: &Join) -> Result<Arc<Member>, Status> {
        let Join { token, id, name, address, level, .. } = join;
        self.check_cluster(token)?;
        let now = self.clock.now();
        let checks =
            |state: &State| check_token(state, token, NodeRole::Manager, state.member_of(id).is_some(), now);
        if checks(&self.store.read().state).is_err() {
            // A manager that follows may not have heard of the token yet.
            checks(&self.newest().await?.state).map_err(status_of)?;
        }
        self.check_place(join).await?;
        let command = Command::JoinManager {
            hash: token.hash(),
            id: *id,
            name: name.clone(),
            address: address.clone(),
            level: *level,
            at: now,
        };
        match self.propose(command).await {
            Ok(answer) => answer.try_into().map_err(|other| unexpected(&other)),
            Err(ProposeError::Rejected(Refusal::AlreadyExists { .. })) => {
                let published = self.store.read();
                let at = published.state.find_member(name.as_str()).map(|owner| owner.address.to_string());
                let at = at.unwrap_or_default();
                let message = format!(
                    "another manager is called {name}, at {at}; give this one another name with --node-name, or, \
                     if it is that machine without its data, that address with --advertise"
                );
                Err(Problem::new(Code::AlreadyExists, "MANAGER_EXISTS", message).into())
            }
            Err(error) => Err(status_of(error)),
        }
    }
}

/// The refusal to remove what is `missing`. A removal that is repeated by the manager's id hears that it is done.
fn already_removed(state: &State, reference: &str, missing: Refusal) -> Status {
    match reference.parse().ok().and_then(|id: ManagerId| state.departed(&id)) {
        None => status_of(missing),
        Some(Departed { member, .. }) => {
            let message =
                format!("manager {reference} (member {member}) was removed already; nothing was changed");
            Problem::new(Code::NotFound, "ALREADY_REMOVED", message).into()
        }
    }
}

fn would_lose_quorum(state: &State, member: &Member, why: Why) -> Status {
    let why = census::named(state, &why.to_string());
    let message = format!("the others could not go on without manager {}: {why}", member.name);
    refused("WOULD_LOSE_QUORUM", message)
}

#[tonic::async_trait]
impl managers_server::Managers for Api {
    type BackupStream = BackupStream;

    async fn join(
        &self,
        request: Request<v1::JoinManagerRequest>,
    ) -> Result<Response<v1::JoinManagerResponse>, Status> {
        let caller = caller_of(&request);
        let join = Join::parse(request.into_inner()).map_err(status_of)?;
        let id = join.id;
        let admitted = self.admit(&join).await.inspect_err(|status| {
            tracing::info!(%caller, manager = %id, why = status.message(), "a machine was not let in as a manager");
        })?;
        let identity = Identity::new(self.authority.cluster(), Role::Manager, id.to_string());
        let identity = identity.map_err(internal)?;
        let certificate = self.authority.sign(&identity, &join.request, SystemTime::now());
        let certificate = certificate.map_err(internal)?;
        let Member { member, name, address, .. } = &*admitted;
        tracing::info!(%caller, manager = %id, member, %name, %address, "a machine joined as a manager");
        let published = self.store.read();
        let census = Census::of_nobody();
        let managers = published.state.members().map(|member| census.show(&published, member)).collect();
        Ok(Response::new(v1::JoinManagerResponse {
            cluster_id: self.authority.cluster().to_owned(),
            manager_id: id.to_string(),
            name: name.to_string(),
            member: *member,
            certificate,
            authority: self.authority.to_pem().to_string(),
            content_key: self.content_key.reveal().as_bytes().to_vec().into(),
            founders: self.founders.to_vec(),
            managers,
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListManagersRequest>,
    ) -> Result<Response<v1::ListManagersResponse>, Status> {
        let published = self.read(&request).await?;
        let census = self.census(&published.state).await;
        // What was applied while they were asked is newer than what they said.
        let managers = published.state.members().map(|member| census.show(&published, member)).collect();
        let left_nodes = left_nodes(&published.state).map(|node| node.name.to_string()).collect();
        Ok(Response::new(v1::ListManagersResponse { managers, term: census.term(), left_nodes }))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = caller_of(&request);
        let request = request.into_inner();
        let Update { wanted, address } = Update::parse(&request).map_err(status_of)?;
        let published = self.newest().await?;
        let known = published.state.find_member(&request.reference).map_err(status_of)?;
        let census = self.census(&published.state).await;
        if wanted == Some(Suffrage::Learner) && known.wanted != Suffrage::Learner {
            self.can_go_without(known).await?;
        }
        let (member, version, at) = (known.member, request.version, self.clock.now());
        let moved = address.clone();
        let command = Command::UpdateMember { member, version, wanted, address, at };
        let stored: Arc<Member> = self.write(command).await?;
        let wanted = wanted.map(Suffrage::as_str);
        let moved = moved.map(tracing::field::display);
        tracing::info!(%caller, manager = %stored.id, member, wanted, address = moved, "manager updated");
        Ok(Response::new(census.show(&self.store.read(), &stored)))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = caller_of(&request);
        let v1::RemoveManagerRequest { reference, force } = request.into_inner();
        let published = self.newest().await?;
        let known = published.state.find_member(&reference);
        let known = known.map_err(|missing| already_removed(&published.state, &reference, missing))?;
        let census = self.census(&published.state).await;
        if !known.removing {
            if census.answers(known.member) && !force {
                let name = &known.name;
                let message = format!(
                    "manager {name} answers, and would stop at once; drain and stop it first, or repeat this with \
                     --force"
                );
                return Err(refused("MANAGER_ANSWERS", message));
            }
            self.can_go_without(known).await?;
        }
        let (member, at) = (known.member, self.clock.now());
        let removed = self.delete(Command::RemoveMember { member, at }, known).await?;
        tracing::info!(%caller, manager = %removed.id, member, name = %removed.name, force, "manager removed");
        // It may have been out of the group and gone already.
        let removed = Member { removing: true, ..Member::clone(&removed) };
        Ok(Response::new(census.show(&published, &removed)))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let caller = caller_of(&request);
        let published = self.newest().await?;
        let to = match request.get_ref().to.as_str() {
            "" => None,
            reference => Some(published.state.find_member(reference).map_err(status_of)?),
        };
        let before = published.role.leader_id.ok_or_else(no_leader)?;
        if let Some(to) = to.filter(|to| !published.members.voters.contains(&to.member)) {
            let message =
                format!("manager {} has no vote, and only who votes can lead; promote it first", to.name);
            return Err(refused("NOT_A_VOTER", message));
        }
        if to.is_none_or(|to| to.member != before) {
            self.hand_over(before, to.map(|to| to.member)).await?;
            let wanted = |published: &Published| published.role.leader_id.is_some_and(|id| id != before);
            if !self.store.until(wanted, Instant::now() + TAKE_OVER).await {
                let message = format!("no other manager leads after {TAKE_OVER:?}; see `warren manager ls`");
                return Err(Problem::new(Code::DeadlineExceeded, "NOT_TAKEN_OVER", message).into());
            }
        }
        let leads = self.store.read().role.leader_id.ok_or_else(no_leader)?;
        let published = self.store.read();
        let leader = published.state.member(leads).ok_or_else(no_leader)?;
        tracing::info!(%caller, member = leads, name = %leader.name, "leadership transferred");
        let census = self.census(&published.state).await;
        // It may be too new in its office to say so itself, or too busy to say anything in time.
        Ok(Response::new(v1::Manager { leader: true, ..census.show(&published, leader) }))
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let caller = caller_of(&request);
        let stream = self.write_backup(request.into_inner()).await?;
        tracing::info!(%caller, "a backup is written");
        Ok(Response::new(stream))
    }
}

#[cfg(test)]
mod tests;

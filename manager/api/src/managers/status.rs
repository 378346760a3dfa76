//! Collects the status of all managers and formats it for users.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_consensus::{ConfState, PeerProgress};
use warren_control::BoxError;
use warren_core::{State, StateDigest};
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use warren_store::PublishedState;
use warren_store::durability;
use warren_store::state_comparison::{self, StateDivergence};
use warren_types::{Member, MemberId, Suffrage, Timestamp, UnlockKeyId};

use crate::Api;
use crate::nodes::manager_node;

/// Managers that do not reply within this time are shown as unreachable.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The replies of the managers to a status query.
#[derive(Debug, Default)]
pub(super) struct ManagerStatuses {
    replies: BTreeMap<MemberId, v1::StatusResponse>,
    /// Managers whose state digest differs.
    divergent: BTreeMap<MemberId, StateDivergence>,
    /// Whether the other managers were queried.
    was_queried: bool,
}

async fn query_status(mut client: PeersClient<Channel>) -> Option<v1::StatusResponse> {
    let answer = timeout(REPLY_TIMEOUT, client.status(v1::StatusRequest {})).await;
    Some(answer.ok()?.ok()?.into_inner())
}

impl Api {
    /// Queries all other managers in `state` in parallel.
    pub(super) async fn manager_statuses(&self, state: &State) -> ManagerStatuses {
        let mut queries = JoinSet::new();
        for member in state.members().map(|member| member.member_id).filter(|id| *id != self.member_id) {
            let Some(client) = self.peers.control_client(member) else { continue };
            queries.spawn(async move { Some((member, query_status(client).await?)) });
        }
        let own = self.own_status();
        let mut replies = BTreeMap::from([(self.member_id, own)]);
        while let Some(answer) = queries.join_next().await {
            replies.extend(answer.ok().flatten());
        }
        let differences = state.members().map(|member| member.member_id);
        let differences = differences.filter_map(|id| Some((id, self.state_comparison.divergence(id)?)));
        ManagerStatuses { replies, divergent: differences.collect(), was_queried: true }
    }

    /// The status of this manager, with the leader's view of its peers.
    pub(crate) fn own_status(&self) -> v1::StatusResponse {
        let (published, why) = (self.store.read(), self.membership_wait.read());
        let PublishedState { state, index, role, write_stall, durability, .. } = &*published;
        let certificate = self.certificate.validity();
        let peer = |peer: &PeerProgress| {
            let PeerProgress { id, matched, active, silent: _ } = *peer;
            v1::PeerStatus { member_id: id, matched, active }
        };
        v1::StatusResponse {
            member_id: self.store.own_id(),
            term: role.term,
            leader: role.leader_id.unwrap_or(0),
            applied: *index,
            digest: state.digest().value,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            peers: self.store.peers().iter().map(peer).collect(),
            write_stall: write_stall.as_ref().map_or_else(String::new, |stall| stall.reason.to_string()),
            sessions: u32::try_from(self.registry.count()).unwrap_or(u32::MAX),
            wait_reason: why.map_or_else(String::new, |why| why.to_string()),
            wait_member_id: why.and_then(|why| why.member_id()).unwrap_or(0),
            later_incarnation: self.later_incarnation.read(),
            durability: durability::describe_problem(*durability).unwrap_or_default(),
            digests: self
                .store
                .digests()
                .iter()
                .map(|it| v1::StateDigest { index: it.index, value: it.value })
                .collect(),
            unlock_key_id: match self.key_files.is_complete() {
                true => self.key_files.unlock_key().map(|UnlockKeyId(id)| id),
                false => Some(0),
            },
            certificate_issued_at: Some(certificate.start.0),
            certificate_expires_at: Some(certificate.end.0),
        }
    }

    /// Names of the managers whose keys are not locked with this key: they have not applied the change yet, or do not
    /// answer.
    pub(crate) async fn managers_not_locked_with(&self, state: &State, key: UnlockKeyId) -> Vec<String> {
        let statuses = self.manager_statuses(state).await;
        let is_locked = |member: MemberId| statuses.unlock_key(member) == Some(Some(key));
        let others = state.members().filter(|member| !member.removing && !is_locked(member.member_id));
        others.map(|member| member.name.to_string()).collect()
    }

    /// When the certificate of that manager was issued, and when it ends, if it replies.
    pub(crate) async fn manager_certificate(&self, member: MemberId) -> Option<Range<Timestamp>> {
        let status = match member == self.member_id {
            true => self.own_status(),
            false => query_status(self.peers.control_client(member)?).await?,
        };
        Some(Timestamp(status.certificate_issued_at?)..Timestamp(status.certificate_expires_at?))
    }

    /// Starts the periodic comparison of the state digests of all managers.
    pub fn start_state_comparison(&self) {
        let api = self.clone();
        self.background_tasks.spawn("state-comparison", state_comparison::COMPARE_INTERVAL, move || {
            let api = api.clone();
            async move {
                let published = api.store.read();
                let members: BTreeSet<MemberId> =
                    published.state.members().map(|member| member.member_id).collect();
                if members.len() > 1 {
                    let statuses = api.manager_statuses(&published.state).await;
                    let leader = statuses.leader_status().map(|leader| leader.member_id);
                    api.state_comparison.record_digests(&statuses.digests(), leader, &members);
                } else {
                    api.state_comparison.record_digests(&BTreeMap::new(), None, &members);
                }
                Ok::<(), BoxError>(())
            }
        });
    }
}

impl ManagerStatuses {
    /// No manager was queried.
    pub fn not_queried() -> Self {
        Self::default()
    }

    /// The unlock key of the manager, if it replied.
    fn unlock_key(&self, member: MemberId) -> Option<Option<UnlockKeyId>> {
        self.replies.get(&member).map(|reply| reply.unlock_key_id.map(UnlockKeyId))
    }

    /// The newest term in the replies.
    pub fn latest_term(&self) -> u64 {
        self.replies.values().map(|status| status.term).max().unwrap_or(0)
    }

    /// Whether the manager replied.
    pub fn is_reachable(&self, member: MemberId) -> bool {
        self.replies.contains_key(&member)
    }

    /// Whether the leader hears from that manager; `None` if no leader replied.
    pub fn is_heard_by_leader(&self, member: MemberId) -> Option<bool> {
        let is_heard = |peer: &v1::PeerStatus| peer.member_id == member && peer.active;
        self.leader_status().map(|leader| leader.peers.iter().any(is_heard))
    }

    /// The leader with the newest term among the managers that report themselves as leader: its peer progress
    /// and its applied index.
    pub fn leader(&self) -> Option<(MemberId, Vec<PeerProgress>, u64)> {
        let status = self.leader_status()?;
        let peer = |peer: &v1::PeerStatus| {
            let v1::PeerStatus { member_id: id, matched, active } = *peer;
            PeerProgress { id, matched, active, silent: !active }
        };
        Some((status.member_id, status.peers.iter().map(peer).collect(), status.applied))
    }

    /// The reported state digests by manager.
    fn digests(&self) -> BTreeMap<MemberId, Vec<StateDigest>> {
        let digest = |it: &v1::StateDigest| StateDigest { index: it.index, value: it.value };
        let replies = self.replies.iter();
        replies.map(|(member, status)| (*member, status.digests.iter().map(digest).collect())).collect()
    }

    fn leader_status(&self) -> Option<&v1::StatusResponse> {
        let leads =
            self.replies.values().filter(|status| status.leader == status.member_id && status.member_id != 0);
        leads.max_by_key(|status| status.term)
    }

    /// The manager as users see it.
    pub fn show(&self, published: &PublishedState, member: &Member) -> v1::Manager {
        let PublishedState { state, members: group, .. } = published;
        let reply = self.replies.get(&member.member_id);
        let suffrage = current_suffrage(group, member.member_id);
        let status = match (self.was_queried, reply) {
            (false, _) => v1::ManagerStatus::Unspecified,
            (true, Some(_)) => v1::ManagerStatus::Ready,
            (true, None) => v1::ManagerStatus::Unreachable,
        };
        v1::Manager {
            id: member.manager_id.to_string(),
            member_id: member.member_id,
            name: member.name.to_string(),
            address: member.address.to_string(),
            version: member.version,
            created_at: member.created_at.0,
            desired_suffrage: v1::Suffrage::from(member.desired_suffrage).into(),
            suffrage: suffrage.map_or(v1::Suffrage::Unspecified, v1::Suffrage::from).into(),
            leader: self.leader_status().is_some_and(|leader| leader.member_id == member.member_id),
            status: status.into(),
            applied: reply.map_or(0, |reply| reply.applied),
            warren_version: reply.map(|reply| reply.version.clone()).unwrap_or_default(),
            reason: self.reason(state, member, suffrage),
            removing: member.removing,
            sessions: reply.map_or(0, |reply| reply.sessions),
            node: manager_node(state, member).map(|node| node.name.to_string()).unwrap_or_default(),
            autolock: self.autolock(state, member.member_id).to_owned(),
        }
    }

    fn autolock(&self, state: &State, member: MemberId) -> &'static str {
        match (state.unlock_key().map(|key| key.id), self.unlock_key(member)) {
            (_, None) => "",
            (None, Some(None)) => "off",
            (Some(wanted), Some(Some(found))) if wanted == found => "on",
            _ => "pending",
        }
    }

    /// Why the manager differs from its desired state, or what is wrong with it; empty if nothing is.
    fn reason(&self, state: &State, member: &Member, suffrage: Option<Suffrage>) -> String {
        let replacement = state.members().find(|other| other.replaces == Some(member.member_id));
        let (waits, waits_for) = match self.leader_status() {
            Some(leader) => (leader.wait_reason.as_str(), leader.wait_member_id),
            None => ("", 0),
        };
        let is_as_desired =
            suffrage == Some(member.desired_suffrage) && !member.removing && replacement.is_none();
        let mut reasons = Vec::new();
        if self.was_queried && !self.is_reachable(member.member_id) {
            reasons.push("no reply to the queried manager".to_owned());
        }
        if let Some(held) = self.replies.get(&member.member_id).map(|reply| reply.write_stall.as_str())
            && !held.is_empty()
        {
            reasons.push(format!("log cannot be written: {held}"));
        }
        let durability = self.replies.get(&member.member_id).map(|reply| &reply.durability);
        reasons.extend(durability.filter(|problem| !problem.is_empty()).cloned());
        if let Some(incarnation) = later_incarnation(self.replies.get(&member.member_id)) {
            reasons.push(format!(
                "superseded: incarnation {incarnation} of the cluster exists, this manager is in an \
                     earlier one"
            ));
        }
        if let Some(difference) = self.divergent.get(&member.member_id) {
            reasons.push(with_member_names(state, &difference.to_string()));
        }
        if member.removing {
            reasons.push("it is being removed".to_owned());
        }
        if let Some(replacement) = replacement {
            reasons.push(match replacement.name == member.name {
                true => format!("being replaced by member {} of the same name", replacement.member_id),
                false => format!("being replaced by manager {}", replacement.name),
            });
        }
        if !waits.is_empty() && (waits_for == member.member_id || waits_for == 0 && !is_as_desired) {
            reasons.push(with_member_names(state, waits));
        }
        reasons.join("; ")
    }
}

/// The latest incarnation of the cluster that was reported to the manager, if it is later than its own.
fn later_incarnation(reply: Option<&v1::StatusResponse>) -> Option<u64> {
    reply.map(|reply| reply.later_incarnation).filter(|incarnation| *incarnation > 0)
}

fn current_suffrage(group: &ConfState, member: MemberId) -> Option<Suffrage> {
    if group.voters.contains(&member) || group.voters_outgoing.contains(&member) {
        return Some(Suffrage::Voter);
    }
    let learns = group.learners.contains(&member) || group.learners_next.contains(&member);
    learns.then_some(Suffrage::Learner)
}

/// Replaces the raft member ids in a text by manager names.
pub(super) fn with_member_names(state: &State, text: &str) -> String {
    let mut words = Vec::new();
    let mut is_id = false;
    for word in text.split(' ') {
        let (digits, rest) = word.split_at(word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len()));
        let name = digits.parse().ok().filter(|_| is_id).and_then(|id| state.member(id));
        words.push(name.map_or_else(|| word.to_owned(), |member| format!("{}{rest}", member.name)));
        is_id = word == "manager";
    }
    words.join(" ")
}

#[cfg(test)]
mod tests;

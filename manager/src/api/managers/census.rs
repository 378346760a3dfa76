//! What managers say of themselves when they are asked, and what is shown of them to people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use warren_consensus::{ConfState, Peer};
use warren_control::BoxError;
use warren_core::{Digest, State};
use warren_proto::v1;
use warren_types::{Member, MemberId, Suffrage};

use crate::agreement::{self, Difference};
use crate::api::Api;
use crate::api::nodes::node_of;
use crate::peers::server::own_status;
use crate::store::Published;

/// Who does not answer within this is shown as unreachable.
const WORD: Duration = Duration::from_secs(1);

/// The word of every manager that answered.
#[derive(Debug, Default)]
pub(super) struct Census {
    told: BTreeMap<MemberId, v1::StatusResponse>,
    /// Whose state was found to be wrong.
    differ: BTreeMap<MemberId, Difference>,
    /// Whether anybody was asked.
    taken: bool,
}

impl Api {
    /// Asks every other manager in `state`, all at once.
    pub(super) async fn census(&self, state: &State) -> Census {
        let mut asked = JoinSet::new();
        for member in state.members().map(|member| member.member).filter(|id| *id != self.member) {
            let Some(mut client) = self.peers.control(member) else { continue };
            asked.spawn(async move {
                let answer = timeout(WORD, client.status(v1::StatusRequest {})).await;
                Some((member, answer.ok()?.ok()?.into_inner()))
            });
        }
        let own = own_status(&self.store, &self.registry, &self.waits, &self.peers);
        let mut told = BTreeMap::from([(self.member, own)]);
        while let Some(answer) = asked.join_next().await {
            told.extend(answer.ok().flatten());
        }
        let differences = state.members().map(|member| member.member);
        let differences = differences.filter_map(|id| Some((id, self.agreement.difference(id)?)));
        Census { told, differ: differences.collect(), taken: true }
    }

    /// Compares the states of all managers from now on, again and again.
    pub fn compare_states(&self) {
        let api = self.clone();
        self.loops.spawn("agreement", agreement::EVERY, move || {
            let api = api.clone();
            async move {
                let published = api.store.read();
                let members: BTreeSet<MemberId> =
                    published.state.members().map(|member| member.member).collect();
                if members.len() > 1 {
                    let census = api.census(&published.state).await;
                    let leader = census.leading().map(|leader| leader.member);
                    api.agreement.take(&census.digests(), leader, &members);
                } else {
                    api.agreement.take(&BTreeMap::new(), None, &members);
                }
                Ok::<(), BoxError>(())
            }
        });
    }
}

impl Census {
    /// Nobody was asked.
    pub fn of_nobody() -> Self {
        Self::default()
    }

    /// The newest term that anybody knows.
    pub fn term(&self) -> u64 {
        self.told.values().map(|status| status.term).max().unwrap_or(0)
    }

    /// Whether it said anything.
    pub fn answers(&self, member: MemberId) -> bool {
        self.told.contains_key(&member)
    }

    /// The leader, by the newest term in which somebody knows one, who is that leader itself: what it knows of the
    /// others, and how far it has applied.
    pub fn leader(&self) -> Option<(MemberId, Vec<Peer>, u64)> {
        let status = self.leading()?;
        let peer = |peer: &v1::PeerStatus| {
            let v1::PeerStatus { member: id, matched, active } = *peer;
            Peer { id, matched, active, silent: !active }
        };
        Some((status.member, status.peers.iter().map(peer).collect(), status.applied))
    }

    /// What the states of those who answered were after some entries.
    fn digests(&self) -> BTreeMap<MemberId, Vec<Digest>> {
        let digest = |it: &v1::StateDigest| Digest { index: it.index, value: it.value };
        let told = self.told.iter();
        told.map(|(member, status)| (*member, status.digests.iter().map(digest).collect())).collect()
    }

    fn leading(&self) -> Option<&v1::StatusResponse> {
        let leads = self.told.values().filter(|status| status.leader == status.member && status.member != 0);
        leads.max_by_key(|status| status.term)
    }

    /// A manager as people see it.
    pub fn show(&self, published: &Published, member: &Member) -> v1::Manager {
        let Published { state, members: group, .. } = published;
        let told = self.told.get(&member.member);
        let suffrage = suffrage_in(group, member.member);
        let status = match (self.taken, told) {
            (false, _) => v1::ManagerStatus::Unspecified,
            (true, Some(_)) => v1::ManagerStatus::Ready,
            (true, None) => v1::ManagerStatus::Unreachable,
        };
        v1::Manager {
            id: member.id.to_string(),
            member: member.member,
            name: member.name.to_string(),
            address: member.address.to_string(),
            version: member.version,
            created_at: member.created_at.0,
            wanted: v1::Suffrage::from(member.wanted).into(),
            suffrage: suffrage.map_or(v1::Suffrage::Unspecified, v1::Suffrage::from).into(),
            leader: self.leading().is_some_and(|leader| leader.member == member.member),
            status: status.into(),
            applied: told.map_or(0, |told| told.applied),
            warren_version: told.map(|told| told.version.clone()).unwrap_or_default(),
            reason: self.reason(state, member, suffrage),
            removing: member.removing,
            sessions: told.map_or(0, |told| told.sessions),
            node: node_of(state, member).map(|node| node.name.to_string()).unwrap_or_default(),
        }
    }

    /// Why it is not what it shall be, or what is wrong with it; empty for nothing.
    fn reason(&self, state: &State, member: &Member, suffrage: Option<Suffrage>) -> String {
        let replacement = state.members().find(|other| other.replaces == Some(member.member));
        let (waits, waits_for) = match self.leading() {
            Some(leader) => (leader.waits.as_str(), leader.waits_for),
            None => ("", 0),
        };
        let is_as_wanted = suffrage == Some(member.wanted) && !member.removing && replacement.is_none();
        let mut reasons = Vec::new();
        if self.taken && !self.answers(member.member) {
            reasons.push("it does not answer the manager that was asked".to_owned());
        }
        if let Some(held) = self.told.get(&member.member).map(|told| told.held.as_str())
            && !held.is_empty()
        {
            reasons.push(format!("its log cannot be written: {held}"));
        }
        let durability = self.told.get(&member.member).map(|told| &told.durability);
        reasons.extend(durability.filter(|problem| !problem.is_empty()).cloned());
        if let Some(life) = told_life(self.told.get(&member.member)) {
            reasons
                .push(format!("somebody has seen life {life} of the cluster, and it is in an earlier one"));
        }
        if let Some(difference) = self.differ.get(&member.member) {
            reasons.push(named(state, &difference.to_string()));
        }
        if member.removing {
            reasons.push("it is being removed".to_owned());
        }
        if let Some(replacement) = replacement {
            reasons.push(match replacement.name == member.name {
                true => format!("member {}, of the same name, takes its place", replacement.member),
                false => format!("manager {} takes its place", replacement.name),
            });
        }
        if !waits.is_empty() && (waits_for == member.member || waits_for == 0 && !is_as_wanted) {
            reasons.push(named(state, waits));
        }
        reasons.join("; ")
    }
}

/// A later life of the cluster that a manager was told of.
fn told_life(told: Option<&v1::StatusResponse>) -> Option<u64> {
    told.map(|told| told.later_life).filter(|life| *life > 0)
}

fn suffrage_in(group: &ConfState, member: MemberId) -> Option<Suffrage> {
    if group.voters.contains(&member) || group.voters_outgoing.contains(&member) {
        return Some(Suffrage::Voter);
    }
    let learns = group.learners.contains(&member) || group.learners_next.contains(&member);
    learns.then_some(Suffrage::Learner)
}

/// A text about members, which calls them by their ids in the group, with the names that people know.
pub(super) fn named(state: &State, text: &str) -> String {
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

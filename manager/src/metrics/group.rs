//! The raft group as this manager knows it, and how far its members are as the leader knows it.

use std::fmt;

use warren_consensus::{ConfState, Peer};
use warren_telemetry::{DescriptorEncoder, Kind, write_series};
use warren_types::MemberId;

use super::flag;
use crate::agreement::Agreement;
use crate::store::Published;

/// Series of the members, by their ids in the group.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    published: &Published,
    peers: &[Peer],
    agreement: &Agreement,
) -> fmt::Result {
    let ConfState { voters, learners, voters_outgoing, .. } = &*published.members;
    let mut ids: Vec<MemberId> = [voters, learners, voters_outgoing].into_iter().flatten().copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let leads = |id: &MemberId| flag(published.role.leader_id == Some(*id));
    let help = "1 for the member that leads, as far as this manager knows, else 0.";
    let series = ids.iter().map(|id| (label(*id), leads(id)));
    write_series(encoder, Kind::Gauge, ("warren_raft_leader", help), series)?;
    let counts = [("voter", voters.len()), ("learner", learners.len())];
    let series = counts.map(|(suffrage, count)| (vec![("suffrage", suffrage.to_owned())], count as f64));
    write_series(encoder, Kind::Gauge, ("warren_raft_members", "Members of the group."), series)?;
    let compared = agreement.all();
    if !compared.is_empty() {
        let help =
            "1 for the member whose state is not that of the others, as far as this manager knows, else 0.";
        let series = compared.iter().map(|(id, differs)| (label(*id), flag(*differs)));
        write_series(encoder, Kind::Gauge, ("warren_raft_state_differs", help), series)?;
    }
    if peers.is_empty() {
        return Ok(());
    }
    let help = "On the leader: entries that the member lacks of those that the leader has applied.";
    let lag = |peer: &Peer| published.index.saturating_sub(peer.matched) as f64;
    let series = peers.iter().map(|peer| (label(peer.id), lag(peer)));
    write_series(encoder, Kind::Gauge, ("warren_raft_lag", help), series)?;
    let help = "On the leader: 1 if the member answered lately, else 0.";
    let series = peers.iter().map(|peer| (label(peer.id), flag(peer.active)));
    write_series(encoder, Kind::Gauge, ("warren_raft_active", help), series)
}

fn label(member: MemberId) -> Vec<(&'static str, String)> {
    vec![("member", member.to_string())]
}

//! The raft group in the state of this manager, and the replication progress in that of the leader.

use std::fmt;

use warren_consensus::{ConfState, PeerProgress};
use warren_store::PublishedState;
use warren_store::state_comparison::StateComparison;
use warren_telemetry::{DescriptorEncoder, MetricKind, write_series};
use warren_types::MemberId;

use super::bool_value;

/// Time series by member id.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    published: &PublishedState,
    peers: &[PeerProgress],
    state_comparison: &StateComparison,
) -> fmt::Result {
    let ConfState { voters, learners, voters_outgoing, .. } = &*published.members;
    let mut ids: Vec<MemberId> = [voters, learners, voters_outgoing].into_iter().flatten().copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let leads = |id: &MemberId| bool_value(published.role.leader_id == Some(*id));
    let help = "1 for the leader known to this manager, else 0.";
    let series = ids.iter().map(|id| (member_label(*id), leads(id)));
    write_series(encoder, MetricKind::Gauge, ("warren_raft_is_leader", help), series)?;
    let counts = [("voter", voters.len()), ("learner", learners.len())];
    let series = counts.map(|(suffrage, count)| (vec![("suffrage", suffrage.to_owned())], count as f64));
    write_series(encoder, MetricKind::Gauge, ("warren_raft_members", "Raft members by suffrage."), series)?;
    let compared = state_comparison.results();
    if !compared.is_empty() {
        let help = "1 for a member whose state digest differs from the others, else 0.";
        let series = compared.iter().map(|(id, differs)| (member_label(*id), bool_value(*differs)));
        write_series(encoder, MetricKind::Gauge, ("warren_raft_state_diverged", help), series)?;
    }
    if peers.is_empty() {
        return Ok(());
    }
    let help = "On the leader: applied entries that the member does not have yet.";
    let lag = |peer: &PeerProgress| published.index.saturating_sub(peer.matched) as f64;
    let series = peers.iter().map(|peer| (member_label(peer.id), lag(peer)));
    write_series(encoder, MetricKind::Gauge, ("warren_raft_peer_lag_entries", help), series)?;
    let help = "On the leader: 1 if the peer was active recently, else 0.";
    let series = peers.iter().map(|peer| (member_label(peer.id), bool_value(peer.active)));
    write_series(encoder, MetricKind::Gauge, ("warren_raft_peer_active", help), series)
}

fn member_label(member: MemberId) -> Vec<(&'static str, String)> {
    vec![("member_id", member.to_string())]
}

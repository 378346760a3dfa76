//! Commands on the cluster as a whole.

use std::sync::Arc;

use ipnet::Ipv4Net;
use warren_types::ClusterId;

use super::Entry;
use crate::state::{Answer, Change, Cluster, Refusal, State, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut Entry,
    id: ClusterId,
    ranges: &[Ipv4Net],
    level: u32,
) -> Result<Answer, Refusal> {
    match &state.cluster {
        Some(cluster) if cluster.id == id => return Ok(Answer::Done),
        Some(cluster) => return Err(Refusal::OtherCluster { wanted: id, found: cluster.id }),
        None => {}
    }
    let cluster = Cluster::new(id, ranges.to_vec(), entry.now);
    let cluster = cluster.validate().into_result(cluster).map_err(Refusal::Invalid)?;
    state.sum.add(digest::cluster(&cluster));
    state.cluster = Some(Arc::new(cluster));
    state.level = level;
    entry.changes.push(Change::Cluster);
    Ok(Answer::Done)
}

/// A member that does not support the level has stopped before it came here, so what this program supports is
/// not asked for: the answer must be the same on every member. A manager that joined after the level was planned
/// may not support it; then it stays.
pub(super) fn raise_level(state: &mut State, entry: &mut Entry, level: u32) -> Answer {
    if level > state.level && state.members().all(|member| member.level >= level) {
        state.level = level;
        entry.changes.push(Change::Cluster);
    }
    Answer::Done
}

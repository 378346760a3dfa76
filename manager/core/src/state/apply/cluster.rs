//! Commands on the cluster as a whole.

use std::sync::Arc;

use ipnet::Ipv4Net;
use warren_types::ClusterId;

use super::Entry;
use crate::state::{Answer, Change, Cluster, Refusal, State};

pub(super) fn create(
    state: &mut State,
    entry: &mut Entry,
    id: ClusterId,
    ranges: &[Ipv4Net],
) -> Result<Answer, Refusal> {
    match &state.cluster {
        Some(cluster) if cluster.id == id => return Ok(Answer::Done),
        Some(cluster) => return Err(Refusal::OtherCluster { wanted: id, found: cluster.id }),
        None => {}
    }
    let cluster = Cluster::new(id, ranges.to_vec(), entry.now);
    let cluster = cluster.validate().into_result(cluster).map_err(Refusal::Invalid)?;
    state.cluster = Some(Arc::new(cluster));
    entry.changes.push(Change::Cluster);
    Ok(Answer::Done)
}

//! Commands on the cluster as a whole.

use std::sync::Arc;

use ipnet::Ipv4Net;
use warren_types::{ClusterId, ClusterSettingsChange, Violations};

use super::{ApplyContext, network, verification};
use crate::state::{Cluster, CommandResponse, ObjectKind, Refusal, State, StateChange, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ClusterId,
    ranges: &[Ipv4Net],
    level: u32,
) -> Result<CommandResponse, Refusal> {
    match &state.cluster {
        Some(cluster) if cluster.id == id => return Ok(CommandResponse::Done),
        Some(cluster) => return Err(Refusal::ClusterMismatch { wanted: id, found: cluster.id }),
        None => {}
    }
    let cluster = Cluster::new(id, ranges.to_vec(), entry.now);
    let cluster = cluster.validate().into_result(cluster).map_err(Refusal::Invalid)?;
    state.digest_sum.add(digest::cluster(&cluster));
    state.cluster = Some(Arc::new(cluster));
    state.feature_level = level;
    network::create_default(state, entry, id.0);
    entry.changes.push(StateChange::Cluster);
    Ok(CommandResponse::Done)
}

pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    version: Option<u64>,
    change: &ClusterSettingsChange,
) -> Result<CommandResponse, Refusal> {
    let known = state.cluster.as_ref().ok_or(Refusal::NoCluster)?;
    let settings = known.settings.changed(change).map_err(|wrong| {
        let mut violations = Violations::default();
        violations.nest("settings", wrong);
        Refusal::Invalid(violations)
    })?;
    let mut changed = Cluster { version: entry.index, settings, ..(**known).clone() };
    let new = change.range_add.iter().filter(|range| !known.ranges.contains(range));
    changed.ranges.extend(new);
    changed.validate().into_result(()).map_err(Refusal::Invalid)?;
    if changed.settings == known.settings && changed.ranges == known.ranges {
        return Ok(CommandResponse::Cluster(known.clone()));
    }
    if let Some(expected) = version.filter(|version| *version != known.version) {
        let (kind, name, found) = (ObjectKind::Cluster, known.id.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind, name, expected, found });
    }
    state.digest_sum.remove(digest::cluster(known));
    state.digest_sum.add(digest::cluster(&changed));
    let changed = Arc::new(changed);
    state.cluster = Some(changed.clone());
    entry.changes.push(StateChange::Cluster);
    verification::follow_settings(state, entry);
    Ok(CommandResponse::Cluster(changed))
}

/// A member that does not support the feature level has stopped before this entry, so the level of this
/// program is not checked: the result must be the same on every member. A manager that joined after the level
/// was planned may not support it; then it is not raised.
pub(super) fn raise_feature_level(
    state: &mut State,
    entry: &mut ApplyContext,
    level: u32,
) -> CommandResponse {
    if level > state.feature_level && state.members().all(|member| member.level >= level) {
        state.feature_level = level;
        entry.changes.push(StateChange::Cluster);
    }
    CommandResponse::Done
}

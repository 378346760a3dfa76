//! Commands that replace the certificate authority.

use std::sync::Arc;

use warren_types::{
    CaDigest, CaHolder, CaPhase, CaRotation, MAX_PREDECESSORS, PublicKeyHash, SealedData, Violation,
};

use super::ApplyContext;
use crate::state::{CaCommand, Cluster, CommandResponse, Refusal, State, StateChange, digest};

pub(super) fn execute(
    state: &mut State,
    entry: &mut ApplyContext,
    command: &CaCommand,
) -> Result<CommandResponse, Refusal> {
    match command {
        CaCommand::Begin { digest, sealed, current, certificate, at: _ } => {
            begin(state, entry, (*digest, sealed), (*current, certificate))
        }
        CaCommand::Advance { term: _, digest, phase, at: _ } => advance(state, entry, *digest, *phase),
        CaCommand::RecordRenewal { digest, holder, at: _ } => Ok(record(state, entry, *digest, *holder)),
    }
}

fn begin(
    state: &mut State,
    entry: &mut ApplyContext,
    (digest, sealed): (CaDigest, &SealedData),
    (current, certificate): (CaDigest, &str),
) -> Result<CommandResponse, Refusal> {
    let cluster = state.cluster.clone().ok_or(Refusal::NoCluster)?;
    let known = cluster.ca_rotation.as_deref();
    if known.is_some_and(|known| known.digest == digest) {
        return Ok(CommandResponse::Cluster(cluster));
    }
    let refused = |why: &str| Err(Refusal::Invalid(Violation::new("caDigest", why).into()));
    if known.is_some_and(|known| known.phase != CaPhase::Complete) {
        return refused("the CA is being replaced already; see `warren cluster ca status`");
    }
    if digest == current || known.is_some_and(|known| known.digest != current) {
        return refused("is not that of the cluster's CA any more; see `warren cluster ca status`");
    }
    state.check_sealed(sealed)?;
    let earlier = known.map(|known| known.predecessors.as_slice()).unwrap_or_default();
    let predecessors =
        [certificate].into_iter().chain(earlier.iter().map(String::as_str)).take(MAX_PREDECESSORS);
    let rotation = CaRotation {
        digest,
        sealed: sealed.clone(),
        predecessors: predecessors.map(str::to_owned).collect(),
        phase: CaPhase::Managers,
        began_at: entry.now,
        managers: Default::default(),
        nodes: Default::default(),
        keys: Default::default(),
    };
    entry.changes.push(StateChange::Cluster);
    Ok(CommandResponse::Cluster(store(state, &cluster, rotation)))
}

/// A plan that was made from another state is repeated with the newer one.
fn advance(
    state: &mut State,
    entry: &mut ApplyContext,
    digest: CaDigest,
    phase: CaPhase,
) -> Result<CommandResponse, Refusal> {
    let cluster = state.cluster.clone().ok_or(Refusal::NoCluster)?;
    let Some(known) = cluster.ca_rotation.clone().filter(|known| known.digest == digest) else {
        return Ok(CommandResponse::Cluster(cluster));
    };
    if state.next_ca_phase() != Some(phase) {
        return Ok(CommandResponse::Cluster(cluster));
    }
    let mut rotation = CaRotation { phase, ..CaRotation::clone(&known) };
    if phase == CaPhase::Nodes {
        rotation.nodes = state.nodes.keys().copied().collect();
        rotation.keys = listed_keys(state).collect();
    } else {
        rotation.managers.clear();
    }
    entry.changes.push(StateChange::Cluster);
    Ok(CommandResponse::Cluster(store(state, &cluster, rotation)))
}

fn record(
    state: &mut State,
    entry: &mut ApplyContext,
    digest: CaDigest,
    holder: CaHolder,
) -> CommandResponse {
    let Some(cluster) = state.cluster.clone() else { return CommandResponse::Done };
    let Some(known) = cluster.ca_rotation.clone().filter(|known| known.digest == digest) else {
        return CommandResponse::Done;
    };
    let mut rotation = CaRotation::clone(&known);
    let is_changed = match holder {
        CaHolder::Manager(member) => {
            rotation.phase == CaPhase::Managers
                && state.members.contains_key(&member)
                && rotation.managers.insert(member)
        }
        CaHolder::Node(node) => rotation.nodes.remove(&node),
        CaHolder::User(key) => rotation.keys.remove(&key),
    };
    if is_changed {
        store(state, &cluster, rotation);
        entry.changes.push(StateChange::CaRenewals);
    }
    CommandResponse::Done
}

/// The keys of users and of the administrators of managers' machines.
fn listed_keys(state: &State) -> impl Iterator<Item = PublicKeyHash> {
    let users = state.users.values().flat_map(|user| user.keys.keys().copied());
    users.chain(state.members.values().filter_map(|member| member.administrator_key))
}

fn store(state: &mut State, known: &Cluster, rotation: CaRotation) -> Arc<Cluster> {
    let changed = Arc::new(Cluster { ca_rotation: Some(Arc::new(rotation)), ..known.clone() });
    state.digest_sum.remove(digest::cluster(known));
    state.digest_sum.add(digest::cluster(&changed));
    state.cluster = Some(changed.clone());
    changed
}

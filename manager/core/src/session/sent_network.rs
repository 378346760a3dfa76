//! What a session has sent to its node about the cluster's network, and what the node has acknowledged.

use warren_types::{AssignmentVersion, NetworkId, NodeId};

use super::network_history::{NetworkHistory, NetworkUpdateParts};
use crate::state::State;

/// The state of one session.
#[derive(Debug, Clone, Default)]
pub struct SentNetwork {
    /// `None` until the first update of this session.
    sent: Option<SentUpdate>,
    /// The state up to which the node has forgotten what was withdrawn.
    acknowledged: u64,
}

#[derive(Debug, Clone)]
struct SentUpdate {
    /// The version of the last update.
    version: AssignmentVersion,
    /// With that update the node has everything up to this index.
    reached: u64,
    is_acknowledged: bool,
    networks: Box<[NetworkId]>,
    /// The version that the node had from another session, if that is the base of everything sent since. What it has
    /// may be newer than that.
    first_base: Option<AssignmentVersion>,
}

impl SentNetwork {
    /// A session of a node that has a view of `version` with these networks, from an earlier session.
    pub fn new(history: &NetworkHistory, version: AssignmentVersion, networks: &[NetworkId]) -> Self {
        let is_base = history.covers(version) && !history.has_missed(version);
        let sent = is_base.then(|| SentUpdate {
            version,
            reached: version.index,
            is_acknowledged: false,
            networks: networks.into(),
            first_base: Some(version),
        });
        Self { sent, acknowledged: 0 }
    }

    /// The node has the `version`; zero if it needs everything. Whether that is the one that was sent last.
    pub fn acknowledge(&mut self, version: AssignmentVersion) -> bool {
        let Some(sent) = self.sent.as_mut().filter(|sent| sent.version == version) else { return false };
        sent.is_acknowledged = true;
        self.acknowledged = self.acknowledged.max(sent.reached);
        true
    }

    /// The node has another version than the one that was sent: everything is sent again.
    pub fn reset(&mut self) {
        self.sent = None;
    }

    /// The index of the state up to which the node has forgotten what was withdrawn.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The next update of the node; `None` if it has everything. `state` is not older than the history.
    pub fn next_update(
        &mut self,
        history: &NetworkHistory,
        state: &State,
        node: &NodeId,
    ) -> Option<NetworkUpdateParts> {
        let mut networks = state.node_networks(node);
        networks.retain(|id| history.has_network(*id));
        let version = history.version();
        // A node without tasks in networks needs no peers either: an idle node is told nothing.
        let is_idle = networks.is_empty();
        let covered = self.sent.as_ref().filter(|sent| {
            let reached = AssignmentVersion { index: sent.reached, ..sent.version };
            history.covers(reached)
                && (!is_idle || sent.networks.is_empty())
                && !sent.first_base.is_some_and(|first| history.has_missed(first))
        });
        let first_base = covered.and_then(|sent| sent.first_base);
        let parts = match covered {
            None => NetworkUpdateParts {
                base: None,
                version,
                peers: (!is_idle).then_some(None),
                catalogues: networks.iter().map(|id| (*id, None)).collect(),
                removed: Vec::new(),
            },
            Some(SentUpdate { version: base, reached, networks: had, .. }) => {
                let catalogue = |id: &NetworkId| match had.contains(id) {
                    true => Some((*id, history.catalogue_part(*id, *reached)?)),
                    false => Some((*id, None)),
                };
                NetworkUpdateParts {
                    base: Some(*base),
                    version,
                    peers: match had.is_empty() {
                        _ if is_idle => None,
                        true => Some(None),
                        false => history.peers_part(*reached),
                    },
                    catalogues: networks.iter().filter_map(catalogue).collect(),
                    removed: had.iter().filter(|id| !networks.contains(id)).copied().collect(),
                }
            }
        };
        let is_empty = parts.base.is_some()
            && parts.peers.is_none()
            && parts.catalogues.is_empty()
            && parts.removed.is_empty();
        if is_empty {
            let sent = self.sent.as_mut()?;
            sent.reached = version.index;
            if sent.is_acknowledged {
                self.acknowledged = self.acknowledged.max(sent.reached);
            }
            return None;
        }
        self.sent = Some(SentUpdate {
            version,
            reached: version.index,
            is_acknowledged: false,
            networks: networks.into_iter().collect(),
            first_base,
        });
        Some(parts)
    }
}

//! Clusters with small address ranges, where addresses are used again within one history.

use std::sync::Arc;

use ipnet::Ipv4Net;
use warren_core::{Command, FEATURE_LEVEL, State};
use warren_log::{ConfState, HardState, LogStore, MemoryDisk, SnapshotMeta, WriteBatch};
use warren_types::{ClusterId, Id, Timestamp};

use super::SimManager;
use super::joining::FOUNDERS;

/// The range, and the prefix length of a node's subnet in it: 14 subnets of 5 task addresses, and 14 virtual addresses.
const SMALL_RANGE: (&str, u8) = ("10.210.0.0/25", 29);

/// The state that such a cluster begins with. No command can set the prefix length.
pub fn with_small_ranges(at: Timestamp) -> State {
    let (range, prefix) = SMALL_RANGE;
    let range: Ipv4Net = range.parse().expect("a valid range");
    let ranges = vec![range.supernet().expect("a /24")];
    let create = Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at };
    let mut state = State::new();
    state.apply(1, 1, &create);
    let mut parts = state.export();
    let cluster = Arc::make_mut(parts.cluster.as_mut().expect("it was created"));
    (cluster.ranges, cluster.node_prefix) = (vec![range], prefix);
    parts.digest = None;
    State::restore(parts).expect("it is complete")
}

impl SimManager {
    /// The first manager starts with this state as its snapshot.
    pub fn found_with(&mut self, state: &State) {
        let (index, term) = (state.applied().index, state.applied().term);
        let snapshot = SnapshotMeta { index, term, conf_state: ConfState::of_voters(FOUNDERS) };
        let hard_state = HardState { term, vote: 0, commit: index };
        let batch =
            WriteBatch { snapshot: Some(snapshot), hard_state: Some(hard_state), ..WriteBatch::default() };
        self.disk = MemoryDisk::new();
        self.disk.open().append(&batch).expect("no crash is scheduled before the first start");
        self.files = [(index, Arc::new(state.export()))].into();
    }
}

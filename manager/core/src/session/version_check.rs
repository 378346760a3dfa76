//! Compares what a node has seen of the cluster with what a state contains.

use warren_types::{AssignmentVersion, NodeId};

use crate::state::State;

/// Whether `state`, which does not contain the node, is certain that the node was removed.
///
/// The removal must be recorded, and the node must not have been a member after it: a state that was restored
/// from between the removal and a later join contains the removal as well. So the version that the node has
/// seen must be of this incarnation or an earlier one, and before the removal. A node without a version is
/// unknown, not removed.
pub fn was_removed(state: &State, node: &NodeId, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    let seen_before = |removal: u64| (1..=incarnation).contains(&has.incarnation) && has.index < removal;
    state.node_removed_at(node).is_some_and(seen_before)
}

/// Whether `session`, which `state` contained once, is still the session of the node. It is not if a newer one was
/// opened, or if the node was removed, also if it joined again since.
pub fn is_newest(state: &State, node: &NodeId, session: u64) -> bool {
    state.node(node).is_some_and(|node| node.session == session)
}

/// Whether `state` contains everything that a node with this version has seen.
pub fn contains_version(state: &State, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    AssignmentVersion { incarnation, index: state.applied().index } >= has
}

#[cfg(test)]
mod tests {
    use warren_types::{ClusterId, Id, NodeDescription, NodeRole, Timestamp};

    use super::*;
    use crate::{Command, FEATURE_LEVEL};

    const AT: Timestamp = Timestamp(1);

    /// A node joined at index 2 and was removed at index 3; something else happened at 4.
    fn state() -> State {
        let mut state = State::new();
        let (id, ranges) = (NodeId(Id(7)), vec!["10.0.0.0/8".parse().unwrap()]);
        let register = |id, name: &str| Command::RegisterNode {
            id,
            name: name.parse().unwrap(),
            role: NodeRole::Worker,
            description: NodeDescription::default(),
            taints: Default::default(),
            at: AT,
        };
        let commands = [
            Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: FEATURE_LEVEL, at: AT },
            register(id, "n7"),
            Command::RemoveNode { id, force: true, at: AT },
            register(NodeId(Id(8)), "n8"),
        ];
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        state
    }

    #[test]
    fn node_seen_after_removal_is_not_removed() {
        let (state, node) = (state(), NodeId(Id(7)));
        let incarnation = state.cluster().unwrap().incarnation;
        let seen = |incarnation, index| AssignmentVersion { incarnation, index };
        for (node, has, expected) in [
            (node, seen(incarnation, 2), true),
            (node, seen(incarnation, 3), false),
            (node, seen(incarnation, 4), false),
            (node, seen(incarnation + 1, 2), false),
            (node, seen(0, 2), false),
            (node, AssignmentVersion::default(), false),
            (NodeId(Id(9)), seen(incarnation, 2), false),
        ] {
            assert_eq!(was_removed(&state, &node, has), expected, "{node} {has:?}");
        }
    }

    #[test]
    fn state_contains_versions_up_to_its_index() {
        let state = state();
        let incarnation = state.cluster().unwrap().incarnation;
        for (incarnation, index, expected) in [
            (0, 0, true),
            (incarnation, 4, true),
            (incarnation, 5, false),
            (incarnation - 1, 99, true),
            (incarnation + 1, 1, false),
        ] {
            assert_eq!(contains_version(&state, AssignmentVersion { incarnation, index }), expected);
        }
        assert!(!contains_version(&State::new(), AssignmentVersion { incarnation: 1, index: 1 }));
    }
}

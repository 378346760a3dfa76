//! What a node has seen of the cluster, against what a state contains.

use warren_types::{AssignmentVersion, NodeId};

use crate::state::State;

/// Whether `state`, in which the node is not, knows for sure that the node was removed.
///
/// It must have written that down, and the node must not have been there after it: a state that was restored from
/// between the removal and a later joining knows of the removal as well. So what the node has seen must be of this
/// life of the cluster, or of an earlier one, and lie before the removal. One that says nothing of what it has seen is
/// unknown, and not removed.
pub fn was_removed(state: &State, node: &NodeId, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    let seen_before = |removal: u64| (1..=incarnation).contains(&has.incarnation) && has.index < removal;
    state.removed_at(node).is_some_and(seen_before)
}

/// Whether `state` contains everything that a node with this version has seen.
pub fn contains(state: &State, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    AssignmentVersion { incarnation, index: state.applied().index } >= has
}

#[cfg(test)]
mod tests {
    use warren_types::{ClusterId, Id, NodeDescription, NodeRole, Timestamp};

    use super::*;
    use crate::{Command, LEVEL};

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
            at: AT,
        };
        let commands = [
            Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at: AT },
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
    fn only_who_saw_nothing_after_its_removal_was_removed() {
        let (state, node) = (state(), NodeId(Id(7)));
        let life = state.cluster().unwrap().incarnation;
        let seen = |incarnation, index| AssignmentVersion { incarnation, index };
        for (node, has, wanted) in [
            (node, seen(life, 2), true),
            (node, seen(life, 3), false),
            (node, seen(life, 4), false),
            (node, seen(life + 1, 2), false),
            (node, seen(0, 2), false),
            (node, AssignmentVersion::default(), false),
            (NodeId(Id(9)), seen(life, 2), false),
        ] {
            assert_eq!(was_removed(&state, &node, has), wanted, "{node} {has:?}");
        }
    }

    #[test]
    fn a_state_contains_what_was_seen_up_to_its_index_and_of_earlier_lives() {
        let state = state();
        let life = state.cluster().unwrap().incarnation;
        for (incarnation, index, wanted) in
            [(0, 0, true), (life, 4, true), (life, 5, false), (life - 1, 99, true), (life + 1, 1, false)]
        {
            assert_eq!(contains(&state, AssignmentVersion { incarnation, index }), wanted);
        }
        assert!(!contains(&State::new(), AssignmentVersion { incarnation: 1, index: 1 }));
    }
}

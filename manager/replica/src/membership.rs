//! Changes the raft membership stepwise to the desired one. [`next_action`] decides the next step.

use std::sync::Arc;
use std::time::Duration;

use warren_consensus::{ConfState, DesiredMember, MembershipAction, PeerProgress, next_action};
use warren_core::{Command, FEATURE_LEVEL, State};
use warren_types::{ManagerAddress, ManagerId, Member, MemberId, NodeName, Suffrage, Timestamp};

/// Check interval: replication progress causes no wake-up.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a step before its effect is checked.
const NEXT_STEP_DELAY: Duration = Duration::from_millis(50);

/// What a leader does next about the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipPlan {
    /// The next step.
    pub action: MembershipAction,
    /// Members that left: only their records are left, to be deleted.
    pub departed: Vec<MemberId>,
}

/// The next step of the leader `own`, from its state and the raft members `group`.
pub fn plan_members(
    state: &State,
    group: &ConfState,
    own: MemberId,
    peers: &[PeerProgress],
) -> MembershipPlan {
    let action = next_action(&desired_members(state), group, own, peers, state.applied().index);
    MembershipPlan { action, departed: departed_members(state, group) }
}

/// When to plan again, after a change was made or not.
pub fn recheck_members_after(is_changed: bool) -> Duration {
    if is_changed { NEXT_STEP_DELAY } else { CHECK_INTERVAL }
}

/// The command that registers a manager, unless the state contains it like this.
pub fn registration(
    state: &State,
    member: MemberId,
    id: ManagerId,
    name: &NodeName,
    address: &ManagerAddress,
    at: Timestamp,
) -> Option<Command> {
    let is_same = |known: &Arc<Member>| {
        (known.manager_id, &known.name, &known.address, known.level) == (id, name, address, FEATURE_LEVEL)
    };
    let (name, address) = (name.clone(), address.clone());
    let register = Command::RegisterMember { member, id, name, address, level: FEATURE_LEVEL, at };
    (!state.member(member).is_some_and(is_same)).then_some(register)
}

/// The desired members, as input of [`next_action`].
pub fn desired_members(state: &State) -> Vec<DesiredMember> {
    let desired = |member: &Arc<Member>| DesiredMember {
        id: member.member_id,
        is_voter: member.desired_suffrage == Suffrage::Voter,
        replaces: member.replaces,
        removing: member.removing,
    };
    state.members().map(desired).collect()
}

/// Members to be removed that are in no part of the configuration any more: only their record is left.
fn departed_members(state: &State, group: &ConfState) -> Vec<MemberId> {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave: _ } = group;
    let parts = [voters, learners, voters_outgoing, learners_next];
    let is_in = |id: MemberId| parts.iter().any(|ids| ids.contains(&id));
    let replaced = |id| state.members().any(|member| member.replaces == Some(id));
    let gone = state.members().filter(|member| member.removing || replaced(member.member_id));
    gone.map(|member| member.member_id).filter(|id| !is_in(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{ClusterId, Id, TokenHash, TokenId};

    const AT: Timestamp = Timestamp(1);

    fn state(commands: Vec<Command>) -> State {
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            let outcome = state.apply(1, index, command);
            assert!(!matches!(outcome, warren_core::ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
        }
        state
    }

    /// Three managers: 1 created the cluster, 2 is being removed, 4 replaces 3.
    fn managers() -> State {
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let hash = TokenHash([7; 32]);
        let address = |number: u8| format!("10.0.0.{number}:8080").parse().unwrap();
        let join = |id, number: u8| Command::JoinManager {
            hash,
            id: ManagerId(Id(id)),
            name: format!("m{number}").parse().unwrap(),
            address: address(number),
            level: FEATURE_LEVEL,
            at: AT,
        };
        state(vec![
            Command::CreateCluster { id, ranges, feature_level: FEATURE_LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: address(1),
                level: FEATURE_LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: warren_types::NodeRole::Manager,
                hash,
                expires_at: None,
                max_uses: None,
                labels: Default::default(),
                at: AT,
            },
            join(12, 2),
            join(13, 3),
            join(14, 3),
            Command::RemoveMember { member: 2, at: AT },
        ])
    }

    #[test]
    fn desired_members_match_state() {
        let request = |id, replaces, removing| DesiredMember { id, is_voter: true, replaces, removing };
        let expected = [
            request(1, None, false),
            request(2, None, true),
            request(3, None, false),
            request(4, Some(3), false),
        ];
        assert_eq!(desired_members(&managers()), expected);
    }

    #[test]
    fn only_departed_member_record_is_removed() {
        let state = managers();
        let group = |voters: &[u64], learners: &[u64], outgoing: &[u64]| ConfState {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            ..ConfState::default()
        };
        for (group, expected) in [
            (group(&[1, 2, 3], &[4], &[]), vec![]),
            (group(&[1, 3, 4], &[], &[]), vec![2]),
            (group(&[1, 4], &[2], &[]), vec![3]),
            (group(&[1, 4], &[], &[1, 2, 3]), vec![]),
            (group(&[1], &[], &[]), vec![2, 3]),
        ] {
            assert_eq!(departed_members(&state, &group), expected, "{group:?}");
        }
    }
}

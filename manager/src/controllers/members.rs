//! Who is in the raft group: one step after the other from what it is to what people want. Which step comes next is
//! decided by [`next_change`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warren_consensus::{ConfState, Next, Why, Wish, next_change};
use warren_control::Outcome;
use warren_core::{Command, State};
use warren_types::{MemberId, Suffrage};

use super::planner::Planner;
use crate::store::{ChangeError, Published, TransferError};

/// The members are looked at this often: who answers and who has caught up wakes nobody.
const LOOK: Duration = Duration::from_secs(1);
/// After a step the next one is looked for as soon as this one can be seen.
const SOON: Duration = Duration::from_millis(50);

/// What the next change of members waits for, as the leader last said. Not replicated: a new leader finds out itself.
/// Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Waits(Arc<Mutex<Option<Why>>>);

impl Waits {
    /// Nothing, unless this manager leads and waits for something.
    pub fn read(&self) -> Option<Why> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what was said before.
    pub fn replace(&self, why: Option<Why>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// What people want, as the guide reads it.
pub fn wishes(state: &State) -> Vec<Wish> {
    let wish = |member: &Arc<warren_types::Member>| Wish {
        id: member.member,
        votes: member.wanted == Suffrage::Voter,
        replaces: member.replaces,
        removing: member.removing,
    };
    state.members().map(wish).collect()
}

/// Managers that are to go and are in no part of the group any more: nothing but their record is left.
fn left(state: &State, group: &ConfState) -> Vec<MemberId> {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave: _ } = group;
    let parts = [voters, learners, voters_outgoing, learners_next];
    let is_in = |id: MemberId| parts.iter().any(|ids| ids.contains(&id));
    let replaced = |id| state.members().any(|member| member.replaces == Some(id));
    let gone = state.members().filter(|member| member.removing || replaced(member.member));
    gone.map(|member| member.member).filter(|id| !is_in(*id)).collect()
}

impl Planner {
    /// Takes the next step, if there is one. `published` is a leader's.
    pub(super) async fn members(&self, published: &Published) -> Outcome {
        let Published { state, members: group, index, role, .. } = published;
        let next = next_change(&wishes(state), group, self.member, &self.store.peers(), *index);
        let why = if let Next::Wait(why) = &next { Some(*why) } else { None };
        self.waits.replace(why);
        let stepped = match next {
            Next::Settled | Next::Wait(_) => false,
            Next::Change(change) => {
                tracing::info!(?change, "the members of the group change");
                self.change(change).await
            }
            Next::Transfer { to } => self.hand_over(to).await,
        };
        for member in left(state, group) {
            let command = Command::DeleteMember { term: role.term, member };
            match self.store.propose_here(command).await {
                Ok(_) => tracing::info!(member, "a manager left the cluster"),
                // It is looked at again.
                Err(error) => tracing::debug!(member, %error, "the record of a manager that left stays"),
            }
        }
        Outcome::RecheckAfter(if stepped { SOON } else { LOOK })
    }

    async fn change(&self, change: warren_consensus::MemberChange) -> bool {
        match self.store.change_members(change).await {
            Ok(()) => true,
            // It is asked for again when it can be done.
            Err(error @ (ChangeError::Pending | ChangeError::NotLeader | ChangeError::Stopping)) => {
                tracing::debug!(%error, "the members are not changed yet");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the members were not changed");
                false
            }
        }
    }

    async fn hand_over(&self, to: MemberId) -> bool {
        tracing::info!(to, "this manager is to leave or to lose its vote, and hands over first");
        match self.store.transfer_leadership(Some(to)).await {
            Ok(()) => self.waits.replace(None),
            Err(TransferError::NotLeader | TransferError::Stopping) => {}
            Err(error) => tracing::warn!(to, %error, "this manager did not hand over"),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_core::LEVEL;
    use warren_types::{ClusterId, Id, ManagerId, Timestamp, TokenHash, TokenId};

    const AT: Timestamp = Timestamp(1);

    fn state(commands: Vec<Command>) -> State {
        let mut state = State::new();
        for (index, command) in (1..).zip(&commands) {
            let outcome = state.apply(1, index, command);
            assert!(!matches!(outcome, warren_core::Outcome::Rejected(_)), "{command:?}: {outcome:?}");
        }
        state
    }

    /// Three managers: 1 made the cluster, 2 is being removed, 4 takes the place of 3.
    fn managers() -> State {
        let (id, ranges) = (ClusterId(Id(1)), vec!["10.0.0.0/8".parse().unwrap()]);
        let hash = TokenHash([7; 32]);
        let address = |number: u8| format!("10.0.0.{number}:8080").parse().unwrap();
        let join = |id, number: u8| Command::JoinManager {
            hash,
            id: ManagerId(Id(id)),
            name: format!("m{number}").parse().unwrap(),
            address: address(number),
            level: LEVEL,
            at: AT,
        };
        state(vec![
            Command::CreateCluster { id, ranges, level: LEVEL, at: AT },
            Command::RegisterMember {
                member: 1,
                id: ManagerId(Id(11)),
                name: "m1".parse().unwrap(),
                address: address(1),
                level: LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: warren_types::NodeRole::Manager,
                hash,
                expires_at: None,
                max_uses: None,
                at: AT,
            },
            join(12, 2),
            join(13, 3),
            join(14, 3),
            Command::RemoveMember { member: 2, at: AT },
        ])
    }

    #[test]
    fn the_guide_is_told_what_people_want() {
        let wish = |id, replaces, removing| Wish { id, votes: true, replaces, removing };
        let wanted =
            [wish(1, None, false), wish(2, None, true), wish(3, None, false), wish(4, Some(3), false)];
        assert_eq!(wishes(&managers()), wanted);
    }

    #[test]
    fn only_the_record_of_who_is_out_of_the_group_goes() {
        let state = managers();
        let group = |voters: &[u64], learners: &[u64], outgoing: &[u64]| ConfState {
            voters: voters.to_vec(),
            learners: learners.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            ..ConfState::default()
        };
        for (group, wanted) in [
            (group(&[1, 2, 3], &[4], &[]), vec![]),
            (group(&[1, 3, 4], &[], &[]), vec![2]),
            (group(&[1, 4], &[2], &[]), vec![3]),
            (group(&[1, 4], &[], &[1, 2, 3]), vec![]),
            (group(&[1], &[], &[]), vec![2, 3]),
        ] {
            assert_eq!(left(&state, &group), wanted, "{group:?}");
        }
    }
}

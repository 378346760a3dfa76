//! The managers in the applied state, and which callers are admitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_core::State;
use warren_types::{ManagerAddress, ManagerId, Member, MemberId};

/// One manager in the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownManager {
    /// The id in its certificate.
    pub id: ManagerId,
    /// Its address in the state.
    pub address: ManagerAddress,
}

/// The identity of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCaller {
    /// The member id that it claims.
    pub member_id: MemberId,
    /// The id in its certificate.
    pub id: ManagerId,
    /// The incarnation of its state; 0 without one.
    pub incarnation: u64,
}

/// The managers in the state at one index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberDirectory {
    /// The cluster's incarnation; 0 without a state.
    pub incarnation: u64,
    /// All members, including those being removed.
    pub members: BTreeMap<MemberId, KnownManager>,
    /// The next unused id: a lower id without a member was removed.
    pub next_id: MemberId,
    /// Recently removed managers and their member ids.
    pub departed: BTreeMap<ManagerId, MemberId>,
}

/// Why a caller is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerRejection {
    /// The certificate belongs to another cluster whose CA is trusted here.
    #[error("manager of another cluster: expected {wanted}, found {found}")]
    OtherCluster {
        /// Ours.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// The certificate is not a manager's.
    #[error("{0} is not a manager of this cluster")]
    NotAManager(String),
    /// The manager was removed.
    #[error("manager {member} was removed from the cluster; join again with a token")]
    Removed {
        /// Its former member id.
        member: MemberId,
        /// Its manager id.
        id: ManagerId,
    },
    /// It claims the member id of a removed manager, but is not that manager.
    #[error(
        "member {member} left the cluster, and there is no record that manager {found} was that member; \
         check the file `manager/member` on its machine, or join that machine again with a token"
    )]
    MemberIdMismatch {
        /// The claimed member id.
        member: MemberId,
        /// The calling manager.
        found: ManagerId,
    },
    /// It claims the member id of another manager.
    #[error("member {member}: expected manager {wanted}, found {found}")]
    ManagerIdMismatch {
        /// The claimed member id.
        member: MemberId,
        /// The manager with that member id.
        wanted: ManagerId,
        /// The calling manager.
        found: ManagerId,
    },
    /// It is in an earlier incarnation of the cluster.
    #[error(
        "superseded: the cluster is in incarnation {own}, which was created without manager {member}; that \
         manager is in incarnation {found} and must join again with a token"
    )]
    OlderIncarnation {
        /// The claimed member id.
        member: MemberId,
        /// The incarnation of this manager.
        own: u64,
        /// The incarnation of the caller.
        found: u64,
    },
    /// It is in a later incarnation of the cluster than this manager.
    #[error("manager {member} is in incarnation {found}, this manager in {own}; messages are rejected")]
    NewerIncarnation {
        /// The claimed member id.
        member: MemberId,
        /// The incarnation of this manager.
        own: u64,
        /// The incarnation of the caller.
        found: u64,
    },
    /// The message is addressed to another member.
    #[error(
        "wrong receiver: expected member {wanted}, found {own}; the address belongs to another manager now"
    )]
    WrongReceiver {
        /// The member id of this manager.
        own: MemberId,
        /// The addressed member id.
        wanted: MemberId,
    },
    /// It has not sent its member id yet and is not in the local state.
    #[error("manager {0} is not known here yet; try again shortly")]
    UnknownManager(ManagerId),
}

impl MemberDirectory {
    /// The managers in `state`.
    pub fn of(state: &State) -> Self {
        let known = |member: &Arc<Member>| {
            (member.member_id, KnownManager { id: member.manager_id, address: member.address.clone() })
        };
        Self {
            incarnation: state.cluster().map_or(0, |cluster| cluster.incarnation),
            members: state.members().map(known).collect(),
            next_id: state.next_member_id(),
            departed: state.departed_managers().map(|(manager, it)| (manager, it.member)).collect(),
        }
    }

    /// Whether the caller is, or may be, the member that it claims. An id that is not in the state and was
    /// not assigned yet may be a new member if this state lags. A manager that leads, or knows a leader other
    /// than the caller, is `led`: it has all members that matter, or gets them from the leader, and admits
    /// nobody else.
    ///
    /// # Errors
    /// [`PeerRejection::OlderIncarnation`], [`PeerRejection::NewerIncarnation`], [`PeerRejection::Removed`],
    /// [`PeerRejection::MemberIdMismatch`], [`PeerRejection::ManagerIdMismatch`],
    /// [`PeerRejection::NotAManager`], [`PeerRejection::UnknownManager`].
    pub fn admit(&self, caller: PeerCaller, led: bool) -> Result<(), PeerRejection> {
        let PeerCaller { member_id: member, id, incarnation: found } = caller;
        // Without a state on either side there is no incarnation to compare.
        let own = if found == 0 { 0 } else { self.incarnation };
        if found < own {
            return Err(PeerRejection::OlderIncarnation { member, own, found });
        }
        // The certificate identifies the manager, whatever id it claims.
        if let Some(member) = self.departed.get(&id) {
            return Err(PeerRejection::Removed { member: *member, id });
        }
        if own != 0 && found > own {
            return Err(PeerRejection::NewerIncarnation { member, own, found });
        }
        match self.members.get(&member) {
            Some(known) if known.id == id => Ok(()),
            Some(known) => Err(PeerRejection::ManagerIdMismatch { member, wanted: known.id, found: id }),
            None if self.was_removed(member) => Err(PeerRejection::MemberIdMismatch { member, found: id }),
            None if member == 0 => Err(PeerRejection::NotAManager(id.to_string())),
            None if led && !self.members.is_empty() => Err(PeerRejection::UnknownManager(id)),
            None => Ok(()),
        }
    }

    /// Whether that manager had that member id and was removed: both must match, since a claimed id may be
    /// wrong.
    pub fn has_departed(&self, member: MemberId, id: ManagerId) -> bool {
        self.departed.get(&id) == Some(&member)
    }

    /// Whether that member id was assigned and no member has it any more.
    pub fn was_removed(&self, member: MemberId) -> bool {
        member != 0 && member < self.next_id && !self.members.contains_key(&member)
    }

    /// The member id of that manager in the state.
    pub fn member_of(&self, id: ManagerId) -> Option<MemberId> {
        self.members.iter().find(|(_, known)| known.id == id).map(|(member, _)| *member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    fn id(number: u128) -> ManagerId {
        ManagerId(Id(number))
    }

    /// Members 1 and 3; 2 was removed, and 4 is the next id.
    fn member_directory() -> MemberDirectory {
        let known = |number| KnownManager { id: id(number), address: "10.0.0.1:8080".parse().unwrap() };
        let (members, departed) = ([(1, known(11)), (3, known(13))].into(), [(id(12), 2)].into());
        MemberDirectory { incarnation: 5, members, next_id: 4, departed }
    }

    fn caller(member: MemberId, number: u128, incarnation: u64) -> PeerCaller {
        PeerCaller { member_id: member, id: id(number), incarnation }
    }

    #[test]
    fn admission_table() {
        let directory = member_directory();
        let impostor = |member, wanted, found| {
            Err(PeerRejection::ManagerIdMismatch { member, wanted: id(wanted), found: id(found) })
        };
        let removed = |member, number| Err(PeerRejection::Removed { member, id: id(number) });
        for (member, manager, wanted) in [
            (1, 11, Ok(())),
            (3, 13, Ok(())),
            (3, 11, impostor(3, 13, 11)),
            (1, 99, impostor(1, 11, 99)),
            (2, 12, removed(2, 12)),
            // The claimed member id is no proof.
            (2, 13, Err(PeerRejection::MemberIdMismatch { member: 2, found: id(13) })),
            (2, 19, Err(PeerRejection::MemberIdMismatch { member: 2, found: id(19) })),
            (0, 11, Err(PeerRejection::NotAManager(id(11).to_string()))),
            (4, 14, Ok(())),
            (4, 13, Ok(())),
            (9, 12, removed(2, 12)),
            (9, 19, Ok(())),
        ] {
            let caller = caller(member, manager, 5);
            assert_eq!(directory.admit(caller, false), wanted, "{caller:?}");
            // Unassigned ids are only admitted without a leader.
            let wanted = if wanted.is_ok() && member > 3 {
                Err(PeerRejection::UnknownManager(caller.id))
            } else {
                wanted
            };
            assert_eq!(directory.admit(caller, true), wanted, "{caller:?}");
        }
        for led in [false, true] {
            let admitted = MemberDirectory::default().admit(caller(1, 11, 5), led);
            assert_eq!(admitted, Ok(()), "a new manager has no members and admits every caller");
        }
        assert_eq!((directory.member_of(id(13)), directory.member_of(id(12))), (Some(3), None));
    }

    #[test]
    fn other_incarnation_is_rejected() {
        let directory = member_directory();
        assert_eq!(directory.admit(caller(3, 13, 0), true), Ok(()), "it has no state yet");
        // Its claimed member id, assigned or not, does not matter.
        for (member, number) in [(1, 11), (2, 12), (3, 13), (9, 19)] {
            let older = directory.admit(caller(member, number, 4), false).unwrap_err();
            assert_eq!(older, PeerRejection::OlderIncarnation { member, own: 5, found: 4 });
            let newer = directory.admit(caller(member, number, 6), false).unwrap_err();
            if number == 12 {
                assert_eq!(
                    newer,
                    PeerRejection::Removed { member: 2, id: id(12) },
                    "it left before, so what it says of itself is nothing"
                );
                continue;
            }
            assert_eq!(newer, PeerRejection::NewerIncarnation { member, own: 5, found: 6 });
        }
    }

    #[test]
    fn departed_manager_matches_by_both_ids() {
        let directory = member_directory();
        assert_eq!(
            [(2, 12), (2, 13), (3, 12), (3, 13)].map(|(own, it)| directory.has_departed(own, id(it))),
            [true, false, false, false]
        );
    }
}

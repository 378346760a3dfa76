//! Who is a manager of this cluster, as far as this one has applied, and who of those that call is let in.

use std::collections::BTreeMap;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use warren_proto::status::{LIFE, OTHER_LIFE, OVERTAKEN, Problem};
use warren_security::{Identity, Role};
use warren_types::{ManagerAddress, ManagerId, MemberId};

/// Reason of what a manager hears that was removed from the cluster.
pub const MEMBER_REMOVED: &str = "MEMBER_REMOVED";
/// Reason of a refusal of a member whose certificate and id do not belong together.
pub const MEMBER_ID_MISMATCH: &str = "MEMBER_ID_MISMATCH";
/// Reason of a refusal of a member that the state does not have.
pub const MEMBER_UNKNOWN: &str = "MEMBER_UNKNOWN";
/// Metadata of that: the number that was removed, and the id in the certificate of the manager that had it.
const REMOVED: &str = "warren-removed-member";
const REMOVED_MANAGER: &str = "warren-removed-manager";

/// One manager in the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// In its certificate.
    pub id: ManagerId,
    /// Where the state says it is.
    pub address: ManagerAddress,
}

/// Who somebody is that calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// What it calls itself.
    pub member: MemberId,
    /// In its certificate.
    pub id: ManagerId,
    /// The incarnation in its state; 0: it has none yet.
    pub life: u64,
}

/// The managers in the state as of one index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    /// The cluster's incarnation; 0 while there is no state.
    pub life: u64,
    /// All of them, those that are being removed as well.
    pub members: BTreeMap<MemberId, Known>,
    /// The next id that is given: whoever has a lower one and is not among them was removed.
    pub next: MemberId,
    /// Those that left last, whatever they call themselves, and what their ids were.
    pub departed: BTreeMap<ManagerId, MemberId>,
}

/// Why somebody is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Of another cluster. Its authority is trusted here, and yet it is none of ours.
    #[error("this is a manager of another cluster: {found}, and {wanted} was wanted")]
    Cluster {
        /// Ours.
        wanted: String,
        /// Theirs.
        found: String,
    },
    /// Not a manager, or with an id that none has.
    #[error("{0} is no manager of this cluster")]
    NotAManager(String),
    /// It was a manager.
    #[error("manager {member} was removed from the cluster; to become one again, it joins with a token")]
    Removed {
        /// The number that it had.
        member: MemberId,
        /// Who it is.
        id: ManagerId,
    },
    /// It gives the member id of a manager that left, and nothing shows that it was that one.
    #[error(
        "member {member} left the cluster, and nothing here shows that manager {found} was that member; check the file \
         `manager/member` on its machine, or let that machine join again with a token"
    )]
    MemberIdMismatch {
        /// What it calls itself.
        member: MemberId,
        /// Who it is.
        found: ManagerId,
    },
    /// It calls itself by a number that is another's.
    #[error("member {member} is manager {wanted}, and this is {found}")]
    Impostor {
        /// What it calls itself.
        member: MemberId,
        /// Whose number that is.
        wanted: ManagerId,
        /// Who it is.
        found: ManagerId,
    },
    /// It goes on with a life of the cluster that is over.
    #[error(
        "the cluster is in its life {own}, which began without manager {member}; that one is still in life {found}, \
         and is no manager any more: to become one again, it joins with a token"
    )]
    OlderLife {
        /// What it calls itself.
        member: MemberId,
        /// This one's.
        own: u64,
        /// Its.
        found: u64,
    },
    /// It is in a later life of the cluster than this one.
    #[error(
        "manager {member} is in life {found} of the cluster, and this one in life {own} still, where nobody hears it"
    )]
    NewerLife {
        /// What it calls itself.
        member: MemberId,
        /// This one's.
        own: u64,
        /// Its.
        found: u64,
    },
    /// It talks to somebody else.
    #[error("this is member {own}, and not {wanted}; the address leads to another manager by now")]
    Misdirected {
        /// This one.
        own: MemberId,
        /// Whom it wanted.
        wanted: MemberId,
    },
    /// It has not said its number yet, and is not in the state here.
    #[error("manager {0} is not known here yet; try again in a moment")]
    Unknown(ManagerId),
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        let (code, reason) = match &refused {
            Refused::Cluster { .. } => (Code::PermissionDenied, "OTHER_CLUSTER"),
            Refused::NotAManager(_) => (Code::PermissionDenied, "NOT_A_MANAGER"),
            Refused::Removed { .. } => (Code::FailedPrecondition, MEMBER_REMOVED),
            Refused::MemberIdMismatch { .. } => (Code::FailedPrecondition, MEMBER_ID_MISMATCH),
            Refused::OlderLife { .. } => (Code::FailedPrecondition, OVERTAKEN),
            Refused::NewerLife { .. } => (Code::FailedPrecondition, OTHER_LIFE),
            Refused::Impostor { .. } => (Code::PermissionDenied, "IMPOSTOR"),
            Refused::Misdirected { .. } => (Code::FailedPrecondition, "MISDIRECTED"),
            Refused::Unknown(_) => (Code::Unavailable, MEMBER_UNKNOWN),
        };
        let said = match &refused {
            Refused::OlderLife { own, .. } | Refused::NewerLife { own, .. } => Some((LIFE, *own)),
            Refused::Removed { member, .. } => Some((REMOVED, *member)),
            _ => None,
        };
        let manager = match &refused {
            Refused::Removed { id, .. } => id.to_string().parse().ok(),
            _ => None,
        };
        let mut status = Status::from(Problem::new(code, reason, refused));
        if let Some(manager) = manager {
            status.metadata_mut().insert(REMOVED_MANAGER, manager);
        }
        if let Some((what, number)) = said {
            status.metadata_mut().insert(what, MetadataValue::from(number));
        }
        status
    }
}

/// Whether another manager says that manager `id`, member `own`, was removed. One that lags may say it of the number
/// that the same manager had before it joined again, and of that number when another one has it.
pub fn was_removed(status: &Status, own: MemberId, id: ManagerId) -> bool {
    let manager = status.metadata().get(REMOVED_MANAGER).and_then(|manager| manager.to_str().ok());
    Problem::from(status).reason == MEMBER_REMOVED
        && number(status, REMOVED) == Some(own)
        && manager.and_then(|manager| manager.parse().ok()) == Some(id)
}

fn number(status: &Status, what: &str) -> Option<u64> {
    status.metadata().get(what)?.to_str().ok()?.parse().ok()
}

/// The life in a later one of which another manager says that it is, to one that is in life `own`; `None` when the
/// refusal is about something else.
pub fn overtaken_by(status: &Status, own: u64) -> Option<u64> {
    let life = number(status, LIFE)?;
    (Problem::from(status).reason == OVERTAKEN && own > 0 && life > own).then_some(life)
}

/// The manager that a certificate is of.
///
/// # Errors
/// It is of another cluster, or none of a manager.
pub fn manager_of(identity: &Identity, cluster: &str) -> Result<ManagerId, Refused> {
    if identity.cluster() != cluster {
        let (wanted, found) = (cluster.to_owned(), identity.cluster().to_owned());
        return Err(Refused::Cluster { wanted, found });
    }
    let id = identity.id().parse().ok().filter(|_| identity.role() == Role::Manager);
    id.ok_or_else(|| Refused::NotAManager(identity.to_string()))
}

impl Roster {
    /// Whether that manager is that member, or may be: one that is not in the state with an id that has not been given
    /// yet is new, if this state is behind. Whoever leads or hears a leader, other than the one that calls, is `led`:
    /// it has the members that matter to it, or gets them from there, and lets in nobody else.
    ///
    /// # Errors
    /// [`Refused::OlderLife`], [`Refused::NewerLife`], [`Refused::Removed`], [`Refused::MemberIdMismatch`],
    /// [`Refused::Impostor`], [`Refused::NotAManager`], [`Refused::Unknown`].
    pub fn admit(&self, caller: Caller, led: bool) -> Result<(), Refused> {
        let Caller { member, id, life: found } = caller;
        // If one of them has no state, it has nothing that could be of another life.
        let own = if found == 0 { 0 } else { self.life };
        if found < own {
            return Err(Refused::OlderLife { member, own, found });
        }
        // Whatever it says of itself: the certificate says who it is.
        if let Some(member) = self.departed.get(&id) {
            return Err(Refused::Removed { member: *member, id });
        }
        if own != 0 && found > own {
            return Err(Refused::NewerLife { member, own, found });
        }
        match self.members.get(&member) {
            Some(known) if known.id == id => Ok(()),
            Some(known) => Err(Refused::Impostor { member, wanted: known.id, found: id }),
            None if self.was_removed(member) => Err(Refused::MemberIdMismatch { member, found: id }),
            None if member == 0 => Err(Refused::NotAManager(id.to_string())),
            None if led && !self.members.is_empty() => Err(Refused::Unknown(id)),
            None => Ok(()),
        }
    }

    /// That manager was that member, and left: both must agree, since a number alone may be claimed by mistake.
    pub fn has_departed(&self, member: MemberId, id: ManagerId) -> bool {
        self.departed.get(&id) == Some(&member)
    }

    /// Somebody had that number, and no member has it any more.
    pub fn was_removed(&self, member: MemberId) -> bool {
        member != 0 && member < self.next && !self.members.contains_key(&member)
    }

    /// The member that this manager is, in the state.
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

    /// Members 1 and 3; 2 was removed, and 4 comes next.
    fn roster() -> Roster {
        let known = |number| Known { id: id(number), address: "10.0.0.1:8080".parse().unwrap() };
        let (members, departed) = ([(1, known(11)), (3, known(13))].into(), [(id(12), 2)].into());
        Roster { life: 5, members, next: 4, departed }
    }

    fn caller(member: MemberId, number: u128, life: u64) -> Caller {
        Caller { member, id: id(number), life }
    }

    #[test]
    fn who_is_let_in() {
        let roster = roster();
        let impostor =
            |member, wanted, found| Err(Refused::Impostor { member, wanted: id(wanted), found: id(found) });
        let removed = |member, number| Err(Refused::Removed { member, id: id(number) });
        for (member, manager, wanted) in [
            (1, 11, Ok(())),
            (3, 13, Ok(())),
            (3, 11, impostor(3, 13, 11)),
            (1, 99, impostor(1, 11, 99)),
            (2, 12, removed(2, 12)),
            // A number says nothing of who calls.
            (2, 13, Err(Refused::MemberIdMismatch { member: 2, found: id(13) })),
            (2, 19, Err(Refused::MemberIdMismatch { member: 2, found: id(19) })),
            (0, 11, Err(Refused::NotAManager(id(11).to_string()))),
            (4, 14, Ok(())),
            (4, 13, Ok(())),
            (9, 12, removed(2, 12)),
            (9, 19, Ok(())),
        ] {
            let caller = caller(member, manager, 5);
            assert_eq!(roster.admit(caller, false), wanted, "{caller:?}");
            // Numbers that were not given are for those that know of no leader.
            let wanted = if wanted.is_ok() && member > 3 { Err(Refused::Unknown(caller.id)) } else { wanted };
            assert_eq!(roster.admit(caller, true), wanted, "{caller:?}");
        }
        for led in [false, true] {
            let admitted = Roster::default().admit(caller(1, 11, 5), led);
            assert_eq!(admitted, Ok(()), "a new manager knows nobody and hears everybody");
        }
        assert_eq!((roster.member_of(id(13)), roster.member_of(id(12))), (Some(3), None));
    }

    #[test]
    fn nobody_of_another_life_is_let_in() {
        let roster = roster();
        assert_eq!(roster.admit(caller(3, 13, 0), true), Ok(()), "it has no state yet");
        // Its number, given or not, says nothing.
        for (member, number) in [(1, 11), (2, 12), (3, 13), (9, 19)] {
            let older = roster.admit(caller(member, number, 4), false).unwrap_err();
            assert_eq!(older, Refused::OlderLife { member, own: 5, found: 4 });
            let said = Status::from(older);
            assert_eq!(Problem::from(&said).reason, OVERTAKEN);
            assert_eq!([0, 4, 5].map(|own| overtaken_by(&said, own)), [None, Some(5), None]);
            let newer = roster.admit(caller(member, number, 6), false).unwrap_err();
            if number == 12 {
                assert_eq!(
                    newer,
                    Refused::Removed { member: 2, id: id(12) },
                    "it left before, so what it says of itself is nothing"
                );
                continue;
            }
            assert_eq!(newer, Refused::NewerLife { member, own: 5, found: 6 });
            let said = Status::from(newer);
            assert_eq!((Problem::from(&said).reason.as_str(), overtaken_by(&said, 6)), (OTHER_LIFE, None));
        }
    }

    #[test]
    fn only_managers_of_this_cluster_are_managers() {
        let identity = |cluster, role, id: &str| Identity::new(cluster, role, id).unwrap();
        let own = id(11).to_string();
        assert_eq!(manager_of(&identity("c1", Role::Manager, &own), "c1"), Ok(id(11)));
        let other = manager_of(&identity("c2", Role::Manager, &own), "c1");
        assert_eq!(other, Err(Refused::Cluster { wanted: "c1".into(), found: "c2".into() }));
        for (role, name) in
            [(Role::Worker, own.as_str()), (Role::Admin, own.as_str()), (Role::Manager, "someone")]
        {
            let refused = manager_of(&identity("c1", role, name), "c1").unwrap_err();
            assert!(matches!(refused, Refused::NotAManager(_)), "{refused:?}");
        }
    }

    #[test]
    fn a_removed_manager_hears_a_reason_that_programs_know() {
        let removed = || Status::from(Refused::Removed { member: 2, id: id(12) });
        let problem = Problem::from(&removed());
        assert_eq!((problem.code, problem.reason.as_str()), (Code::FailedPrecondition, MEMBER_REMOVED));
        assert!(was_removed(&removed(), 2, id(12)));
        for (own, manager) in [(5, 12), (2, 15), (5, 15)] {
            assert!(!was_removed(&removed(), own, id(manager)), "member {own}, manager {manager}");
        }
        for without in [REMOVED, REMOVED_MANAGER] {
            let mut said = removed();
            said.metadata_mut().remove(without);
            assert!(!was_removed(&said, 2, id(12)), "without {without}");
        }
        let mismatch = Status::from(Refused::MemberIdMismatch { member: 2, found: id(12) });
        assert!(!was_removed(&mismatch, 2, id(12)));
        assert!(!was_removed(&Status::from(Refused::Unknown(id(2))), 2, id(2)));
        let roster = roster();
        assert_eq!(
            [(2, 12), (2, 13), (3, 12), (3, 13)].map(|(own, it)| roster.has_departed(own, id(it))),
            [true, false, false, false]
        );
        let problem = Problem::from(&Status::from(Refused::Unknown(id(5))));
        assert_eq!(problem.code, Code::Unavailable, "to be tried again");
    }
}

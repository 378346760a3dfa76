//! The managers in the applied state, and which callers are admitted.

use std::collections::BTreeMap;

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use warren_proto::status::{INCARNATION, INCARNATION_SUPERSEDED, OTHER_INCARNATION, Problem};
use warren_security::{Identity, Role};
use warren_types::{ManagerAddress, ManagerId, MemberId};

/// Reason of the rejection of a removed manager.
pub const MEMBER_REMOVED: &str = "MEMBER_REMOVED";
/// Reason of the rejection of a caller whose member id belongs to a removed manager with another certificate.
pub const MEMBER_ID_MISMATCH: &str = "MEMBER_ID_MISMATCH";
/// Reason of the rejection of a manager that is not in the state.
pub const MEMBER_UNKNOWN: &str = "MEMBER_UNKNOWN";
/// Metadata of the removal: the removed member id, and the manager id in the certificate.
const REMOVED_MEMBER_METADATA: &str = "warren-removed-member-id";
const REMOVED_MANAGER_METADATA: &str = "warren-removed-manager-id";

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

impl From<PeerRejection> for Status {
    fn from(rejection: PeerRejection) -> Self {
        let (code, reason) = match &rejection {
            PeerRejection::OtherCluster { .. } => (Code::PermissionDenied, "CLUSTER_MISMATCH"),
            PeerRejection::NotAManager(_) => (Code::PermissionDenied, "NOT_A_MANAGER"),
            PeerRejection::Removed { .. } => (Code::FailedPrecondition, MEMBER_REMOVED),
            PeerRejection::MemberIdMismatch { .. } => (Code::FailedPrecondition, MEMBER_ID_MISMATCH),
            PeerRejection::OlderIncarnation { .. } => (Code::FailedPrecondition, INCARNATION_SUPERSEDED),
            PeerRejection::NewerIncarnation { .. } => (Code::FailedPrecondition, OTHER_INCARNATION),
            PeerRejection::ManagerIdMismatch { .. } => (Code::PermissionDenied, "MANAGER_ID_MISMATCH"),
            PeerRejection::WrongReceiver { .. } => (Code::FailedPrecondition, "WRONG_RECEIVER"),
            PeerRejection::UnknownManager(_) => (Code::Unavailable, MEMBER_UNKNOWN),
        };
        let number = match &rejection {
            PeerRejection::OlderIncarnation { own, .. } | PeerRejection::NewerIncarnation { own, .. } => {
                Some((INCARNATION, *own))
            }
            PeerRejection::Removed { member, .. } => Some((REMOVED_MEMBER_METADATA, *member)),
            _ => None,
        };
        let manager = match &rejection {
            PeerRejection::Removed { id, .. } => id.to_string().parse().ok(),
            _ => None,
        };
        let mut status = Status::from(Problem::new(code, reason, rejection));
        if let Some(manager) = manager {
            status.metadata_mut().insert(REMOVED_MANAGER_METADATA, manager);
        }
        if let Some((key, number)) = number {
            status.metadata_mut().insert(key, MetadataValue::from(number));
        }
        status
    }
}

/// Whether the status says that manager `id` with the member id `own` was removed. A lagging peer may report
/// the removal of an earlier member id of the same manager, or of that id while another manager has it.
pub fn is_removal_status(status: &Status, own: MemberId, id: ManagerId) -> bool {
    let manager = status.metadata().get(REMOVED_MANAGER_METADATA).and_then(|manager| manager.to_str().ok());
    Problem::from(status).reason == MEMBER_REMOVED
        && metadata_number(status, REMOVED_MEMBER_METADATA) == Some(own)
        && manager.and_then(|manager| manager.parse().ok()) == Some(id)
}

fn metadata_number(status: &Status, key: &str) -> Option<u64> {
    status.metadata().get(key)?.to_str().ok()?.parse().ok()
}

/// The later incarnation reported by a peer to a manager in incarnation `own`; `None` for other rejections.
pub fn superseding_incarnation(status: &Status, own: u64) -> Option<u64> {
    let incarnation = metadata_number(status, INCARNATION)?;
    (Problem::from(status).reason == INCARNATION_SUPERSEDED && own > 0 && incarnation > own)
        .then_some(incarnation)
}

/// The manager id in a certificate.
///
/// # Errors
/// The certificate belongs to another cluster, or not to a manager.
pub fn manager_id(identity: &Identity, cluster: &str) -> Result<ManagerId, PeerRejection> {
    if identity.cluster() != cluster {
        let (wanted, found) = (cluster.to_owned(), identity.cluster().to_owned());
        return Err(PeerRejection::OtherCluster { wanted, found });
    }
    let id = identity.id().parse().ok().filter(|_| identity.role() == Role::Manager);
    id.ok_or_else(|| PeerRejection::NotAManager(identity.to_string()))
}

impl MemberDirectory {
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

    fn caller(member: MemberId, number: u128, life: u64) -> PeerCaller {
        PeerCaller { member_id: member, id: id(number), incarnation: life }
    }

    #[test]
    fn admission_table() {
        let roster = member_directory();
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
            assert_eq!(roster.admit(caller, false), wanted, "{caller:?}");
            // Unassigned ids are only admitted without a leader.
            let wanted = if wanted.is_ok() && member > 3 {
                Err(PeerRejection::UnknownManager(caller.id))
            } else {
                wanted
            };
            assert_eq!(roster.admit(caller, true), wanted, "{caller:?}");
        }
        for led in [false, true] {
            let admitted = MemberDirectory::default().admit(caller(1, 11, 5), led);
            assert_eq!(admitted, Ok(()), "a new manager knows nobody and hears everybody");
        }
        assert_eq!((roster.member_of(id(13)), roster.member_of(id(12))), (Some(3), None));
    }

    #[test]
    fn other_incarnation_is_rejected() {
        let roster = member_directory();
        assert_eq!(roster.admit(caller(3, 13, 0), true), Ok(()), "it has no state yet");
        // Its claimed member id, assigned or not, does not matter.
        for (member, number) in [(1, 11), (2, 12), (3, 13), (9, 19)] {
            let older = roster.admit(caller(member, number, 4), false).unwrap_err();
            assert_eq!(older, PeerRejection::OlderIncarnation { member, own: 5, found: 4 });
            let said = Status::from(older);
            assert_eq!(Problem::from(&said).reason, INCARNATION_SUPERSEDED);
            assert_eq!([0, 4, 5].map(|own| superseding_incarnation(&said, own)), [None, Some(5), None]);
            let newer = roster.admit(caller(member, number, 6), false).unwrap_err();
            if number == 12 {
                assert_eq!(
                    newer,
                    PeerRejection::Removed { member: 2, id: id(12) },
                    "it left before, so what it says of itself is nothing"
                );
                continue;
            }
            assert_eq!(newer, PeerRejection::NewerIncarnation { member, own: 5, found: 6 });
            let said = Status::from(newer);
            assert_eq!(
                (Problem::from(&said).reason.as_str(), superseding_incarnation(&said, 6)),
                (OTHER_INCARNATION, None)
            );
        }
    }

    #[test]
    fn certificate_of_other_cluster_or_role_is_rejected() {
        let identity = |cluster, role, id: &str| Identity::new(cluster, role, id).unwrap();
        let own = id(11).to_string();
        assert_eq!(manager_id(&identity("c1", Role::Manager, &own), "c1"), Ok(id(11)));
        let other = manager_id(&identity("c2", Role::Manager, &own), "c1");
        assert_eq!(other, Err(PeerRejection::OtherCluster { wanted: "c1".into(), found: "c2".into() }));
        for (role, name) in
            [(Role::Worker, own.as_str()), (Role::Admin, own.as_str()), (Role::Manager, "someone")]
        {
            let refused = manager_id(&identity("c1", role, name), "c1").unwrap_err();
            assert!(matches!(refused, PeerRejection::NotAManager(_)), "{refused:?}");
        }
    }

    #[test]
    fn removed_manager_gets_reason_code() {
        let removed = || Status::from(PeerRejection::Removed { member: 2, id: id(12) });
        let problem = Problem::from(&removed());
        assert_eq!((problem.code, problem.reason.as_str()), (Code::FailedPrecondition, MEMBER_REMOVED));
        assert!(is_removal_status(&removed(), 2, id(12)));
        for (own, manager) in [(5, 12), (2, 15), (5, 15)] {
            assert!(!is_removal_status(&removed(), own, id(manager)), "member {own}, manager {manager}");
        }
        for without in [REMOVED_MEMBER_METADATA, REMOVED_MANAGER_METADATA] {
            let mut said = removed();
            said.metadata_mut().remove(without);
            assert!(!is_removal_status(&said, 2, id(12)), "without {without}");
        }
        let mismatch = Status::from(PeerRejection::MemberIdMismatch { member: 2, found: id(12) });
        assert!(!is_removal_status(&mismatch, 2, id(12)));
        assert!(!is_removal_status(&Status::from(PeerRejection::UnknownManager(id(2))), 2, id(2)));
        let roster = member_directory();
        assert_eq!(
            [(2, 12), (2, 13), (3, 12), (3, 13)].map(|(own, it)| roster.has_departed(own, id(it))),
            [true, false, false, false]
        );
        let problem = Problem::from(&Status::from(PeerRejection::UnknownManager(id(5))));
        assert_eq!(problem.code, Code::Unavailable, "to be tried again");
    }
}

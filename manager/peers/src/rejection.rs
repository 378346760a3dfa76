//! Statuses for callers that are not admitted.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use warren_proto::status::{INCARNATION, INCARNATION_SUPERSEDED, OTHER_INCARNATION, Problem};
use warren_replica::PeerRejection;
use warren_security::{Identity, Role};
use warren_types::{ManagerId, MemberId};

/// Reason of the rejection of a removed manager.
pub const MEMBER_REMOVED: &str = "MEMBER_REMOVED";
/// Reason of the rejection of a caller whose member id belongs to a removed manager with another certificate.
pub const MEMBER_ID_MISMATCH: &str = "MEMBER_ID_MISMATCH";
/// Reason of the rejection of a manager that is not in the state.
pub const MEMBER_UNKNOWN: &str = "MEMBER_UNKNOWN";
/// Metadata of the removal: the removed member id, and the manager id in the certificate.
const REMOVED_MEMBER_METADATA: &str = "warren-removed-member-id";
const REMOVED_MANAGER_METADATA: &str = "warren-removed-manager-id";

/// The status for a caller that is not admitted.
pub fn rejection_status(rejection: PeerRejection) -> Status {
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
        let (desired, found) = (cluster.to_owned(), identity.cluster().to_owned());
        return Err(PeerRejection::OtherCluster { wanted: desired, found });
    }
    let id = identity.id().parse().ok().filter(|_| identity.role() == Role::Manager);
    id.ok_or_else(|| PeerRejection::NotAManager(identity.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    fn id(number: u128) -> ManagerId {
        ManagerId(Id(number))
    }

    #[test]
    fn other_incarnation_gets_reason_code() {
        let older = rejection_status(PeerRejection::OlderIncarnation { member: 3, own: 5, found: 4 });
        assert_eq!(Problem::from(&older).reason, INCARNATION_SUPERSEDED);
        assert_eq!([0, 4, 5].map(|own| superseding_incarnation(&older, own)), [None, Some(5), None]);
        let newer = rejection_status(PeerRejection::NewerIncarnation { member: 3, own: 5, found: 6 });
        assert_eq!(
            (Problem::from(&newer).reason.as_str(), superseding_incarnation(&newer, 6)),
            (OTHER_INCARNATION, None)
        );
    }

    #[test]
    fn certificate_of_other_cluster_or_role_is_rejected() {
        let identity = |cluster, role, id: &str| Identity::new(cluster, role, id).unwrap();
        let own = id(11).to_string();
        assert_eq!(manager_id(&identity("c1", Role::Manager, &own), "c1"), Ok(id(11)));
        let other = manager_id(&identity("c2", Role::Manager, &own), "c1");
        assert_eq!(other, Err(PeerRejection::OtherCluster { wanted: "c1".into(), found: "c2".into() }));
        for (role, name) in
            [(Role::Worker, own.as_str()), (Role::User, own.as_str()), (Role::Manager, "someone")]
        {
            let refused = manager_id(&identity("c1", role, name), "c1").unwrap_err();
            assert!(matches!(refused, PeerRejection::NotAManager(_)), "{refused:?}");
        }
    }

    #[test]
    fn removed_manager_gets_reason_code() {
        let removed = || rejection_status(PeerRejection::Removed { member: 2, id: id(12) });
        let problem = Problem::from(&removed());
        assert_eq!((problem.code, problem.reason.as_str()), (Code::FailedPrecondition, MEMBER_REMOVED));
        assert!(is_removal_status(&removed(), 2, id(12)));
        for (own, manager) in [(5, 12), (2, 15), (5, 15)] {
            assert!(!is_removal_status(&removed(), own, id(manager)), "member {own}, manager {manager}");
        }
        for without in [REMOVED_MEMBER_METADATA, REMOVED_MANAGER_METADATA] {
            let mut output = removed();
            output.metadata_mut().remove(without);
            assert!(!is_removal_status(&output, 2, id(12)), "without {without}");
        }
        let mismatch = rejection_status(PeerRejection::MemberIdMismatch { member: 2, found: id(12) });
        assert!(!is_removal_status(&mismatch, 2, id(12)));
        assert!(!is_removal_status(&rejection_status(PeerRejection::UnknownManager(id(2))), 2, id(2)));
        let problem = Problem::from(&rejection_status(PeerRejection::UnknownManager(id(5))));
        assert_eq!(problem.code, Code::Unavailable, "to be tried again");
    }
}

use std::fs;
use std::time::SystemTime;

use warren_security::CertificateRequest;
use warren_types::NodeRole;

use super::super::member_identity::LocalMemberStatus;
use super::*;

const MEMBER: MemberId = 3;

fn bootstrap_peer(member: MemberId) -> BootstrapPeer {
    let id = warren_types::ManagerId(warren_types::Id(u128::from(member)));
    BootstrapPeer { member_id: member, id, address: format!("10.0.0.{member}:8080").parse().unwrap() }
}

/// A cluster that machines can join.
struct ClusterFixture {
    authority: CertificateAuthority,
    secret_object_key: String,
}

impl ClusterFixture {
    fn new(id: u128) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let content_key = SecretObjectKey::create(&dir.path().join("k")).unwrap().reveal().to_string();
        Self {
            authority: CertificateAuthority::create(&warren_types::Id(id).to_string(), SystemTime::now())
                .unwrap(),
            secret_object_key: content_key,
        }
    }

    fn id(&self) -> warren_types::ClusterId {
        self.authority.cluster().parse().unwrap()
    }

    fn sign(&self, key: &PrivateKey, role: NodeRole) -> String {
        let request = CertificateRequest::parse(&CertificateRequest::create(key).unwrap()).unwrap();
        let lifetime = Role::from(role).validity();
        self.authority.sign_node(role, &request, SystemTime::now(), lifetime).unwrap()
    }

    fn admit(&self, key: &PrivateKey) -> Result<Admission, InvalidAdmission> {
        let (certificate, authority) = (self.sign(key, NodeRole::Manager), self.authority.to_pem());
        let content_key = &self.secret_object_key;
        let offer = JoinOffer {
            certificate: &certificate,
            authority: &authority,
            secret_object_key: content_key,
            member_id: MEMBER,
            founders: &[1],
            bootstrap_peers: &[bootstrap_peer(1), bootstrap_peer(MEMBER)],
        };
        Admission::check(key, &self.authority.roots(), offer)
    }
}

#[test]
fn interrupted_join_completes_as_same_manager() {
    let cluster = ClusterFixture::new(1);
    let steps = ["", AUTHORITY_FILE, SECRET_OBJECT_KEY_FILE, MANAGER_FILE, "member"];
    for cut in 0..steps.len() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("manager");
        let key = begin_join(&dir).unwrap();
        assert_eq!(begin_join(&dir).unwrap().pem(), key.pem(), "asked twice");
        cluster.admit(&key).unwrap().complete(&dir).unwrap();
        // What comes after the cut is not there yet.
        files::write_private(&dir.join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
        for later in &steps[cut + 1..] {
            fs::remove_file(dir.join(later)).unwrap();
        }
        match member_identity::read_status(&dir).unwrap() {
            LocalMemberStatus::JoinPending(found) => {
                assert!(cut < 4 && found.pem() == key.pem(), "cut after {:?}", steps[cut]);
                let again = begin_join(&dir).unwrap();
                cluster.admit(&again).unwrap().complete(&dir).unwrap();
            }
            standing => assert!(cut == 4 && matches!(standing, LocalMemberStatus::Member(_)), "{standing:?}"),
        }
        finish(&dir).unwrap();
        finish(&dir).unwrap();
        let LocalMemberStatus::Member(identity) = member_identity::read_status(&dir).unwrap() else {
            panic!("it joined")
        };
        let managers = vec![bootstrap_peer(1)];
        let manager = key.node_id().unwrap().to_string().parse().unwrap();
        assert_eq!(
            (identity.member_id, &identity.founders, &identity.bootstrap_peers),
            (MEMBER, &vec![1], &managers)
        );
        assert_eq!(
            identity.log_owner(),
            warren_log::LogOwner { cluster: cluster.id(), manager, member: MEMBER }
        );
        let credentials = Credentials::load(&dir.join(MANAGER_FILE)).unwrap();
        assert_eq!(credentials.identity().id(), key.node_id().unwrap().to_string());
        assert!(!dir.join(JOIN_KEY_FILE).exists());
    }
}

#[test]
fn foreign_admission_stores_nothing() {
    let (cluster, other) = (ClusterFixture::new(1), ClusterFixture::new(1));
    let (key, stranger) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let roots = cluster.authority.roots();
    let (authority, foreign) = (cluster.authority.to_pem(), other.authority.to_pem());
    let own = cluster.sign(&key, NodeRole::Manager);
    let good = JoinOffer {
        certificate: &own,
        authority: &authority,
        secret_object_key: &cluster.secret_object_key,
        member_id: MEMBER,
        founders: &[1],
        bootstrap_peers: &[],
    };
    let refused = |offer| Admission::check(&key, &roots, offer).unwrap_err();
    Admission::check(&key, &roots, good).unwrap();
    assert!(matches!(
        refused(JoinOffer { authority: &foreign, ..good }),
        InvalidAdmission::AuthorityMismatch
    ));
    assert!(matches!(refused(JoinOffer { authority: "x", ..good }), InvalidAdmission::AuthorityKey(_)));
    let of_other = other.sign(&key, NodeRole::Manager);
    assert!(matches!(
        refused(JoinOffer { certificate: &of_other, ..good }),
        InvalidAdmission::Certificate(_)
    ));
    let of_stranger = cluster.sign(&stranger, NodeRole::Manager);
    assert!(matches!(
        refused(JoinOffer { certificate: &of_stranger, ..good }),
        InvalidAdmission::Certificate(_)
    ));
    let of_worker = cluster.sign(&key, NodeRole::Worker);
    assert!(matches!(
        refused(JoinOffer { certificate: &of_worker, ..good }),
        InvalidAdmission::IdentityMismatch { .. }
    ));
    assert!(matches!(
        refused(JoinOffer { secret_object_key: "x", ..good }),
        InvalidAdmission::SecretObjectKey(_)
    ));
    for (member, founders) in [(0, &[1][..]), (3, &[]), (3, &[0])] {
        assert!(matches!(
            refused(JoinOffer { member_id: member, founders, ..good }),
            InvalidAdmission::InvalidMembership
        ));
    }
}

#[test]
fn superseded_data_is_kept_until_admission() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let first = begin_join(&dir).unwrap();
    let cluster = ClusterFixture::new(1);
    cluster.admit(&first).unwrap().complete(&dir).unwrap();
    let LocalMemberStatus::Member(was) = member_identity::read_status(&dir).unwrap() else {
        panic!("it joined")
    };
    member_identity::mark_superseded(&dir, &was, 7).unwrap();
    fs::create_dir(dir.join("log")).unwrap();
    let key = begin_join(&dir).unwrap();
    assert_ne!(key.pem(), first.pem(), "it is another manager");
    for _ in 0..2 {
        assert_eq!(begin_join(&dir).unwrap().pem(), key.pem(), "the next try is of the same");
        let standing = member_identity::read_status(&dir).unwrap();
        assert!(
            matches!(&standing, LocalMemberStatus::Superseded(identity, 7) if *identity == was),
            "{standing:?}"
        );
        assert!(dir.join("log").exists() && dir.join(AUTHORITY_FILE).exists());
    }
    for _ in 0..2 {
        begin_rejoin(&dir, &key).unwrap();
        assert!(matches!(
            member_identity::read_status(&dir).unwrap(),
            LocalMemberStatus::JoinPending(found) if found.pem() == key.pem()
        ));
        assert!(!dir.join("log").exists() && !dir.join(AUTHORITY_FILE).exists());
    }
    cluster.admit(&key).unwrap().complete(&dir).unwrap();
    assert!(matches!(member_identity::read_status(&dir).unwrap(), LocalMemberStatus::Member(_)));
}

#[test]
fn unreplaceable_directory_is_refused_before_join() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    fs::create_dir(&dir).unwrap();
    check_replaceable(&dir).unwrap();
    let link = data.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    let linked = check_replaceable(&link).unwrap_err().to_string();
    assert!(linked.contains("link is a symbolic link"), "{linked}");
    // Every Linux has a mount there.
    let mounted = check_replaceable(Path::new("/proc")).unwrap_err().to_string();
    assert!(mounted.contains("/proc is a mount point"), "{mounted}");
}

#[test]
fn removed_manager_data_is_deleted() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let left = data.path().join("manager.gone");
    for leftover in [false, true] {
        let key = begin_join(&dir).unwrap();
        ClusterFixture::new(1).admit(&key).unwrap().complete(&dir).unwrap();
        fs::create_dir(dir.join("snapshots")).unwrap();
        if leftover {
            fs::create_dir_all(left.join("half")).unwrap();
        }
        remove_manager_files(&dir).unwrap();
        assert!(!dir.exists() && !left.exists());
        // Killed after the rename: the next operation detects it.
        fs::create_dir_all(left.join("half")).unwrap();
        remove_leftovers(&dir).unwrap();
        remove_leftovers(&dir).unwrap();
        assert!(!left.exists());
        assert!(matches!(member_identity::read_status(&dir).unwrap(), LocalMemberStatus::Unused));
        assert_ne!(begin_join(&dir).unwrap().pem(), key.pem(), "it is another manager from now on");
        remove_manager_files(&dir).unwrap();
    }
}

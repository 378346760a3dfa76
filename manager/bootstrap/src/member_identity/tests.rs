use super::*;
use crate::ca::ManagerKeys;

fn identity() -> CertificateIdentity {
    let secret_object_key = "0123456789abcdef".parse().unwrap();
    let (cluster, manager) = (warren_types::Id(9), warren_types::Id(3));
    CertificateIdentity { cluster: ClusterId(cluster), manager: ManagerId(manager), secret_object_key }
}

/// The keys of a manager in `dir`, with a node, and its identity.
fn founder(dir: &Path) -> (ManagerKeys, MemberIdentity) {
    let now = std::time::SystemTime::now();
    let keys = ManagerKeys::open(dir, true, now).unwrap();
    keys.ensure_agent(|| Ok(Some(NodeId(warren_types::Id(7)))), now).unwrap();
    let identity = MemberIdentity::founder(keys.identity());
    save_identity(dir, &identity).unwrap();
    (keys, identity)
}

#[test]
fn directory_status_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let look = || super::read_status(dir.path()).unwrap();
    assert!(matches!(super::read_status(&dir.path().join("none")).unwrap(), LocalMemberStatus::Unused));
    assert!(matches!(look(), LocalMemberStatus::Unused));
    let key = PrivateKey::generate().unwrap();
    files::write_private(&dir.path().join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
    assert!(matches!(look(), LocalMemberStatus::JoinPending(found) if found.pem() == key.pem()));
    // A partly written file is not an identity.
    let (_, first) = founder(dir.path());
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    assert!(matches!(look(), LocalMemberStatus::JoinPending(_)));
    let member =
        MemberIdentity { founders: vec![1, 2], ..MemberIdentity::sole_voter(3, first.certificate_identity) };
    save_identity(dir.path(), &member).unwrap();
    assert!(matches!(look(), LocalMemberStatus::Member(found) if found == member));
    for _ in 0..2 {
        let later = mark_superseded(dir.path(), &member, 7).unwrap();
        assert_eq!(later, 7);
        assert!(matches!(look(), LocalMemberStatus::Superseded(found, 7) if found == member));
    }
    assert_eq!(mark_superseded(dir.path(), &member, 5).unwrap(), 7, "the latest that was heard of counts");
    mark_removed(dir.path(), &member).unwrap();
    assert!(matches!(look(), LocalMemberStatus::Removed(found) if found == member));
    save_identity(dir.path(), &member).unwrap();
    assert!(matches!(look(), LocalMemberStatus::Member(found) if found == member), "it joined again");
}

#[test]
fn interrupted_init_resumes_as_same_manager() {
    let steps = [AUTHORITY_FILE, MANAGER_FILE, ADMIN_FILE, SECRET_OBJECT_KEY_FILE];
    for cut in 0..=steps.len() {
        let dir = tempfile::tempdir().unwrap();
        begin_init(dir.path()).unwrap();
        let keys = ManagerKeys::open(dir.path(), true, std::time::SystemTime::now()).unwrap();
        steps[cut..].iter().for_each(|file| std::fs::remove_file(dir.path().join(file)).unwrap());
        assert!(
            matches!(read_status(dir.path()).unwrap(), LocalMemberStatus::InitPending),
            "cut before {:?}",
            steps.get(cut)
        );
        let again = ManagerKeys::open(dir.path(), true, std::time::SystemTime::now()).unwrap();
        assert_eq!(again.cluster == keys.cluster, cut >= 1, "cut before {:?}", steps.get(cut));
        assert_eq!(again.id == keys.id, cut >= 2, "cut before {:?}", steps.get(cut));
        save_identity(dir.path(), &MemberIdentity::founder(again.identity())).unwrap();
        for _ in 0..2 {
            finish_init(dir.path()).unwrap();
            assert!(!is_init_pending(dir.path()));
            assert!(matches!(read_status(dir.path()).unwrap(), LocalMemberStatus::Member(_)));
        }
    }
}

#[test]
fn missing_member_file_is_refused() {
    for file in [
        "ca.pem",
        "secret-objects.key",
        "manager.pem",
        "admin.pem",
        "roots.pem",
        "raft.redb",
        "raft.sled",
        "keyring",
        "member.key",
        "snapshots",
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), "x").unwrap();
        let error = read_status(dir.path()).unwrap_err().to_string();
        assert!(error.contains("/member is missing") && error.contains(file), "{error}");
        for way_back in ["restore it", "join again", "`warren manager restore`"] {
            assert!(error.contains(way_back), "{error}");
        }
        // A log outranks a join key.
        let key = PrivateKey::generate().unwrap();
        files::write_private(&dir.path().join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
        begin_init(dir.path()).unwrap();
        let is_stored = !file.ends_with(".pem") && file != "secret-objects.key";
        assert_eq!(read_status(dir.path()).is_err(), is_stored, "{file}");
    }
}

#[test]
fn member_file_format_is_stable() {
    let dir = tempfile::tempdir().unwrap();
    let mut member = MemberIdentity { founders: vec![1], ..MemberIdentity::sole_voter(3, identity()) };
    let reported = || std::fs::read_to_string(dir.path().join(FILE)).unwrap();
    save_identity(dir.path(), &member).unwrap();
    let before = reported();
    let (cluster, manager) = (identity().cluster, identity().manager);
    assert_eq!(
        before,
        format!(
            "version = 1\nmember_id = 3\nfounders = [1]\ncluster = \"{cluster}\"\nmanager = \"{manager}\"\n\
             secret_object_key = \"0123456789abcdef\"\n"
        )
    );
    let node = NodeId(warren_types::Id(7));
    for _ in 0..2 {
        save_node(dir.path(), node).unwrap();
        assert_eq!(reported(), format!("{before}node = \"{node}\"\n"));
    }
    let address = "10.0.0.7:8080".parse().unwrap();
    member.bootstrap_peers.push(BootstrapPeer { member_id: 1, id: ManagerId(warren_types::Id(11)), address });
    save_identity(dir.path(), &member).unwrap();
    let id = ManagerId(warren_types::Id(11));
    let managers =
        format!("\n[[bootstrap_peers]]\nmember_id = 1\nid = \"{id}\"\naddress = \"10.0.0.7:8080\"\n");
    assert_eq!(reported(), before + &managers);
    assert!(matches!(read_status(dir.path()).unwrap(), LocalMemberStatus::Member(found) if found == member));
}

#[test]
fn removed_manager_keeps_no_cluster_key() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, identity) = founder(dir.path());
    let roots = keys.authority.load().roots();
    for _ in 0..2 {
        mark_removed(dir.path(), &identity).unwrap();
        for file in [AUTHORITY_FILE, ADMIN_FILE, SECRET_OBJECT_KEY_FILE] {
            assert!(!dir.path().join(file).exists(), "{file}");
        }
        let (_, trusted) = crate::ca::load_agent(dir.path(), None).unwrap().expect("it has a node to clear");
        assert_eq!(trusted.pem(), roots.pem());
    }
}

#[test]
fn concurrent_node_save_keeps_removal() {
    let (keys, tried) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, identity) = founder(keys.path());
    let certificate = std::fs::read(keys.path().join(MANAGER_FILE)).unwrap();
    for number in 0..32 {
        let dir = tried.path().join(number.to_string());
        files::ensure_private_dir(&dir).unwrap();
        files::write_private(&dir.join(MANAGER_FILE), &certificate).unwrap();
        save_identity(&dir, &identity).unwrap();
        let begin = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begin.wait();
                save_node(&dir, NodeId(warren_types::Id(8))).unwrap();
            });
            begin.wait();
            mark_removed(&dir, &identity).unwrap();
        });
        assert!(matches!(super::read_status(&dir).unwrap(), LocalMemberStatus::Removed(_)), "try {number}");
    }
}

#[test]
fn keys_of_other_manager_are_kept() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, identity) = founder(dir.path());
    let (_, removed) = founder(other.path());
    mark_removed(other.path(), &removed).unwrap();
    let kept = || {
        [AUTHORITY_FILE, ADMIN_FILE, SECRET_OBJECT_KEY_FILE].iter().all(|file| dir.path().join(file).exists())
    };
    // That of another manager, which was removed.
    std::fs::copy(other.path().join(FILE), dir.path().join(FILE)).unwrap();
    assert!(
        matches!(read_status(dir.path()).unwrap(), LocalMemberStatus::Removed(found) if found == removed)
    );
    for _ in 0..2 {
        let refused = remove_keys(dir.path(), &removed).unwrap_err();
        assert!(matches!(refused, MemberFileError::StillMember { .. }), "{refused}");
        let refused = mark_removed(dir.path(), &identity).unwrap_err();
        assert!(matches!(refused, MemberFileError::IdentityMismatch { .. }), "{refused}");
        assert!(kept());
    }
    save_identity(dir.path(), &identity).unwrap();
    let number_alone = MemberIdentity { member_id: 2, ..identity.clone() };
    assert!(matches!(
        mark_removed(dir.path(), &number_alone).unwrap_err(),
        MemberFileError::IdentityMismatch { .. }
    ));
    std::fs::remove_file(dir.path().join(MANAGER_FILE)).unwrap();
    assert!(matches!(mark_removed(dir.path(), &identity).unwrap_err(), MemberFileError::StillMember { .. }));
    assert!(
        kept()
            && matches!(
                read_status(dir.path()).unwrap(),
                LocalMemberStatus::Member(found) if found.log_owner() == identity.log_owner()
            )
    );
}

#[test]
fn malformed_or_newer_file_is_refused_with_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    let text = |member: u64, founders: &str, secret_object_key: &str| {
        let (cluster, manager) = (identity().cluster, identity().manager);
        format!(
            "version = 1\nmember_id = {member}\nfounders = {founders}\ncluster = \"{cluster}\"\n\
             manager = \"{manager}\"\nsecret_object_key = \"{secret_object_key}\"\n"
        )
    };
    for (text, why) in [
        ("version = 2\nlater = true\n", "has format version 2"),
        ("version = 1\nmember_id = 3\nfounders = [1]\nlater = 1\n", "unknown field `later`"),
        ("version = 1\nmember_id = 3\nfounders = [1]\n", "missing field `cluster`"),
        (&text(0, "[1]", "0123456789abcdef"), "0 is not a valid member id"),
        (&text(3, "[]", "0123456789abcdef"), "0 is not a valid member id"),
        (&text(3, "[1]", "0123"), "is not a fingerprint"),
        ("membr", "is damaged"),
    ] {
        files::write_private(&path, text.as_bytes()).unwrap();
        let error = read_status(dir.path()).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
    }
}

/// The golden file is never changed: a later format gets one of its own.
#[test]
fn version_1_file_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    files::write_private(&path, include_bytes!("golden/member.1")).unwrap();
    let (id, address) = (ManagerId(warren_types::Id(1)), "10.0.0.7:8080".parse().unwrap());
    let expected = MemberIdentity {
        member_id: 3,
        founders: vec![1, 2],
        bootstrap_peers: vec![BootstrapPeer { member_id: 1, id, address }],
        certificate_identity: identity(),
        node: Some(NodeId(warren_types::Id(7))),
    };
    let found = load(&path).unwrap().unwrap();
    assert!(matches!(&found, LocalMemberStatus::Superseded(found, 5) if *found == expected), "{found:?}");
}

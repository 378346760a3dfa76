use super::*;
use std::time::Duration;

use warren_security::files;
use warren_types::NodeRole;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// With an agent, as a hybrid manager has it.
fn open(dir: &Path, create: bool, now: SystemTime) -> Result<ManagerKeys, CaError> {
    let keys = ManagerKeys::open(dir, create, now)?;
    keys.ensure_agent(|| Ok(None), now)?;
    Ok(keys)
}

fn agent(keys: &ManagerKeys) -> LocalAgent {
    keys.agent().borrow().clone().unwrap()
}

#[test]
fn cluster_is_created_once_and_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    assert!(matches!(open(dir.path(), false, now), Err(CaError::NoCluster(_))));
    let first = open(dir.path(), true, now).unwrap();
    let again = open(dir.path(), true, now).unwrap();
    assert_eq!(first.cluster, again.cluster);
    assert_eq!(first.id, again.id);
    let manager = Credentials::load(&dir.path().join(MANAGER_FILE)).unwrap();
    assert!(manager.identity().is_of_key(&manager.key().public_hash().unwrap()), "others check that");
    let node = agent(&first).credentials;
    assert!(node.identity().is_of_key(&node.key().public_hash().unwrap()), "others check that");
    assert_eq!(agent(&first).id, agent(&again).id);
    assert_eq!(agent(&first).credentials.certificate_pem(), agent(&again).credentials.certificate_pem());
}

#[test]
fn missing_certificate_is_reissued_and_old_one_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let first = open(dir.path(), true, now).unwrap();
    std::fs::remove_file(dir.path().join("admin.pem")).unwrap();
    let later = open(dir.path(), false, now + 50 * DAY).unwrap();
    assert_eq!(later.admin().borrow().identity(), first.admin().borrow().identity());
    assert_eq!(later.manager.identity(), first.manager.identity());
    let (old, new) = (agent(&first).credentials, agent(&later).credentials);
    assert!(new.identity() == old.identity() && new.expires_at() > old.expires_at());
}

#[test]
fn manager_that_was_off_for_100_days_reissues_its_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let (before, _) = running(dir.path());
    let later = SystemTime::now() + 100 * DAY;
    let certificates = || {
        [MANAGER_FILE, ADMIN_FILE, NODE_FILE].map(|file| Credentials::load(&dir.path().join(file)).unwrap())
    };
    let expired = certificates();
    let after = ManagerKeys::open(dir.path(), false, later).unwrap();
    for (old, new) in expired.iter().zip(certificates()) {
        assert!(old.expires_at() < later && new.expires_at() > later, "{new:?}");
        assert_eq!(new.identity(), old.identity());
        assert_eq!(new.key().public_hash().unwrap(), old.key().public_hash().unwrap());
    }
    assert_eq!((after.id, agent(&after).id), (before.id, agent(&before).id));
}

#[test]
fn certificate_that_cannot_be_stored_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, _) = running(dir.path());
    let files = [MANAGER_FILE, ADMIN_FILE, NODE_FILE];
    let later = SystemTime::now() + 100 * DAY;
    let blocked = files.map(|file| dir.path().join(format!(".{file}.partial")));
    blocked.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let stored = || files.map(|file| Credentials::load(&dir.path().join(file)).unwrap().expires_at() > later);
    let shown = |keys: &ManagerKeys| {
        let node = agent(keys);
        assert!(node.credentials.is_valid(later) && keys.admin().borrow().is_valid(later));
        let later = warren_types::Timestamp(0) + later.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let live = [&keys.manager, &node.live_certificate].map(|live| live.validity().end);
        assert!(live.iter().all(|end| *end > later), "{live:?}");
    };
    assert!(matches!(keys.renew(later, 0, None), Err(CaError::File(_))));
    shown(&keys);
    drop(keys);
    let keys = ManagerKeys::open(dir.path(), false, later).unwrap();
    shown(&keys);
    assert_eq!(stored(), [false; 3]);
    blocked.iter().for_each(|path| std::fs::remove_dir(path).unwrap());
    keys.renew(later, 0, None).unwrap();
    assert_eq!(stored(), [true; 3]);
}

#[test]
fn certificate_from_future_is_reissued() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = open(dir.path(), true, now + 20 * DAY).unwrap();
    let issued = |file: &str| Credentials::load(&dir.path().join(file)).unwrap().issued_at();
    keys.renew(now, u64::MAX, Some(90 * DAY)).unwrap();
    let files = [MANAGER_FILE, ADMIN_FILE, NODE_FILE];
    files.iter().for_each(|file| assert!(issued(file) <= now, "{file} by a manager that runs"));
    drop(keys);
    let keys = ManagerKeys::open(dir.path(), false, now).unwrap();
    let authority = keys.authority.load();
    let ahead = CertificateIssuer::new(keys.files(), &authority, now + DAY);
    for file in files {
        let found = Credentials::load(&dir.path().join(file)).unwrap();
        ahead.renew(&found, found.lifetime()).unwrap().save(&dir.path().join(file)).unwrap();
    }
    open(dir.path(), false, now).unwrap();
    files.iter().for_each(|file| assert!(issued(file) <= now, "{file} at its start"));
}

#[test]
fn member_without_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = ManagerKeys::open(dir.path(), true, now).unwrap();
    let path = dir.path().join(MANAGER_FILE);
    let text = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_ne!(
        ManagerKeys::open(dir.path(), true, now).unwrap().id,
        keys.id,
        "an init that was cut off goes on"
    );
    warren_security::files::write_private(&path, &text).unwrap();
    member_identity::save_identity(dir.path(), &member_identity::MemberIdentity::founder(keys.identity()))
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    for create in [true, false] {
        let refused = ManagerKeys::open(dir.path(), create, now).unwrap_err();
        assert!(matches!(&refused, CaError::ManagerMissing(found) if *found == path), "{refused}");
        assert!(!path.exists());
    }
    warren_security::files::write_private(&path, &text).unwrap();
    assert_eq!(ManagerKeys::open(dir.path(), false, now).unwrap().id, keys.id);
}

#[test]
fn wrong_secret_object_key_is_refused() {
    use warren_core::Command;
    use warren_types::{SecretObjectId, SecretObjectKind, Timestamp};

    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let now = SystemTime::now();
    let [keys, others] = [&dir, &other].map(|dir| ManagerKeys::open(dir.path(), true, now).unwrap());
    let mut state = State::new();
    check_secret_object_key(other.path(), &others.secret_object_key, &state).unwrap();
    let id = SecretObjectId(Id(1));
    let content = keys.secret_object_key.seal(id, b"hunter2");
    let (kind, name, at) = (SecretObjectKind::Secret, "db".parse().unwrap(), Timestamp(1));
    let cluster = warren_types::ClusterId(Id(1));
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    state.apply(
        1,
        1,
        &Command::CreateCluster { id: cluster, ranges, feature_level: warren_core::FEATURE_LEVEL, at },
    );
    let labels = Default::default();
    state.apply(1, 2, &Command::CreateSecretObject { id, kind, name, labels, data: content, at });
    assert_eq!(state.secret_objects().count(), 1);
    check_secret_object_key(dir.path(), &keys.secret_object_key, &state).unwrap();
    let another = check_secret_object_key(other.path(), &others.secret_object_key, &state).unwrap_err();
    assert!(matches!(another, CaError::SecretObjectKeyMismatch { .. }), "{another}");
}

#[test]
fn state_from_before_the_replacement_of_the_secret_object_key_is_accepted() {
    use warren_core::{Command, KeyCommand, KeyRotationStep};
    use warren_types::{ClusterId, SealedData, SecretObjectId, SecretObjectKind, Timestamp};

    let dir = tempfile::tempdir().unwrap();
    let keys = ManagerKeys::open(dir.path(), true, SystemTime::now()).unwrap();
    let at = Timestamp(1);
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let cluster = Command::CreateCluster {
        id: ClusterId(Id(1)),
        ranges,
        feature_level: warren_core::FEATURE_LEVEL,
        at,
    };
    let create = |number: u128, data: SealedData| Command::CreateSecretObject {
        id: SecretObjectId(Id(number)),
        kind: SecretObjectKind::Secret,
        name: format!("s{number}").parse().unwrap(),
        labels: Default::default(),
        data,
        at,
    };
    let begin = Command::Key(KeyCommand::Rotate { number: 0, step: KeyRotationStep::Begin, at });
    let check = |state: &State| check_secret_object_key(dir.path(), &keys.secret_object_key, state);
    let mut state = State::new();
    state.apply(1, 1, &cluster);
    // Format 1 names no key: nobody can say that this one was replaced.
    let unnamed = SealedData { size: 1, fingerprint: [1; 32], sealed: [&[1][..], &[7; 29]].concat() };
    assert_eq!(unnamed.key(), None);
    state.apply(1, 2, &create(1, unnamed));
    assert!(matches!(check(&state), Err(CaError::SecretObjectKeyMismatch { .. })));
    state.apply(1, 3, &begin);
    check(&state).unwrap();
    // What names the key has to open.
    let sealed = keys.secret_object_key.seal(SecretObjectId(Id(2)), b"x");
    state.apply(1, 4, &create(2, SealedData { fingerprint: [0; 32], ..sealed }));
    assert_eq!(state.secret_objects().count(), 2);
    assert!(matches!(check(&state), Err(CaError::SecretObjectKeyMismatch { .. })));
}

#[test]
fn secret_object_key_is_never_replaced() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let now = SystemTime::now();
    let keys = ManagerKeys::open(dir.path(), true, now).unwrap();
    let path = dir.path().join(SECRET_OBJECT_KEY_FILE);
    member_identity::save_identity(dir.path(), &member_identity::MemberIdentity::founder(keys.identity()))
        .unwrap();
    let good = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for create in [true, false] {
        let missing = ManagerKeys::open(dir.path(), create, now).unwrap_err();
        assert!(matches!(&missing, CaError::SecretObjectKeyMissing(found) if *found == path), "{missing}");
        assert!(!path.exists());
    }
    ManagerKeys::open(other.path(), true, now).unwrap();
    std::fs::copy(other.path().join(SECRET_OBJECT_KEY_FILE), &path).unwrap();
    let replaced = ManagerKeys::open(dir.path(), false, now).unwrap_err();
    assert!(matches!(&replaced, CaError::SecretObjectKeyReplaced { .. }), "{replaced}");
    warren_security::files::write_private(&path, &good).unwrap();
    assert_eq!(ManagerKeys::open(dir.path(), false, now).unwrap().identity(), keys.identity());
}

#[test]
fn other_cluster_keys_are_refused() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let now = SystemTime::now();
    open(one.path(), true, now).unwrap();
    open(two.path(), true, now).unwrap();
    std::fs::copy(one.path().join("node.pem"), two.path().join("node.pem")).unwrap();
    assert!(matches!(open(two.path(), false, now), Err(CaError::ClusterMismatch { .. })));
}

#[test]
fn renewed_certificate_is_used_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = open(dir.path(), true, now).unwrap();
    let (before, mut admin) = (agent(&keys), keys.admin());
    let stored = |file: &str| Credentials::load(&dir.path().join(file)).unwrap();
    let manager = stored(MANAGER_FILE);
    // Certificates of users are valid for a day and renewed after 16 hours, those of machines for 90 and after 60 days.
    keys.renew(now + DAY / 2, 0, Some(90 * DAY)).unwrap();
    assert!(!admin.has_changed().unwrap());
    keys.renew(now + 59 * DAY, 0, Some(90 * DAY)).unwrap();
    assert!(admin.has_changed().unwrap());
    assert_eq!(admin.borrow_and_update().certificate_pem(), stored(ADMIN_FILE).certificate_pem());
    assert_eq!(stored(MANAGER_FILE).certificate_pem(), manager.certificate_pem());
    keys.renew(now + 61 * DAY, u64::MAX, Some(90 * DAY)).unwrap();
    assert_eq!(stored(MANAGER_FILE).certificate_pem(), manager.certificate_pem(), "each has its own moment");
    keys.renew(now + 61 * DAY, 0, Some(90 * DAY)).unwrap();
    let (renewed, after) = (stored(MANAGER_FILE), agent(&keys));
    assert!(renewed.expires_at() > manager.expires_at() && renewed.identity() == manager.identity());
    assert_eq!(after.id, before.id);
    assert!(after.credentials.expires_at() > before.credentials.expires_at());
    assert!(
        Arc::ptr_eq(&after.live_certificate, &before.live_certificate),
        "open listeners use it from now on"
    );
}

#[test]
fn certificates_of_machines_get_the_lifetime_that_is_set() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = open(dir.path(), true, now).unwrap();
    let lifetimes = || {
        [MANAGER_FILE, NODE_FILE, ADMIN_FILE]
            .map(|file| Credentials::load(&dir.path().join(file)).unwrap().lifetime())
    };
    assert_eq!(lifetimes(), [90 * DAY, 90 * DAY, DAY]);
    keys.renew(now, 0, Some(DAY / 24)).unwrap();
    assert_eq!(lifetimes(), [DAY / 24, DAY / 24, DAY], "a shorter one at once");
    keys.renew(now, 0, Some(365 * DAY)).unwrap();
    assert_eq!(lifetimes(), [DAY / 24, DAY / 24, DAY], "a longer one with the next renewal");
    open(dir.path(), false, now + DAY).unwrap();
    assert_eq!(lifetimes(), [DAY / 24, DAY / 24, DAY], "a manager that starts does not know the setting yet");
    keys.renew(now + 2 * DAY, 0, Some(365 * DAY)).unwrap();
    assert_eq!(lifetimes(), [365 * DAY, 365 * DAY, DAY]);
    for later in [3 * DAY, 300 * DAY] {
        keys.renew(now + later, 0, None).unwrap();
        assert_eq!(lifetimes(), [365 * DAY, 365 * DAY, DAY], "the setting is not known");
    }
}

#[test]
fn manager_only_has_no_agent_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = ManagerKeys::open(dir.path(), true, now).unwrap();
    keys.renew(now + 80 * DAY, 0, Some(90 * DAY)).unwrap();
    assert!(keys.agent().borrow().is_none() && !dir.path().join(NODE_FILE).exists());
}

/// Also when it is killed after any of its files.
#[test]
fn manager_follows_the_replacement_of_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let keys = open(dir.path(), true, now).unwrap();
    let member = crate::MemberIdentity::founder(keys.identity());
    member_identity::save_identity(dir.path(), &member).unwrap();
    let old = keys.authority.load();
    let next = old.successor(now).unwrap();
    let sealed = keys.secret_object_key.seal(rotation_id(keys.cluster), next.to_pem().as_bytes());
    let rotation = CaRotation {
        digest: next.digest(),
        sealed,
        predecessors: vec![old.certificate_pem().to_owned()],
        phase: warren_types::CaPhase::Managers,
        began_at: warren_types::Timestamp(1),
        managers: Default::default(),
        nodes: Default::default(),
        keys: Default::default(),
    };
    let names = [MANAGER_FILE, ADMIN_FILE, NODE_FILE, AUTHORITY_FILE];
    let content = |file: &str| std::fs::read(dir.path().join(file)).unwrap();
    let before = names.map(content);
    let admin = keys.admin().borrow().key().pem().to_owned();
    for _ in 0..2 {
        keys.follow_rotation(&rotation, ManagerCaStep::Adopt, now).unwrap();
        assert_eq!(keys.trust.roots().digests(), [next.digest(), old.digest()]);
        assert_eq!(keys.authority.load().digest(), next.digest());
        assert_eq!(keys.admin().borrow().key().pem(), admin, "managers list it");
    }
    let only_new = next.without_predecessors().roots();
    for file in [MANAGER_FILE, ADMIN_FILE, NODE_FILE] {
        let issued = Credentials::load(&dir.path().join(file)).unwrap();
        only_new.check_issued(&issued).unwrap();
        old.roots().check_issued(&issued).unwrap();
    }
    let after = names.map(content);
    for written in 0..=names.len() {
        for (number, file) in names.iter().enumerate() {
            let content = if number < written { &after[number] } else { &before[number] };
            files::write_private(&dir.path().join(file), content).unwrap();
        }
        let again = open(dir.path(), false, now).unwrap();
        again.follow_rotation(&rotation, ManagerCaStep::Adopt, now).unwrap();
        assert_eq!(again.trust.roots().digests(), [next.digest(), old.digest()], "after {written} files");
    }
    keys.follow_rotation(&rotation, ManagerCaStep::DropPredecessor, now).unwrap();
    assert_eq!(keys.trust.roots().digests(), [next.digest()]);
    let again = open(dir.path(), false, now).unwrap();
    assert_eq!(again.trust.roots().digests(), [next.digest()]);
    let sealed = keys.secret_object_key.seal(rotation_id(keys.cluster), old.to_pem().as_bytes());
    let earlier = CaRotation { digest: old.digest(), sealed, ..rotation.clone() };
    keys.follow_rotation(&earlier, ManagerCaStep::Adopt, now).unwrap();
    assert_eq!(keys.authority.load().digest(), next.digest(), "the state is behind");
    let other = CaRotation { digest: old.digest(), ..rotation };
    assert!(
        keys.follow_rotation(&other, ManagerCaStep::Adopt, now).is_err(),
        "it is sealed for another digest"
    );
}

#[test]
fn name_is_reused_only_after_data_loss() {
    use warren_core::Command;
    use warren_types::{NodeDescription, Timestamp, TokenHash, TokenId};

    let mut state = State::new();
    let at = Timestamp(1);
    let level = warren_core::FEATURE_LEVEL;
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let node = |id, name: &str, role, host: &str| Command::RegisterNode {
        id: NodeId(Id(id)),
        name: name.parse().unwrap(),
        role,
        description: NodeDescription { address: host.into(), ..NodeDescription::default() },
        taints: Default::default(),
        at,
    };
    let hash = TokenHash([7; 32]);
    let join = |id, name: &str, host: &str| Command::JoinManager {
        hash,
        id: ManagerId(Id(id)),
        name: name.parse().unwrap(),
        address: format!("{host}:8080").parse().unwrap(),
        level,
        at,
    };
    let first = Command::RegisterMember {
        member: 1,
        id: ManagerId(Id(21)),
        name: "m1".parse().unwrap(),
        address: "10.0.0.1:8080".parse().unwrap(),
        level,
        at,
    };
    let commands = [
        Command::CreateCluster { id: ClusterId(Id(1)), ranges, feature_level: level, at },
        first,
        node(7, "m1", NodeRole::Manager, "10.0.0.1"),
        node(8, "w1", NodeRole::Worker, "10.0.0.8"),
        // Its manager was removed.
        node(9, "m2", NodeRole::Manager, "10.0.0.2"),
    ];
    for (command, index) in commands.iter().zip(1..) {
        state.apply(1, index, command);
    }
    let node_of = |state: &State, own, name: &str, host: &str| {
        super::find_own_node(state, own, &name.parse().unwrap(), host).map_err(|error| error.to_string())
    };
    let (seven, nine) = (Ok(Some(NodeId(Id(7)))), Ok(Some(NodeId(Id(9)))));
    // A restored cluster may run on any machine.
    assert_eq!(node_of(&state, 1, "m1", "10.0.0.5"), seven);
    let role = NodeRole::Manager;
    let token = Command::CreateToken {
        id: TokenId(Id(5)),
        role,
        hash,
        expires_at: None,
        max_uses: None,
        labels: Default::default(),
        at,
    };
    for (command, index) in [token, join(22, "m2", "10.0.0.6")].iter().zip(11..) {
        state.apply(1, index, command);
    }
    assert_eq!(state.members().count(), 2);
    assert_eq!(node_of(&state, 1, "m1", "10.0.0.1"), seven, "at the same address");
    assert_eq!(node_of(&state, 2, "m2", "10.0.0.2"), nine, "removed, and joined again");
    let refused = node_of(&state, 2, "m2", "10.0.0.6").unwrap_err();
    assert!(refused.contains("10.0.0.2") && refused.contains("`warren node rm m2` first"), "{refused}");
    for new in ["w1", "m3"] {
        assert_eq!(node_of(&state, 2, new, "10.0.0.6"), Ok(None), "{new} takes nobody's place");
    }
    // The first machine lost its disk, and joined again as the replacement of its former manager.
    state.apply(1, 13, &join(23, "m1", "10.0.0.1"));
    assert_eq!(state.member(3).and_then(|member| member.replaces), Some(1));
    assert_eq!(node_of(&state, 3, "m1", "other"), seven);
}

/// A manager with an agent and a member key, as one that runs has it.
fn running(dir: &Path) -> (ManagerKeys, MemberIdentity) {
    let now = SystemTime::now();
    let keys = ManagerKeys::open(dir, true, now).unwrap();
    let identity = MemberIdentity::founder(keys.identity());
    member_identity::save_identity(dir, &identity).unwrap();
    keys.ensure_agent(|| Ok(None), now).unwrap();
    warren_security::seal::Keyring::prepare(keys.files(), &Default::default()).unwrap().commit().unwrap();
    (keys, identity)
}

/// The files with a private key that everybody can read.
fn plain_keys(dir: &Path) -> Vec<&'static str> {
    let is_plain = |file: &&str| {
        let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.contains("BEGIN PRIVATE KEY") || text.contains("-key 1 ")
    };
    let files = [AUTHORITY_FILE, MANAGER_FILE, ADMIN_FILE, NODE_FILE, SECRET_OBJECT_KEY_FILE, "member.key"];
    files.into_iter().filter(is_plain).collect()
}

#[test]
fn keys_are_locked_and_stay_so_when_they_are_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, identity) = running(dir.path());
    assert_eq!(plain_keys(dir.path()).len(), 6);
    let unlock_key = UnlockKey::generate();
    for _ in 0..2 {
        keys.lock_with(Some(&unlock_key)).unwrap();
        assert_eq!(plain_keys(dir.path()), [""; 0]);
    }
    keys.renew(SystemTime::now() + 80 * DAY, 0, Some(90 * DAY)).unwrap();
    assert_eq!(plain_keys(dir.path()), [""; 0]);
    let refused = ManagerKeys::open(dir.path(), false, SystemTime::now()).unwrap_err();
    assert!(refused.to_string().contains("`warren manager unlock`"), "{refused}");
    let files = KeyFiles::open(dir.path(), Some(&unlock_key)).unwrap();
    let (again, _) = ManagerKeys::prepare(files, false, SystemTime::now()).unwrap();
    assert_eq!((again.identity(), again.id), (identity.certificate_identity, keys.id));
    again.lock_with(None).unwrap();
    assert_eq!(plain_keys(dir.path()).len(), 6);
    ManagerKeys::open(dir.path(), false, SystemTime::now()).unwrap();
}

#[test]
fn removed_manager_keeps_the_key_of_its_node_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, identity) = running(dir.path());
    let unlock_key = UnlockKey::generate();
    keys.lock_with(Some(&unlock_key)).unwrap();
    assert!(load_agent(dir.path(), None).is_err());
    let node = agent(&keys).credentials;
    let with_key = load_agent(dir.path(), Some(&unlock_key)).unwrap().unwrap().0;
    assert_eq!(with_key.identity(), node.identity());
    for _ in 0..2 {
        keys.mark_removed(&identity).unwrap();
        // A change of autolock that arrives late changes nothing.
        keys.lock_with(Some(&UnlockKey::generate())).unwrap();
        assert_eq!(plain_keys(dir.path()), [NODE_FILE]);
        let (left, roots) = load_agent(dir.path(), None).unwrap().unwrap();
        assert_eq!(left.identity(), node.identity());
        assert_eq!(roots.digests(), keys.trust.roots().digests());
    }
}

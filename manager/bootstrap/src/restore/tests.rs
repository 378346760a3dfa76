use std::collections::BTreeSet;

use warren_security::seal::key_id_of;

use super::*;
use crate::backup;
use crate::backup::tests::{BackupFixture, passphrase};
use crate::member_identity::LocalMemberStatus;

fn contact() -> ManagerContact {
    ManagerContact { name: "m9".parse().unwrap(), address: "10.0.0.9:8080".parse().unwrap() }
}

fn restored(data_dir: &Path, sample: &BackupFixture) -> Result<MemberIdentity, BackupRestoreError> {
    let opened = backup::read(&passphrase(), sample.encrypted()).unwrap();
    BackupRestore::begin(data_dir)?.finish(opened, LogEngine::Redb, contact(), SystemTime::now())
}

/// The state in the log of `dir`.
fn stored(dir: &Path) -> (State, StoredLog) {
    let owner = member_identity::load_identity(dir).unwrap().unwrap().log_owner();
    let loaded = warren_log::open(dir, LogEngine::Redb, owner).unwrap().load().unwrap();
    let meta = loaded.snapshot.clone().unwrap();
    let files = SnapshotDir::open(dir.join("snapshots"), Some(&meta)).unwrap();
    let sealed = files.load(&meta).unwrap();
    let keyring = Keyring::open(dir, &BTreeSet::from([key_id_of(&sealed).unwrap()])).unwrap();
    let plain = keyring.unseal_stream(&snapshot_aad(&meta), sealed).unwrap();
    (codec::read_snapshot(&plain).unwrap(), loaded)
}

#[test]
fn restored_cluster_has_next_incarnation_and_one_manager() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let sample = BackupFixture::new();
    let identity = restored(data.path(), &sample).unwrap();
    let own = identity.member_id;
    let incarnation = stored(&dir).0.cluster().unwrap().incarnation;
    assert_eq!(
        (&identity, own),
        (&MemberIdentity::sole_voter(own, identity.certificate_identity), incarnation * 1_000),
        "an id that no manager had before, in no incarnation"
    );
    assert!(
        matches!(member_identity::read_status(&dir).unwrap(), LocalMemberStatus::Member(found) if found == identity)
    );
    let (state, loaded) = stored(&dir);
    assert!(state.cluster().unwrap().incarnation > sample.state.cluster().unwrap().incarnation);
    let members: Vec<_> = state.members().collect();
    let [member] = members[..] else { panic!("{members:?}") };
    assert_eq!((member.member_id, &member.address), (own, &contact().address));
    let gone: Vec<_> = state.departed_managers().map(|(_, departed)| departed.member).collect();
    assert_eq!(
        (gone, state.next_member_id()),
        (vec![1], own + 1),
        "its certificate is good for nothing any more"
    );
    assert_eq!(state.secret_objects().count(), 1);
    assert_eq!(loaded.snapshot.unwrap().conf_state, ConfState::of_voters(vec![own]));
    assert!(loaded.hard_state.term > sample.state.applied().term, "a term of its own");
    assert_eq!(loaded.hard_state.commit, state.applied().index);
    let keys = ManagerKeys::open(&dir, false, SystemTime::now()).unwrap();
    assert_eq!(keys.cluster, sample.state.cluster().unwrap().id);
    assert_eq!(keys.id, member.manager_id);
    assert_eq!(keys.identity(), identity.certificate_identity);
    assert!(crate::ca::check_secret_object_key(&dir, &keys.secret_object_key, &state).is_ok());
}

#[test]
fn restored_cluster_has_no_tokens() {
    use warren_types::{NodeRole, TokenHash};

    let data = tempfile::tempdir().unwrap();
    let mut sample = BackupFixture::new();
    let (hash, at) = (TokenHash([7; 32]), sample.state.clock());
    let AppliedIndex { term, index } = sample.state.applied();
    let id = TokenId(warren_types::Id(5));
    let create = Command::CreateToken {
        id,
        role: NodeRole::Manager,
        hash,
        expires_at: None,
        max_uses: None,
        labels: Default::default(),
        at,
    };
    sample.state.apply(term, index + 1, &create);
    assert!(sample.state.token_by_hash(&hash).is_some());
    restored(data.path(), &sample).unwrap();
    let (state, _) = stored(&data.path().join("manager"));
    assert!(state.tokens_after(None).next().is_none() && state.token_by_hash(&hash).is_none());
    state.check().unwrap();
}

#[test]
fn restored_cluster_has_autolock_off() {
    use warren_security::UnlockKey;

    let data = tempfile::tempdir().unwrap();
    let mut sample = BackupFixture::new();
    let AppliedIndex { term, index } = sample.state.applied();
    let (cluster, at) = (sample.state.cluster().unwrap().id, sample.state.clock());
    let key = UnlockKey::generate();
    let sealed = crate::autolock::seal_unlock_key(&sample.secret_object_key, cluster, &key);
    let command = KeyCommand::SetUnlockKey { key: Some(sealed), replaces: None, at };
    sample.state.apply(term, index + 1, &Command::Key(command));
    assert_eq!(sample.state.unlock_key().map(|sealed| sealed.id), Some(key.id()));
    restored(data.path(), &sample).unwrap();
    let dir = data.path().join("manager");
    let (state, _) = stored(&dir);
    assert_eq!(state.unlock_key(), None);
    assert_eq!(warren_security::seal::KeyFiles::locked_with(&dir).unwrap(), None);
    state.check().unwrap();
}

#[test]
fn existing_manager_is_not_overwritten() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    std::fs::create_dir(&dir).unwrap();
    let refused = restored(data.path(), &BackupFixture::new()).unwrap_err();
    assert!(matches!(refused, BackupRestoreError::DirectoryInUse(found) if found == dir));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn interrupted_restore_can_be_repeated() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let sample = BackupFixture::new();
    let half = data.path().join("manager.restoring");
    // Killed just before the end: everything exists except the final name.
    restored(data.path(), &sample).unwrap();
    std::fs::rename(&dir, &half).unwrap();
    assert!(matches!(member_identity::read_status(&dir).unwrap(), LocalMemberStatus::Unused));
    // And somewhere in between.
    std::fs::remove_file(half.join("secret-objects.key")).unwrap();
    restored(data.path(), &sample).unwrap();
    assert!(!half.exists());
    assert_eq!(stored(&dir).0.secret_objects().count(), 1);
}

/// Two machines restore one backup one after the other: their member ids differ, and so do those of managers
/// that join them.
#[test]
fn restores_of_one_backup_have_distinct_incarnations() {
    let sample = BackupFixture::new();
    let began = SystemTime::now();
    let restored = |after: u64| {
        let data = tempfile::tempdir().unwrap();
        let opened = backup::read(&passphrase(), sample.encrypted()).unwrap();
        let now = began + std::time::Duration::from_secs(after);
        let restoring = BackupRestore::begin(data.path()).unwrap();
        let identity = restoring.finish(opened, LogEngine::Redb, contact(), now).unwrap();
        (identity.member_id, stored(&data.path().join("manager")).0)
    };
    let [(first, one), (second, other)] = [0, 1].map(restored);
    assert!(one.cluster().unwrap().incarnation < other.cluster().unwrap().incarnation);
    // Each assigns the following ids: up to 999 managers within the second between the restores.
    assert!(one.next_member_id() == first + 1 && other.next_member_id() == second + 1);
    assert!(second - first >= 1_000, "{first} and {second}");
    // A manager that joined the old incarnation after the backup has an id that is never assigned again.
    let lost = sample.state.next_member_id();
    assert!([&one, &other].iter().all(|state| state.member(lost).is_none() && lost < state.next_member_id()));
}

use bytes::Bytes;
use warren_consensus::RaftEntry;
use warren_core::{CaCommand, Command, FEATURE_LEVEL};
use warren_log::{ConfState, HardState, WriteBatch};
use warren_types::{CaDigest, Id, ManagerId, SealedData, Timestamp};

use super::*;

const AT: Timestamp = Timestamp(1_000);

fn contact() -> ManagerContact {
    ManagerContact { name: "m1".parse().unwrap(), address: "10.0.0.1:8080".parse().unwrap() }
}

fn registered(member: u64) -> Command {
    Command::RegisterMember {
        member,
        id: ManagerId(Id(u128::from(member))),
        name: format!("m{member}").parse().unwrap(),
        address: format!("10.0.0.{member}:8080").parse().unwrap(),
        level: FEATURE_LEVEL,
        at: AT,
    }
}

/// A stopped manager whose log has these commands after the cluster's creation; `committed` entries are known
/// to be committed.
fn stopped_manager(data: &Path, commands: Vec<Command>, committed: u64, voters: &[u64]) -> PathBuf {
    let dir = data.join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = ManagerKeys::open(&dir, true, SystemTime::now()).unwrap();
    let identity = MemberIdentity::founder(keys.identity());
    member_identity::save_identity(&dir, &identity).unwrap();
    let mut log = warren_log::open(&dir, LogEngine::Redb, identity.log_owner()).unwrap();
    let keyring = Keyring::open(&dir, &Default::default()).unwrap();
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let create = Command::CreateCluster { id: keys.cluster, ranges, feature_level: FEATURE_LEVEL, at: AT };
    let noop = RaftEntry { index: 1, term: 1, kind: EntryKind::Noop, data: Bytes::new() };
    let entries = [create].into_iter().chain(commands).zip(2..).map(|(command, index)| RaftEntry {
        index,
        term: 1,
        kind: EntryKind::Command,
        data: codec::encode(&command).into(),
    });
    let persist = warren_consensus::DurableWrite {
        number: 1,
        snapshot: None,
        entries: [noop].into_iter().chain(entries).collect(),
        hard_state: Some(HardState { term: 3, vote: 2, commit: committed }),
        acknowledged: None,
    };
    let batch = sealing::seal_batch(persist, &keyring).unwrap();
    let conf_state = Some(ConfState::of_voters(voters.to_vec()));
    log.append(&WriteBatch { conf_state, ..batch }).unwrap();
    dir
}

fn saved_identity(dir: &Path) -> MemberIdentity {
    member_identity::load_identity(dir).unwrap().unwrap()
}

fn state_of(dir: &Path) -> (State, StoredLog) {
    let loaded =
        warren_log::open(dir, LogEngine::Redb, saved_identity(dir).log_owner()).unwrap().load().unwrap();
    (replay(&KeyFiles::open(dir, None).unwrap(), loaded.clone()).unwrap().0, loaded)
}

fn force(data: &Path) -> Result<ForceNewClusterOutcome, ForceNewClusterError> {
    force_new_cluster(data, LogEngine::Redb, None, contact(), SystemTime::now())
}

#[test]
fn whole_log_is_kept_and_only_self_votes() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped_manager(data.path(), vec![registered(1)], 2, &[1, 2, 3]);
    assert_eq!(force(data.path()).unwrap(), ForceNewClusterOutcome::Created { others: 0, uncommitted: 1 });
    let (state, loaded) = state_of(&dir);
    let incarnation = state.cluster().unwrap().incarnation;
    assert!(incarnation > 1, "workers heed it and not what was before");
    assert_eq!(state.members().map(|member| member.member_id).collect::<Vec<_>>(), [1]);
    let keys = ManagerKeys::open(&dir, false, SystemTime::now()).unwrap();
    assert_eq!(state.member(1).unwrap().manager_id, keys.id);
    assert_eq!(loaded.snapshot.unwrap().conf_state, ConfState::of_voters(vec![1]));
    assert_eq!((loaded.hard_state.term, loaded.hard_state.vote), (4, 0), "a term that nobody led in");
    assert_eq!((loaded.hard_state.commit, loaded.entries.len()), (4, 0));

    assert_eq!(force(data.path()).unwrap(), ForceNewClusterOutcome::Unchanged);
    assert_eq!(state_of(&dir).0.cluster().unwrap().incarnation, incarnation, "once is enough");
}

#[test]
fn unregistered_manager_gets_member_record() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped_manager(data.path(), Vec::new(), 2, &[1, 2, 3]);
    assert_eq!(force(data.path()).unwrap(), ForceNewClusterOutcome::Created { others: 0, uncommitted: 0 });
    let (state, _) = state_of(&dir);
    assert_eq!(state.member(1).unwrap().address, contact().address);
}

#[test]
fn sole_member_is_unchanged() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped_manager(data.path(), vec![registered(1)], 3, &[1]);
    assert_eq!(force(data.path()).unwrap(), ForceNewClusterOutcome::Unchanged);
    assert!(state_of(&dir).1.snapshot.is_none());
}

#[test]
fn interruption_after_snapshot_changes_nothing() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped_manager(data.path(), vec![registered(1)], 2, &[1, 2, 3]);
    // A snapshot file that no log points to, as left by a killed process.
    let (before, loaded) = state_of(&dir);
    let files = SnapshotDir::open(dir.join("snapshots"), None).unwrap();
    let meta = warren_log::SnapshotMeta { index: 4, term: 4, conf_state: ConfState::of_voters(vec![1]) };
    files.write(&meta, |out| out.write_all(b"half")).unwrap();
    let (after, again) = state_of(&dir);
    assert_eq!((before, loaded), (after, again));
    assert_eq!(force(data.path()).unwrap(), ForceNewClusterOutcome::Created { others: 0, uncommitted: 1 });
}

/// The incarnation that superseded this manager turns out to be a mistake.
#[test]
fn superseded_manager_can_force_new_incarnation() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped_manager(data.path(), vec![registered(1)], 3, &[1]);
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1_000;
    member_identity::mark_superseded(&dir, &saved_identity(&dir), ahead).unwrap();
    assert!(
        matches!(force(data.path()).unwrap(), ForceNewClusterOutcome::Created { .. }),
        "though it was alone before"
    );
    assert_eq!(state_of(&dir).0.cluster().unwrap().incarnation, ahead + 1);
    assert!(matches!(member_identity::read_status(&dir).unwrap(), LocalMemberStatus::Member(_)));
    // An unrealistic number has no effect.
    member_identity::mark_superseded(&dir, &saved_identity(&dir), u64::MAX).unwrap();
    force(data.path()).unwrap();
}

#[test]
fn missing_cluster_state_is_reported() {
    let data = tempfile::tempdir().unwrap();
    assert!(matches!(force(data.path()).unwrap_err(), ForceNewClusterError::NoManager(_)));
    let dir = data.path().join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = ManagerKeys::open(&dir, true, SystemTime::now()).unwrap();
    member_identity::save_identity(&dir, &MemberIdentity::founder(keys.identity())).unwrap();
    member_identity::mark_removed(&dir, &saved_identity(&dir)).unwrap();
    assert!(matches!(force(data.path()).unwrap_err(), ForceNewClusterError::Removed));

    let joined = tempfile::tempdir().unwrap();
    let dir = joined.path().join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = ManagerKeys::open(&dir, true, SystemTime::now()).unwrap();
    let identity = MemberIdentity { founders: vec![1, 2], ..MemberIdentity::sole_voter(3, keys.identity()) };
    member_identity::save_identity(&dir, &identity).unwrap();
    let mut log = warren_log::open(&dir, LogEngine::Redb, identity.log_owner()).unwrap();
    let conf_state = Some(ConfState::of_voters(vec![1, 2]));
    log.append(&WriteBatch { conf_state, ..WriteBatch::default() }).unwrap();
    drop(log);
    assert!(matches!(force(joined.path()).unwrap_err(), ForceNewClusterError::NoCluster));
}

/// A lost key is replaced only if nothing that is still needed is sealed with it.
#[test]
fn secret_object_key_is_needed_until_the_new_authority_is_in_its_file() {
    let data = tempfile::tempdir().unwrap();
    let next = CertificateAuthority::create("c1x", SystemTime::now()).unwrap();
    let begin = Command::Ca(CaCommand::Begin {
        digest: next.digest(),
        sealed: SealedData { size: 1, fingerprint: [1; 32], sealed: vec![1] },
        current: CaDigest::from_bytes([1; 32]),
        certificate: next.certificate_pem().to_owned(),
        at: AT,
    });
    let unneeded = |dir: &Path| {
        let files = KeyFiles::open(dir, None).unwrap();
        needs_no_secret_object_key(&files, LogEngine::Redb, &saved_identity(dir))
    };
    let dir = stopped_manager(data.path(), vec![registered(1), begin], 4, &[1]);
    assert!(!unneeded(&dir), "the new authority is sealed with it");
    next.save(&dir.join(AUTHORITY_FILE)).unwrap();
    assert!(unneeded(&dir));
    let data = tempfile::tempdir().unwrap();
    assert!(unneeded(&stopped_manager(data.path(), vec![registered(1)], 3, &[1])), "nothing is replaced");
}

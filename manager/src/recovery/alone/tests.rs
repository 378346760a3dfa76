use bytes::Bytes;
use warren_consensus::Entry;
use warren_core::{Command, LEVEL};
use warren_log::{Batch, ConfState, HardState};
use warren_types::{Id, ManagerId, Timestamp};

use super::*;

const AT: Timestamp = Timestamp(1_000);

fn whom() -> Whom {
    Whom { name: "m1".parse().unwrap(), address: "10.0.0.1:8080".parse().unwrap() }
}

fn registered(member: u64) -> Command {
    Command::RegisterMember {
        member,
        id: ManagerId(Id(u128::from(member))),
        name: format!("m{member}").parse().unwrap(),
        address: format!("10.0.0.{member}:8080").parse().unwrap(),
        level: LEVEL,
        at: AT,
    }
}

/// A stopped manager whose log holds these commands after the cluster's creation, of which `committed` entries are
/// known to be so.
fn stopped(data: &Path, commands: Vec<Command>, committed: u64, voters: &[u64]) -> PathBuf {
    let dir = data.join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = Keys::open(&dir, true, SystemTime::now()).unwrap();
    let seat = Seat::first(keys.identity());
    seat::take(&dir, &seat).unwrap();
    let mut log = warren_log::open(&dir, Engine::Redb, seat.owner()).unwrap();
    let keyring = Keyring::open(&dir, &Default::default()).unwrap();
    let ranges = vec!["10.210.0.0/16".parse().unwrap()];
    let create = Command::CreateCluster { id: keys.cluster, ranges, level: LEVEL, at: AT };
    let noop = Entry { index: 1, term: 1, kind: EntryKind::Noop, data: Bytes::new() };
    let entries = [create].into_iter().chain(commands).zip(2..).map(|(command, index)| Entry {
        index,
        term: 1,
        kind: EntryKind::Command,
        data: codec::encode(&command).into(),
    });
    let persist = warren_consensus::Persist {
        number: 1,
        snapshot: None,
        entries: [noop].into_iter().chain(entries).collect(),
        hard_state: Some(HardState { term: 3, vote: 2, commit: committed }),
        acknowledged: None,
    };
    let batch = disk::batch(persist, &keyring).unwrap();
    let conf_state = Some(ConfState::of_voters(voters.to_vec()));
    log.append(&Batch { conf_state, ..batch }).unwrap();
    dir
}

fn written(dir: &Path) -> Seat {
    seat::written(dir).unwrap().unwrap()
}

fn state_of(dir: &Path) -> (State, Loaded) {
    let loaded = warren_log::open(dir, Engine::Redb, written(dir).owner()).unwrap().load().unwrap();
    (replay(dir, loaded.clone()).unwrap().0, loaded)
}

fn go(data: &Path) -> Result<Alone, AloneError> {
    go_on(data, Engine::Redb, whom(), SystemTime::now())
}

#[test]
fn all_that_the_log_holds_counts_and_nobody_else_votes() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped(data.path(), vec![registered(1)], 2, &[1, 2, 3]);
    assert_eq!(go(data.path()).unwrap(), Alone::Now { others: 0, uncommitted: 1 });
    let (state, loaded) = state_of(&dir);
    let incarnation = state.cluster().unwrap().incarnation;
    assert!(incarnation > 1, "workers heed it and not what was before");
    assert_eq!(state.members().map(|member| member.member).collect::<Vec<_>>(), [1]);
    let keys = Keys::open(&dir, false, SystemTime::now()).unwrap();
    assert_eq!(state.member(1).unwrap().id, keys.id);
    assert_eq!(loaded.snapshot.unwrap().conf_state, ConfState::of_voters(vec![1]));
    assert_eq!((loaded.hard_state.term, loaded.hard_state.vote), (4, 0), "a term that nobody led in");
    assert_eq!((loaded.hard_state.commit, loaded.entries.len()), (4, 0));

    assert_eq!(go(data.path()).unwrap(), Alone::Already);
    assert_eq!(state_of(&dir).0.cluster().unwrap().incarnation, incarnation, "once is enough");
}

#[test]
fn a_manager_that_never_said_who_it_is_gets_a_record() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped(data.path(), Vec::new(), 2, &[1, 2, 3]);
    assert_eq!(go(data.path()).unwrap(), Alone::Now { others: 0, uncommitted: 0 });
    let (state, _) = state_of(&dir);
    assert_eq!(state.member(1).unwrap().address, whom().address);
}

#[test]
fn who_is_alone_already_stays_as_it_is() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped(data.path(), vec![registered(1)], 3, &[1]);
    assert_eq!(go(data.path()).unwrap(), Alone::Already);
    assert!(state_of(&dir).1.snapshot.is_none());
}

#[test]
fn what_was_cut_off_after_the_snapshots_file_is_as_it_was() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped(data.path(), vec![registered(1)], 2, &[1, 2, 3]);
    // The file of a snapshot that no log points to, as a killed process leaves it.
    let (before, loaded) = state_of(&dir);
    let files = Snapshots::open(dir.join("snapshots"), None).unwrap();
    let meta = warren_log::SnapshotMeta { index: 4, term: 4, conf_state: ConfState::of_voters(vec![1]) };
    files.write(&meta, |out| out.write_all(b"half")).unwrap();
    let (after, again) = state_of(&dir);
    assert_eq!((before, loaded), (after, again));
    assert_eq!(go(data.path()).unwrap(), Alone::Now { others: 0, uncommitted: 1 });
}

/// People find that the life which began without this manager was a mistake.
#[test]
fn one_that_was_overtaken_can_be_made_the_cluster_again_in_a_later_life() {
    let data = tempfile::tempdir().unwrap();
    let dir = stopped(data.path(), vec![registered(1)], 3, &[1]);
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 1_000;
    seat::overtaken(&dir, &written(&dir), ahead).unwrap();
    assert!(matches!(go(data.path()).unwrap(), Alone::Now { .. }), "though it was alone before");
    assert_eq!(state_of(&dir).0.cluster().unwrap().incarnation, ahead + 1);
    assert!(matches!(seat::look(&dir).unwrap(), Standing::Seated(_)));
    // A number that nobody means stops nothing.
    seat::overtaken(&dir, &written(&dir), u64::MAX).unwrap();
    go(data.path()).unwrap();
}

#[test]
fn where_there_is_nothing_to_go_on_with_it_is_said() {
    let data = tempfile::tempdir().unwrap();
    assert!(matches!(go(data.path()).unwrap_err(), AloneError::NoManager(_)));
    let dir = data.path().join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = Keys::open(&dir, true, SystemTime::now()).unwrap();
    seat::take(&dir, &Seat::first(keys.identity())).unwrap();
    seat::lose(&dir, &written(&dir)).unwrap();
    assert!(matches!(go(data.path()).unwrap_err(), AloneError::Removed));

    let joined = tempfile::tempdir().unwrap();
    let dir = joined.path().join("manager");
    std::fs::create_dir_all(&dir).unwrap();
    let keys = Keys::open(&dir, true, SystemTime::now()).unwrap();
    let seat = Seat { founders: vec![1, 2], ..Seat::alone(3, keys.identity()) };
    seat::take(&dir, &seat).unwrap();
    let mut log = warren_log::open(&dir, Engine::Redb, seat.owner()).unwrap();
    let conf_state = Some(ConfState::of_voters(vec![1, 2]));
    log.append(&Batch { conf_state, ..Batch::default() }).unwrap();
    drop(log);
    assert!(matches!(go(joined.path()).unwrap_err(), AloneError::NoCluster));
}

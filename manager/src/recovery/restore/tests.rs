use std::collections::BTreeSet;

use warren_security::seal::key_of;

use super::*;
use crate::recovery::backup;
use crate::recovery::backup::tests::{Sample, passphrase};
use crate::recovery::seat::Standing;

fn whom() -> Whom {
    Whom { name: "m9".parse().unwrap(), address: "10.0.0.9:8080".parse().unwrap() }
}

fn restored(data_dir: &Path, sample: &Sample) -> Result<Seat, RestoringError> {
    let opened = backup::read(&passphrase(), sample.written()).unwrap();
    Restoring::begin(data_dir)?.finish(opened, Engine::Redb, whom(), SystemTime::now())
}

/// The state in the log of `dir`.
fn stored(dir: &Path) -> (State, Loaded) {
    let owner = seat::written(dir).unwrap().unwrap().owner();
    let loaded = warren_log::open(dir, Engine::Redb, owner).unwrap().load().unwrap();
    let meta = loaded.snapshot.clone().unwrap();
    let files = Snapshots::open(dir.join("snapshots"), Some(&meta)).unwrap();
    let sealed = files.load(&meta).unwrap();
    let keyring = Keyring::open(dir, &BTreeSet::from([key_of(&sealed).unwrap()])).unwrap();
    let plain = keyring.unseal_stream(&place(&meta), sealed).unwrap();
    (codec::read_snapshot(&plain).unwrap(), loaded)
}

#[test]
fn the_cluster_goes_on_in_its_next_life_with_one_manager() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let sample = Sample::new();
    let seat = restored(data.path(), &sample).unwrap();
    let own = seat.member;
    let life = stored(&dir).0.cluster().unwrap().incarnation;
    assert_eq!(
        (&seat, own),
        (&Seat::alone(own, seat.identity), life * 1_000),
        "an id that no manager had before, in no life"
    );
    assert!(matches!(seat::look(&dir).unwrap(), Standing::Seated(found) if found == seat));
    let (state, loaded) = stored(&dir);
    assert!(state.cluster().unwrap().incarnation > sample.state.cluster().unwrap().incarnation);
    let members: Vec<_> = state.members().collect();
    let [member] = members[..] else { panic!("{members:?}") };
    assert_eq!((member.member, &member.address), (own, &whom().address));
    let gone: Vec<_> = state.all_departed().map(|(_, departed)| departed.member).collect();
    assert_eq!(
        (gone, state.next_member()),
        (vec![1], own + 1),
        "its certificate is good for nothing any more"
    );
    assert_eq!(state.contents().count(), 1);
    assert_eq!(loaded.snapshot.unwrap().conf_state, ConfState::of_voters(vec![own]));
    assert!(loaded.hard_state.term > sample.state.applied().term, "a term of its own");
    assert_eq!(loaded.hard_state.commit, state.applied().index);
    let keys = Keys::open(&dir, false, SystemTime::now()).unwrap();
    assert_eq!(keys.cluster, sample.state.cluster().unwrap().id);
    assert_eq!(keys.id, member.id);
    assert_eq!(keys.identity(), seat.identity);
    assert!(crate::ca::check_content_key(&dir, &keys.content_key, &state).is_ok());
}

#[test]
fn a_token_that_may_have_been_revoked_since_lets_nobody_in() {
    use warren_types::{NodeRole, TokenHash};

    let data = tempfile::tempdir().unwrap();
    let mut sample = Sample::new();
    let (hash, at) = (TokenHash([7; 32]), sample.state.clock());
    let Applied { term, index } = sample.state.applied();
    let id = TokenId(warren_types::Id(5));
    let create =
        Command::CreateToken { id, role: NodeRole::Manager, hash, expires_at: None, max_uses: None, at };
    sample.state.apply(term, index + 1, &create);
    assert!(sample.state.token_of(&hash).is_some());
    restored(data.path(), &sample).unwrap();
    let (state, _) = stored(&data.path().join("manager"));
    assert!(state.tokens_after(None).next().is_none() && state.token_of(&hash).is_none());
    state.check().unwrap();
}

#[test]
fn a_machine_that_has_a_manager_keeps_it() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    std::fs::create_dir(&dir).unwrap();
    let refused = restored(data.path(), &Sample::new()).unwrap_err();
    assert!(matches!(refused, RestoringError::Taken(found) if found == dir));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn what_was_cut_off_leaves_no_manager_and_does_not_stand_in_the_way() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("manager");
    let sample = Sample::new();
    let half = data.path().join("manager.restoring");
    // Killed just before the end: all is there but its name.
    restored(data.path(), &sample).unwrap();
    std::fs::rename(&dir, &half).unwrap();
    assert!(matches!(seat::look(&dir).unwrap(), Standing::Nothing));
    // And somewhere in between.
    std::fs::remove_file(half.join("content.key")).unwrap();
    restored(data.path(), &sample).unwrap();
    assert!(!half.exists());
    assert_eq!(stored(&dir).0.contents().count(), 1);
}

/// Two machines restore one backup, one after the other: their numbers differ, and so do those of all that join either.
#[test]
fn two_lives_from_one_backup_share_no_number() {
    let sample = Sample::new();
    let began = SystemTime::now();
    let restored = |after: u64| {
        let data = tempfile::tempdir().unwrap();
        let opened = backup::read(&passphrase(), sample.written()).unwrap();
        let now = began + std::time::Duration::from_secs(after);
        let restoring = Restoring::begin(data.path()).unwrap();
        let seat = restoring.finish(opened, Engine::Redb, whom(), now).unwrap();
        (seat.member, stored(&data.path().join("manager")).0)
    };
    let [(first, one), (second, other)] = [0, 1].map(restored);
    assert!(one.cluster().unwrap().incarnation < other.cluster().unwrap().incarnation);
    // Each gives out what follows: 999 managers within the second between them.
    assert!(one.next_member() == first + 1 && other.next_member() == second + 1);
    assert!(second - first >= 1_000, "{first} and {second}");
    // A manager that joined the former life after the backup has one of the numbers that nobody gets any more.
    let lost = sample.state.next_member();
    assert!([&one, &other].iter().all(|state| state.member(lost).is_none() && lost < state.next_member()));
}

use std::collections::BTreeSet;
use std::time::SystemTime;

use tempfile::TempDir;
use warren_bootstrap::{MemberIdentity, member_identity};
use warren_control::ManualClock;
use warren_core::{AppliedIndex, ApplyOutcome, CommandResponse, FEATURE_LEVEL};
use warren_store::{
    AppliedWrite, DriverInbox, DriverRequest, NoTransport, Publication, QueuedProposal, ReplicaRole,
    StatePublisher,
};
use warren_types::{ClusterId, Id, KeyPhase, ManagerId, SecretObjectId, SecretObjectKind, Timestamp};

use super::*;

const FOLLOWER: ReplicaRole = ReplicaRole { is_leader: false, leader_id: Some(2), term: 1, can_plan: false };
const NO_LEADER: ReplicaRole = ReplicaRole { leader_id: None, ..FOLLOWER };
const LEADER: ReplicaRole = ReplicaRole { is_leader: true, leader_id: Some(1), term: 1, can_plan: true };
const AT: Timestamp = Timestamp(1);

/// The only registered manager of a cluster, its keys, and the state.
struct Fixture {
    _dir: TempDir,
    keys: Arc<ManagerKeys>,
    keyring: Arc<Keyring>,
    state: State,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = ManagerKeys::open(dir.path(), true, SystemTime::now()).unwrap();
        member_identity::save_identity(dir.path(), &MemberIdentity::founder(keys.identity())).unwrap();
        let keyring = Keyring::prepare(keys.files(), &BTreeSet::new()).unwrap().commit().unwrap();
        let (keys, keyring) = (Arc::new(keys), Arc::new(keyring));
        let mut fixture = Self { _dir: dir, keys, keyring, state: State::new() };
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        fixture.apply(&Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges,
            feature_level: FEATURE_LEVEL,
            at: AT,
        });
        fixture.apply(&Command::RegisterMember {
            member: 1,
            id: ManagerId(Id(11)),
            name: "m1".parse().unwrap(),
            address: "10.0.0.1:8080".parse().unwrap(),
            level: FEATURE_LEVEL,
            at: AT,
        });
        fixture
    }

    fn apply(&mut self, command: &Command) {
        let index = self.state.applied().index + 1;
        let outcome = self.state.apply(1, index, command);
        assert!(!matches!(outcome, ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
    }

    fn rotate(&mut self, step: KeyRotationStep) {
        let number = self.state.key_rotation().map_or(0, |rotation| rotation.number);
        self.apply(&Command::Key(KeyCommand::Rotate { number, step, at: AT }));
    }

    fn create(&mut self, number: u128, bytes: &[u8]) {
        let id = SecretObjectId(Id(number));
        self.apply(&Command::CreateSecretObject {
            id,
            kind: SecretObjectKind::Secret,
            name: format!("s{number}").parse().unwrap(),
            labels: Default::default(),
            data: self.keys.secret_object_key.seal(id, bytes),
            at: AT,
        });
    }

    /// The manager takes this step.
    fn follow(&self, step: ManagerKeyStep) {
        self.keys.follow_key_rotation(self.state.key_rotation().unwrap(), step).unwrap();
    }

    /// Everything is to be sealed with the returned key from now on, which the manager has if it is `adopted`.
    fn begin_resealing(&mut self, adopted: bool) -> SecretObjectKeyId {
        self.rotate(KeyRotationStep::Begin);
        self.rotate(KeyRotationStep::Record { phase: KeyPhase::Disks, member: 1 });
        let next = self.keys.next_secret_object_key();
        let id = next.id;
        self.rotate(KeyRotationStep::Offer(next));
        if adopted {
            self.follow(ManagerKeyStep::Adopt);
        }
        self.rotate(KeyRotationStep::Record { phase: KeyPhase::Managers, member: 1 });
        self.rotate(KeyRotationStep::Advance(KeyPhase::Objects));
        assert_eq!(self.state.key_rotation().unwrap().sealing, Some(id));
        id
    }

    /// The keys that the manager has.
    fn secret_object_keys(&self) -> Vec<SecretObjectKeyId> {
        self.keys.secret_object_key.key_fingerprints().into_iter().map(SecretObjectKeyId::from).collect()
    }

    fn rotator(&self, role: ReplicaRole, state: State) -> (KeyRotator, StatePublisher, DriverInbox) {
        let first = PublishedState { role, ..PublishedState::initial(state) };
        let (store, publisher, inbox) = Store::of_group(first, 1, Arc::new(NoTransport), 4, 4);
        let rotator = KeyRotator {
            keys: self.keys.clone(),
            keyring: self.keyring.clone(),
            clock: TimestampSource::new(Arc::new(ManualClock::new(1)), store.clone()),
            store,
            renewed: Mutex::default(),
        };
        (rotator, publisher, inbox)
    }
}

/// A manager whose keys are of the second replacement, and the state of its beginning, in which the newer one of both
/// keys is not known yet.
fn restarted() -> (Fixture, State, [SecretObjectKeyId; 2]) {
    let mut fixture = Fixture::new();
    let second = fixture.begin_resealing(true);
    fixture.follow(ManagerKeyStep::Seal(second));
    fixture.rotate(KeyRotationStep::Advance(KeyPhase::Complete));
    fixture.follow(ManagerKeyStep::ForgetEarlier);
    fixture.rotate(KeyRotationStep::Begin);
    let stale = fixture.state.clone();
    assert_eq!(stale.key_rotation().unwrap().phase, KeyPhase::Disks);
    let third = fixture.begin_resealing(true);
    assert_eq!(fixture.secret_object_keys(), [second, third]);
    (fixture, stale, [second, third])
}

#[tokio::test]
async fn step_of_an_earlier_state_is_not_taken() {
    let (fixture, stale, [second, third]) = restarted();
    let (rotator, publisher, mut inbox) = fixture.rotator(FOLLOWER, stale);
    let newest = PublishedState { role: FOLLOWER, ..PublishedState::initial(fixture.state.clone()) };
    let driver = tokio::spawn(async move {
        let Some(DriverRequest::Read(reply)) = inbox.requests.recv().await else { panic!("it reads") };
        publisher.publish(newest, Publication::default());
        reply.send(()).unwrap();
    });
    assert!(rotator.follow().await.unwrap());
    assert_eq!(fixture.secret_object_keys(), [third, second], "it seals with the newer one");
    driver.await.unwrap();
}

#[tokio::test]
async fn no_step_is_taken_without_a_leader() {
    let (fixture, stale, keys) = restarted();
    let (rotator, _publisher, mut inbox) = fixture.rotator(NO_LEADER, stale);
    assert!(!rotator.follow().await.unwrap());
    assert_eq!(fixture.secret_object_keys(), keys);
    assert!(inbox.requests.try_recv().is_err() && inbox.proposals.try_recv().is_err());
}

#[tokio::test]
async fn leader_without_the_new_key_seals_nothing() {
    let mut fixture = Fixture::new();
    fixture.create(1, b"x");
    let missing = fixture.begin_resealing(false);
    let (rotator, _publisher, mut inbox) = fixture.rotator(LEADER, fixture.state.clone());
    let refused = rotator.lead().await.unwrap_err().to_string();
    assert!(refused.contains(&format!("does not have the secret object key {missing}")), "{refused}");
    assert!(inbox.proposals.try_recv().is_err());
}

#[tokio::test]
async fn sealing_again_without_effect_is_an_error() {
    let mut fixture = Fixture::new();
    fixture.create(1, b"x");
    let key = fixture.begin_resealing(true);
    fixture.follow(ManagerKeyStep::Seal(key));
    let (rotator, _publisher, mut inbox) = fixture.rotator(LEADER, fixture.state.clone());
    // Nothing is published, as if `apply` had left all of it out.
    let driver = tokio::spawn(async move {
        let QueuedProposal { reply, .. } = inbox.proposals.recv().await.unwrap();
        let position = AppliedIndex { term: 1, index: 99 };
        let applied = AppliedWrite { position, result: Ok(CommandResponse::Done) };
        assert!(reply.send(Ok(applied)).is_ok());
        inbox
    });
    let refused = rotator.lead().await.unwrap_err().to_string();
    assert!(refused.contains("sealing 1 of the objects") && refused.contains("replaced none"), "{refused}");
    driver.await.unwrap();
}

#[test]
fn one_command_seals_a_bounded_part_again() {
    for (objects, bytes, expected) in [(MAX_ITEMS + 20, 1, MAX_ITEMS), (5, MAX_BYTES / 3, 2), (3, 1, 3)] {
        let mut fixture = Fixture::new();
        (1..=objects).for_each(|number| fixture.create(number as u128, &vec![7; bytes]));
        let key = fixture.begin_resealing(true);
        fixture.follow(ManagerKeyStep::Seal(key));
        let items = reseal(&fixture.keys, &fixture.state).unwrap();
        assert_eq!(items.len(), expected, "{objects} objects of {bytes} bytes");
        assert!(items.iter().all(|(_, data)| data.key() == Some(key)));
    }
}

#[test]
fn object_that_does_not_open_does_not_keep_the_others() {
    let foreign = Fixture::new();
    for others in [1, 0] {
        let mut fixture = Fixture::new();
        let id = SecretObjectId(Id(1));
        fixture.apply(&Command::CreateSecretObject {
            id,
            kind: SecretObjectKind::Secret,
            name: "foreign".parse().unwrap(),
            labels: Default::default(),
            data: foreign.keys.secret_object_key.seal(id, b"x"),
            at: AT,
        });
        (2..2 + others).for_each(|number| fixture.create(number, b"x"));
        let key = fixture.begin_resealing(true);
        fixture.follow(ManagerKeyStep::Seal(key));
        let resealed = reseal(&fixture.keys, &fixture.state);
        assert_eq!(resealed.ok().map(|items| items.len()), (others > 0).then_some(1));
    }
}

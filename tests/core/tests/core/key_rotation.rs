//! The replacement of the keys that encrypt what managers store: a model of managers with the secret object keys that
//! they have, in which each must be able to open what is in its state at any time.

use proptest::prelude::*;
use warren_core::{
    ApplyOutcome, CaCommand, Command, KeyCommand, KeyRotationStep, KeyStep, ManagerKeyState, ManagerKeyStep,
    Refusal, State, StateChange,
};
use warren_types::{
    CaDigest, Id, KeyPhase, KeyRotation, MemberId, NAMED_KEY_FORMAT, NextSecretObjectKey, SealedData,
    SealedItem, SealedUnlockKey, SecretObjectId, SecretObjectKeyId, SecretObjectKind, Timestamp, UnlockKeyId,
};

use crate::ca_rotation::{accept, apply, cluster};

const AT: Timestamp = Timestamp(1);
const FIRST: SecretObjectKeyId = SecretObjectKeyId(1);

/// Data with that content, sealed with that key.
fn sealed(key: SecretObjectKeyId, content: u8) -> SealedData {
    let sealed = [&[NAMED_KEY_FORMAT][..], &key.0.to_be_bytes(), &[content]].concat();
    SealedData { size: 1, fingerprint: [content ^ key.0 as u8; 32], sealed }
}

/// The content of such data.
fn content(data: &SealedData) -> u8 {
    *data.sealed.last().unwrap()
}

fn create(number: u128, data: SealedData) -> Command {
    Command::CreateSecretObject {
        id: SecretObjectId(Id(number)),
        kind: SecretObjectKind::Secret,
        name: format!("s{number}").parse().unwrap(),
        labels: Default::default(),
        data,
        at: AT,
    }
}

fn update(number: u128, data: SealedData) -> Command {
    Command::UpdateSecretObject { id: SecretObjectId(Id(number)), version: None, data, at: AT }
}

fn rotate(number: u64, step: KeyRotationStep) -> Command {
    Command::Key(KeyCommand::Rotate { number, step, at: AT })
}

fn begin(state: &State) -> Command {
    rotate(state.key_rotation().map_or(0, |known| known.number), KeyRotationStep::Begin)
}

fn record(number: u64, phase: KeyPhase, member: MemberId) -> Command {
    rotate(number, KeyRotationStep::Record { phase, member })
}

fn offer(number: u64, key: SecretObjectKeyId, by: SecretObjectKeyId) -> Command {
    rotate(number, KeyRotationStep::Offer(NextSecretObjectKey { id: key, sealed: sealed(by, 0) }))
}

fn reseal(number: u64, items: Vec<(SealedItem, SealedData)>) -> Command {
    Command::Key(KeyCommand::Reseal { number, items, at: AT })
}

/// A cluster with so many managers, two secrets, a replaced CA and an unlock key; all are sealed with the first key.
fn sealed_cluster(managers: u64) -> State {
    let mut state = cluster(managers, 0);
    let digest = |byte| CaDigest::from_bytes([byte; 32]);
    let authority = CaCommand::Begin {
        digest: digest(2),
        sealed: sealed(FIRST, 7),
        current: digest(1),
        certificate: "old".to_owned(),
        at: AT,
    };
    let key = SealedUnlockKey { id: UnlockKeyId(5), sealed: sealed(FIRST, 8) };
    let unlock_key = KeyCommand::SetUnlockKey { key: Some(key), replaces: None, at: AT };
    for command in [
        create(1, sealed(FIRST, 1)),
        update(1, sealed(FIRST, 2)),
        create(2, sealed(FIRST, 3)),
        Command::Ca(authority),
        Command::Key(unlock_key),
    ] {
        accept(&mut state, &command);
    }
    state
}

fn rotation(state: &State) -> &KeyRotation {
    state.key_rotation().unwrap()
}

/// In the phase in which everything is sealed again with the key 2. Returns its number.
fn resealing(state: &mut State, managers: u64) -> u64 {
    let begun = begin(state);
    accept(state, &begun);
    let number = rotation(state).number;
    (1..=managers).for_each(|member| accept(state, &record(number, KeyPhase::Disks, member)));
    accept(state, &offer(number, SecretObjectKeyId(2), FIRST));
    (1..=managers).for_each(|member| accept(state, &record(number, KeyPhase::Managers, member)));
    accept(state, &rotate(number, KeyRotationStep::Advance(KeyPhase::Objects)));
    assert_eq!(rotation(state).phase, KeyPhase::Objects);
    number
}

#[test]
fn each_phase_waits_for_all_managers_but_removed_ones() {
    let mut state = sealed_cluster(3);
    assert_eq!((state.next_key_step(), state.stale_items().count()), (None, 0));
    let command = begin(&state);
    accept(&mut state, &command);
    let number = rotation(&state).number;
    for again in [command, begin(&state)] {
        assert!(matches!(apply(&mut state, &again), ApplyOutcome::Unchanged { .. }), "it is in progress");
    }
    for (phase, step) in
        [(KeyPhase::Disks, KeyStep::Offer), (KeyPhase::Managers, KeyStep::Advance(KeyPhase::Objects))]
    {
        let early = match step {
            KeyStep::Offer => offer(number, SecretObjectKeyId(2), FIRST),
            _ => rotate(number, KeyRotationStep::Advance(KeyPhase::Objects)),
        };
        for member in [1, 2] {
            accept(&mut state, &record(number, phase, member));
            assert_eq!(state.next_key_step(), None);
            assert!(matches!(apply(&mut state, &early), ApplyOutcome::Unchanged { .. }));
        }
        let missing: Vec<MemberId> = state.key_managers().missing.iter().map(|it| it.member_id).collect();
        assert_eq!((state.key_managers().total, missing), (3, vec![3]));
        // Of another phase, of another replacement, and of nobody.
        for other in
            [record(number, KeyPhase::Objects, 3), record(number + 1, phase, 3), record(number, phase, 9)]
        {
            assert!(matches!(apply(&mut state, &other), ApplyOutcome::Unchanged { .. }), "{other:?}");
        }
        if phase == KeyPhase::Managers {
            accept(&mut state, &Command::RemoveMember { member: 3, at: AT });
        } else {
            accept(&mut state, &record(number, phase, 3));
        }
        assert_eq!(state.next_key_step(), Some(step));
        accept(&mut state, &early);
    }
    assert_eq!(rotation(&state).sealing, Some(SecretObjectKeyId(2)));
    assert_eq!((state.next_key_step(), state.stale_items().count()), (Some(KeyStep::Reseal), 5));
    let early = rotate(number, KeyRotationStep::Advance(KeyPhase::Complete));
    assert!(matches!(apply(&mut state, &early), ApplyOutcome::Unchanged { .. }));
}

#[test]
fn data_of_an_earlier_key_is_refused_and_nothing_is_compared_with_it() {
    let mut state = sealed_cluster(1);
    let number = resealing(&mut state, 1);
    let new = SecretObjectKeyId(2);
    let refused = ApplyOutcome::Rejected(Refusal::SecretObjectKeyReplaced);
    let unlock_key = |key| {
        let key = Some(SealedUnlockKey { id: UnlockKeyId(6), sealed: sealed(key, 8) });
        Command::Key(KeyCommand::SetUnlockKey { key, replaces: Some(UnlockKeyId(5)), at: AT })
    };
    for command in [
        create(3, sealed(FIRST, 4)),
        update(2, sealed(FIRST, 4)),
        unlock_key(FIRST),
        // It was not sealed again yet: whether it is the same cannot be said.
        update(2, sealed(new, 3)),
        create(2, sealed(new, 3)),
    ] {
        assert_eq!(apply(&mut state, &command), refused, "{command:?}");
    }
    accept(&mut state, &create(3, sealed(new, 4)));
    accept(&mut state, &unlock_key(new));

    let item = SealedItem::SecretObject { id: SecretObjectId(Id(2)), number: 1 };
    let before = state.secret_object_data(&SecretObjectId(Id(2)), 1).unwrap().clone();
    let version = |state: &State| state.secret_objects().find(|it| it.id.0 == Id(2)).unwrap().version;
    let known = version(&state);
    // Neither another content nor another key takes its place.
    let longer = SealedData { size: 2, ..sealed(new, 3) };
    for data in [longer, sealed(FIRST, 9), sealed(SecretObjectKeyId(3), 3)] {
        let command = reseal(number, vec![(item, data)]);
        assert!(matches!(apply(&mut state, &command), ApplyOutcome::Unchanged { .. }), "{command:?}");
    }
    let ApplyOutcome::Applied { changes, .. } =
        apply(&mut state, &reseal(number, vec![(item, sealed(new, 3))]))
    else {
        panic!("it is sealed again")
    };
    assert_eq!((changes, version(&state)), (vec![StateChange::KeyRotation], known), "nobody sees a change");
    let after = state.secret_object_data(&SecretObjectId(Id(2)), 1).unwrap();
    assert_eq!((before.key(), after.key()), (Some(FIRST), Some(new)));
    for repeated in [update(2, sealed(new, 3)), create(2, sealed(new, 3))] {
        assert!(matches!(apply(&mut state, &repeated), ApplyOutcome::Unchanged { .. }), "{repeated:?}");
    }
    accept(&mut state, &update(2, sealed(new, 5)));
}

/// A manager: its keys, of which the first one seals, and the entries that it has applied.
#[derive(Clone)]
struct Manager {
    member: MemberId,
    keys: Vec<SecretObjectKeyId>,
    renewed: Option<u64>,
    state: State,
    applied: usize,
    /// The entries that it had applied before it was restarted.
    applied_before: usize,
}

impl Manager {
    fn next_step(&self) -> Option<ManagerKeyStep> {
        let own = ManagerKeyState { secret_object_keys: &self.keys, renewed: self.renewed };
        self.state.manager_key_step(self.member, own)
    }
}

/// The managers, and the log with the state before and after it. The first manager leads.
#[derive(Clone)]
struct World {
    first: State,
    newest: State,
    log: Vec<Command>,
    managers: Vec<Manager>,
    last_key: u64,
    last_object: u128,
}

impl World {
    fn new(managers: u64) -> Self {
        let newest = sealed_cluster(managers);
        let manager = |member| {
            let state = newest.clone();
            Manager { member, keys: vec![FIRST], renewed: None, state, applied: 0, applied_before: 0 }
        };
        let managers = (1..=managers).map(manager).collect();
        Self { first: newest.clone(), newest, log: Vec::new(), managers, last_key: FIRST.0, last_object: 10 }
    }

    fn propose(&mut self, command: Command) -> ApplyOutcome {
        let outcome = apply(&mut self.newest, &command);
        self.log.push(command);
        outcome
    }

    /// The manager applies at most so many entries.
    fn catch_up(&mut self, manager: usize, entries: usize) {
        let manager = &mut self.managers[manager];
        for command in self.log.iter().skip(manager.applied).take(entries) {
            apply(&mut manager.state, command);
            manager.applied += 1;
        }
    }

    /// The manager is restarted, with the state from before the last `entries` that it had applied.
    fn restart(&mut self, manager: usize, entries: usize) {
        let restarted = &mut self.managers[manager];
        restarted.applied_before = restarted.applied_before.max(restarted.applied);
        let entries = restarted.applied.saturating_sub(entries);
        (restarted.renewed, restarted.state, restarted.applied) = (None, self.first.clone(), 0);
        self.catch_up(manager, entries);
    }

    /// The manager takes its next step; whether there was one. It reads linearizably before.
    fn follow(&mut self, manager: usize) -> bool {
        if self.managers[manager].next_step().is_none() {
            return false;
        }
        self.catch_up(manager, usize::MAX);
        let Some(step) = self.managers[manager].next_step() else { return false };
        let Manager { member, keys, renewed, state, .. } = &mut self.managers[manager];
        let KeyRotation { number, phase, next, .. } = rotation(state).clone();
        match step {
            ManagerKeyStep::RenewDisk => *renewed = Some(number),
            ManagerKeyStep::Adopt => keys.push(next.unwrap().id),
            ManagerKeyStep::Seal(id) => keys.sort_by_key(|key| *key != id),
            ManagerKeyStep::ForgetEarlier => keys.truncate(1),
            ManagerKeyStep::Record => {
                let command = record(number, phase, *member);
                self.propose(command);
            }
        }
        true
    }

    /// The leader takes its next step; whether there was one.
    fn lead(&mut self) -> bool {
        self.catch_up(0, usize::MAX);
        if self.follow(0) {
            return true;
        }
        let Manager { keys, state, .. } = &self.managers[0];
        let Some(step) = state.next_key_step() else { return false };
        let (number, sealing) = (rotation(state).number, keys[0]);
        let command = match step {
            KeyStep::Offer => {
                self.last_key += 1;
                offer(number, SecretObjectKeyId(self.last_key), sealing)
            }
            KeyStep::Advance(phase) => rotate(number, KeyRotationStep::Advance(phase)),
            KeyStep::Reseal => {
                let again = |(item, data): (_, &SealedData)| (item, sealed(sealing, content(data)));
                reseal(number, state.stale_items().take(2).map(again).collect())
            }
        };
        self.propose(command);
        true
    }

    /// Somebody stores data through the manager.
    fn write(&mut self, manager: usize, value: u8) {
        let data = sealed(self.managers[manager].keys[0], value);
        let command = if value.is_multiple_of(2) {
            self.last_object += 1;
            create(self.last_object, data)
        } else {
            update(1 + u128::from(value % 3 % 2), data)
        };
        let outcome = self.propose(command);
        let is_refused = matches!(&outcome, ApplyOutcome::Rejected(Refusal::SecretObjectKeyReplaced));
        assert!(is_refused || !matches!(outcome, ApplyOutcome::Rejected(_)), "{outcome:?}");
    }

    /// But for managers that have to apply again what they had applied: they need keys that they have forgotten.
    fn check(&self) {
        let restored = self.managers.iter().filter(|manager| manager.applied >= manager.applied_before);
        for Manager { member, keys, state, .. } in restored {
            for (item, data) in state.sealed_items() {
                let key = data.key().unwrap();
                assert!(keys.contains(&key), "the manager {member} has {keys:?}, and {item:?} needs {key}");
            }
        }
    }

    /// Everybody goes on until nothing is left to be done.
    fn complete(&mut self) {
        for _ in 0..1000 {
            let mut is_active = self.lead();
            for manager in 0..self.managers.len() {
                self.catch_up(manager, usize::MAX);
                is_active |= self.follow(manager);
                self.check();
            }
            if !is_active {
                return;
            }
        }
        panic!("it does not end: {:?}", self.newest.key_rotation());
    }
}

#[test]
fn manager_restarted_with_any_earlier_state_keeps_its_keys() {
    let mut world = World::new(3);
    let command = begin(&world.newest);
    world.propose(command);
    world.complete();
    let command = begin(&world.newest);
    world.propose(command);
    let mut is_active = true;
    while is_active {
        is_active = world.lead();
        for manager in 0..world.managers.len() {
            world.catch_up(manager, usize::MAX);
            is_active |= world.follow(manager);
            for entries in 0..=world.log.len() {
                let mut restarted = world.clone();
                restarted.restart(manager, entries);
                for _ in 0..3 {
                    restarted.follow(manager);
                }
                restarted.catch_up(manager, usize::MAX);
                restarted.check();
            }
        }
    }
    assert_eq!(rotation(&world.newest).phase, KeyPhase::Complete);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn managers_open_everything_at_any_time(steps in prop::collection::vec((0..6u8, 0..3usize, 0..4u8), 0..120)) {
        let mut world = World::new(3);
        for (step, manager, amount) in steps {
            match step {
                0 => {
                    let command = begin(&world.newest);
                    world.propose(command);
                }
                1 => {
                    world.lead();
                }
                2 => world.catch_up(manager, amount.into()),
                3 => {
                    world.follow(manager);
                }
                4 => world.restart(manager, 4 * usize::from(amount)),
                _ => world.write(manager, amount),
            }
            world.check();
        }
        world.complete();
        let command = begin(&world.newest);
        world.propose(command);
        world.complete();
        let KeyRotation { phase, sealing, next, managers, .. } = rotation(&world.newest);
        prop_assert_eq!((*phase, next, managers.len()), (KeyPhase::Complete, &None, 0));
        let last = SecretObjectKeyId(world.last_key);
        prop_assert_eq!(*sealing, Some(last));
        prop_assert!(world.newest.sealed_items().all(|(_, data)| data.key() == Some(last)));
        prop_assert!(world.managers.iter().all(|manager| manager.keys == [last]));
    }
}

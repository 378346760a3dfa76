//! Users: their login tokens, and whose keys are accepted.

use warren_core::state::MAX_REVOKED_KEYS;
use warren_core::{ApplyOutcome, Command, FEATURE_LEVEL, KeyCommand, Refusal, State};
use warren_types::{
    ADMINISTRATOR, ClusterId, Id, MAX_USER_CERTIFICATE_LIFETIME, ManagerId, NodeRole, PublicKeyHash,
    Timestamp, TokenHash, TokenId, UserId, UserRole,
};

const ANN: UserId = UserId(Id(1));
const TOKEN: TokenHash = TokenHash([1; 32]);
const KEY: PublicKeyHash = PublicKeyHash([7; 32]);
const OTHER_KEY: PublicKeyHash = PublicKeyHash([8; 32]);

fn create(id: UserId, name: &str, hash: TokenHash) -> Command {
    Command::CreateUser {
        id,
        name: name.parse().unwrap(),
        role: UserRole::Operator,
        login_hash: hash,
        login_expires_at: Timestamp(10_000),
        expires_at: Some(Timestamp(50_000)),
        at: Timestamp(1000),
    }
}

fn login(hash: TokenHash, key: PublicKeyHash, at: u64) -> Command {
    Command::LoginUser { hash, key, at: Timestamp(at) }
}

/// A state in which ann is logged in with [`KEY`].
fn logged_in() -> State {
    let mut state = State::new();
    let ranges = vec!["10.0.0.0/16".parse().unwrap()];
    accept(
        &mut state,
        &Command::CreateCluster {
            id: ClusterId(Id(9)),
            ranges,
            feature_level: FEATURE_LEVEL,
            at: Timestamp(1),
        },
    );
    accept(&mut state, &create(ANN, "ann", TOKEN));
    accept(&mut state, &login(TOKEN, KEY, 2000));
    state
}

fn apply(state: &mut State, command: &Command) -> ApplyOutcome {
    let outcome = state.apply(1, state.applied().index + 1, command);
    state.check().unwrap();
    outcome
}

fn accept(state: &mut State, command: &Command) {
    let outcome = apply(state, command);
    assert!(!matches!(outcome, ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
}

fn refusal(state: &mut State, command: &Command) -> Refusal {
    match apply(state, command) {
        ApplyOutcome::Rejected(refusal) => refusal,
        other => panic!("{command:?}: {other:?}"),
    }
}

fn role_of(state: &State, key: PublicKeyHash, now: u64) -> Option<UserRole> {
    state.key_holder(&key, Timestamp(now)).map(|holder| holder.role)
}

#[test]
fn login_token_lists_one_key() {
    let mut state = logged_in();
    assert_eq!(role_of(&state, OTHER_KEY, 2000), None);
    assert_eq!(role_of(&state, KEY, 2000), Some(UserRole::Operator));
    // The response may have been lost; another machine cannot use the token.
    accept(&mut state, &login(TOKEN, KEY, 3000));
    assert_eq!(refusal(&mut state, &login(TOKEN, OTHER_KEY, 3000)), Refusal::LoginTokenNotFound);
    assert_eq!(refusal(&mut state, &login(TokenHash([9; 32]), OTHER_KEY, 3000)), Refusal::LoginTokenNotFound);
    assert_eq!(role_of(&state, KEY, 49_999), Some(UserRole::Operator));
    assert_eq!(role_of(&state, KEY, 50_000), None, "the user has expired");
}

#[test]
fn removed_keys_are_refused() {
    let mut state = logged_in();
    let update = |role, remove_keys| Command::UpdateUser {
        id: ANN,
        version: None,
        role,
        login_hash: None,
        login_expires_at: None,
        remove_keys,
        at: Timestamp(3000),
    };
    accept(&mut state, &update(Some(UserRole::Admin), false));
    assert_eq!(role_of(&state, KEY, 3000), Some(UserRole::Admin), "the role is that of the state");
    accept(&mut state, &update(None, true));
    assert_eq!(role_of(&state, KEY, 3000), None);
    assert_eq!(refusal(&mut state, &login(TOKEN, KEY, 3000)), Refusal::LoginTokenNotFound, "it was used");
    accept(&mut state, &Command::RemoveUser { id: ANN, at: Timestamp(4000) });
    assert_eq!(state.users().count(), 0);
}

#[test]
fn taken_names_tokens_and_keys_are_refused() {
    let mut state = logged_in();
    let second = UserId(Id(2));
    let others = [
        create(second, "ann", TokenHash([2; 32])),
        create(second, "bob", TOKEN),
        create(second, ADMINISTRATOR, TokenHash([2; 32])),
    ];
    for other in others {
        refusal(&mut state, &other);
    }
    accept(&mut state, &create(second, "bob", TokenHash([2; 32])));
    // A key belongs to one user.
    refusal(&mut state, &login(TokenHash([2; 32]), KEY, 3000));
    let late = login(TokenHash([2; 32]), OTHER_KEY, 10_000);
    assert_eq!(refusal(&mut state, &late), Refusal::LoginTokenExpired);
}

fn revoke(key: PublicKeyHash, at: u64) -> Command {
    Command::Key(KeyCommand::Revoke { key, at: Timestamp(at) })
}

fn holders(state: &State) -> Vec<(u8, &str)> {
    state.revoked_keys().map(|(key, revoked)| (key.0[0], revoked.holder.as_str())).collect()
}

fn new_token(hash: TokenHash, at: u64) -> Command {
    Command::UpdateUser {
        id: ANN,
        version: None,
        role: None,
        login_hash: Some(hash),
        login_expires_at: Some(Timestamp(40_000)),
        remove_keys: false,
        at: Timestamp(at),
    }
}

#[test]
fn one_key_is_revoked_and_the_others_stay() {
    let mut state = logged_in();
    accept(&mut state, &new_token(TokenHash([2; 32]), 3000));
    accept(&mut state, &login(TokenHash([2; 32]), OTHER_KEY, 3000));
    accept(&mut state, &revoke(KEY, 4000));
    assert_eq!(
        (role_of(&state, KEY, 4000), role_of(&state, OTHER_KEY, 4000)),
        (None, Some(UserRole::Operator))
    );
    assert_eq!(holders(&state), [(7, "ann")]);
    assert!(matches!(apply(&mut state, &revoke(KEY, 5000)), ApplyOutcome::Unchanged { .. }));
    assert!(matches!(refusal(&mut state, &revoke(PublicKeyHash([9; 32]), 5000)), Refusal::NotFound { .. }));
    // It is never listed again, whoever has a token.
    accept(&mut state, &new_token(TokenHash([3; 32]), 5000));
    assert!(matches!(refusal(&mut state, &login(TokenHash([3; 32]), KEY, 5000)), Refusal::Invalid(_)));
    assert_eq!(State::restore(state.export()).unwrap(), state);
}

#[test]
fn keys_of_removed_users_are_revoked_until_their_certificates_have_expired() {
    let mut state = logged_in();
    accept(&mut state, &Command::RemoveUser { id: ANN, at: Timestamp(4000) });
    assert_eq!(holders(&state), [(7, "ann")]);
    let lifetime = u64::try_from(MAX_USER_CERTIFICATE_LIFETIME.as_millis()).unwrap();
    let next = |id: u128, key: u8, at: u64| {
        let (id, hash) = (UserId(Id(id)), TokenHash([key; 32]));
        let (login_expires_at, expires_at) = (Timestamp(at + 1000), None);
        let (name, role) = (format!("user-{id}").parse().unwrap(), UserRole::Viewer);
        [
            Command::CreateUser {
                id,
                name,
                role,
                login_hash: hash,
                login_expires_at,
                expires_at,
                at: Timestamp(at),
            },
            login(hash, PublicKeyHash([key; 32]), at),
            Command::RemoveUser { id, at: Timestamp(at) },
        ]
    };
    next(2, 20, 4000 + lifetime).iter().for_each(|command| accept(&mut state, command));
    assert_eq!(state.revoked_keys().count(), 2, "clocks may differ");
    next(3, 21, 4000 + 2 * lifetime).iter().for_each(|command| accept(&mut state, command));
    let left: Vec<u8> = state.revoked_keys().map(|(key, _)| key.0[0]).collect();
    assert_eq!(left, [20, 21]);
}

#[test]
fn key_of_a_removed_managers_administrator_is_revoked() {
    let mut state = logged_in();
    let hash = TokenHash([5; 32]);
    accept(
        &mut state,
        &Command::CreateToken {
            id: TokenId(Id(5)),
            role: NodeRole::Manager,
            hash,
            expires_at: None,
            max_uses: None,
            labels: Default::default(),
            at: Timestamp(3000),
        },
    );
    let administrator = |member, key: u8| Command::SetAdministratorKey {
        member,
        key: PublicKeyHash([key; 32]),
        at: Timestamp(3000),
    };
    for number in 1..=3u8 {
        let (id, name) = (ManagerId(Id(number.into())), format!("m{number}").parse().unwrap());
        let (level, address) = (FEATURE_LEVEL, format!("10.0.0.{number}:8080").parse().unwrap());
        let at = Timestamp(3000);
        accept(
            &mut state,
            &match number {
                1 => Command::RegisterMember { member: 1, id, name, address, level, at },
                _ => Command::JoinManager { hash, id, name, address, level, at },
            },
        );
        accept(&mut state, &administrator(number.into(), 10 + number));
    }
    let role = |state: &State, key: u8| role_of(state, PublicKeyHash([key; 32]), 3000);
    accept(&mut state, &Command::RemoveMember { member: 2, at: Timestamp(4000) });
    assert_eq!(holders(&state), [(12, ADMINISTRATOR)], "at once, not when it has left");
    accept(&mut state, &Command::DeleteMember { term: 1, member: 2 });
    accept(&mut state, &revoke(PublicKeyHash([13; 32]), 5000));
    assert_eq!(holders(&state), [(12, ADMINISTRATOR), (13, ADMINISTRATOR)]);
    assert_eq!([11, 12, 13].map(|key| role(&state, key)), [Some(UserRole::Admin), None, None]);
    // The manager lists another key; neither it nor another manager can list the revoked one again.
    accept(&mut state, &administrator(3, 14));
    for member in [1, 3] {
        assert!(matches!(apply(&mut state, &administrator(member, 13)), ApplyOutcome::Unchanged { .. }));
    }
    assert_eq!(
        [11, 13, 14].map(|key| role(&state, key)),
        [Some(UserRole::Admin), None, Some(UserRole::Admin)]
    );
    // A key that is replaced is refused as well.
    accept(&mut state, &administrator(1, 15));
    assert_eq!(holders(&state).len(), 3);
    assert_eq!(role(&state, 11), None);
}

#[test]
fn revoked_keys_are_bounded() {
    let mut state = logged_in();
    let key = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
        bytes
    };
    // The administrator of a manager that is off, so that it lists no other key.
    let (administrator, id) = (PublicKeyHash([9; 32]), ManagerId(Id(1)));
    let (name, address) = ("m1".parse().unwrap(), "10.0.0.1:8080".parse().unwrap());
    let (level, at) = (FEATURE_LEVEL, Timestamp(3000));
    accept(&mut state, &Command::RegisterMember { member: 1, id, name, address, level, at });
    accept(&mut state, &Command::SetAdministratorKey { member: 1, key: administrator, at });
    assert_eq!(role_of(&state, administrator, 3000), Some(UserRole::Admin));
    accept(&mut state, &revoke(administrator, 4000));
    for number in 0..=MAX_REVOKED_KEYS {
        let (at, id, hash) = (5000 + number as u64, UserId(Id(7)), TokenHash(key(number)));
        let create = Command::CreateUser {
            id,
            name: "bob".parse().unwrap(),
            role: UserRole::Viewer,
            login_hash: hash,
            login_expires_at: Timestamp(u64::MAX),
            expires_at: None,
            at: Timestamp(at),
        };
        let remove = Command::RemoveUser { id, at: Timestamp(at) };
        for command in [create, login(hash, PublicKeyHash(key(number)), at), remove] {
            let outcome = state.apply(1, state.applied().index + 1, &command);
            assert!(matches!(outcome, ApplyOutcome::Applied { .. }), "{outcome:?}");
        }
    }
    state.check().unwrap();
    assert_eq!(state.revoked_keys().count(), MAX_REVOKED_KEYS);
    let known = |number| state.is_revoked(&PublicKeyHash(key(number)));
    assert_eq!([0, 1, MAX_REVOKED_KEYS].map(known), [false, true, true], "the oldest one is deleted");
    assert!(!state.is_revoked(&administrator));
    assert_eq!(role_of(&state, administrator, 20_000), None, "its manager lists it no more");
}

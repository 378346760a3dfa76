//! Users: their login tokens, and whose keys are accepted.

use warren_core::{ApplyOutcome, Command, FEATURE_LEVEL, Refusal, State};
use warren_types::{ADMINISTRATOR, ClusterId, Id, PublicKeyHash, Timestamp, TokenHash, UserId, UserRole};

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

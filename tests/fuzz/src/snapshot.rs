//! Arbitrary bytes as a snapshot's payload.

use std::time::Duration;

use warren_core::{State, reap, reap_tokens, reconcile_feature_level, reconcile_service, schedule};
use warren_store::codec::{read_snapshot, write_snapshot};

/// Bytes are rejected, or are a consistent state that survives encoding, and can be planned on and changed.
pub fn run(bytes: &[u8]) {
    let Ok(state) = read_snapshot(bytes) else { return };
    assert_eq!(state.check(), Ok(()));
    assert_eq!(rewritten(&state), state);
    let mut next = state.clone();
    let now = state.clock() + Duration::from_secs(1);
    let mut commands = Vec::new();
    for service in state.services() {
        commands.extend(reconcile_service(&state, &service.id, now).commands);
        commands.extend(reap(&state, &service.id, now).commands);
    }
    commands.extend(reap_tokens(&state, now).commands);
    commands.extend(reconcile_feature_level(&state).commands);
    commands.extend(schedule(&state, now).command(&state, now));
    for command in commands {
        let Some(index) = next.applied().index.checked_add(1) else { return };
        next.apply(state.applied().term, index, &command);
        assert_eq!(next.check(), Ok(()), "after {command:?}");
    }
    assert_eq!(next.check_after(&state), Ok(()));
}

/// The state of a member that received its snapshot.
pub fn rewritten(state: &State) -> State {
    let mut bytes = Vec::new();
    write_snapshot(state, &mut bytes).expect("a vector accepts every write");
    let read = read_snapshot(&bytes).expect("a written snapshot is readable");
    assert_eq!(read.digest(), state.digest());
    read
}

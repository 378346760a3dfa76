//! Arbitrary bytes as the payload of a log entry.

use warren_consensus::MembershipEntry;
use warren_core::State;
use warren_store::codec::{decode, encode};

/// Bytes are rejected, or are a command that survives encoding and that every state can apply.
pub fn run(bytes: &[u8]) {
    if let Ok(membership) = MembershipEntry::parse(bytes) {
        assert_eq!(membership.encode(), bytes);
    }
    let Ok(command) = decode(bytes) else { return };
    let again = encode(&command);
    assert_eq!(decode(&again).as_ref().ok(), Some(&command), "{again:02x?}");
    assert_eq!(encode(&command), again, "one value has one encoding");
    let mut state = State::new();
    state.apply(1, 1, &command);
    assert_eq!(state.check(), Ok(()));
}

//! Arbitrary bytes as what stands in an entry of the log.

use warren_consensus::Membership;
use warren_core::State;
use warren_manager::raft::codec::{decode, encode};

/// Bytes are refused, or are a command that survives being written again and that any state takes.
pub fn run(bytes: &[u8]) {
    if let Ok(membership) = Membership::parse(bytes) {
        assert_eq!(membership.encode(), bytes);
    }
    let Ok(command) = decode(bytes) else { return };
    let again = encode(&command);
    assert_eq!(decode(&again).as_ref().ok(), Some(&command), "{again:02x?}");
    assert_eq!(encode(&command), again, "one value has one spelling");
    let mut state = State::new();
    state.apply(1, 1, &command);
    assert_eq!(state.check(), Ok(()));
}

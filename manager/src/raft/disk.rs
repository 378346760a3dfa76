//! Between what the raft machine asks for and what the log does.

use warren_consensus::{Persist, Restored};
use warren_log::{Batch, Loaded};

/// What one durable write holds.
pub fn batch(persist: Persist) -> Batch {
    let Persist { number: _, snapshot, entries, hard_state } = persist;
    Batch { snapshot, entries, hard_state, conf_state: None }
}

/// What the machine starts from.
pub fn restored(loaded: Loaded) -> Restored {
    let Loaded { hard_state, conf_state, snapshot, entries } = loaded;
    Restored { hard_state, conf_state, snapshot, entries }
}

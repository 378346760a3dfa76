//! Were the answers of a cluster possible? A checker of linearizability for registers whose values have versions.
//!
//! A test records what its clients asked, what they were told, and when ([`Recorder`]). [`check`] then looks for an
//! order of these operations, each somewhere between its call and its answer, in which every answer is right. Keys
//! are independent of each other, so each is checked alone.
//!
//! Every write is answered with the register as its own entry left it: its own value, and the version that it made.
//! A version belongs to one write, versions rise in the order of the writes, and a compare-and-set succeeds only if
//! nothing came between the version that it expects and its own. That fixes the order of all writes that were
//! confirmed or seen; what is left to find out is which unconfirmed write made a version that somebody saw. The
//! search for that is the one of Wing and Gong with Lowe's memory of where it has been: a state is how many
//! versions are explained and which unconfirmed writes that took.
//!
//! It must never read a clock while it checks, and it knows nothing of the cluster. Start reading at [`Operation`],
//! then `check.rs` (keys and the smallest prefix) and `search.rs` (one key).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod epochs;
mod record;
mod recorder;
mod render;
mod search;

pub use check::{Limit, Undecided, Verdict, Violation, check};
pub use record::{Acknowledgement, Conflict, Operation, Outcome, Record, Value, Version};
pub use recorder::{Invoked, Recorder};

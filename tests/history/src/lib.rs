//! A linearizability checker for registers whose values have versions.
//!
//! A test records the calls and answers of its clients with their times ([`HistoryRecorder`]). [`check`] then
//! searches for an order of these operations, each at some point between its call and its answer, in which
//! every answer is right. Keys are independent, so each is checked alone.
//!
//! Every write is answered with the register as its own entry left it: its own value, and the version that it
//! made. A version belongs to one write, versions increase in the order of the writes, and a compare-and-set
//! succeeds only if no write came between the version that it expects and its own. That fixes the order of
//! all writes that were confirmed or seen; the search only has to find which unconfirmed write made a version
//! that was seen. It is the search of Wing and Gong with Lowe's memoization: a state is the number of
//! explained versions and the unconfirmed writes used for them.
//!
//! The checker reads no clock and does not depend on the cluster. [`workload`] makes histories of a live cluster.
//! Start reading at [`OperationRecord`], then `check.rs` (keys and the smallest prefix) and `search.rs` (one key).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod epochs;
mod record;
mod recorder;
mod render;
mod search;
pub mod workload;

pub use check::{LinearizabilityVerdict, LinearizabilityViolation, SearchLimit, Undecided, check};
pub use record::{
    Acknowledgement, Conflict, OperationOutcome, OperationRecord, RegisterOperation, RegisterValue,
    RegisterVersion,
};
pub use recorder::{HistoryRecorder, PendingOperation};

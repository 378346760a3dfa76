//! What is decided of a node's session with a manager: whether it gets one, what it is told, and which of its words are
//! facts.

mod facts;
mod seen;
mod told;

pub use facts::{is_old, is_pinned, must_replicate};
pub use seen::{contains, was_removed};
pub use told::{Diff, Told, Word};

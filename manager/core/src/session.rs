//! Decisions about a node's session with a manager: whether it gets one, what it is sent, and which of its
//! reports are replicated.

mod report_filter;
mod sent_assignment;
mod version_check;

pub use report_filter::{is_duplicate, is_pinned, must_replicate};
pub use sent_assignment::{AssignmentDiff, AssignmentUpdate, SentAssignment};
pub use version_check::{contains_version, was_removed};

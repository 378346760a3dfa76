//! Decisions about a node's session with a manager: whether it gets one, what it is sent, and which of its
//! reports are replicated.

mod change_log;
mod entry_nodes;
mod missed_entries;
mod network_history;
mod report_filter;
mod sent_assignment;
mod sent_network;
mod version_check;

pub use network_history::{NetworkChanges, NetworkHistory, NetworkUpdateParts};
use report_filter::is_pinned;
pub use report_filter::{ReportUse, report_use};
pub use sent_assignment::{AssignmentDiff, AssignmentUpdate, SentAssignment};
pub use sent_network::SentNetwork;
pub use version_check::{contains_version, is_newest, was_removed};

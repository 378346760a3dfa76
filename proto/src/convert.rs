//! Between the wire and `warren-types`.
//!
//! From the wire: `TryFrom`, with every fault of the message and its path in [`Violations`](warren_types::Violations);
//! paths are relative to the message, whoever holds it nests them. To the wire: `From`, which cannot fail and writes
//! defaults as absent, so that equal values have equal bytes.
//!
//! [`ServiceSpec`](warren_types::ServiceSpec) has two ways in: `TryFrom` for what a person sends now, which
//! also asks `validate`, and [`stored_service_spec`] for what a log or snapshot holds, which was valid when
//! it was accepted and must stay readable when a later version allows less.

mod assignment;
mod content;
mod fields;
mod health;
mod member;
mod node;
mod report;
mod request;
#[cfg(test)]
mod round_trip;
mod spec;
mod task;

pub use content::{content_data, content_kind, parse_field};
pub use member::suffrage;
pub use node::{availability, node_condition, node_role, node_status};
pub use report::{desired, health, task_state};
pub use request::replicas;
pub use spec::stored_service_spec;

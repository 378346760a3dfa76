//! Conversions between the wire and `warren-types`.
//!
//! From the wire: `TryFrom`, with every violation of the message and its path in
//! [`Violations`](warren_types::Violations); paths are relative to the message, the caller nests them. To the
//! wire: `From`, which cannot fail and omits defaults, so that equal values have equal bytes.
//!
//! [`ServiceSpec`](warren_types::ServiceSpec) has two conversions: `TryFrom` for new requests, which also
//! calls `validate`, and [`stored_service_spec`] for logs and snapshots, whose specs were valid when they
//! were accepted and must stay readable when a later version allows less.

mod assignment;
mod cluster;
mod fields;
mod health;
mod member;
mod node;
mod report;
mod request;
#[cfg(test)]
mod round_trip;
mod secret_object;
mod spec;
mod task;
mod update;

pub use member::suffrage;
pub use node::{availability, node_condition, node_role, node_status};
pub use report::{desired_task_state, health, task_state};
pub use request::replicas;
pub use secret_object::{check_secret_object_data, parse_field, secret_object_kind};
pub use spec::stored_service_spec;

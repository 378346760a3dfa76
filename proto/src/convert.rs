//! Conversions between the wire and `warren-types`.
//!
//! [`WireForm`] has both directions of a field or a message. From the wire it returns every violation of the message
//! with its path in [`Violations`](warren_types::Violations); paths are relative to the message, the caller nests them.
//! To the wire it cannot fail and omits defaults, so that equal values have equal bytes. A struct whose fields
//! correspond to those of its message is one entry of `wire_structs!`, an enum one of `enums!`. `From` and `TryFrom` do
//! the same for messages of the API.
//!
//! [`ServiceSpec`](warren_types::ServiceSpec) has two conversions: `TryFrom` for new requests, which also
//! calls `validate`, and [`WireForm`] for logs and snapshots, whose specs were valid when they were accepted and must
//! stay readable when a later version allows less.

mod assignment;
mod cluster;
mod enums;
mod fields;
mod health;
mod network;
mod node;
mod report;
mod request;
#[cfg(test)]
mod round_trip;
mod secret_object;
mod spec;
mod stored;
mod summary;
mod task;
mod update;
mod wire_form;

pub use enums::{
    availability, ca_phase, data_plane, desired_task_state, health, key_phase, node_condition, node_role,
    node_status, secret_object_kind, suffrage, task_state, user_namespace, user_role,
};
pub use request::replicas;
pub use secret_object::{check_secret_object_data, parse_field};
pub use spec::stored_service_spec;
pub use wire_form::{WireForm, or_default, read_field};

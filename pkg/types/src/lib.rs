//! The nouns of Warren: identifiers, names, quantities, specs, and the objects a cluster holds.
//!
//! Pure data: no IO, no clock, no randomness, and nothing of the wire (that is `warren-proto`).
//! A value of these types is valid by construction or says why it is not ([`Violation`]).
//! Start reading at [`spec`] (what a person asks for) and [`object`] (what the cluster holds).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod assignment;
pub mod id;
pub mod name;
pub mod object;
pub mod quantity;
pub mod raft;
pub mod spec;
pub mod state;
pub mod time;
pub mod violation;

pub use assignment::{Assignment, AssignmentVersion, NodeSettings, TaskAssignment, TaskReport};
pub use id::{ClusterId, Id, NodeId, ServiceId, TaskId};
pub use name::{ImageReference, NodeName, ServiceName};
pub use object::{Node, NodeDescription, NodeStatus, Observed, Revision, Service, Task};
pub use quantity::{Bytes, MilliCpu, Resources};
pub use spec::{EnvVar, Limits, Mode, Protocol, PublishMode, PublishedPort, ServiceSpec, TaskSpec};
pub use state::{Desired, Exit, TaskState};
pub use time::Timestamp;
pub use violation::{Violation, Violations};

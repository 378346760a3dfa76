//! The nouns of Warren: identifiers, names, quantities, specs, and the objects a cluster holds.
//!
//! Pure data: no IO, no clock, no randomness, and nothing of the wire (that is `warren-proto`).
//! A value of these types is valid by construction or says why it is not ([`Violation`]).
//! Start reading at [`spec`] (what a person asks for) and [`object`] (what the cluster holds).

#![cfg_attr(any(test, feature = "strategies"), allow(clippy::unwrap_used))]

pub mod assignment;
pub mod content;
pub mod id;
pub mod member;
pub mod name;
pub mod object;
pub mod quantity;
pub mod raft;
pub mod seldom;
pub mod signal;
pub mod spec;
pub mod state;
#[cfg(any(test, feature = "strategies"))]
pub mod strategies;
pub mod template;
mod text;
pub mod time;
pub mod token;
pub mod violation;
pub mod volume;

pub use assignment::{
    Assignment, AssignmentVersion, NodeSettings, TaskAssignment, TaskReport, VolumeAssignment,
};
pub use content::{Content, ContentKind, ContentUse, Login, SealedContent};
pub use id::{ClusterId, ContentId, Id, ManagerId, NodeId, ServiceId, TaskId, TokenId, VolumeId};
pub use member::{ManagerAddress, Member, MemberId, ParseAddressError, Suffrage};
pub use name::{ContentName, ImageDigest, ImageReference, NodeName, ServiceName, VolumeName};
pub use object::{
    Availability, Node, NodeCondition, NodeDescription, NodeRole, NodeStatus, Observed, Revision, Service,
    Special, Task, Trouble,
};
pub use quantity::{Bytes, MilliCpu, Resources};
pub use seldom::Seldom;
pub use signal::Signal;
pub use spec::{
    Capability, Constraint, ContentMount, Device, DeviceAccess, EnvVar, HealthCheck, HostEntry, HttpHeader,
    Limits, LogLimits, Mode, Mount, MountSource, OnDisconnect, Placement, Probe, Propagation, Protocol,
    PublishMode, PublishedPort, PullPolicy, RestartCondition, RestartPolicy, Seccomp, ServiceSpec, TaskSpec,
    Ulimit, UlimitName,
};
pub use state::{Desired, Exit, Health, TaskState};
pub use template::{Template, TemplateValues};
pub use time::Timestamp;
pub use token::{Token, TokenHash};
pub use violation::{Violation, Violations};
pub use volume::{Volume, VolumeDriver};

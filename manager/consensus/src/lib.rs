//! warren-consensus: one member of the raft group as a pure machine.
//!
//! [`RaftMachine::handle`] takes an [`Event`] (a tick, a message, a proposal, a completed write) and returns
//! the [`Effect`]s that the driver must execute, in order: write, send, apply, answer. The same configuration
//! and events always give the same effects; a simulator can therefore run a whole cluster in one thread from
//! one seed.
//!
//! This crate must never do IO, read a clock, draw a random number, interpret a command, or expose the raft
//! crate's types. It never calls the protobuf parser that the raft crate depends on (RUSTSEC-2024-0437):
//! messages and entries are converted field by field.
//!
//! Start reading at `event.rs` (inputs and outputs), then `machine.rs`; `members.rs` defines how a group
//! grows and shrinks, `reconfigure.rs` which change comes next.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod acknowledgements;
mod config;
mod convert;
mod election;
mod error;
mod event;
mod machine;
mod members;
mod message;
mod pending_proposals;
mod pending_writes;
mod raft_log;
mod reconfigure;
mod validation;

pub use acknowledgements::LogPosition;
pub use config::{PersistentState, RaftConfig};
pub use error::{Error, FatalError, InvalidMemberChange, ParseMembershipError, Result};
pub use event::{
    CommittedEntry, DropReason, DurabilityStatus, DurableWrite, Effect, Event, Proposal, RaftRole,
};
pub use machine::{PeerProgress, RaftMachine};
pub use members::{MemberChange, MemberStep, MembershipEntry};
pub use message::{Message, MessageKind};
pub use reconfigure::{DesiredMember, MembershipAction, WaitReason, check_quorum_without, next_action};
pub use warren_types::raft::{AcknowledgedEntry, ConfState, EntryKind, HardState, RaftEntry, SnapshotMeta};

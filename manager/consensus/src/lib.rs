//! warren-consensus: one member of the raft group as a pure machine.
//!
//! [`Machine::on`] takes an [`Event`] (a tick, a message, a proposal, "this is on the disk now")
//! and returns the [`Effect`]s that whoever drives it must execute, in order: write, send, apply,
//! answer. The same configuration and events give the same effects, always; a simulator can
//! therefore run a whole cluster in one thread from one seed.
//!
//! This crate must never do IO, read a clock, draw a random number, know what a command means, or
//! let the raft crate's types out. It never calls the protobuf parser that the raft crate depends
//! on (RUSTSEC-2024-0437): messages and entries are converted field by field.
//!
//! Start reading at `event.rs` (what goes in and comes out), then `machine.rs`; `members.rs` says
//! how a group grows and shrinks, `guide.rs` which change comes next.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod acknowledgements;
mod config;
mod convert;
mod election;
mod error;
mod event;
mod guide;
mod log;
mod machine;
mod members;
mod message;
mod proposals;
mod screen;
mod writes;

pub use acknowledgements::Position;
pub use config::{Config, Restored};
pub use error::{Error, Fatal, InvalidChange, MembershipError, Result};
pub use event::{Committed, DropReason, Effect, Event, Persist, Proposal, Role};
pub use guide::{Next, Why, Wish, loses_quorum, next_change};
pub use machine::{Durability, Machine, Peer};
pub use members::{MemberChange, MemberStep, Membership};
pub use message::{Message, MessageKind};
pub use warren_types::raft::{Acknowledged, ConfState, Entry, EntryKind, HardState, SnapshotMeta};

//! How a machine becomes a manager, and recovers after a loss.
//!
//! [`member_identity`] says which raft member a directory belongs to; [`join`] adds the machine to an
//! existing cluster, [`restore`] creates a cluster from a [`backup`], and [`force_new_cluster`] creates one
//! from a single remaining manager; [`ca`] has the manager's keys and certificates, [`autolock`] what locks
//! them. All of it is files: each step leaves a directory whose state the next start recognizes, so the
//! process may be killed at any time, and a repeated call completes it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod autolock;
pub mod backup;
pub mod ca;
pub mod force_new_cluster;
pub mod join;
pub mod member_identity;
pub mod restore;

pub use member_identity::{LocalMemberStatus, MemberFileError, MemberIdentity};

//! Real managers (raft, disk, TLS on loopback, unix socket), used by administrators, unknown clients and
//! workers.
//!
//! Nothing here uses more of a manager than its API and its files. Workers are scripted frame by frame
//! ([`worker`]), so that each side of the session can be late, outdated or lost exactly when a test needs it.
//! Start reading at [`fixture`].
#![allow(clippy::unwrap_used)]

mod access;
mod agents;
mod bootstrap;
mod dial;
mod docker;
mod encryption_at_rest;
mod events;
mod exec;
mod fake_registry;
mod fixture;
mod full_disk;
mod heartbeats;
mod images;
mod joining;
mod leaving;
mod lists;
mod log_engines;
mod logs;
mod managers;
mod placement;
mod registry_access;
mod restart;
mod seccomp;
mod secrets;
mod services;
mod sessions;
mod signatures;
mod stacks;
mod unreachable_registry;
mod updates;
mod users;
mod volumes;
mod watch;
mod why;
mod worker;
mod wrong_inputs;

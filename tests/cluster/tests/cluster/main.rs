//! Real managers (raft, disk, TLS on loopback, unix socket), spoken to as a person, a stranger and a worker would.
//!
//! Nothing here looks into a manager beyond what its API and its files show. Workers are scripted frame by frame
//! ([`worker`]), so that each side of the session can be late, old or gone exactly when a test wants it.
//! Start reading at [`world`].
#![allow(clippy::unwrap_used)]

mod access;
mod agents;
mod contents;
mod door;
mod engines;
mod full_disk;
mod images;
mod joining;
mod leaving;
mod logs;
mod managers;
mod placing;
mod restart;
mod sealed;
mod services;
mod sessions;
mod updates;
mod vitals;
mod volumes;
mod watch;
mod worker;
mod world;
mod writers;

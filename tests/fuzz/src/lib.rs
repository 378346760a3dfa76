//! Fuzz targets for what managers and nodes receive as bytes and commands, from each other, from users, registries and
//! archives, and for what nodes render from it: each target is a function of bytes that panics when it finds a defect.
//!
//! It must never skip an input that could be received, and never depend on anything but the bytes, so
//! that a finding is reproducible. `run.sh` lets libFuzzer search for inputs; the tests of this crate replay
//! the kept ones in `corpus/<target>/`, on stable and with all other tests. After a fix, the input of the
//! finding is kept.
//!
//! Start reading at [`TARGETS`], then [`apply`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod archive;
pub mod codec;
pub mod dns;
pub mod message;
pub mod network;
pub mod policy;
pub mod registry;
pub mod request;
pub mod signature;
pub mod snapshot;

/// A function of bytes that panics when it finds a defect.
pub type FuzzTarget = fn(&[u8]);

/// The targets by name, which is also the name of their corpus.
pub const TARGETS: [(&str, FuzzTarget); 11] = [
    ("codec", codec::run),
    ("snapshot", snapshot::run),
    ("apply", apply::run),
    ("message", message::run),
    ("dns", dns::run),
    ("network", network::run),
    ("registry", registry::run),
    ("signature", signature::run),
    ("archive", archive::run),
    ("policy", policy::run),
    ("request", request::run),
];

/// The target of that name.
pub fn target(name: &str) -> Option<FuzzTarget> {
    TARGETS.into_iter().find(|(known, _)| *known == name).map(|(_, run)| run)
}

#[cfg(test)]
mod tests;

//! What a manager makes of bytes and commands that nobody would write: each target is a function of bytes
//! that panics when something is found.
//!
//! It must never pass over an input silently that a manager could be handed, and never depend on anything but
//! the bytes, so that a finding stays one. `run.sh` lets libFuzzer look for inputs; the tests of this crate
//! replay the kept ones in `corpus/<target>/`, on stable and with every other test. A finding is mended, and
//! its input kept.
//!
//! Start reading at [`TARGETS`], then [`apply`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod codec;
pub mod message;
pub mod snapshot;

/// A function of bytes that panics when something is found.
pub type Target = fn(&[u8]);

/// The targets by name, which is also that of their corpus.
pub const TARGETS: [(&str, Target); 4] =
    [("codec", codec::run), ("snapshot", snapshot::run), ("apply", apply::run), ("message", message::run)];

/// The target of that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|(known, _)| *known == name).map(|(_, run)| run)
}

#[cfg(test)]
mod tests;

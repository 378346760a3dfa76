//! What Warren's tests, benches and demo are made of: images without a registry, hosts without machines,
//! processes that cannot outlive their test, and a count of everything a node may leave behind.
//!
//! It must never be a dependency of something that ships, never reach the network outside loopback and the
//! network namespaces it made itself, and never signal a process that it (or a node it started) did not
//! start. A guard that cannot do its work panics with what was wanted and what was found: in a test there
//! is nobody to hand an error to.
//!
//! Start reading at [`node`] for end-to-end tests (one hybrid node in its own world), at [`image`] for what
//! containers run, at [`wait`] for the only place in all tests that sleeps.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod containerd;
pub mod demo;
pub mod image;
pub mod leaks;
pub mod leftovers;
pub mod load;
pub mod netns;
pub mod node;
pub mod ports;
pub mod process;
pub mod registry;
pub mod scratch;
pub mod small_disk;
pub mod soak;
pub mod tool;
pub mod wait;
pub mod warren;

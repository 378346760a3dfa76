//! The parts of Warren's tests, benches and demo: images without a registry, network namespaces as hosts,
//! processes that cannot outlive their test, and an inventory of everything a node may leave behind.
//!
//! It must never be a dependency of something that ships, never use a network except loopback and the network
//! namespaces that it created, and never signal a process that it (or a node it started) did not start. A
//! guard that fails panics with the expected and the observed state, because no test handles such errors.
//!
//! Start reading at [`node`] for end-to-end tests (one hybrid node with its own directories), at [`image`]
//! for the contents of containers, at [`wait`] for the only place in all tests that sleeps.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cleanup;
pub mod cli;
pub mod containerd;
pub mod demo;
pub mod http_load;
pub mod image;
pub mod leaks;
pub mod machine_load;
pub mod netns;
pub mod node;
pub mod ports;
pub mod process;
pub mod registry;
pub mod scratch;
pub mod small_disk;
pub mod soak;
pub mod token_registry;
pub mod tool;
pub mod wait;

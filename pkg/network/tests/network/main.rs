//! The network against a real kernel, in network namespaces of its own: nothing outside them is touched.
#![allow(clippy::unwrap_used)]

mod conformance;
mod lab;
mod leftovers;
mod preconditions;
mod reach;
mod repair;

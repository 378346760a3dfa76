//! Tests against a real kernel, in private network namespaces: nothing outside them is touched.
#![allow(clippy::unwrap_used)]

mod conformance;
mod lab;
mod leftovers;
mod preconditions;
mod reach;
mod repair;

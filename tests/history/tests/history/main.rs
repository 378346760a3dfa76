//! The checker finds everything that is wrong, and nothing that is not.

#![allow(clippy::unwrap_used)]

mod brute;
mod known;
mod large;
mod recording;
mod small;

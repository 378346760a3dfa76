//! The checker rejects every invalid history and accepts every valid one.

#![allow(clippy::unwrap_used)]

mod brute_force;
mod known_histories;
mod large_histories;
mod random_histories;
mod recording;

//! Checks of real servers, in a network namespace of their own.

#![allow(clippy::unwrap_used, reason = "a test")]

mod suite {
    mod http;
    mod other;
    mod world;
}

//! Checks of real servers in a separate network namespace.

#![allow(clippy::unwrap_used, reason = "a test")]

mod suite {
    mod fixture;
    mod http;
    mod tcp_and_exec;
}

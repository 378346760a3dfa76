//! The rules of this repository that neither the compiler nor clippy can hold: who may depend on whom, what
//! the pure crates may not touch, how long a file may be, what a test may not do.
//!
//! Each rule is a pure function from text (or from `cargo metadata`) to a list of violations, and has two
//! tests: one holds the repository to it, the other shows that the rule bites. It must never write, never
//! reach the network, and never know more than the files it reads.
//!
//! Start reading at [`layering`]; to add a rule, write `fn ...(..) -> Vec<String>` in the module of its
//! subject and the two tests beside it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod layering;
pub mod lockfile;
pub mod prose;
pub mod purity;
pub mod shape;
pub mod source;
pub mod waiting;
pub mod words;

/// Panics with all of `violations`, one per line, when there are any.
#[cfg(test)]
#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

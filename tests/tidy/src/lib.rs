//! The rules of this repository that neither the compiler nor clippy can check: dependencies between crates,
//! purity of crates, names of types, length of files, sleeps in tests.
//!
//! Each rule is a pure function from text (or from `cargo metadata`) to a list of violations, and has two
//! tests: one applies it to the repository, the other shows that it detects a violation. It must never write,
//! never reach the network, and never use more than the files it reads.
//!
//! Start reading at [`layering`]; to add a rule, write `fn ...(..) -> Vec<String>` in the module of its
//! subject and the two tests beside it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod circles;
pub mod documents;
pub mod forbidden_words;
pub mod layering;
pub mod lockfile;
pub mod prose;
pub mod purity;
pub mod shape;
pub mod sleeps;
pub mod source;
pub mod type_names;
pub mod vocabulary;

/// Panics with all of `violations`, one per line, when there are any.
#[cfg(test)]
#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

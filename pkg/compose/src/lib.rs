//! Compose files: their canonical model, and the objects of Warren that they describe.
//!
//! Pure: files are read by a function of the caller, and nothing is sent. Every value has the position from which
//! errors name it; no key is dropped without an error or a warning. Secrets are not read here. Time and memory are
//! bounded by [`yaml::WorkBudget`].
//! Start reading at [`schema`] (all keys, and what Warren does with them), [`load()`] (files to a [`Project`]) and
//! [`stack::stack`] (a project to objects).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod canonical;
mod env_file;
mod interpolation;
mod load;
mod merge;
mod problem;
mod project;
mod references;
mod scalar;
pub mod schema;
pub mod stack;
mod support;
pub mod yaml;

pub use interpolation::Variables;
pub use load::{ProjectSource, ReadFile, load};
pub use problem::{ComposeProblem, KeyPath, SourcePosition, ValuePosition, similar};
pub use project::Project;

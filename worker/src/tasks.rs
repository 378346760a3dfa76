//! The tasks of this node: one actor each, and the supervisor that gives them their orders.
//!
//! Start reading at [`supervisor`] (who has an actor, and what it is told), then `actor` (the loop around
//! [`warren_task::step()`]) and `driver` (the one place where its actions are done).

mod actor;
pub(crate) mod checks;
mod container;
pub(crate) mod contents;
mod driver;
pub(crate) mod failure;
mod ground;
pub(crate) mod reporter;
mod strays;
pub(crate) mod supervisor;
pub(crate) mod templates;

pub(crate) use container::{Listed, listed};
pub(crate) use driver::Driver;
pub(crate) use ground::{Ground, NOT_YET};

#[cfg(test)]
mod tests;

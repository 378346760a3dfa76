//! The tasks of this node: one actor each, and the supervisor that controls them.
//!
//! Start reading at [`supervisor`] (which tasks have an actor, and its inputs), then `actor` (the loop around
//! [`warren_task::step()`]) and `executor` (the only place that executes its actions).

mod actor;
pub(crate) mod checks;
mod container;
mod executor;
pub(crate) mod failure;
mod hooks;
mod node_network;
mod orphans;
pub(crate) mod reporter;
pub(crate) mod supervisor;
pub(crate) mod templates;

pub(crate) use container::{ListedContainer, id as container_id, parse_listed};
pub(crate) use executor::ActionExecutor;
pub(crate) use node_network::{NETWORK_PENDING, NodeNetworkState};

#[cfg(test)]
mod tests;

//! The deciding half of the manager from outside: through commands, plans and questions only.

#![allow(clippy::unwrap_used)]

mod backoff;
mod chance;
mod counting;
mod digest;
mod footprint;
mod level;
mod liveness;
mod nodes;
mod queries;
mod reconciling;
mod refusals;
mod reports;
mod scheduling;
mod services;
mod snapshots;
mod tasks;
mod world;

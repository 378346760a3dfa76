//! The deciding half of the manager from outside: through commands, plans and questions only.

#![allow(clippy::unwrap_used)]

mod backoff;
mod chance;
mod completion;
mod conditions;
mod contents;
mod counting;
mod digest;
mod drain;
mod following;
mod footprint;
mod globals;
mod health;
mod joining;
mod level;
mod liveness;
mod lost;
mod members;
mod nodes;
mod pins;
mod queries;
mod reconciling;
mod refusals;
mod removal;
mod reports;
mod revisions;
mod scheduling;
mod services;
mod snapshots;
mod tasks;
mod told;
mod updates;
mod volumes;
mod world;

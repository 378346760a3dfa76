//! The deciding part of the manager from outside: only commands, plans and queries.

#![allow(clippy::unwrap_used)]

mod backoff;
mod bootstrap;
mod cluster_settings;
mod completion;
mod conditions;
mod counting;
mod digest;
mod drain;
mod feature_level;
mod footprint;
mod global_services;
mod health;
mod image_pins;
mod joining;
mod label_values;
mod liveness;
mod lost;
mod many_replicas;
mod members;
mod networks;
mod nodes;
mod preferences;
mod queries;
mod random_commands;
mod reconciling;
mod refusals;
mod removal;
mod reports;
mod revisions;
mod rollouts;
mod scheduling;
mod secret_object_updates;
mod secret_objects;
mod sent_assignment;
mod services;
mod snapshots;
mod taints;
mod task_history;
mod tasks;
mod test_cluster;
mod updates;
mod verification;
mod volumes;

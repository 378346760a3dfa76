//! The `warren` program as people run it, against a manager that keeps its state in memory: exit codes, what
//! goes to which output, and the words.

#![allow(clippy::unwrap_used)]

mod cluster;
mod completion;
mod contexts;
mod documents;
mod failover;
mod fake_manager;
mod health;
mod images;
mod logs;
mod managers;
mod networks;
mod nodes;
mod queries;
mod registries;
mod secrets;
mod services;
mod stacks;
mod swarm_spellings;
mod system;
mod tokens;
mod unlock;
mod updates;
mod upgrade;
mod user;
mod volumes;

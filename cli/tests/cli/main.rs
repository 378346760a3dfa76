//! The `warren` program as people run it, against a manager that keeps its state in memory: exit codes, what
//! goes to which output, and the words.

#![allow(clippy::unwrap_used)]

mod asking;
mod contents;
mod fake;
mod following;
mod health;
mod images;
mod logs;
mod managers;
mod nodes;
mod person;
mod registries;
mod services;
mod tokens;
mod updates;
mod volumes;

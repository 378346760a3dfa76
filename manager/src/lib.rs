//! The manager: holds what is wanted in a raft-replicated store, decides, and tells workers.
//!
//! This crate is the shell: threads, disk, gRPC. What it decides is decided by `warren-core`, how it agrees by
//! `warren-consensus`; nothing here may choose. It never depends on the worker.
//! Start reading at [`manager`], which puts the parts together, then [`store`], through which all parts speak.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advertise;
pub mod agreement;
pub mod api;
pub mod background;
pub mod ca;
pub mod config;
pub mod controllers;
pub mod durability;
pub mod manager;
pub mod metrics;
pub mod peers;
pub mod process;
pub mod raft;
pub mod recovery;
pub mod server;
pub mod session;
pub mod stamp;
pub mod store;

pub use config::{Config, LocalNode, Tuning};
pub use manager::Manager;

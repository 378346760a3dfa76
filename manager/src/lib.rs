//! The manager: stores the desired state in a raft-replicated store, plans, and assigns tasks to workers.
//!
//! This crate has the I/O: threads, disk, gRPC. Plans are made by `warren-core`, consensus by
//! `warren-consensus`; this crate decides nothing. It never depends on the worker. Start reading at
//! [`manager`], the composition root.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advertise;
pub mod config;
pub mod controllers;
mod docker;
pub mod locked;
pub mod manager;
pub mod metrics;
pub mod process;
pub mod server;

pub use config::{LocalNode, ManagerConfig, ManagerTuning};
pub use manager::Manager;

//! The manager: stores the desired state in a raft-replicated store, plans, and assigns tasks to workers.
//!
//! This crate has the I/O: threads, disk, gRPC. Plans are made by `warren-core`, consensus by
//! `warren-consensus`; this crate decides nothing. It never depends on the worker. Start reading at
//! [`manager`], the composition root, then [`store`], which connects all parts.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advertise;
pub mod api;
pub mod background;
pub mod bootstrap;
pub mod codec;
pub mod config;
pub mod controller_status;
pub mod controllers;
pub mod durability;
pub mod incarnation;
pub mod manager;
pub mod metrics;
pub mod peers;
pub mod problem;
pub mod process;
pub mod raft;
pub mod server;
pub mod session;
pub mod state_comparison;
pub mod store;
pub mod timestamp;

pub use config::{LocalNode, ManagerConfig, ManagerTuning};
pub use manager::Manager;

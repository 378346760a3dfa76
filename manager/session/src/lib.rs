//! Sessions with workers: one stream per worker, assignments out, reports in.
//!
//! Worker data that need not survive a failover (contact, usage, progress before RUNNING) stays in memory in
//! [`SessionRegistry`]; everything else is proposed. Start reading at [`server`], then [`session_handler`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod assignment_stream;
pub mod description;
pub mod establish_service;
pub mod frames;
pub mod leader;
pub mod network_publisher;
pub mod registry;
pub mod remote_progress;
pub mod repository_tokens;
pub mod secret_delivery;
pub mod server;
pub mod session_handler;
pub mod task_telemetry;
pub mod withdrawals;
pub mod worker_streams;

pub use network_publisher::NetworkPublisher;
pub use registry::SessionRegistry;
pub use worker_streams::WorkerStreams;

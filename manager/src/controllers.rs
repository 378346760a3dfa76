//! The controllers: a key is dequeued, a pure planner is run on the newest state, and its commands are
//! proposed.
//!
//! Start-up, steady state and failover use one code path: a new leader enqueues every key. Start at
//! [`planner`].

pub mod images;
pub mod liveness;
pub mod members;
pub mod planner;
pub mod scheduler_metrics;
pub mod verification;
pub mod wake_up_dispatcher;

//! The loops that turn what is into what is wanted: a key comes in, a pure plan is made, its commands are proposed.
//!
//! One code path for start-up, steady state and failover: a new leader wakes every key. Start at [`planner`].

pub mod key;
pub mod liveness;
pub mod members;
pub mod planner;
pub mod refusals;
pub mod wake;

pub use members::Waits;
pub use refusals::Refusals;

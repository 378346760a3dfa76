//! Worker-facing side: one stream per worker, assignments out, reports in.
//!
//! What a worker says that is not a fact to keep (contact, usage, progress on the way to RUNNING) stays in memory
//! in [`Registry`]; only what survives a failover is proposed. Start reading at [`server`], then [`conversation`].

pub mod conditions;
pub mod conversation;
pub mod elsewhere;
pub mod establish;
pub mod fetch;
pub mod leader;
pub mod link;
pub mod registry;
pub mod server;
pub mod streams;
pub mod vitals;

pub use registry::Registry;
pub use streams::Streams;

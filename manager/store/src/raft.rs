//! The raft driver: the only thread that writes the log, and its storage.
//!
//! It decides nothing: `warren-replica` and `warren-consensus` return effects, and the driver executes them. Start
//! reading at [`driver`].

pub mod driver;
pub mod open;
pub mod sealed_log;
pub mod sealing;
pub mod snapshot;
pub mod transport;

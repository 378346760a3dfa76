//! The raft driver: the one thread that touches the log, and what it reads and writes.
//!
//! It decides nothing: `warren-consensus` says what to do, this does it. Start reading at [`driver`].

pub mod codec;
pub mod disk;
pub mod driver;
pub mod restore;
pub mod sealed_log;
pub mod snapshot;
pub mod wire;

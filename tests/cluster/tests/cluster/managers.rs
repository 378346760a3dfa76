//! Clusters of several managers, and the loss of some of them.
//!
//! Start reading at [`group`].

mod answers;
mod any_manager;
mod audit;
mod autolock;
mod ca_rotation;
mod calls_during_failover;
mod certificates;
mod disaster_recovery;
mod event_failover;
mod full_disk;
mod group;
mod growth;
mod host;
mod identity;
mod key_rotation;
mod leaving;
mod registers;
mod rehearsal;
mod rejoining;
mod remote_sessions;
mod revocation;
mod watch_failover;
mod withdrawals;
mod workers;

//! What people and tools ask of a manager: one file per noun, one table of who may ask what.
//!
//! Handlers parse, read a snapshot or propose a command, and show; they decide nothing. Start reading at [`access`]
//! (who may), then [`services`].

pub mod access;
pub mod cluster;
pub mod contents;
pub mod description;
pub mod heard;
pub mod images;
pub mod life;
pub mod logs;
pub mod loops;
pub mod managers;
pub mod membership;
pub mod nodes;
pub mod open;
pub mod paging;
pub mod problem;
pub mod progress;
pub mod proxy;
pub mod read;
pub mod relay;
pub mod services;
pub mod session_calls;
pub mod tasks;
pub mod tokens;
pub mod view;
pub mod volumes;
pub mod watch;
pub mod whereabouts;

use std::sync::Arc;

use warren_control::{Loops, Shutdown};
use warren_log::Engine;
use warren_security::{CertificateAuthority, ContentKey};
use warren_types::MemberId;

use self::progress::Ears;
use crate::agreement::Agreement;
use crate::controllers::{Refusals, Waits};
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::session::leader::LeaderWatch;
use crate::session::{Registry, Streams};
use crate::stamp::Stamp;
use crate::store::Store;

/// What every handler may use. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    /// The replicated state.
    pub store: Store,
    /// Tells whoever waits when no leader is heard of.
    pub leader: LeaderWatch,
    /// Who is connected, and what they said that is not replicated.
    pub registry: Registry,
    /// Streams that workers dial on request.
    pub streams: Streams,
    /// Why tasks are not placed.
    pub refusals: Refusals,
    /// What the next change of managers waits for, while this one leads.
    pub waits: Waits,
    /// This manager's background loops.
    pub loops: Loops,
    /// The time that commands are stamped with.
    pub clock: Stamp,
    /// Ends what goes on behind answered requests.
    pub shutdown: Shutdown,
    /// Issues certificates to machines that join.
    pub authority: Arc<CertificateAuthority>,
    /// Seals and opens secrets, configs and credentials.
    pub content_key: Arc<ContentKey>,
    /// This manager's own id.
    pub manager: String,
    /// Its id in the raft group.
    pub member: MemberId,
    /// No tasks run on its machine.
    pub manager_only: bool,
    /// The voters that the group was founded with, which new managers have to know.
    pub founders: Arc<[MemberId]>,
    /// The other managers.
    pub peers: Peers,
    /// Whether their states are the same.
    pub agreement: Agreement,
    /// Listens to the progress that the others hear of, while somebody watches.
    pub ears: Ears,
    /// What keeps this manager's log.
    pub log_engine: Engine,
    /// Counts what it is asked.
    pub metrics: Metrics,
}

#[cfg(test)]
mod tests;

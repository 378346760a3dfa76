//! What people and tools ask of a manager: one file per noun, one table of who may ask what.
//!
//! Handlers parse, read a snapshot or propose a command, and show; they decide nothing. Start reading at [`access`]
//! (who may), then [`services`].

pub mod access;
pub mod cluster;
pub mod contents;
pub mod description;
pub mod images;
pub mod logs;
pub mod membership;
pub mod nodes;
pub mod open;
pub mod paging;
pub mod problem;
pub mod services;
pub mod tasks;
pub mod tokens;
pub mod view;
pub mod volumes;
pub mod watch;

use std::sync::Arc;

use warren_control::{Loops, Shutdown};
use warren_log::Engine;
use warren_security::{CertificateAuthority, ContentKey};

use crate::controllers::Refusals;
use crate::metrics::Metrics;
use crate::session::{Registry, Streams};
use crate::stamp::Stamp;
use crate::store::Store;

/// What every handler may use. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    /// The replicated state.
    pub store: Store,
    /// Who is connected, and what they said that is not replicated.
    pub registry: Registry,
    /// Streams that workers dial on request.
    pub streams: Streams,
    /// Why tasks are not placed.
    pub refusals: Refusals,
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
    /// What keeps this manager's log.
    pub log_engine: Engine,
    /// Counts what it is asked.
    pub metrics: Metrics,
}

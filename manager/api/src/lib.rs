//! The gRPC services for users and tools: one file per resource, and one table of roles and methods.
//!
//! A handler parses the request, reads a snapshot or proposes a command, and formats the response; it decides
//! nothing. Start reading at [`authorization`] (role checks), then [`services`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission_policy;
pub mod audit;
mod audited_call;
pub mod authorization;
mod autolock;
pub mod background_tasks;
mod ca;
pub mod cluster;
pub mod controller_status;
pub mod events;
pub mod exec;
mod forecast;
pub mod images;
pub mod incarnation;
mod keys;
pub mod locked;
pub mod logs;
pub mod manager_addresses;
pub mod managers;
pub mod membership;
pub mod methods;
pub mod middleware;
pub mod networks;
pub mod node_reports;
pub mod nodes;
pub mod open_stream;
pub mod paging;
pub mod peer_calls;
pub mod progress_subscription;
pub mod proxy;
pub mod read;
pub mod relay;
pub mod relayed_caller;
pub mod request_metrics;
mod seccomp_profiles;
pub mod secret_objects;
pub mod services;
pub mod tasks;
pub mod tokens;
mod user_keys;
pub mod users;
pub mod verification;
pub mod view;
pub mod volumes;
pub mod watch;
pub mod why;

use std::sync::Arc;

use warren_control::{BackgroundTasks, Shutdown};
use warren_log::LogEngine;
use warren_peers::Peers;
use warren_registry::ResolveNames;
use warren_security::seal::KeyFiles;
use warren_security::{CurrentAuthority, ReloadableCertificate, SecretObjectKey};
use warren_session::leader::LeaderWatch;
use warren_session::{NetworkPublisher, SessionRegistry, WorkerStreams};
use warren_store::Store;
use warren_store::incarnation::LaterIncarnation;
use warren_store::state_comparison::StateComparison;
use warren_store::timestamp::TimestampSource;
use warren_types::MemberId;

use self::audit::Auditor;
use self::progress_subscription::ProgressSubscription;
use crate::controller_status::{MembershipWait, PlacementRefusals};

/// Dependencies shared by all handlers. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    /// The replicated state.
    pub store: Store,
    /// Notifies waiting calls when the leader is lost.
    pub leader: LeaderWatch,
    /// Connected nodes and their reports that are not replicated.
    pub registry: SessionRegistry,
    /// What nodes are told about the cluster's network.
    pub networks: NetworkPublisher,
    /// Streams that workers open on request.
    pub streams: WorkerStreams,
    /// Reasons why tasks have no node.
    pub placement_refusals: PlacementRefusals,
    /// The reason why the next membership change waits; set while this manager leads.
    pub membership_wait: MembershipWait,
    /// Background tasks of this manager.
    pub background_tasks: BackgroundTasks,
    /// Source of command timestamps.
    pub clock: TimestampSource,
    /// Stops tasks that outlive the request that started them.
    pub shutdown: Shutdown,
    /// The certificate of this manager.
    pub certificate: Arc<ReloadableCertificate>,
    /// Issues certificates to joining machines.
    pub authority: Arc<CurrentAuthority>,
    /// Encrypts and decrypts secrets, configs and credentials.
    pub secret_object_key: Arc<SecretObjectKey>,
    /// Whether the keys on the disk of this manager are locked.
    pub key_files: Arc<KeyFiles>,
    /// Id of this manager.
    pub manager_id: String,
    /// Raft member id of this manager.
    pub member_id: MemberId,
    /// Whether this machine runs a manager without a worker.
    pub is_manager_only: bool,
    /// Voters of the initial raft configuration; a joining manager needs them.
    pub founders: Arc<[MemberId]>,
    /// Links to the other managers.
    pub peers: Peers,
    /// Result of comparing the state digests of all managers.
    pub state_comparison: StateComparison,
    /// Receives task progress from other managers while a watch is open.
    pub progress_subscription: ProgressSubscription,
    /// Storage engine of this manager's log.
    pub log_engine: LogEngine,
    /// The later incarnation of the cluster that callers have seen.
    pub later_incarnation: LaterIncarnation,
    /// Audit lines of this manager.
    pub audit: Auditor,
    /// Tells what the tags of images stand for.
    pub registries: Arc<dyn ResolveNames>,
}

#[cfg(test)]
mod tests;

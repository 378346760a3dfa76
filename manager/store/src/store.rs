//! The API of the replicated state: read a snapshot, propose a command, watch changes.
//!
//! Reads of the applied state are O(1) and never wait; linearizable reads ask the leader first. Writes go to
//! the raft driver, on this manager or the leader, and are answered after this manager has applied them: a
//! caller that got the response reads its own write here. `store/propose.rs` has the writes,
//! `store/raft_requests.rs` the raft operations, `store/change_history.rs` the watches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{oneshot, watch};
use warren_consensus::{ConfState, DurabilityStatus, PeerProgress};
use warren_core::{CommandResponse, State, StateDigest};
use warren_replica::{EventHistory, MAX_EVENTS, OutcomeCache, StateCheckpoints};
use warren_telemetry::{Histogram, short_latency_buckets};
use warren_types::MemberId;

mod change_history;
mod events;
mod inbox;
mod key_renewal;
mod leader_client;
mod propose;
mod publisher;
mod raft_requests;

pub use change_history::{ChangeWatch, HistoryGap};
pub use inbox::{DriverInbox, DriverRequest, QueuedProposal, RaftInput};
pub use key_renewal::KeyRenewalError;
pub use leader_client::{Forwarded, LeaderClient, NoTransport};
pub use publisher::StatePublisher;
pub use raft_requests::{READ_TIMEOUT, TRANSFER_TIMEOUT};
pub use warren_replica::{
    AppliedWrite, ChangeBatch, ChangeError, CommandResult, EventPage, EventsExpired, IndeterminateReason,
    ProposeError, Publication, ReplicaRole, TransferError, WriteStall,
};

use self::change_history::ChangeHistory;
use self::inbox::DriverSender;

/// How many changes a watcher may lag before it must list again.
pub const HISTORY_CHANGES: usize = 1 << 16;
/// Timeout of a write; its outcome is unknown afterwards.
pub const PROPOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The state at one applied index, and the status of this replica.
#[derive(Clone)]
pub struct PublishedState {
    /// The replicated state.
    pub state: State,
    /// Index of the last applied entry.
    pub index: u64,
    /// This manager's raft role.
    pub role: ReplicaRole,
    /// Log writes since the manager started.
    pub log: LogCost,
    /// Set while the log cannot be written. Stale reads continue.
    pub write_stall: Option<Arc<WriteStall>>,
    /// The newest raft configuration known to be committed.
    pub members: Arc<ConfState>,
    /// Problems with acknowledged entries.
    pub durability: DurabilityStatus,
}

impl PublishedState {
    /// The restored state before the driver runs.
    pub fn initial(state: State) -> Self {
        let index = state.applied().index;
        Self {
            state,
            index,
            role: ReplicaRole::default(),
            log: LogCost::default(),
            write_stall: None,
            members: Arc::default(),
            durability: DurabilityStatus::default(),
        }
    }

    /// The reason why the local state may lag: the log cannot be written, and `own` is not the sole leader.
    pub fn stall_with_peers(&self, own: MemberId) -> Option<&Arc<WriteStall>> {
        self.write_stall.as_ref().filter(|_| !self.is_sole_leader(own))
    }

    /// Whether `own` leads and is the only voter: then no other member can have committed anything.
    pub fn is_sole_leader(&self, own: MemberId) -> bool {
        self.role.is_sole_leader(&self.members, own)
    }
}

/// Writes to the log since the manager started. An idle cluster adds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogCost {
    /// Number of durable writes.
    pub writes: u64,
    /// Bytes of entries and hard state.
    pub bytes: u64,
}

/// Receives the outcome of a forwarded write.
type OutcomeReply = oneshot::Sender<Result<CommandResponse, ProposeError>>;

/// The store. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
    driver: DriverSender,
}

struct StoreInner {
    own_id: MemberId,
    leader_client: Arc<dyn LeaderClient>,
    published: ArcSwap<PublishedState>,
    history: Mutex<ChangeHistory>,
    events: Mutex<EventHistory>,
    outcome_cache: Mutex<OutcomeCache<OutcomeReply>>,
    peers: Mutex<Arc<[PeerProgress]>>,
    checkpoints: Mutex<StateCheckpoints>,
    /// Index of the newest publication; watchers wait for changes of it.
    latest: watch::Sender<u64>,
    /// Write latency.
    commit_latency: Histogram,
    /// Last iteration of the driver, and last time a leader was known, in milliseconds since the store was
    /// created.
    last_turn: AtomicU64,
    last_leader_seen: AtomicU64,
    created: Instant,
}

impl StoreInner {
    fn now(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Store {
    /// A store with the state `first` for a single-member cluster, and its driver-side ends. At most `queue`
    /// proposals are queued, and about `history` changes are kept for watchers.
    pub fn new(first: PublishedState, queue: usize, history: usize) -> (Self, StatePublisher, DriverInbox) {
        Self::of_group(first, 1, Arc::new(NoTransport), queue, history)
    }

    /// As [`Store::new`], for the member `own` of a group; `leader` forwards writes to the leader.
    pub fn of_group(
        first: PublishedState,
        own: MemberId,
        leader: Arc<dyn LeaderClient>,
        queue: usize,
        history: usize,
    ) -> (Self, StatePublisher, DriverInbox) {
        let (sender, inbox) = DriverSender::new(queue);
        let shared = Arc::new(StoreInner {
            own_id: own,
            leader_client: leader,
            latest: watch::Sender::new(first.index),
            history: Mutex::new(ChangeHistory::starting_after(first.index, history)),
            events: Mutex::new(EventHistory::starting_after(first.index, first.state.clock(), MAX_EVENTS)),
            outcome_cache: Mutex::new(OutcomeCache::starting_after(first.index)),
            published: ArcSwap::from_pointee(first),
            peers: Mutex::default(),
            checkpoints: Mutex::default(),
            commit_latency: Histogram::new(short_latency_buckets()),
            last_turn: AtomicU64::new(0),
            last_leader_seen: AtomicU64::new(0),
            created: Instant::now(),
        });
        (Self { inner: shared.clone(), driver: sender }, StatePublisher::new(shared), inbox)
    }

    /// The newest applied state. Holding it costs memory but blocks nothing.
    pub fn read(&self) -> Arc<PublishedState> {
        self.inner.published.load_full()
    }

    /// State digests at common checkpoint indexes and at the current index, in order.
    pub fn digests(&self) -> Vec<StateDigest> {
        let newest = self.read().state.digest();
        let mut digests = self.inner.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).all();
        digests.retain(|digest| digest.index < newest.index);
        digests.push(newest);
        digests
    }

    /// Latency of writes, from the proposal to the application on this manager.
    pub fn commit_latency(&self) -> &Histogram {
        &self.inner.commit_latency
    }

    /// Time since the last iteration of the driver.
    pub fn since_last_turn(&self) -> Duration {
        let last = Duration::from_millis(self.inner.last_turn.load(Ordering::Relaxed));
        self.inner.created.elapsed().saturating_sub(last)
    }
}

#[cfg(test)]
mod tests;

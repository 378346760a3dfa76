//! The door to the replicated state: read a snapshot, propose a command, watch what changes.
//!
//! Reads of what is applied here are O(1) and never wait; reads of all that is committed ask the leader first. Writes
//! go to the driver, here or on the leader's machine, and are answered after this manager applied them: whoever has an
//! answer sees its effect here. `store/writing.rs` has the writes, `store/group.rs` what concerns the other managers,
//! `store/history.rs` the watches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use warren_consensus::{ConfState, Durability, Peer};
use warren_core::{Digest, State};
use warren_telemetry::{Histogram, fractions_of_a_second};
use warren_types::{MemberId, Timestamp};

mod checkpoints;
mod error;
mod group;
mod history;
mod inbox;
mod outcomes;
mod publisher;
mod writing;

pub use error::{ChangeError, Doubt, ProposeError, TransferError};
pub use group::{READ_DEADLINE, TRANSFER_DEADLINE};
pub use history::{Batch, Missed, Watch};
pub use inbox::{Heard, Inbox, Proposal, Request, Written};
pub use outcomes::Verdict;
pub use publisher::{News, Publisher};

use self::checkpoints::Checkpoints;
use self::history::History;
use self::inbox::Outbox;
use self::outcomes::Outcomes;
use crate::raft::wire::{Leader, Nowhere};

/// How many changes a watcher may be behind before it has to list again.
pub const HISTORY: usize = 1 << 16;
/// How long a write may take before its caller is told that the outcome is not known.
pub const PROPOSE_DEADLINE: Duration = Duration::from_secs(10);

/// The state as of one applied index, and what this manager is in the cluster.
#[derive(Clone)]
pub struct Published {
    /// The replicated state.
    pub state: State,
    /// Raft index up to which it is applied.
    pub index: u64,
    /// This manager's role.
    pub role: Role,
    /// What the log has cost since the manager started.
    pub log: LogCost,
    /// Set while the log cannot be written. Reading goes on meanwhile.
    pub held: Option<Arc<Held>>,
    /// The members of the group, as of the newest change that is known to be committed.
    pub members: Arc<ConfState>,
    /// What is wrong with entries that were acknowledged.
    pub durability: Durability,
}

impl Published {
    /// What was restored, before a driver has said anything.
    pub fn first(state: State) -> Self {
        let index = state.applied().index;
        Self {
            state,
            index,
            role: Role::default(),
            log: LogCost::default(),
            held: None,
            members: Arc::default(),
            durability: Durability::default(),
        }
    }

    /// Why the state here may fall behind that of the others: the log cannot be written, and `own` does not lead alone.
    pub fn held_among_others(&self, own: MemberId) -> Option<&Arc<Held>> {
        self.held.as_ref().filter(|_| !self.leads_alone(own))
    }

    /// Whether `own` is the only voter and leads: then nobody else can have committed anything.
    pub fn leads_alone(&self, own: MemberId) -> bool {
        let ConfState { voters, voters_outgoing, .. } = &*self.members;
        self.role.may_plan && *voters == [own] && voters_outgoing.is_empty()
    }
}

/// What a manager is, as the driver last knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Role {
    /// Leads, in `term`.
    pub leader: bool,
    /// Who leads in `term`, if that is known; this manager's own id if it does.
    pub leader_id: Option<MemberId>,
    /// Newest term it has seen.
    pub term: u64,
    /// Leads and has applied an entry of its own term: only now may it plan.
    pub may_plan: bool,
}

/// Writes to the log since the manager started. An idle cluster adds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogCost {
    /// Durable writes.
    pub writes: u64,
    /// Bytes of entries and hard state.
    pub bytes: u64,
}

/// Why a manager cannot write its log for now. It tries again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Since when.
    pub since: Timestamp,
    /// What is wrong and where, for people.
    pub why: Arc<str>,
    /// There is no room on the disk, as opposed to a disk that does not work.
    pub full: bool,
}

/// Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    outbox: Outbox,
}

struct Shared {
    own: MemberId,
    leader: Arc<dyn Leader>,
    published: ArcSwap<Published>,
    history: Mutex<History>,
    outcomes: Mutex<Outcomes>,
    peers: Mutex<Arc<[Peer]>>,
    checkpoints: Mutex<Checkpoints>,
    /// Index of the newest publication; watchers wait on it.
    newest: watch::Sender<u64>,
    /// How long writes took.
    commits: Histogram,
    /// When the driver last went round, and when it last knew of a leader, in milliseconds since the store was made.
    last_round: AtomicU64,
    leader_heard: AtomicU64,
    made: Instant,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Store {
    /// A store of `first` for a manager that is alone, and the ends of it that belong to the driver. At most `queue`
    /// proposals wait, and about `history` changes are kept for watchers.
    pub fn new(first: Published, queue: usize, history: usize) -> (Self, Publisher, Inbox) {
        Self::of_group(first, 1, Arc::new(Nowhere), queue, history)
    }

    /// As [`Store::new`], for the member `own` of a group; `leader` is the way to the one that leads.
    pub fn of_group(
        first: Published,
        own: MemberId,
        leader: Arc<dyn Leader>,
        queue: usize,
        history: usize,
    ) -> (Self, Publisher, Inbox) {
        let (outbox, inbox) = Outbox::new(queue);
        let shared = Arc::new(Shared {
            own,
            leader,
            newest: watch::Sender::new(first.index),
            history: Mutex::new(History::after(first.index, history)),
            outcomes: Mutex::new(Outcomes::after(first.index)),
            published: ArcSwap::from_pointee(first),
            peers: Mutex::default(),
            checkpoints: Mutex::default(),
            commits: Histogram::new(fractions_of_a_second()),
            last_round: AtomicU64::new(0),
            leader_heard: AtomicU64::new(0),
            made: Instant::now(),
        });
        (Self { shared: shared.clone(), outbox }, Publisher::new(shared), inbox)
    }

    /// The newest state that is applied here. Holding it costs memory, not time of others.
    pub fn read(&self) -> Arc<Published> {
        self.shared.published.load_full()
    }

    /// Digests of the state after some entries that all managers pass, and of what it is now, in order.
    pub fn digests(&self) -> Vec<Digest> {
        let newest = self.read().state.digest();
        let mut digests = self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).all();
        digests.retain(|digest| digest.index < newest.index);
        digests.push(newest);
        digests
    }

    /// How long each write took, from its proposal to its effect here.
    pub fn commits(&self) -> &Histogram {
        &self.shared.commits
    }

    /// How long ago the driver last went round.
    pub fn since_last_round(&self) -> Duration {
        let last = Duration::from_millis(self.shared.last_round.load(Ordering::Relaxed));
        self.shared.made.elapsed().saturating_sub(last)
    }
}

#[cfg(test)]
mod tests;

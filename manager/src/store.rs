//! The door to the replicated state: read a snapshot, propose a command, watch what changes.
//!
//! Reads are O(1) and never wait; writes go to the raft driver's queue and are answered after this manager applied
//! them. What changed is kept as keys in a bounded history, so that a watcher that fell behind is told to list again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot, watch};
use warren_core::{Answer, Change, Command, Outcome, Refusal, State};
use warren_telemetry::{Histogram, fractions_of_a_second};
use warren_types::Timestamp;

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
}

impl Published {
    /// What was restored, before a driver has said anything.
    pub fn first(state: State) -> Self {
        let index = state.applied().index;
        Self { state, index, role: Role::default(), log: LogCost::default(), held: None }
    }
}

/// What a manager is, as the driver last knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Role {
    /// Leads, in `term`.
    pub leader: bool,
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

/// A command on its way to the driver.
pub struct Proposal {
    /// What to propose.
    pub command: Command,
    /// Where the answer goes, after it was applied here.
    pub reply: oneshot::Sender<Result<Outcome, ProposeError>>,
}

/// Why a write was not carried out, or may not have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProposeError {
    /// The state says no.
    #[error("{0}")]
    Rejected(Refusal),
    /// Only the leader proposes.
    #[error("this manager is not the leader; ask the leader or try again in a moment")]
    NotLeader,
    /// The write may or may not have happened; repeating it is safe.
    #[error("{0}; the write may still happen, and repeating it is safe")]
    Unconfirmed(Doubt),
    /// Too much waits to be committed.
    #[error("the manager has more writes waiting than it takes; try again in a moment")]
    Busy,
    /// The manager stops. The write did not happen.
    #[error("the manager is stopping")]
    Stopping,
    /// The log cannot be written for now. The write did not happen.
    #[error("{}; nothing was changed", .0.why)]
    Held(Arc<Held>),
    /// The manager ended because of its log, or of a bug. The write did not happen.
    #[error("the manager cannot carry it out: {0}")]
    Log(Arc<str>),
}

/// Why nobody knows what becomes of a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// It takes too long.
    #[error("the write was not confirmed within {0:?}")]
    Late(Duration),
    /// It waits for the disk.
    #[error("the write was not confirmed within {0:?}, because {why}", why = .1.why)]
    Held(Duration, Arc<Held>),
    /// A later leader's snapshot covers it.
    #[error("another manager took over before the write was confirmed")]
    Overtaken,
    /// The manager ended first.
    #[error("the manager ended before the write was confirmed")]
    Ended,
}

/// Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    proposals: mpsc::Sender<Proposal>,
}

struct Shared {
    published: ArcSwap<Published>,
    history: Mutex<History>,
    /// Index of the newest publication; watchers wait on it.
    newest: watch::Sender<u64>,
    /// How long writes took.
    commits: Histogram,
    /// When the driver last went round, in milliseconds since the store was made.
    last_round: AtomicU64,
    made: Instant,
}

struct History {
    entries: VecDeque<Batch>,
    /// Everything after this index is in `entries`.
    complete_after: u64,
    /// Changes in `entries`, and most of them that are kept.
    changes: usize,
    most: usize,
}

impl History {
    fn add(&mut self, batches: Vec<Batch>) {
        for batch in batches {
            self.changes += batch.changes.len();
            self.entries.push_back(batch);
        }
        while self.changes > self.most
            && let Some(oldest) = self.entries.pop_front()
        {
            self.changes -= oldest.changes.len();
            self.complete_after = oldest.index;
        }
    }
}

/// What one applied entry changed.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Raft index of the entry.
    pub index: u64,
    /// Keys of what it changed.
    pub changes: Arc<[Change]>,
}

/// The watcher missed more than the history holds: it must list again. The watch goes on after this index, which
/// the state that is read now contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many changes were missed; the watch goes on after index {0}")]
pub struct Missed(pub u64);

impl Store {
    /// A store of `first`, and the receiving end of its proposals for the driver. At most `queue` proposals wait,
    /// and about `history` changes are kept for watchers.
    pub fn new(
        first: Published,
        queue: usize,
        history: usize,
    ) -> (Self, Publisher, mpsc::Receiver<Proposal>) {
        let (proposals, receiver) = mpsc::channel(queue);
        let complete_after = first.index;
        let history = History { entries: VecDeque::new(), complete_after, changes: 0, most: history };
        let shared = Arc::new(Shared {
            newest: watch::Sender::new(first.index),
            published: ArcSwap::from_pointee(first),
            history: Mutex::new(history),
            commits: Histogram::new(fractions_of_a_second()),
            last_round: AtomicU64::new(0),
            made: Instant::now(),
        });
        (Self { shared: shared.clone(), proposals }, Publisher { shared }, receiver)
    }

    /// The newest state. Holding it costs memory, not time of others.
    pub fn read(&self) -> Arc<Published> {
        self.shared.published.load_full()
    }

    /// Proposes `command` and waits until it was applied here. While the log cannot be written, it is refused at once.
    ///
    /// # Errors
    /// [`ProposeError`]; after `Unconfirmed` the command may still be applied.
    pub async fn propose(&self, command: Command) -> Result<Answer, ProposeError> {
        if let Some(held) = &self.read().held {
            return Err(ProposeError::Held(held.clone()));
        }
        let began = Instant::now();
        let (reply, answer) = oneshot::channel();
        let confirmed = async {
            self.proposals.send(Proposal { command, reply }).await.map_err(|_| ProposeError::Stopping)?;
            answer.await.map_err(|_| ProposeError::Unconfirmed(Doubt::Ended))?
        };
        let late = |_| {
            ProposeError::Unconfirmed(match &self.read().held {
                Some(held) => Doubt::Held(PROPOSE_DEADLINE, held.clone()),
                None => Doubt::Late(PROPOSE_DEADLINE),
            })
        };
        let outcome = tokio::time::timeout(PROPOSE_DEADLINE, confirmed).await.map_err(late)??;
        self.shared.commits.observe(began.elapsed().as_secs_f64());
        match outcome {
            Outcome::Applied { answer, .. } | Outcome::Unchanged { answer } => Ok(answer),
            Outcome::Rejected(refusal) => Err(ProposeError::Rejected(refusal)),
        }
    }

    /// As [`Store::propose`], for what has to be stored however long the disk takes: waits while the log cannot be
    /// written, and repeats what was not confirmed. The caller bounds how long it waits.
    ///
    /// # Errors
    /// As [`Store::propose`], but neither `Held` nor late.
    pub async fn propose_patiently(&self, command: Command) -> Result<Answer, ProposeError> {
        loop {
            match self.propose(command.clone()).await {
                Err(ProposeError::Held(_)) => self.writable().await,
                Err(ProposeError::Unconfirmed(Doubt::Late(_) | Doubt::Held(..))) => {}
                answered => return answered,
            }
        }
    }

    /// Resolves while the log can be written.
    async fn writable(&self) {
        let mut newest = self.shared.newest.subscribe();
        while self.read().held.is_some() {
            newest.changed().await.expect("the store itself holds the sending end");
        }
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

    /// Watches everything that is applied after `index`.
    pub fn watch(&self, index: u64) -> Watch {
        Watch { newest: self.shared.newest.subscribe(), shared: self.shared.clone(), seen: index }
    }
}

/// A place in the stream of changes.
pub struct Watch {
    shared: Arc<Shared>,
    newest: watch::Receiver<u64>,
    seen: u64,
}

impl Watch {
    /// Waits for entries after those already given out. An empty list means only that the role changed. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// [`Missed`] when the history no longer reaches back.
    pub async fn next(&mut self) -> Result<Vec<Batch>, Missed> {
        if *self.newest.borrow() <= self.seen {
            self.newest.changed().await.expect("the watch itself holds the sending end");
        }
        // Marked as seen only now, so that a change of role that came before the call is told as well.
        let newest = *self.newest.borrow_and_update();
        if newest > self.seen { self.take(newest) } else { Ok(Vec::new()) }
    }

    fn take(&mut self, newest: u64) -> Result<Vec<Batch>, Missed> {
        let history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::replace(&mut self.seen, newest);
        if seen < history.complete_after {
            return Err(Missed(newest));
        }
        let start = history.entries.partition_point(|batch| batch.index <= seen);
        let news = history.entries.iter().skip(start).take_while(|batch| batch.index <= newest);
        Ok(news.cloned().collect())
    }
}

/// The driver's end of the store: the only writer.
pub struct Publisher {
    shared: Arc<Shared>,
}

impl Publisher {
    /// Notes that the driver goes round, whether there is anything to publish or not.
    pub fn went_round(&self) {
        let now = u64::try_from(self.shared.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.shared.last_round.store(now, Ordering::Relaxed);
    }

    /// Makes `published` what readers see, and tells watchers what changed. Answers the state that was replaced, so
    /// that the caller can have it dropped elsewhere: freeing a large state takes longer than applying an entry.
    pub fn publish(&self, published: Published, batches: Vec<Batch>) -> Arc<Published> {
        let index = published.index;
        let old = self.shared.published.swap(Arc::new(published));
        {
            let mut history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
            history.add(batches);
        }
        self.shared.newest.send_replace(index);
        old
    }
}

#[cfg(test)]
mod tests;

//! What concerns the group: reads that see everything that is committed, its members, its leader, and what comes from
//! the others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use warren_consensus::{MemberChange, Message, Peer};
use warren_core::State;
use warren_types::MemberId;

use super::inbox::{Heard, Request};
use super::{ChangeError, Held, ProposeError, Published, Store, TransferError};

/// How long a read waits for a leader.
pub const READ_DEADLINE: Duration = Duration::from_secs(5);
/// How long a leader waits for another one to take over.
pub const TRANSFER_DEADLINE: Duration = Duration::from_secs(2);

impl Store {
    /// This manager's id in the group.
    pub fn own(&self) -> MemberId {
        self.shared.own
    }

    /// A state with everything in it that was committed anywhere when this was called, on whichever manager. Those who
    /// wait together share one question to the leader.
    ///
    /// # Errors
    /// `NotCurrent` as soon as the log cannot be written, since raft stands still then; `NoLeader` after
    /// [`READ_DEADLINE`]; `Stopping`.
    pub async fn read_now(&self) -> Result<Arc<Published>, ProposeError> {
        let published = self.read();
        if published.leads_alone(self.shared.own) {
            return Ok(published);
        }
        if let Some(held) = &published.held {
            return Err(ProposeError::NotCurrent(held.clone()));
        }
        let (reply, ready) = oneshot::channel();
        let asked = async {
            self.outbox.requests.send(Request::Read(reply)).await.map_err(|_| ProposeError::Stopping)?;
            ready.await.map_err(|_| ProposeError::Stopping)
        };
        tokio::select! {
            ready = timeout(READ_DEADLINE, asked) => {
                ready.unwrap_or(Err(ProposeError::NoLeader(READ_DEADLINE))).map(|()| self.read())
            }
            held = self.held_among_others() => Err(ProposeError::NotCurrent(held)),
        }
    }

    /// Resolves once [`Published::held_among_others`] says why.
    pub async fn held_among_others(&self) -> Arc<Held> {
        let mut newest = self.shared.newest.subscribe();
        loop {
            if let Some(held) = self.read().held_among_others(self.shared.own) {
                return held.clone();
            }
            newest.changed().await.expect("the store itself holds the sending end");
        }
    }

    /// Changes the members, if this manager leads. Resolves when the change is decided and applied here; a change of
    /// several members is over when [`Published::members`] has no outgoing voters any more.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ChangeError> {
        if let Some(held) = &self.read().held {
            return Err(ChangeError::Held(held.clone()));
        }
        let (reply, decided) = oneshot::channel();
        let request = Request::Change { change, reply };
        self.outbox.requests.send(request).await.map_err(|_| ChangeError::Stopping)?;
        let decided = timeout(super::PROPOSE_DEADLINE, decided).await;
        decided.unwrap_or(Ok(Err(ChangeError::Unconfirmed))).unwrap_or(Err(ChangeError::Unconfirmed))
    }

    /// Hands the leadership over: to `to`, or to the voter whose log reaches furthest. Resolves when this manager does
    /// not lead any more.
    ///
    /// # Errors
    /// [`TransferError`]; it leads on then.
    pub async fn transfer_leadership(&self, to: Option<MemberId>) -> Result<(), TransferError> {
        let published = self.read();
        let others = published.members.voters.iter().filter(|id| **id != self.shared.own);
        if !published.role.leader {
            return Err(TransferError::NotLeader);
        }
        match to {
            Some(to) if !others.clone().any(|id| *id == to) => return Err(TransferError::NotVoter(to)),
            None if others.count() == 0 => return Err(TransferError::Alone),
            _ => {}
        }
        let mut newest = self.shared.newest.subscribe();
        let requested = self.outbox.requests.send(Request::Transfer(to)).await;
        requested.map_err(|_| TransferError::Stopping)?;
        let over = async {
            while self.read().role.leader {
                newest.changed().await.expect("the store itself holds the sending end");
            }
        };
        timeout(TRANSFER_DEADLINE, over).await.map_err(|_| TransferError::Late(TRANSFER_DEADLINE))
    }

    /// What this manager knows of the others as their leader, up to a quarter of a second ago; empty if it does not
    /// lead.
    pub fn peers(&self) -> Arc<[Peer]> {
        self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long this manager has known of nobody who leads. It grows on a leader as well that cannot go on, because
    /// of its disk for example, while there are others who can: so it alone says whether a manager is of use to
    /// workers. Zero for a manager that leads alone.
    pub fn silence(&self) -> Duration {
        if self.read().leads_alone(self.shared.own) {
            return Duration::ZERO;
        }
        let heard = Duration::from_millis(self.shared.leader_heard.load(Ordering::Relaxed));
        self.shared.made.elapsed().saturating_sub(heard)
    }

    /// A message of another manager. It is dropped when too much waits, and when it announces a snapshot, which has to
    /// come through `raft::snapshot::SnapshotDoor::receive`.
    pub fn deliver(&self, message: Message) {
        self.outbox.deliver(message);
    }

    /// Takes the snapshot that `message` announces, which is durable here and contains `state`, of so many bytes.
    /// Resolves when it is this manager's state, or raft has no use for it any more; or when the driver ended.
    pub(crate) async fn install(&self, message: Message, state: State, bytes: u64) {
        let (taken, told) = oneshot::channel();
        let snapshot = Heard::Snapshot { message, state: Box::new(state), bytes, taken };
        if self.outbox.heard.send(snapshot).await.is_ok() {
            // Dropped without a word when the driver ends.
            let _ = told.await;
        }
    }

    /// A member could not be reached, or a message to it was dropped. Cheap to say often.
    pub fn unreachable(&self, to: MemberId) {
        // When so much waits that there is no room, raft finds out by itself.
        let _ = self.outbox.heard.try_send(Heard::Unreachable(to));
    }

    /// The snapshot that the driver had sent to a member is durable there and raft was told, or it is not. Must follow
    /// for each of them: before, the member gets no entries.
    pub async fn snapshot_sent(&self, to: MemberId, delivered: bool) {
        // Nobody cares any more when the driver ended.
        let _ = self.outbox.heard.send(Heard::SnapshotSent { to, delivered }).await;
    }

    /// Resolves when `wanted` is true of what is published, or then; answers whether it is.
    pub async fn until(&self, wanted: impl Fn(&Published) -> bool, deadline: Instant) -> bool {
        let mut newest = self.shared.newest.subscribe();
        let reached = async {
            while !wanted(&self.read()) {
                newest.changed().await.expect("the store itself holds the sending end");
            }
        };
        tokio::time::timeout_at(deadline, reached).await.is_ok()
    }
}

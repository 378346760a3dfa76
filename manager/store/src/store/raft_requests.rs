//! Raft operations of the store: linearizable reads, membership changes, leadership transfer, and input from
//! peers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use warren_consensus::{MemberChange, Message, PeerProgress};
use warren_core::State;
use warren_replica::ReadRoute;
use warren_types::MemberId;

use super::inbox::{DriverRequest, RaftInput};
use super::{ChangeError, KeyRenewalError, ProposeError, PublishedState, Store, TransferError, WriteStall};

/// How long a read waits for a leader.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leader waits for its successor.
pub const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a renewal of the data key may take: it writes the state once.
const KEY_RENEWAL_TIMEOUT: Duration = Duration::from_secs(120);

impl Store {
    /// Raft id of this manager.
    pub fn own_id(&self) -> MemberId {
        self.inner.own_id
    }

    /// A state that contains everything committed on any manager before the call. Concurrent calls share one
    /// read index round.
    ///
    /// # Errors
    /// `Stale` as soon as the log cannot be written, since raft makes no progress then; `NoLeader` after
    /// [`READ_TIMEOUT`]; `Stopping`.
    pub async fn read_linearizable(&self) -> Result<Arc<PublishedState>, ProposeError> {
        let published = self.read();
        let PublishedState { role, members, write_stall, .. } = &*published;
        match role.read_route(members, self.inner.own_id, write_stall.as_ref()) {
            ReadRoute::Now => return Ok(published),
            ReadRoute::Fail(error) => return Err(error),
            ReadRoute::Round => {}
        }
        let (reply, ready) = oneshot::channel();
        let request = async {
            self.driver
                .requests
                .send(DriverRequest::Read(reply))
                .await
                .map_err(|_| ProposeError::Stopping)?;
            ready.await.map_err(|_| ProposeError::Stopping)
        };
        tokio::select! {
            ready = timeout(READ_TIMEOUT, request) => {
                ready.unwrap_or(Err(ProposeError::NoLeader(READ_TIMEOUT))).map(|()| self.read())
            }
            stall = self.wait_stall_with_peers() => Err(ProposeError::Stale(stall)),
        }
    }

    /// Resolves when [`PublishedState::stall_with_peers`] returns a stall.
    pub async fn wait_stall_with_peers(&self) -> Arc<WriteStall> {
        let mut newest = self.inner.latest.subscribe();
        loop {
            if let Some(stall) = self.read().stall_with_peers(self.inner.own_id) {
                return stall.clone();
            }
            newest.changed().await.expect("the store itself holds the sender");
        }
    }

    /// Changes the membership if this manager leads. Resolves when the change is committed and applied here;
    /// a joint change is complete when [`PublishedState::members`] has no outgoing voters.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ChangeError> {
        if let Some(stall) = &self.read().write_stall {
            return Err(ChangeError::WriteStalled(stall.clone()));
        }
        let (reply, decided) = oneshot::channel();
        let request = DriverRequest::ChangeMembers { change, reply };
        self.driver.requests.send(request).await.map_err(|_| ChangeError::Stopping)?;
        let decided = timeout(super::PROPOSE_TIMEOUT, decided).await;
        decided.unwrap_or(Ok(Err(ChangeError::Indeterminate))).unwrap_or(Err(ChangeError::Indeterminate))
    }

    /// Transfers the leadership to `to`, or to the voter with the longest log. Resolves when this manager is
    /// not the leader any more.
    ///
    /// # Errors
    /// [`TransferError`]; this manager remains leader.
    pub async fn transfer_leadership(&self, to: Option<MemberId>) -> Result<(), TransferError> {
        let published = self.read();
        published.role.check_transfer(&published.members, self.inner.own_id, to)?;
        let mut newest = self.inner.latest.subscribe();
        let requested = self.driver.requests.send(DriverRequest::TransferLeadership(to)).await;
        requested.map_err(|_| TransferError::Stopping)?;
        let over = async {
            while self.read().role.is_leader {
                newest.changed().await.expect("the store itself holds the sender");
            }
        };
        timeout(TRANSFER_TIMEOUT, over).await.map_err(|_| TransferError::Timeout(TRANSFER_TIMEOUT))
    }

    /// Seals with a new data key, writes what the log and the snapshot have with it, and forgets all earlier ones.
    ///
    /// # Errors
    /// [`KeyRenewalError`].
    pub async fn renew_data_key(&self) -> Result<(), KeyRenewalError> {
        let (reply, renewed) = oneshot::channel();
        let requested = self.driver.requests.send(DriverRequest::RenewDataKey(reply)).await;
        requested.map_err(|_| KeyRenewalError::Stopping)?;
        let late = |_| KeyRenewalError::Timeout(KEY_RENEWAL_TIMEOUT);
        let renewed = timeout(KEY_RENEWAL_TIMEOUT, renewed).await.map_err(late)?;
        renewed.unwrap_or(Err(KeyRenewalError::Stopping))
    }

    /// The leader's view of its peers, at most a quarter of a second old; empty on a follower.
    pub fn peers(&self) -> Arc<[PeerProgress]> {
        self.inner.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Time since a leader was last known. It also grows on a leader that makes no progress, for example
    /// because of its disk, while others could lead; so this value alone decides whether a manager can serve
    /// workers. Zero for a sole leader.
    pub fn since_leader_seen(&self) -> Duration {
        if self.read().is_sole_leader(self.inner.own_id) {
            return Duration::ZERO;
        }
        let seen = Duration::from_millis(self.inner.last_leader_seen.load(Ordering::Relaxed));
        self.inner.created.elapsed().saturating_sub(seen)
    }

    /// Queues a message of a peer. It is dropped if too many are queued, and if it announces a snapshot,
    /// which must come through `raft::snapshot::SnapshotExchange::receive`.
    pub fn receive_message(&self, message: Message) {
        self.driver.send_message(message);
    }

    /// Installs the snapshot that `message` announces, which is durable here and contains `state` of `bytes`
    /// bytes. Resolves when it is this manager's state, when raft has discarded it, or when the driver ended.
    pub(crate) async fn install_snapshot(&self, message: Message, state: State, bytes: u64) {
        let (taken, done) = oneshot::channel();
        let snapshot = RaftInput::SnapshotReceived { message, state: Box::new(state), bytes, taken };
        if self.driver.inputs.send(snapshot).await.is_ok() {
            // Dropped without a value when the driver ends.
            let _ = done.await;
        }
    }

    /// Reports that a member was unreachable or a message to it was dropped. Cheap.
    pub fn report_unreachable(&self, to: MemberId) {
        // If the queue is full, raft detects it by itself.
        let _ = self.driver.inputs.try_send(RaftInput::PeerUnreachable(to));
    }

    /// Reports whether a snapshot that the driver had sent is installed on the member. Must be called once
    /// per snapshot: until then the member gets no entries.
    pub async fn report_snapshot(&self, to: MemberId, delivered: bool) {
        // The driver may have ended.
        let _ = self.driver.inputs.send(RaftInput::SnapshotSent { to, delivered }).await;
    }

    /// Waits until `condition` holds for the published state or `deadline` passes; returns whether it holds.
    pub async fn wait_until(&self, condition: impl Fn(&PublishedState) -> bool, deadline: Instant) -> bool {
        let mut newest = self.inner.latest.subscribe();
        let reached = async {
            while !condition(&self.read()) {
                newest.changed().await.expect("the store itself holds the sender");
            }
        };
        tokio::time::timeout_at(deadline, reached).await.is_ok()
    }
}

//! Writes: proposed locally by a leader, forwarded by a follower, and answered after they are applied here.

use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use warren_core::{AppliedIndex, Command, CommandResponse};
use warren_replica::{AttemptResult, RETRY_DELAY, WriteRoute, deadline_error, timeout_error, write_route};
use warren_types::{MemberId, Timestamp};

use super::{
    AppliedWrite, IndeterminateReason, PROPOSE_TIMEOUT, ProposeError, QueuedProposal, ReplicaRole, Store,
    StoreInner,
};
use crate::codec;

/// A write in progress. Boxed: it takes a few KiB, which the future of every session would otherwise hold
/// permanently.
pub type WriteFuture<'a> = Pin<Box<dyn Future<Output = Result<CommandResponse, ProposeError>> + Send + 'a>>;

/// A forwarded write: while it exists, outcomes of entries applied here are kept.
struct ForwardGuard<'a> {
    shared: &'a StoreInner,
    begun: u64,
}

impl<'a> ForwardGuard<'a> {
    fn begin(shared: &'a StoreInner) -> Self {
        let begun = shared.outcome_cache.lock().unwrap_or_else(PoisonError::into_inner).begin_forward();
        Self { shared, begun }
    }

    /// Waits for the outcome of the entry at `position`, where the leader applied the write.
    fn wait_for(self, position: AppliedIndex) -> oneshot::Receiver<Result<CommandResponse, ProposeError>> {
        let (reply, answer) = oneshot::channel();
        let mut outcomes = self.shared.outcome_cache.lock().unwrap_or_else(PoisonError::into_inner);
        for (reply, known) in outcomes.wait_for(position, reply) {
            // The receiver still exists here.
            let _ = reply.send(known);
        }
        drop(outcomes);
        answer
    }
}

impl Drop for ForwardGuard<'_> {
    fn drop(&mut self) {
        self.shared.outcome_cache.lock().unwrap_or_else(PoisonError::into_inner).end_forward(self.begun);
    }
}

impl Store {
    /// Proposes `command`, on this manager or the leader, and waits until it is applied here. Retries without
    /// a leader. Fails at once while the local log cannot be written.
    ///
    /// # Errors
    /// [`ProposeError`]; after `Indeterminate` the command may still be applied.
    pub fn propose(&self, command: Command) -> WriteFuture<'_> {
        Box::pin(async move {
            let began = Instant::now();
            let answer = self.submit(&command, began + PROPOSE_TIMEOUT).await?;
            self.inner.commit_latency.observe(began.elapsed().as_secs_f64());
            Ok(answer)
        })
    }

    /// As [`Store::propose`], for commands that are only valid while this manager leads, such as plans.
    ///
    /// # Errors
    /// As [`Store::propose`]; `NotLeader` at once on a follower.
    pub fn propose_locally(&self, command: Command) -> WriteFuture<'_> {
        Box::pin(async move {
            let began = Instant::now();
            let data = codec::encode(&command).into();
            let written = self.write_local(data, began + PROPOSE_TIMEOUT).await?;
            let answer = written.result.map_err(ProposeError::Rejected)?;
            self.inner.commit_latency.observe(began.elapsed().as_secs_f64());
            Ok(answer)
        })
    }

    /// As [`Store::propose`], for commands that must be stored however long the disk or an election takes:
    /// waits while the log cannot be written, and repeats unconfirmed writes. The caller limits the waiting
    /// time.
    ///
    /// # Errors
    /// As [`Store::propose`], but neither `WriteStalled` nor `NoLeader`, and `Indeterminate` only when the
    /// manager ends.
    pub fn propose_with_retry(&self, command: Command) -> WriteFuture<'_> {
        Box::pin(async move {
            loop {
                match self.propose(command.clone()).await {
                    Err(error) if error.is_transient() => self.wait_writable().await,
                    answered => return answered,
                }
            }
        })
    }

    /// Proposes the `commands` that a follower forwarded, with the time `at`, and returns in order where each
    /// was applied, whatever its outcome. Nothing is proposed after `within`.
    pub async fn propose_forwarded(
        &self,
        commands: Vec<Command>,
        at: Timestamp,
        within: Duration,
    ) -> Vec<Result<AppliedIndex, ProposeError>> {
        let deadline = Instant::now() + within.min(PROPOSE_TIMEOUT);
        let mut begun = Vec::with_capacity(commands.len());
        for mut command in commands {
            command.set_at(at);
            begun.push(self.enqueue(codec::encode(&command).into(), deadline).await);
        }
        let mut positions = Vec::with_capacity(begun.len());
        for written in begun {
            positions.push(match written {
                Ok(written) => self.wait_written(written, deadline).await.map(|written| written.position),
                Err(error) => Err(error),
            });
        }
        positions
    }

    async fn submit(&self, command: &Command, deadline: Instant) -> Result<CommandResponse, ProposeError> {
        let mut data = None;
        loop {
            let published = self.read();
            let (stall, is_stopping) = (published.write_stall.as_ref(), self.driver.proposals.is_closed());
            let attempt = match write_route(&published.role, self.inner.own_id, stall, is_stopping) {
                WriteRoute::Local => {
                    let data = data.get_or_insert_with(|| Bytes::from(codec::encode(command)));
                    AttemptResult::of_proposal(self.write_local(data.clone(), deadline).await)
                }
                WriteRoute::Forward(leader) => self.try_forward(leader, command, deadline).await,
                WriteRoute::None(ended) => ended,
            };
            let reason = match attempt {
                AttemptResult::Done(answer) => return answer,
                AttemptResult::Retry(reason) => reason,
            };
            self.wait_role_change(published.role, deadline.min(Instant::now() + RETRY_DELAY)).await;
            if Instant::now() >= deadline {
                return Err(deadline_error(reason, PROPOSE_TIMEOUT));
            }
        }
    }

    async fn write_local(&self, data: Bytes, deadline: Instant) -> Result<AppliedWrite, ProposeError> {
        let begun = self.enqueue(data, deadline).await?;
        self.wait_written(begun, deadline).await
    }

    async fn try_forward(&self, leader: MemberId, command: &Command, deadline: Instant) -> AttemptResult {
        let within = deadline.saturating_duration_since(Instant::now());
        let forward = ForwardGuard::begin(&self.inner);
        let forwarded = self.inner.leader_client.forward(leader, vec![command.clone()], within);
        let Ok(mut results) = timeout_at(deadline, forwarded).await else {
            return AttemptResult::Done(Err(self.timeout_error()));
        };
        let position = match AttemptResult::of_forward(results.pop()) {
            Ok(position) => position,
            Err(ended) => return ended,
        };
        let answer = forward.wait_for(position);
        AttemptResult::Done(match timeout_at(deadline, answer).await {
            Ok(answer) => {
                answer.unwrap_or(Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded)))
            }
            Err(_) => Err(self.timeout_error()),
        })
    }

    /// Queues a command for the driver; fails at `deadline`.
    async fn enqueue(
        &self,
        data: Bytes,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<AppliedWrite, ProposeError>>, ProposeError> {
        let published = self.read();
        if let Some(stall) = &published.write_stall {
            return Err(ProposeError::WriteStalled(stall.clone()));
        }
        let (reply, written) = oneshot::channel();
        let proposal = QueuedProposal { data, reply };
        match timeout_at(deadline, self.driver.proposals.send(proposal)).await {
            Ok(sent) => sent.map_err(|_| ProposeError::Stopping).map(|()| written),
            Err(_) => Err(ProposeError::Busy),
        }
    }

    /// Waits for the driver's answer.
    async fn wait_written(
        &self,
        written: oneshot::Receiver<Result<AppliedWrite, ProposeError>>,
        deadline: Instant,
    ) -> Result<AppliedWrite, ProposeError> {
        match timeout_at(deadline, written).await {
            Ok(written) => {
                written.unwrap_or(Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded)))
            }
            Err(_) => Err(self.timeout_error()),
        }
    }

    fn timeout_error(&self) -> ProposeError {
        timeout_error(self.read().write_stall.as_ref(), PROPOSE_TIMEOUT)
    }

    /// Resolves when the log can be written.
    async fn wait_writable(&self) {
        let mut newest = self.inner.latest.subscribe();
        while self.read().write_stall.is_some() {
            newest.changed().await.expect("the store itself holds the sender");
        }
    }

    /// Resolves when this manager's role differs from `role`, at the latest at `until`.
    async fn wait_role_change(&self, role: ReplicaRole, until: Instant) {
        let mut newest = self.inner.latest.subscribe();
        let other = async {
            while self.read().role == role {
                newest.changed().await.expect("the store itself holds the sender");
            }
        };
        // On a timeout the caller retries anyway.
        let _ = timeout_at(until, other).await;
    }
}

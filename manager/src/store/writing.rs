//! Writes: proposed here by a leader, given to the leader by a follower, and answered when they are applied here.

use std::pin::Pin;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use warren_core::{Answer, Applied, Command, Outcome};
use warren_types::{MemberId, Timestamp};

use super::{Doubt, PROPOSE_DEADLINE, Proposal, ProposeError, Role, Shared, Store, Written};
use crate::raft::codec;

/// How long nobody asks again after a leader could not take a write, unless there is another one sooner.
const PAUSE: Duration = Duration::from_millis(50);

/// A write under way, in a box: it takes a few KiB while it lasts, which whoever writes now and then, as each session
/// does, would have room for all the time.
pub type Writing<'a> = Pin<Box<dyn Future<Output = Result<Answer, ProposeError>> + Send + 'a>>;

/// How one try ended.
enum Tried {
    Over(Result<Answer, ProposeError>),
    /// It was certainly not proposed; another try may be.
    Again(ProposeError),
}

/// A write that is with the leader: as long as it is, what comes of the entries that are applied here is remembered.
struct Forward<'a> {
    shared: &'a Shared,
    begun: u64,
}

impl<'a> Forward<'a> {
    fn begin(shared: &'a Shared) -> Self {
        let begun = shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner).begin_forward();
        Self { shared, begun }
    }

    /// The leader has applied it at `place`.
    fn ask(self, place: Applied) -> oneshot::Receiver<Result<Answer, ProposeError>> {
        self.shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner).ask(place)
    }
}

impl Drop for Forward<'_> {
    fn drop(&mut self) {
        self.shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner).end_forward(self.begun);
    }
}

impl Store {
    /// Has `command` proposed, by this manager or by the one that leads, and waits until it was applied here. Tries
    /// again while nobody leads. While the log here cannot be written, it is refused at once.
    ///
    /// # Errors
    /// [`ProposeError`]; after `Unconfirmed` the command may still be applied.
    pub fn propose(&self, command: Command) -> Writing<'_> {
        Box::pin(async move {
            let began = Instant::now();
            let answer = self.submit(&command, began + PROPOSE_DEADLINE).await?;
            self.shared.commits.observe(began.elapsed().as_secs_f64());
            Ok(answer)
        })
    }

    /// As [`Store::propose`], for what is only worth proposing while this manager leads: a plan, for example.
    ///
    /// # Errors
    /// As [`Store::propose`]; `NotLeader` at once if it does not lead.
    pub fn propose_here(&self, command: Command) -> Writing<'_> {
        Box::pin(async move {
            let began = Instant::now();
            let data = codec::encode(&command).into();
            let answer = answer_of(self.write_here(data, began + PROPOSE_DEADLINE).await?)?;
            self.shared.commits.observe(began.elapsed().as_secs_f64());
            Ok(answer)
        })
    }

    /// As [`Store::propose`], for what has to be stored however long the disk or an election takes: waits while the
    /// log cannot be written, and repeats what was not confirmed. The caller bounds how long it waits.
    ///
    /// # Errors
    /// As [`Store::propose`], but neither `Held` nor `NoLeader`, and `Unconfirmed` only when the manager ends.
    pub fn propose_patiently(&self, command: Command) -> Writing<'_> {
        Box::pin(async move {
            loop {
                match self.propose(command.clone()).await {
                    Err(ProposeError::Held(_)) => self.writable().await,
                    Err(ProposeError::NoLeader(_) | ProposeError::Busy) => {}
                    Err(ProposeError::Unconfirmed(
                        Doubt::Late(_) | Doubt::Held(..) | Doubt::Overtaken | Doubt::Unanswered(_),
                    )) => {}
                    answered => return answered,
                }
            }
        })
    }

    /// For a follower that gave `commands` to this manager: proposes them with the time `at`, and says of each, in
    /// their order, where it was applied, whatever came of it. Nothing is proposed after `within`.
    pub async fn propose_for(
        &self,
        commands: Vec<Command>,
        at: Timestamp,
        within: Duration,
    ) -> Vec<Result<Applied, ProposeError>> {
        let deadline = Instant::now() + within.min(PROPOSE_DEADLINE);
        let mut begun = Vec::with_capacity(commands.len());
        for mut command in commands {
            command.set_at(at);
            begun.push(self.begin(codec::encode(&command).into(), deadline).await);
        }
        let mut places = Vec::with_capacity(begun.len());
        for written in begun {
            places.push(match written {
                Ok(written) => self.confirmed(written, deadline).await.map(|written| written.place),
                Err(error) => Err(error),
            });
        }
        places
    }

    async fn submit(&self, command: &Command, deadline: Instant) -> Result<Answer, ProposeError> {
        let mut data = None;
        loop {
            let published = self.read();
            if let Some(held) = &published.held {
                return Err(ProposeError::Held(held.clone()));
            }
            let Role { leader, leader_id, .. } = published.role;
            let tried = match leader_id {
                _ if leader => {
                    let data = data.get_or_insert_with(|| Bytes::from(codec::encode(command)));
                    self.try_here(data.clone(), deadline).await
                }
                Some(leader) if leader != self.shared.own => self.try_there(leader, command, deadline).await,
                _ if self.outbox.proposals.is_closed() => return Err(ProposeError::Stopping),
                _ => Tried::Again(ProposeError::NotLeader),
            };
            let reason = match tried {
                Tried::Over(answer) => return answer,
                Tried::Again(reason) => reason,
            };
            self.another_role(published.role, deadline.min(Instant::now() + PAUSE)).await;
            if Instant::now() >= deadline {
                return Err(match reason {
                    ProposeError::NotLeader | ProposeError::Stopping => {
                        ProposeError::NoLeader(PROPOSE_DEADLINE)
                    }
                    reason => reason,
                });
            }
        }
    }

    async fn try_here(&self, data: Bytes, deadline: Instant) -> Tried {
        match self.write_here(data, deadline).await {
            Err(error @ (ProposeError::NotLeader | ProposeError::Busy)) => Tried::Again(error),
            Ok(written) => Tried::Over(answer_of(written)),
            Err(error) => Tried::Over(Err(error)),
        }
    }

    async fn write_here(&self, data: Bytes, deadline: Instant) -> Result<Written, ProposeError> {
        let begun = self.begin(data, deadline).await?;
        self.confirmed(begun, deadline).await
    }

    async fn try_there(&self, leader: MemberId, command: &Command, deadline: Instant) -> Tried {
        if self.outbox.proposals.is_closed() {
            return Tried::Over(Err(ProposeError::Stopping));
        }
        let within = deadline.saturating_duration_since(Instant::now());
        let forward = Forward::begin(&self.shared);
        let asked = self.shared.leader.forward(leader, vec![command.clone()], within);
        let Ok(mut said) = timeout_at(deadline, asked).await else {
            return Tried::Over(Err(self.late()));
        };
        let place = match said.pop() {
            Some(Ok(place)) => place,
            Some(Err(error @ (ProposeError::Unconfirmed(_) | ProposeError::Rejected(_)))) => {
                return Tried::Over(Err(error));
            }
            Some(Err(error)) => return Tried::Again(error),
            None => {
                let doubt = Doubt::Unanswered("it answered nothing".into());
                return Tried::Over(Err(ProposeError::Unconfirmed(doubt)));
            }
        };
        let answer = forward.ask(place);
        Tried::Over(match timeout_at(deadline, answer).await {
            Ok(answer) => answer.unwrap_or(Err(ProposeError::Unconfirmed(Doubt::Ended))),
            Err(_) => Err(self.late()),
        })
    }

    /// Gives a command to the driver, unless that takes until `deadline`.
    async fn begin(
        &self,
        data: Bytes,
        deadline: Instant,
    ) -> Result<oneshot::Receiver<Result<Written, ProposeError>>, ProposeError> {
        let published = self.read();
        if let Some(held) = &published.held {
            return Err(ProposeError::Held(held.clone()));
        }
        let (reply, written) = oneshot::channel();
        let proposal = Proposal { data, reply };
        match timeout_at(deadline, self.outbox.proposals.send(proposal)).await {
            Ok(sent) => sent.map_err(|_| ProposeError::Stopping).map(|()| written),
            Err(_) => Err(ProposeError::Busy),
        }
    }

    /// Waits for the driver's answer.
    async fn confirmed(
        &self,
        written: oneshot::Receiver<Result<Written, ProposeError>>,
        deadline: Instant,
    ) -> Result<Written, ProposeError> {
        match timeout_at(deadline, written).await {
            Ok(written) => written.unwrap_or(Err(ProposeError::Unconfirmed(Doubt::Ended))),
            Err(_) => Err(self.late()),
        }
    }

    fn late(&self) -> ProposeError {
        ProposeError::Unconfirmed(match &self.read().held {
            Some(held) => Doubt::Held(PROPOSE_DEADLINE, held.clone()),
            None => Doubt::Late(PROPOSE_DEADLINE),
        })
    }

    /// Resolves while the log can be written.
    async fn writable(&self) {
        let mut newest = self.shared.newest.subscribe();
        while self.read().held.is_some() {
            newest.changed().await.expect("the store itself holds the sending end");
        }
    }

    /// Resolves when this manager's role is not `role` any more, or then.
    async fn another_role(&self, role: Role, until: Instant) {
        let mut newest = self.shared.newest.subscribe();
        let other = async {
            while self.read().role == role {
                newest.changed().await.expect("the store itself holds the sending end");
            }
        };
        // Whoever waited for nothing looks again all the same.
        let _ = timeout_at(until, other).await;
    }
}

fn answer_of(written: Written) -> Result<Answer, ProposeError> {
    match written.outcome {
        Outcome::Applied { answer, .. } | Outcome::Unchanged { answer } => Ok(answer),
        Outcome::Rejected(refusal) => Err(ProposeError::Rejected(refusal)),
    }
}

//! A connection to one of the managers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use warren_proto::status::LIFE;
use warren_types::{ContentKind, ManagerAddress};

use crate::attempts::Attempts;
use crate::contents::Contents;
use crate::contexts::Target;
use crate::error::Error;
use crate::handles::{Cluster, Images, Nodes, Services, Tasks};
use crate::link::{Link, Links};
use crate::logs::Logs;
use crate::managers::Managers;
use crate::retry::{self, Leaderless};
use crate::tokens::Tokens;
use crate::volumes::Volumes;

/// What one unary call may take, its retries included.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Asks a manager for what it has, whether that is the newest or not.
const STALE: &str = "warren-stale";

/// Largest answer: a page of 1,000 tasks with the longest specs, and room.
pub(crate) const MAX_ANSWER: usize = 64 << 20;

/// A connection to one of the managers; when that one goes, or has no leader, to another. Cheap to clone; clones
/// share the connection.
#[derive(Clone)]
pub struct Client {
    links: Arc<Links>,
    stale: bool,
    /// What is asked changes something.
    writes: bool,
    leaderless: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { links, stale, writes, leaderless: _ } = self;
        let mut shown = f.debug_struct("Client");
        shown.field("links", links).field("stale", stale).field("writes", writes).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to one of the managers that `target` names; fails within seconds when none can be reached.
    pub async fn connect(target: &Target) -> Result<Self, Error> {
        let links = Arc::new(Links::connect(target).await?);
        Ok(Self { links, stale: false, writes: false, leaderless: None })
    }

    /// Reads what the manager that answers has, which may be older than what was written, also without a leader.
    #[must_use]
    pub fn stale(self, stale: bool) -> Self {
        Self { stale, ..self }
    }

    /// Reads everything that was acknowledged, for what a write depends on.
    pub(crate) fn linearizable(&self) -> Self {
        self.clone().stale(false)
    }

    /// For what changes something: when an attempt may have been applied, an error of a later one says so.
    pub(crate) fn writing(&self) -> Self {
        Self { writes: true, ..self.clone() }
    }

    /// Calls `tell` when something that is asked waits for the managers to have a leader, and an election would be
    /// over by then: at most once a call.
    #[must_use]
    pub fn on_leaderless(self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self { leaderless: Some(Arc::new(tell)), ..self }
    }

    /// The address or socket of the manager that answered last, for people.
    pub fn address(&self) -> String {
        self.links.current().address.to_string()
    }

    /// Where the managers are by their own words, the one that answered first; empty before the first answer.
    pub fn manager_addresses(&self) -> Vec<ManagerAddress> {
        self.links.told()
    }

    /// What people ask to run.
    pub fn services(&self) -> Services<'_> {
        Services(self)
    }

    /// Where it runs.
    pub fn tasks(&self) -> Tasks<'_> {
        Tasks(self)
    }

    /// The machines.
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes(self)
    }

    /// The cluster as a whole, and what changes in it.
    pub fn cluster(&self) -> Cluster<'_> {
        Cluster(self)
    }

    /// Images on the nodes.
    pub fn images(&self) -> Images<'_> {
        Images(self)
    }

    /// What lets machines join.
    pub fn tokens(&self) -> Tokens<'_> {
        Tokens(self)
    }

    /// Secrets, configs, or credentials of registries.
    pub fn contents(&self, kind: ContentKind) -> Contents<'_> {
        Contents { client: self, kind }
    }

    /// Data that outlives tasks.
    pub fn volumes(&self) -> Volumes<'_> {
        Volumes(self)
    }

    /// The managers, and a backup of what they keep.
    pub fn managers(&self) -> Managers<'_> {
        Managers(self)
    }

    /// What tasks wrote.
    pub fn logs(&self) -> Logs<'_> {
        Logs(self)
    }

    /// What is known of the cluster from before: managers that are in an earlier life of it than this refuse what this
    /// client asks, and it goes to others.
    #[must_use]
    pub fn having_seen(self, life: u64) -> Self {
        self.links.has_seen(life);
        self
    }

    /// The latest life of the cluster that any manager was in which answered, or that was known before; 0: none.
    pub fn life(&self) -> u64 {
        self.links.life()
    }

    /// A request that says what is known of the cluster.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if self.links.life() > 0 {
            request.metadata_mut().insert(LIFE, self.links.life().into());
        }
        request
    }

    /// The connection that is used now.
    pub(crate) fn link(&self) -> Link {
        self.links.current()
    }

    /// Goes to another manager than that of `left`, if there is one.
    pub(crate) async fn follow(&self, left: &Link) {
        self.links.follow(left).await;
    }

    /// Sends `message` by `call` until there is an answer, an error that trying again does not heal, or the
    /// deadline.
    pub(crate) async fn unary<M, R, F, Fut>(&self, message: M, call: F) -> Result<R, Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        self.unary_within(CALL_DEADLINE, message, call).await
    }

    /// As [`Client::unary`], for what takes longer or shorter.
    pub(crate) async fn unary_within<M, R, F, Fut>(
        &self,
        within: Duration,
        message: M,
        call: F,
    ) -> Result<R, Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let deadline = Instant::now() + within;
        let timed = |channel, mut request: Request<M>| {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            call(channel, request)
        };
        self.ask(within, deadline, message, timed).await.map(|(_, answer)| answer)
    }

    /// As [`Client::unary`], for what answers with a stream: its beginning must come within the deadline, its messages
    /// may take their time.
    pub(crate) async fn start<M, R, F, Fut>(&self, message: M, call: F) -> Result<(Link, R), Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        self.ask(CALL_DEADLINE, Instant::now() + CALL_DEADLINE, message, call).await
    }

    /// Asks one manager after the other.
    async fn ask<M, R, F, Fut>(
        &self,
        within: Duration,
        deadline: Instant,
        message: M,
        call: F,
    ) -> Result<(Link, R), Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut failed = 0;
        let mut said: Option<Error> = None;
        let mut leaderless = Leaderless::new();
        let mut attempts = Attempts::new(self.writes);
        loop {
            let link = self.link();
            let mut request = self.request(message.clone());
            if self.stale {
                request.metadata_mut().insert(STALE, MetadataValue::from_static("true"));
            }
            let status = match timeout_at(deadline, call(link.channel.clone(), request)).await {
                Ok(Ok(answer)) => {
                    self.links.heard(answer.metadata());
                    return Ok((link, answer.into_inner()));
                }
                Ok(Err(status)) => status,
                Err(_) => {
                    attempts.note_lost(&link.address);
                    let late = || Error::NoAnswer { address: link.address.to_string(), after: within };
                    return Err(attempts.conclude(said.map_or_else(late, |said| attempts.name_in(said))));
                }
            };
            self.links.heard(status.metadata());
            failed += 1;
            if leaderless.hears(&status)
                && let Some(tell) = &self.leaderless
            {
                tell();
            }
            let error = error_after(&link, within, &status);
            let error = match said.take() {
                Some(said) if retry::may_heal(&status) && said.outweighs(&error) => said,
                _ => error,
            };
            attempts.note(&link, &status);
            let is_over = leaderless.is_over() || attempts.are_all_full(self.links.count());
            let pause = retry::pause(failed, &status, self.links.count()).filter(|_| !is_over);
            let Some(pause) = pause.filter(|_| link.refusal.get().is_none()) else {
                let error = if retry::may_heal(&status) { attempts.name_in(error) } else { error };
                return Err(attempts.conclude(error));
            };
            let next = async {
                sleep(pause).await;
                self.follow(&link).await;
            };
            if timeout_at(deadline, next).await.is_err() {
                return Err(attempts.conclude(attempts.name_in(error)));
            }
            said = Some(error);
        }
    }

    /// To how many managers there is a way.
    pub(crate) fn count(&self) -> usize {
        self.links.count()
    }

    /// Opens a stream over one connection: the answer's headers must come within the deadline.
    pub(crate) async fn open<R>(
        &self,
        opening: impl Future<Output = Result<Response<R>, Status>>,
    ) -> Result<R, Status> {
        let late = |_| Status::unavailable("no answer in time");
        let opened = tokio::time::timeout(CALL_DEADLINE, opening).await.map_err(late)?;
        opened.map(|answer| {
            self.links.heard(answer.metadata());
            answer.into_inner()
        })
    }
}

/// What a call over this connection ended with.
pub(crate) fn error(link: &Link, status: &Status) -> Error {
    error_after(link, CALL_DEADLINE, status)
}

fn error_after(link: &Link, within: Duration, status: &Status) -> Error {
    Error::from_status(&link.address, within, link.refusal.get(), status)
}

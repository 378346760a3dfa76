//! A connection to one manager.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use warren_types::ContentKind;

use crate::contents::Contents;
use crate::contexts::Target;
use crate::error::Error;
use crate::handles::{Cluster, Images, Nodes, Services, Tasks};
use crate::logs::Logs;
use crate::refusal::Refusal;
use crate::tokens::Tokens;
use crate::volumes::Volumes;
use crate::{dial, retry};

/// What one unary call may take, its retries included.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Largest answer: a page of 1,000 tasks with the longest specs, and room.
pub(crate) const MAX_ANSWER: usize = 64 << 20;

/// A connection to one manager. Cheap to clone; clones share the connection, which is made again when it is
/// lost.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    address: Arc<str>,
    refusal: Refusal,
}

impl Client {
    /// Connects to the manager that `target` names; fails within seconds when it cannot be reached.
    pub async fn connect(target: &Target) -> Result<Self, Error> {
        let refusal = Refusal::default();
        let channel = dial::channel(target, &refusal).await?;
        Ok(Self { channel, address: target.to_string().into(), refusal })
    }

    /// The manager's address or socket, for people.
    pub fn address(&self) -> &str {
        &self.address
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

    /// What tasks wrote.
    pub fn logs(&self) -> Logs<'_> {
        Logs(self)
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
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
        let late = || Error::NoAnswer { address: self.address.to_string(), after: within };
        let mut failed = 0;
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            let answer = timeout_at(deadline, call(self.channel(), request)).await.map_err(|_| late())?;
            let status = match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            };
            failed += 1;
            let Some(pause) = retry::pause(failed, &status).filter(|_| self.refusal.get().is_none()) else {
                return Err(self.error_after(within, &status));
            };
            timeout_at(deadline, sleep(pause)).await.map_err(|_| self.error_after(within, &status))?;
        }
    }

    /// What a call to this manager ended with.
    pub(crate) fn error(&self, status: &Status) -> Error {
        self.error_after(CALL_DEADLINE, status)
    }

    fn error_after(&self, within: Duration, status: &Status) -> Error {
        Error::from_status(&self.address, within, self.refusal.get(), status)
    }

    /// Opens a stream: the answer's headers must come within the deadline, its messages may take their time.
    pub(crate) async fn open<R>(
        &self,
        opening: impl Future<Output = Result<Response<R>, Status>>,
    ) -> Result<R, Status> {
        let late = |_| Status::unavailable("no answer in time");
        let opened = tokio::time::timeout(CALL_DEADLINE, opening).await.map_err(late)?;
        opened.map(Response::into_inner)
    }
}

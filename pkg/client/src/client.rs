//! A connection to one of the managers.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use warren_proto::status::INCARNATION;
use warren_types::{CaDigest, ManagerAddress};

use crate::channel::{FailoverChannel, ManagerChannel};
use crate::client_tls::{CertificateOptions, ClientTls, ClockDifference};
use crate::contexts::{ClientIdentity, ClientTarget};
use crate::dial::SwitchTimes;
use crate::error::{ClientDialError, DialErrorKind, Error, has_expired};
use crate::refusals::ManagerRefusals;
use crate::retry::{self, LeaderlessWait};

/// Deadline of a unary call, including retries.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Metadata key that requests a possibly outdated read from the manager.
const STALE_METADATA: &str = "warren-allow-stale";

/// Largest response: a page of 1,000 tasks with the longest specs, and headroom.
pub(crate) const MAX_RESPONSE: usize = 64 << 20;

/// A connection to a manager, which switches to another one if the manager is unreachable or has no leader. Cheap to
/// clone; clones share the connection.
#[derive(Clone)]
pub struct Client {
    channel: Arc<FailoverChannel>,
    with_stale_reads: bool,
    /// The call is a write.
    writes: bool,
    leaderless_callback: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channel: links, with_stale_reads: stale, writes, leaderless_callback: _ } = self;
        let mut shown = f.debug_struct("Client");
        shown.field("links", links).field("stale", stale).field("writes", writes).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to one of the managers of `target`; fails within seconds if none is reachable.
    pub async fn connect(target: &ClientTarget) -> Result<Self, Error> {
        Self::connect_timed(target, SwitchTimes::default()).await
    }

    /// As [`Client::connect`], with other times.
    pub(crate) async fn connect_timed(target: &ClientTarget, times: SwitchTimes) -> Result<Self, Error> {
        let links = Arc::new(FailoverChannel::connect(target, times).await?);
        Ok(Self { channel: links, with_stale_reads: false, writes: false, leaderless_callback: None })
    }

    /// Connects to one manager by the streams that `dial` opens, one for each connection. `address` is for errors.
    pub async fn connect_with<F, Fut>(address: &str, dial: F) -> Result<Self, Error>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let dial = move || {
            let stream = dial();
            async move { stream.await.map_err(|error| ClientDialError::new(DialErrorKind::Unreachable, error)) }
        };
        let links = Arc::new(FailoverChannel::connect_with(address, dial).await?);
        Ok(Self { channel: links, with_stale_reads: false, writes: false, leaderless_callback: None })
    }

    /// Reads the state of the manager that answers, which may be outdated and needs no leader.
    #[must_use]
    pub fn stale(self, stale: bool) -> Self {
        Self { with_stale_reads: stale, ..self }
    }

    /// Reads all acknowledged writes, for a write that depends on it.
    pub(crate) fn linearizable(&self) -> Self {
        self.clone().stale(false)
    }

    /// Marks calls as writes: their errors report an earlier attempt that may have been applied.
    pub(crate) fn writing(&self) -> Self {
        Self { writes: true, ..self.clone() }
    }

    /// Calls `tell` if a call waits for a leader for longer than an election takes; at most once per call.
    #[must_use]
    pub fn on_leaderless(self, tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self { leaderless_callback: Some(Arc::new(tell)), ..self }
    }

    /// Human-readable address or socket of the manager that responded last.
    pub fn address(&self) -> String {
        self.channel.current().address.to_string()
    }

    /// Addresses of all managers as they report them, the responding one first; empty before the first response.
    pub fn manager_addresses(&self) -> Vec<ManagerAddress> {
        self.channel.advertised()
    }

    /// Sets the known incarnation of the cluster: managers of an earlier one refuse the calls of this client, which
    /// then uses other managers.
    #[must_use]
    pub fn with_known_incarnation(self, incarnation: u64) -> Self {
        self.channel.observe_incarnation(incarnation);
        self
    }

    /// The latest known incarnation of the cluster; 0 if unknown.
    pub fn incarnation(&self) -> u64 {
        self.channel.incarnation()
    }

    /// The only certificate authority that users trust, if managers have reported one: a client that trusts another
    /// gets a certificate of it ([`Client::issue_certificate`]).
    pub fn authority(&self) -> Option<CaDigest> {
        self.channel.authority()
    }

    /// The identity with the newest certificate: it is renewed before a connection when half of its lifetime is past.
    /// `None` for a socket.
    pub fn identity(&self) -> Option<ClientIdentity> {
        self.channel.tls().map(ClientTls::identity)
    }

    /// By how much the clock of this machine is wrong, if that was noticed when the certificate was renewed.
    pub fn clock_difference(&self) -> Option<ClockDifference> {
        self.channel.tls().and_then(ClientTls::clock_difference)
    }

    /// The identity with another certificate for the same key, and the certificate authorities that it trusts from now
    /// on. This client does not use it.
    pub async fn issue_certificate(&self, options: CertificateOptions) -> Result<ClientIdentity, Error> {
        let none = || Error::Identity { why: "a client on the socket of a manager has none".to_owned() };
        let tls = self.channel.tls().ok_or_else(none)?;
        tls.issue(&self.address(), options).await
    }

    /// A request with the known incarnation.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if self.channel.incarnation() > 0 {
            request.metadata_mut().insert(INCARNATION, self.channel.incarnation().into());
        }
        request
    }

    /// As [`Client::request`], for a read: an outdated one is allowed if this client allows that.
    pub(crate) fn read_request<M>(&self, message: M) -> Request<M> {
        let mut request = self.request(message);
        if self.with_stale_reads {
            request.metadata_mut().insert(STALE_METADATA, MetadataValue::from_static("true"));
        }
        request
    }

    /// The current connection.
    pub(crate) fn current_channel(&self) -> ManagerChannel {
        self.channel.current()
    }

    /// Switches to another manager than that of `left`, if there is one.
    pub(crate) async fn switch_manager(&self, left: &ManagerChannel) {
        self.channel.switch_from(left).await;
    }

    /// Repeats `call` with `message` until a response, a permanent error, or the deadline.
    pub(crate) async fn unary<M, R, F, Fut>(&self, message: M, call: F) -> Result<R, Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        self.unary_within(CALL_DEADLINE, message, call).await
    }

    /// As [`Client::unary`], with another deadline.
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
        self.call_with_retry(within, deadline, message, timed).await.map(|(_, answer)| answer)
    }

    /// As [`Client::unary`] for a streamed response: the deadline covers its start, not its messages.
    pub(crate) async fn start_stream<M, R, F, Fut>(
        &self,
        message: M,
        call: F,
    ) -> Result<(ManagerChannel, R), Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        self.call_with_retry(CALL_DEADLINE, Instant::now() + CALL_DEADLINE, message, call).await
    }

    /// Sends the request to one manager after the other.
    async fn call_with_retry<M, R, F, Fut>(
        &self,
        within: Duration,
        deadline: Instant,
        message: M,
        call: F,
    ) -> Result<(ManagerChannel, R), Error>
    where
        M: Clone,
        F: Fn(Channel, Request<M>) -> Fut,
        Fut: Future<Output = Result<Response<R>, Status>>,
    {
        let mut failed = 0;
        let mut reported: Option<Error> = None;
        let mut leaderless = LeaderlessWait::new();
        let mut attempts = ManagerRefusals::new(self.writes);
        loop {
            let link = self.current_channel();
            let request = self.read_request(message.clone());
            let status = match timeout_at(deadline, call(link.channel.clone(), request)).await {
                Ok(Ok(answer)) => {
                    self.channel.observe_metadata(answer.metadata());
                    return Ok((link, answer.into_inner()));
                }
                Ok(Err(status)) if !has_expired(&status) => status,
                Ok(Err(_)) | Err(_) => {
                    attempts.note_lost(&link.address);
                    let late = || Error::NoAnswer { address: link.address.to_string(), after: within };
                    return Err(
                        attempts.conclude(reported.map_or_else(late, |error| attempts.annotate(error)))
                    );
                }
            };
            self.channel.observe_metadata(status.metadata());
            failed += 1;
            if leaderless.note_failure(&status)
                && let Some(tell) = &self.leaderless_callback
            {
                tell();
            }
            let error = error_after(&link, within, &status);
            let error = match reported.take() {
                Some(earlier) if retry::is_retryable(&status) && earlier.takes_precedence_over(&error) => {
                    earlier
                }
                _ => error,
            };
            attempts.record(&link, &status);
            let is_over =
                leaderless.has_timed_out() || attempts.are_all_disks_full(self.channel.manager_count());
            let pause =
                retry::retry_pause(failed, &status, self.channel.manager_count()).filter(|_| !is_over);
            let Some(pause) = pause.filter(|_| link.tls_alert.get().is_none()) else {
                let error = if retry::is_retryable(&status) { attempts.annotate(error) } else { error };
                return Err(attempts.conclude(error));
            };
            let next = async {
                sleep(pause).await;
                self.switch_manager(&link).await;
            };
            if timeout_at(deadline, next).await.is_err() {
                return Err(attempts.conclude(attempts.annotate(error)));
            }
            reported = Some(error);
        }
    }

    /// Number of known managers.
    pub(crate) fn manager_count(&self) -> usize {
        self.channel.manager_count()
    }

    /// Opens a stream on one connection; the deadline covers the response headers.
    pub(crate) async fn open<R>(
        &self,
        opening: impl Future<Output = Result<Response<R>, Status>>,
    ) -> Result<R, Status> {
        let late = |_| Status::unavailable("no answer in time");
        let opened = tokio::time::timeout(CALL_DEADLINE, opening).await.map_err(late)?;
        opened.map(|answer| {
            self.channel.observe_metadata(answer.metadata());
            answer.into_inner()
        })
    }
}

/// The error of a call on this connection.
pub(crate) fn error_from_status(link: &ManagerChannel, status: &Status) -> Error {
    error_after(link, CALL_DEADLINE, status)
}

fn error_after(link: &ManagerChannel, within: Duration, status: &Status) -> Error {
    Error::from_status(&link.address, within, link.tls_alert.get(), status)
}

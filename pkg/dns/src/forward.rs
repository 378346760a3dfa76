//! Questions that upstreams have to answer: several clients with the same question wait for one answer, so that a query
//! that comes back to this server is never forwarded again.

mod cache;
mod upstream;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_server::proto::op::{Message, ResponseCode};
use hickory_server::proto::rr::{LowerName, RecordType};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::counters::Counters;
use crate::packet::ForwardedQuery;
use crate::resolv_conf::MAX_UPSTREAMS;
use cache::{ReplyCache, StoredReply};
use upstream::{UpstreamHealth, UpstreamQuery};

/// The time for an answer of one upstream: clients repeat their query after one second, and should have the answer of
/// the next upstream before.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(800);
/// The time for all attempts: clients give up after five seconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(4);
/// The most queries that wait for upstreams; each may need a socket.
const MAX_WAITING: usize = 256;
/// The most of them of one client.
const MAX_WAITING_PER_CLIENT: usize = 64;

/// What makes two queries the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ForwardKey {
    name: LowerName,
    record: RecordType,
    dnssec_ok: bool,
    checking_disabled: bool,
    servers: Arc<[SocketAddr]>,
}

/// Asks upstreams.
pub(crate) struct Forwarder {
    state: Mutex<ForwardState>,
    upstreams: ArcSwap<Arc<[SocketAddr]>>,
    /// The addresses of this server.
    own: Vec<SocketAddr>,
    counters: Arc<Counters>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Default)]
struct ForwardState {
    cache: ReplyCache,
    pending: HashMap<Arc<ForwardKey>, PendingQuestion>,
    /// How many queries of each client wait.
    waiting: HashMap<IpAddr, usize>,
    total_waiting: usize,
    health: UpstreamHealth,
}

/// A question that is being asked.
struct PendingQuestion {
    reply: watch::Receiver<Option<Arc<StoredReply>>>,
    /// The upstream that is being asked.
    asked: Option<SocketAddr>,
    /// That upstream asked the same.
    is_loop: Arc<Notify>,
}

/// The state of a query that was given to the forwarder.
pub(crate) enum Forwarding {
    /// The answer; `None` if there is none.
    Done(Option<Message>),
    /// It will come.
    Waiting(WaitingQuery),
}

/// A query that waits for upstreams.
pub(crate) struct WaitingQuery {
    reply: watch::Receiver<Option<Arc<StoredReply>>>,
    forwarder: Arc<Forwarder>,
    client: IpAddr,
}

impl WaitingQuery {
    /// The answer; `None` if all upstreams failed.
    pub(crate) async fn reply(mut self) -> Option<Message> {
        let stored = self.reply.wait_for(Option::is_some).await.ok()?.clone()?;
        stored.message(Instant::now())
    }
}

impl Drop for WaitingQuery {
    fn drop(&mut self) {
        let mut state = self.forwarder.state();
        state.total_waiting -= 1;
        if let Some(waiting) = state.waiting.get_mut(&self.client) {
            *waiting -= 1;
            if *waiting == 0 {
                state.waiting.remove(&self.client);
            }
        }
    }
}

/// A question is pending as long as this exists, also when what an upstream sent makes its task panic.
struct Asking {
    forwarder: Arc<Forwarder>,
    key: Arc<ForwardKey>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.forwarder.state().pending.remove(&self.key);
    }
}

impl Forwarder {
    pub(crate) fn new(
        own: Vec<SocketAddr>,
        counters: Arc<Counters>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (state, upstreams) = (Mutex::default(), ArcSwap::from_pointee(Arc::from([])));
        Self { state, upstreams, own, counters, tasks, stop }
    }

    /// Replaces the upstreams of the node. Answers of the earlier ones are not used any more.
    pub(crate) fn set_upstreams(&self, upstreams: &[SocketAddr]) {
        self.upstreams.store(Arc::new(self.usable(upstreams.iter())));
    }

    /// Each once, without this server itself.
    fn usable<'s>(&self, servers: impl Iterator<Item = &'s SocketAddr>) -> Arc<[SocketAddr]> {
        let mut found = Vec::new();
        for server in servers.filter(|server| !self.own.contains(server)) {
            if !found.contains(server) && found.len() < MAX_UPSTREAMS {
                found.push(*server);
            }
        }
        found.into()
    }

    fn servers(&self, of_client: &[SocketAddr]) -> Arc<[SocketAddr]> {
        match of_client {
            [] => Arc::clone(&**self.upstreams.load()),
            of_client => self.usable(of_client.iter()),
        }
    }

    fn state(&self) -> MutexGuard<'_, ForwardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers from the cache, or has the upstreams asked.
    pub(crate) fn begin(self: &Arc<Self>, query: &ForwardedQuery) -> Forwarding {
        let Ok(info) = query.request.request_info() else { return Forwarding::Done(None) };
        let question = UpstreamQuery {
            question: info.query.original().clone(),
            dnssec_ok: query.request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok),
            checking_disabled: query.request.metadata.checking_disabled,
        };
        let key = Arc::new(ForwardKey {
            name: info.query.name().clone(),
            record: info.query.query_type(),
            dnssec_ok: question.dnssec_ok,
            checking_disabled: question.checking_disabled,
            servers: self.servers(&query.servers),
        });
        let (client, now) = (query.request.src().ip(), Instant::now());
        let mut state = self.state();
        if let Some(found) = state.cache.get(&key, now) {
            self.counters.cached.add();
            return Forwarding::Done(found.message(now));
        }
        if let Some(pending) = state.pending.get(&key)
            && pending.asked.is_some_and(|asked| asked.ip() == client)
        {
            pending.is_loop.notify_one();
            self.counters.loops.add();
            return Forwarding::Done(None);
        }
        let of_client = state.waiting.get(&client).copied().unwrap_or_default();
        if state.total_waiting >= MAX_WAITING || of_client >= MAX_WAITING_PER_CLIENT {
            self.counters.overloads.add();
            return Forwarding::Done(None);
        }
        let reply = match state.pending.get(&key) {
            Some(pending) => {
                self.counters.joined.add();
                pending.reply.clone()
            }
            None if key.servers.is_empty() || self.stop.is_cancelled() => return Forwarding::Done(None),
            None => {
                self.counters.forwarded.add();
                self.ask(&mut state, key, question)
            }
        };
        state.total_waiting += 1;
        *state.waiting.entry(client).or_default() += 1;
        Forwarding::Waiting(WaitingQuery { reply, forwarder: Arc::clone(self), client })
    }

    /// Starts asking. It goes on when the client has left, so that its next attempt finds the answer.
    fn ask(
        self: &Arc<Self>,
        state: &mut ForwardState,
        key: Arc<ForwardKey>,
        question: UpstreamQuery,
    ) -> watch::Receiver<Option<Arc<StoredReply>>> {
        let (sender, reply) = watch::channel(None);
        let is_loop = Arc::new(Notify::new());
        let pending = PendingQuestion { reply: reply.clone(), asked: None, is_loop: Arc::clone(&is_loop) };
        state.pending.insert(Arc::clone(&key), pending);
        let asking = Asking { forwarder: Arc::clone(self), key };
        self.tasks.spawn(async move {
            let (forwarder, key) = (&asking.forwarder, &asking.key);
            let found = tokio::select! {
                found = forwarder.ask_all(key, &question, &is_loop) => found,
                () = forwarder.stop.cancelled() => None,
            };
            let found = found.as_ref().map(|(bytes, message)| (bytes.clone(), message));
            let reply = Arc::new(StoredReply::new(found, Instant::now()));
            forwarder.state().cache.insert(Arc::clone(key), Arc::clone(&reply));
            drop(asking);
            sender.send_replace(Some(reply));
        });
        reply
    }

    /// The first usable answer. Upstreams that answer nothing are asked again while there is time.
    async fn ask_all(
        &self,
        key: &Arc<ForwardKey>,
        question: &UpstreamQuery,
        is_loop: &Notify,
    ) -> Option<(Vec<u8>, Message)> {
        let deadline = Instant::now() + QUERY_TIMEOUT;
        loop {
            let servers = self.state().health.order(&key.servers, Instant::now());
            let mut may_answer_later = false;
            for server in servers {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                if let Some(pending) = self.state().pending.get_mut(key) {
                    pending.asked = Some(server);
                }
                let attempt = tokio::select! {
                    answer = timeout(ATTEMPT_TIMEOUT.min(left), question.send_to(server)) => answer,
                    () = is_loop.notified() => {
                        tracing::warn!(%server, name = %key.name, "an upstream asks this server: a loop");
                        self.state().health.did_not_answer(server, Instant::now());
                        continue;
                    }
                };
                match attempt {
                    Ok(Ok((bytes, message))) => {
                        self.state().health.answered(server);
                        if matches!(message.response_code, ResponseCode::NoError | ResponseCode::NXDomain) {
                            return Some((bytes, message));
                        }
                        tracing::debug!(%server, name = %key.name, code = %message.response_code, "upstream failed");
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(%server, %error, "upstream cannot be asked");
                        self.state().health.did_not_answer(server, Instant::now());
                    }
                    Err(_) => {
                        may_answer_later = true;
                        self.counters.upstream_timeouts.add();
                        self.state().health.did_not_answer(server, Instant::now());
                    }
                }
            }
            if !may_answer_later {
                return None;
            }
        }
    }
}

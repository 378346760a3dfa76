//! The answer to a query, from the table or from upstreams, whatever it arrived on.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arc_swap::ArcSwap;
use hickory_server::proto::op::Message;
use hickory_server::server::Request;

use crate::counters::Counters;
use crate::forward::{Forwarder, Forwarding, WaitingQuery};
use crate::packet::{Reaction, ReplyKind, Transport, failure, forwarded_reply, react};
use crate::table::NameTable;

/// Shared by everything that receives queries.
pub(super) struct Answerer {
    pub(super) table: ArcSwap<NameTable>,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) counters: Arc<Counters>,
}

/// The bytes that are sent back.
pub(super) enum PendingReply {
    None,
    Ready(Vec<u8>),
    Waiting(Box<WaitingReply>),
}

/// A reply that waits for upstreams.
pub(super) struct WaitingReply {
    request: Request,
    query: WaitingQuery,
}

impl WaitingReply {
    pub(super) async fn reply(self, answerer: &Answerer) -> Vec<u8> {
        answerer.forwarded(&self.request, self.query.reply().await)
    }
}

impl Answerer {
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A defect in the code that reads what anybody sends costs the sender its answer, and nobody else.
    pub(super) fn answer(&self, bytes: Vec<u8>, from: SocketAddr, transport: Transport) -> PendingReply {
        let answer = AssertUnwindSafe(|| self.answer_or_panic(bytes, from, transport));
        catch_unwind(answer).unwrap_or(PendingReply::None)
    }

    fn answer_or_panic(&self, bytes: Vec<u8>, from: SocketAddr, transport: Transport) -> PendingReply {
        let counters = &self.counters;
        match react(&self.table.load(), bytes, from, transport, rand::random()) {
            Reaction::Ignore => PendingReply::None,
            Reaction::Reply(bytes, kind) => {
                counters.queries.add();
                match kind {
                    ReplyKind::Answered => counters.answered.add(),
                    ReplyKind::Refused => counters.refused.add(),
                    ReplyKind::Malformed => counters.malformed.add(),
                    ReplyKind::Failed => counters.failures.add(),
                }
                PendingReply::Ready(bytes)
            }
            Reaction::Forward(query) => {
                counters.queries.add();
                match self.forwarder.begin(&query) {
                    Forwarding::Done(found) => PendingReply::Ready(self.forwarded(&query.request, found)),
                    Forwarding::Waiting(waiting) => PendingReply::Waiting(Box::new(WaitingReply {
                        request: query.request,
                        query: waiting,
                    })),
                }
            }
        }
    }

    fn forwarded(&self, request: &Request, found: Option<Message>) -> Vec<u8> {
        match found {
            Some(message) => forwarded_reply(request, message),
            None => {
                self.counters.failures.add();
                failure(request)
            }
        }
    }
}

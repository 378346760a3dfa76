//! Forwards calls that this manager cannot serve, because its log cannot be written, to another manager.
//!
//! Such a manager applies nothing new: it can neither serve linearizable reads nor confirm writes. Its
//! handlers reject such calls before doing anything; then the whole call goes to a manager that can serve it,
//! and the whole response comes back. Calls that a handler serves anyway (`--stale` reads, calls about this
//! manager) stay here. The other manager is told the original caller ([`super::relayed_caller`]) and never
//! forwards the call again. If no manager can serve the call, the caller gets the rejection, which says that
//! nothing was done, and can try the others itself.

mod request;

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::Service;
use warren_peers::Peers;
use warren_peers::dial::was_not_sent;
use warren_peers::rejection::{MEMBER_ID_MISMATCH, MEMBER_REMOVED, MEMBER_UNKNOWN};
use warren_proto::Problem;
use warren_proto::status::{DISK_FAILED, DISK_FULL, MANAGER_STOPPING, NO_LEADER, OTHER_INCARNATION};
use warren_security::Peer;
use warren_store::Store;
use warren_types::MemberId;

use self::request::{ReplayableBody, record_body};
use super::methods::is_read;
use super::middleware::{CallFuture, Middleware};
use super::relayed_caller::{self, CALLER_METADATA, CALLER_MISSING};

/// Calls from other machines that are addressed to this manager itself.
const LOCAL_SERVICES: [&str; 2] = ["/warren.v1.Peers/", "/warren.v1.Sessions/"];

/// Forwards calls while this manager's log cannot be written.
#[derive(Clone)]
pub struct ProxyLayer {
    /// Whether the log can be written.
    pub store: Store,
    /// Channels to the other managers.
    pub peers: Peers,
}

impl Middleware for ProxyLayer {
    fn call<S>(&self, inner: &mut S, request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let Some(call) = self.relayable_call(&request) else {
            return Box::pin(inner.call(request));
        };
        let (parts, body) = request.into_parts();
        let (body, kept) = record_body(body);
        let answer = inner.call(http::Request::from_parts(parts, Body::new(body)));
        let layer = self.clone();
        Box::pin(async move {
            let response = answer.await?;
            let kept = kept.take();
            if !is_disk_refusal(response.headers()) || layer.store.read().write_stall.is_none() {
                return Ok(response);
            }
            let Some(kept) = kept else { return Ok(response) };
            Ok(layer.relay(&call, kept).await.unwrap_or(response))
        })
    }
}

/// A call without its body.
struct ProxiedCall {
    uri: Uri,
    headers: HeaderMap,
}

impl ProxiedCall {
    fn request(&self, body: Body) -> http::Request<Body> {
        let mut request = http::Request::new(body);
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

impl ProxyLayer {
    /// The call as it is sent to another manager; `None` if it is addressed to this manager or was forwarded
    /// before.
    fn relayable_call(&self, request: &http::Request<Body>) -> Option<ProxiedCall> {
        let path = request.uri().path();
        if LOCAL_SERVICES.iter().any(|own| path.starts_with(own))
            || self.store.read().is_sole_leader(self.peers.own_id())
        {
            return None;
        }
        let caller = relayed_caller::encode(request.extensions().get::<Peer>()?)?;
        let mut headers = request.headers().clone();
        headers.insert(CALLER_METADATA, HeaderValue::try_from(caller).ok()?);
        Some(ProxiedCall { uri: request.uri().clone(), headers })
    }

    /// Forwards the call to one of the other managers; `None` if none can serve it.
    async fn relay(&self, call: &ProxiedCall, mut body: ReplayableBody) -> Option<http::Response<Body>> {
        let leader = self.store.read().role.leader_id;
        let mut others = self.peers.others();
        others.sort_by_key(|member| Some(*member) != leader);
        let mut rejection = None;
        for member in others {
            let Ok((channel, permit)) = self.peers.relay_channel(member) else { continue };
            let Some(body) = body.next_body() else { break };
            match send(channel, call.request(body)).await {
                // This rejection is more specific than that of the local disk.
                Ok(response)
                    if has_reason(response.headers(), &[NO_LEADER, MANAGER_STOPPING, OTHER_INCARNATION]) =>
                {
                    rejection = Some(response);
                }
                Ok(response)
                    if is_disk_refusal(response.headers()) || is_relay_refusal(response.headers()) => {}
                Ok(response) => {
                    return Some(response.map(|inner| Body::new(RelayedBody { inner, _permit: permit })));
                }
                Err(status) if was_not_sent(&status) || is_read(call.uri.path()) => {
                    tracing::debug!(member, %status, "forwarding a call failed");
                }
                Err(status) => return Some(outcome_unknown(member, &status).into_http()),
            }
        }
        rejection
    }
}

/// Sends a call and waits for the response headers.
async fn send(mut channel: Channel, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
    let from = |error: tonic::transport::Error| Status::from_error(error.into());
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(from)?;
    channel.call(request).await.map_err(from)
}

fn is_disk_refusal(headers: &HeaderMap) -> bool {
    has_reason(headers, &[DISK_FULL, DISK_FAILED])
}

/// Whether the other manager rejected this manager, which is not a response to the caller.
fn is_relay_refusal(headers: &HeaderMap) -> bool {
    let refused = [MEMBER_REMOVED, MEMBER_UNKNOWN, MEMBER_ID_MISMATCH, CALLER_MISSING];
    let status = Status::from_header_map(headers);
    status.is_some_and(|status| refused.contains(&Problem::from(&status).reason.as_str()))
}

/// Whether the headers carry an error with one of `reasons`. A streamed response has no status before its
/// end.
fn has_reason(headers: &HeaderMap, reasons: &[&str]) -> bool {
    let status = Status::from_header_map(headers);
    let status = status.filter(|it| matches!(it.code(), Code::Unavailable | Code::ResourceExhausted));
    status.is_some_and(|status| reasons.contains(&Problem::from(&status).reason.as_str()))
}

/// The error for a call that the other manager may have executed.
fn outcome_unknown(member: MemberId, status: &Status) -> Status {
    let why =
        std::error::Error::source(status).map_or_else(|| status.message().to_owned(), ToString::to_string);
    let message = format!(
        "this manager cannot write its log and forwarded the call to member {member}, which did not respond \
         ({why}); outcome unknown: the call may still be applied; it is safe to repeat it"
    );
    Problem::new(Code::Unavailable, "UNCONFIRMED", message).into()
}

/// A forwarded response; holds its permit of the peer's limit until the end.
struct RelayedBody {
    inner: Body,
    _permit: OwnedSemaphorePermit,
}

impl http_body::Body for RelayedBody {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

//! Has another manager answer the calls that this one cannot answer, because it cannot write its log.
//!
//! Such a manager applies nothing new: it can neither say what is newest nor what becomes of a write. Its handlers
//! refuse that before anything is done, and then the whole call goes to a manager that can, and the whole answer comes
//! back. What a handler answers all the same (`--stale` reads, what concerns this manager alone) stays here. The other
//! manager is told who calls ([`caller`]); it never relays the call once more. When none of them can carry it out, the
//! caller gets the refusal, which says that nothing was done, and asks the others itself.

pub mod caller;
mod request;

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderValue, Method, Uri, Version};
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::{Layer, Service};
use warren_proto::Problem;
use warren_proto::status::{DISK_FAILS, DISK_FULL, NO_LEADER, OTHER_LIFE, STOPPING};
use warren_security::Peer;
use warren_types::MemberId;

use self::caller::{CALLER, CALLER_MISSING};
use self::request::{Kept, keep};
use super::access::is_read;
use crate::peers::Peers;
use crate::peers::dial::was_not_sent;
use crate::peers::roster::{MEMBER_ID_MISMATCH, MEMBER_REMOVED, MEMBER_UNKNOWN};
use crate::store::Store;

/// Calls of machines that are meant for this manager itself.
const OWN: [&str; 2] = ["/warren.v1.Peers/", "/warren.v1.Sessions/"];

/// Relays what the log's disk does not allow here.
#[derive(Clone)]
pub struct ProxyLayer {
    /// Knows whether the log can be written.
    pub store: Store,
    /// The ways to the others.
    pub peers: Peers,
}

/// See [`ProxyLayer`].
#[derive(Clone)]
pub struct Proxy<S> {
    inner: S,
    layer: ProxyLayer,
}

impl<S> Layer<S> for ProxyLayer {
    type Service = Proxy<S>;

    fn layer(&self, inner: S) -> Proxy<S> {
        Proxy { inner, layer: self.clone() }
    }
}

impl<S> Service<http::Request<Body>> for Proxy<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Some(call) = self.layer.relayable(&request) else {
            return Box::pin(self.inner.call(request));
        };
        let (parts, body) = request.into_parts();
        let (body, kept) = keep(body);
        let answer = self.inner.call(http::Request::from_parts(parts, Body::new(body)));
        let layer = self.layer.clone();
        Box::pin(async move {
            let response = answer.await?;
            let kept = kept.take();
            if !is_of_disk(response.headers()) || layer.store.read().held.is_none() {
                return Ok(response);
            }
            let Some(kept) = kept else { return Ok(response) };
            Ok(layer.relay(&call, kept).await.unwrap_or(response))
        })
    }
}

/// A call without its body.
struct Call {
    uri: Uri,
    headers: HeaderMap,
}

impl Call {
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
    /// The call as another manager would get it; nothing where it is for this one alone, or was relayed before.
    fn relayable(&self, request: &http::Request<Body>) -> Option<Call> {
        let path = request.uri().path();
        if OWN.iter().any(|own| path.starts_with(own)) || self.store.read().leads_alone(self.peers.own()) {
            return None;
        }
        let caller = caller::encode(request.extensions().get::<Peer>()?)?;
        let mut headers = request.headers().clone();
        headers.insert(CALLER, HeaderValue::try_from(caller).ok()?);
        Some(Call { uri: request.uri().clone(), headers })
    }

    /// Has one of the others answer; nothing when none of them can.
    async fn relay(&self, call: &Call, mut body: Kept) -> Option<http::Response<Body>> {
        let leader = self.store.read().role.leader_id;
        let mut others = self.peers.others();
        others.sort_by_key(|member| Some(*member) != leader);
        let mut refused = None;
        for member in others {
            let Ok((channel, place)) = self.peers.relay(member) else { continue };
            let Some(body) = body.next() else { break };
            match send(channel, call.request(body)).await {
                // Its words say more than those of this manager's disk.
                Ok(response) if has_reason(response.headers(), &[NO_LEADER, STOPPING, OTHER_LIFE]) => {
                    refused = Some(response);
                }
                Ok(response) if is_of_disk(response.headers()) || is_of_relay(response.headers()) => {}
                Ok(response) => {
                    return Some(response.map(|inner| Body::new(Placed { inner, _place: place })));
                }
                Err(status) if was_not_sent(&status) || is_read(call.uri.path()) => {
                    tracing::debug!(member, %status, "a call was not relayed");
                }
                Err(status) => return Some(unconfirmed(member, &status).into_http()),
            }
        }
        refused
    }
}

/// Sends a call and waits for the beginning of its answer.
async fn send(mut channel: Channel, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
    let from = |error: tonic::transport::Error| Status::from_error(error.into());
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(from)?;
    channel.call(request).await.map_err(from)
}

fn is_of_disk(headers: &HeaderMap) -> bool {
    has_reason(headers, &[DISK_FULL, DISK_FAILS])
}

/// The other manager refuses this one, which is no answer to the caller.
fn is_of_relay(headers: &HeaderMap) -> bool {
    let refused = [MEMBER_REMOVED, MEMBER_UNKNOWN, MEMBER_ID_MISMATCH, CALLER_MISSING];
    let status = Status::from_header_map(headers);
    status.is_some_and(|status| refused.contains(&Problem::from(&status).reason.as_str()))
}

/// Whether these are the headers of a refusal for one of `reasons`. An answer has no status before its end.
fn has_reason(headers: &HeaderMap, reasons: &[&str]) -> bool {
    let status = Status::from_header_map(headers);
    let status = status.filter(|it| matches!(it.code(), Code::Unavailable | Code::ResourceExhausted));
    status.is_some_and(|status| reasons.contains(&Problem::from(&status).reason.as_str()))
}

/// The other manager may have carried it out, and nobody knows.
fn unconfirmed(member: MemberId, status: &Status) -> Status {
    let why =
        std::error::Error::source(status).map_or_else(|| status.message().to_owned(), ToString::to_string);
    let message = format!(
        "this manager cannot write its log, and member {member}, to which it relayed the call, did not answer ({why}); \
         what was asked for may still happen, and repeating it is safe"
    );
    Problem::new(Code::Unavailable, "UNCONFIRMED", message).into()
}

/// A relayed answer, which has its place among those of one peer until its end.
struct Placed {
    inner: Body,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Placed {
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

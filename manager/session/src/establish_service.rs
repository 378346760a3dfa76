//! Encodes each frame of a session in its own buffer, which is freed when the frame is sent.
//!
//! tonic writes all frames of a stream into one buffer, which keeps the size of the largest frame. A manager
//! has as many sessions as workers, and each starts with a full assignment, followed by frames of a few
//! bytes. So this module implements the `Establish` call; the generated service implements all others.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body::{Body, Frame};
use prost::Message;
use tokio_stream::Stream;
use tonic::codec::Codec;
use tonic::metadata::GRPC_CONTENT_TYPE;
use tonic::server::NamedService;
use tonic::{Request, Status, Streaming};
use tower::Service;
use warren_proto::codec::CompactCodec;
use warren_proto::v1::sessions_server::{SERVICE_NAME, Sessions, SessionsServer};
use warren_proto::v1::{ManagerFrame, WorkerFrame};

use super::server::SessionServer;

const ESTABLISH_PATH: &str = "/warren.v1.Sessions/Establish";
/// Length of the gRPC message header: a compression flag and the length in four bytes.
const GRPC_HEADER_BYTES: usize = 5;

const FETCH_PATH: &str = "/warren.v1.Sessions/FetchSecretObjects";
/// A key and an id. A manager keeps what it has received of a message, so larger ones would let one node fill its
/// memory by many calls at once.
const MAX_FETCH_BYTES: usize = 1 << 10;

/// The service `warren.v1.Sessions`.
#[derive(Clone)]
pub struct SessionService {
    server: SessionServer,
    fetches: SessionsServer<SessionServer>,
    others: SessionsServer<SessionServer>,
    max_message_bytes: usize,
}

impl SessionService {
    /// Accepts messages of at most `largest` bytes from a worker.
    pub fn new(server: SessionServer, largest: usize) -> Self {
        let fetches = SessionsServer::new(server.clone()).max_decoding_message_size(MAX_FETCH_BYTES);
        let others = SessionsServer::new(server.clone()).max_decoding_message_size(largest);
        Self { server, fetches, others, max_message_bytes: largest }
    }
}

impl NamedService for SessionService {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<tonic::body::Body>> for SessionService {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        match request.uri().path() {
            ESTABLISH_PATH => {}
            FETCH_PATH => return self.fetches.call(request),
            _ => return self.others.call(request),
        }
        let (server, largest) = (self.server.clone(), Some(self.max_message_bytes));
        Box::pin(async move {
            let decoder = CompactCodec::<ManagerFrame, WorkerFrame>::default().decoder();
            let request = request.map(|body| Streaming::new_request(decoder, body, None, largest));
            let answer = match server.establish(Request::from_http(request)).await {
                // The service sets no response headers.
                Ok(answer) => into_response(answer.into_inner()),
                Err(status) => status.into_http(),
            };
            Ok(answer)
        })
    }
}

fn into_response(frames: <SessionServer as Sessions>::EstablishStream) -> http::Response<tonic::body::Body> {
    let mut answer = http::Response::new(tonic::body::Body::new(FrameBody(Some(frames))));
    answer.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    answer
}

/// Messages as a response body with the status as its trailers; `None` after the trailers.
struct FrameBody<S>(Option<S>);

impl<M, S> Body for FrameBody<S>
where
    M: Message,
    S: Stream<Item = Result<M, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(messages) = &mut self.0 else { return Poll::Ready(None) };
        let status = match ready!(Pin::new(messages).poll_next(context)) {
            Some(Ok(message)) => return Poll::Ready(Some(encode_frame(&message).map(Frame::data))),
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        self.0 = None;
        let mut trailers = HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

/// The message with its header, in a buffer of exactly its size.
fn encode_frame(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let wire_length = u32::try_from(length);
    let wire_length = wire_length
        .map_err(|_| Status::resource_exhausted(format!("frame too large: {length} bytes, at most 4 GiB")))?;
    let mut framed = Vec::with_capacity(GRPC_HEADER_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(wire_length);
    message.encode(&mut framed).expect("a growable buffer does not run out of space");
    Ok(framed.into())
}

#[cfg(test)]
mod tests;

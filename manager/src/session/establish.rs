//! How a session's frames get to the wire: each in memory of its own, which is free as soon as it is sent.
//!
//! tonic writes all frames of a stream into one buffer, which has room for the largest of them from then on. A manager
//! has as many sessions as workers, and each began with a whole assignment; what follows is a few bytes at a time. So
//! this one call is answered here, and all others of the service by what is generated for it.

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
use warren_proto::codec::Frugal;
use warren_proto::v1::sessions_server::{SERVICE_NAME, Sessions, SessionsServer};
use warren_proto::v1::{ManagerFrame, WorkerFrame};

use super::server::SessionServer;

const ESTABLISH: &str = "/warren.v1.Sessions/Establish";
/// What gRPC has before each message: whether it is compressed, and its length in four bytes.
const HEADER: usize = 5;

/// The service `warren.v1.Sessions`.
#[derive(Clone)]
pub struct SessionService {
    server: SessionServer,
    others: SessionsServer<SessionServer>,
    largest: usize,
}

impl SessionService {
    /// Takes messages of at most `largest` bytes from a worker.
    pub fn new(server: SessionServer, largest: usize) -> Self {
        let others = SessionsServer::new(server.clone()).max_decoding_message_size(largest);
        Self { server, others, largest }
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
        if request.uri().path() != ESTABLISH {
            return self.others.call(request);
        }
        let (server, largest) = (self.server.clone(), Some(self.largest));
        Box::pin(async move {
            let decoder = Frugal::<ManagerFrame, WorkerFrame>::default().decoder();
            let request = request.map(|body| Streaming::new_request(decoder, body, None, largest));
            let answer = match server.establish(Request::from_http(request)).await {
                // What it answers has no headers of its own.
                Ok(answer) => answered(answer.into_inner()),
                Err(status) => status.into_http(),
            };
            Ok(answer)
        })
    }
}

fn answered(frames: <SessionServer as Sessions>::EstablishStream) -> http::Response<tonic::body::Body> {
    let mut answer = http::Response::new(tonic::body::Body::new(Frames(Some(frames))));
    answer.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    answer
}

/// Messages as the body of an answer, and how they ended as its trailers; `None` after those.
struct Frames<S>(Option<S>);

impl<M, S> Body for Frames<S>
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
            Some(Ok(message)) => return Poll::Ready(Some(framed(&message).map(Frame::data))),
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

/// The message behind its header, in as many bytes as that takes.
fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let told = u32::try_from(length);
    let told =
        told.map_err(|_| Status::resource_exhausted(format!("a frame of {length} bytes, 4 GiB at most")))?;
    let mut framed = Vec::with_capacity(HEADER + length);
    framed.put_u8(0);
    framed.put_u32(told);
    message.encode(&mut framed).expect("there is always room in what grows");
    Ok(framed.into())
}

#[cfg(test)]
mod tests;

//! Counts API calls and their results; the outermost layer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;
use warren_telemetry::{Counter, Family, Histogram, Registry, short_latency_buckets};

use super::methods::METHODS;
use super::middleware::{CallFuture, Middleware};

/// The code of a call that its caller aborted.
const CANCELLED: Code = Code::Cancelled;

type ByMethod = [(&'static str, &'static str); 1];
type ByCode = [(&'static str, &'static str); 2];

/// Request metrics.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    calls: Family<ByCode, Counter>,
    /// Until the response headers. The duration of streams has no meaning.
    duration: Family<ByMethod, Histogram, fn() -> Histogram>,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let new = || Histogram::new(short_latency_buckets());
        Self { calls: Family::default(), duration: Family::new_with_constructor(new) }
    }
}

impl RequestMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let Self { calls, duration } = self.clone();
        registry.register("warren_api_requests", "Finished calls by method and gRPC code", calls);
        let help = "Time from a call to its response headers";
        registry.register("warren_api_request_duration_seconds", help, duration);
    }

    fn record(&self, method: &'static str, code: Code) {
        self.calls.get_or_create(&[("method", method), ("code", code_name(code))]).inc();
    }
}

/// The method name as in the `.proto`, without the package. Unknown methods share one name: callers could
/// send any number of them.
pub(super) fn method_name(path: &str) -> &'static str {
    let known = METHODS.iter().find(|(method, _)| *method == path);
    known.map_or("unknown", |(method, _)| method.strip_prefix("/warren.v1.").unwrap_or(method))
}

pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Counts every call, including those rejected before a handler runs: it must be the outermost layer.
impl Middleware for RequestMetrics {
    fn call<S>(&self, inner: &mut S, request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        let (metrics, method) = (self.clone(), method_name(request.uri().path()));
        // Counts as cancelled if it is dropped before the response.
        let mut call = TrackedCall { metrics, method, code: None, is_finished: false };
        let (begun, answer) = (Instant::now(), inner.call(request));
        Box::pin(async move {
            let response = answer.await?;
            let took = begun.elapsed().as_secs_f64();
            call.metrics.duration.get_or_create(&[("method", call.method)]).observe(took);
            call.read(response.headers());
            Ok(response.map(|body| Body::new(TrackedBody { body, call })))
        })
    }
}

/// A running call; counted when it is dropped.
#[derive(Debug)]
struct TrackedCall {
    metrics: RequestMetrics,
    method: &'static str,
    /// The status in the headers or trailers of the response.
    code: Option<Code>,
    /// The end of the response was reached: without a code the call succeeded.
    is_finished: bool,
}

impl TrackedCall {
    fn read(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.code = Some(status.code());
        }
    }
}

impl Drop for TrackedCall {
    fn drop(&mut self) {
        let without = if self.is_finished { Code::Ok } else { CANCELLED };
        self.metrics.record(self.method, self.code.unwrap_or(without));
    }
}

/// The body of a counted response.
struct TrackedBody {
    body: Body,
    call: TrackedCall,
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.call.read(trailers);
                }
            }
            Some(Err(status)) => self.call.code = Some(status.code()),
            None => self.call.is_finished = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use tower::Layer as _;
    use warren_telemetry::{Telemetry, TelemetryComponent};

    use super::super::middleware::{MiddlewareLayer, MiddlewareService};
    use super::*;

    /// Responds according to the path.
    #[derive(Clone)]
    struct StatusServer;

    struct ScriptedBody(Vec<Frame<Bytes>>);

    impl http_body::Body for ScriptedBody {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop().map(Ok))
        }
    }

    fn trailers(code: Code) -> HeaderMap {
        HeaderMap::from_iter([("grpc-status".parse().unwrap(), (code as i32).into())])
    }

    impl Service<http::Request<Body>> for StatusServer {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let data = || Frame::data(Bytes::from_static(b"x"));
            std::future::ready(Ok(match request.uri().path() {
                "/warren.v1.Services/Create" => {
                    let ok = Frame::trailers(trailers(Code::Ok));
                    http::Response::new(Body::new(ScriptedBody(vec![ok, data()])))
                }
                "/warren.v1.Images/Pull" => {
                    let failed = Frame::trailers(trailers(Code::Unavailable));
                    http::Response::new(Body::new(ScriptedBody(vec![failed, data(), data()])))
                }
                _ => Status::not_found("there is none").into_http(),
            }))
        }
    }

    struct RequestsFixture {
        server: MiddlewareService<RequestMetrics, StatusServer>,
        telemetry: Telemetry,
    }

    impl RequestsFixture {
        fn new() -> Self {
            let metrics = RequestMetrics::default();
            let mut part = TelemetryComponent::default();
            metrics.register(&mut part.metrics);
            let telemetry = Telemetry::with_components(&[]);
            telemetry.add("manager", part);
            Self { server: MiddlewareLayer(metrics).layer(StatusServer), telemetry }
        }

        /// Calls, and reads this number of frames of the response.
        async fn call(&mut self, path: &str, frames: usize) {
            let request = http::Request::builder().uri(path).body(Body::empty()).unwrap();
            let mut body = self.server.call(request).await.unwrap().into_body();
            for _ in 0..frames {
                std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            }
        }

        fn counters(&self) -> Vec<String> {
            let text = self.telemetry.metrics().unwrap();
            let lines = text.lines().filter_map(|line| line.strip_prefix("warren_api_requests_total"));
            let mut lines: Vec<_> = lines.map(str::to_owned).collect();
            lines.sort();
            lines
        }
    }

    #[tokio::test]
    async fn calls_are_counted_by_final_code() {
        let mut world = RequestsFixture::new();
        world.call("/warren.v1.Services/Create", 3).await;
        // The caller may stop reading after the trailers.
        world.call("/warren.v1.Services/Create", 2).await;
        world.call("/warren.v1.Images/Pull", 1).await;
        world.call("/warren.v1.Images/Pull", 3).await;
        world.call("/warren.v1.Services/Get", 1).await;
        world.call("/made/up", 0).await;
        world.call("/another", 0).await;
        let expected = [
            "{method=\"Images/Pull\",code=\"CANCELLED\"} 1",
            "{method=\"Images/Pull\",code=\"UNAVAILABLE\"} 1",
            "{method=\"Services/Create\",code=\"OK\"} 2",
            "{method=\"Services/Get\",code=\"NOT_FOUND\"} 1",
            "{method=\"unknown\",code=\"NOT_FOUND\"} 2",
        ];
        assert_eq!(world.counters(), expected);
        let text = world.telemetry.metrics().unwrap();
        let timed = "warren_api_request_duration_seconds_count{method=\"Services/Create\"} 2";
        assert!(text.lines().any(|line| line == timed), "{text}");
    }
}

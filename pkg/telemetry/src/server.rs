//! The small HTTP/1.1 server: three paths, for reading only.
//!
//! It must never take anything away from the node's work: few connections, each with one request and a short life.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::part::Telemetry;

/// Connections at once; further ones wait in the kernel.
const CONNECTIONS: usize = 16;
/// From a connection to its end. The probes take two seconds at most, a scrape of a large cluster some milliseconds.
const LIFE: Duration = Duration::from_secs(10);
/// For a request to arrive.
const REQUEST: Duration = Duration::from_secs(5);
/// The largest head of a request, in bytes.
const HEAD: usize = 16 << 10;
/// Before a connection is accepted again, when the system had none to give.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}: {source}")]
pub struct BindError {
    /// As asked for.
    pub address: SocketAddr,
    /// Why not.
    pub source: std::io::Error,
}

/// Answers `/health`, `/ready` and `/metrics`. Dropping it ends that at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens on `address` and answers for `telemetry`. Port 0 asks for any.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn start(address: SocketAddr, telemetry: Telemetry) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        tracing::info!(address = %bound, "serving /metrics, /health and /ready");
        Ok(Self { address: bound, accepting: tokio::spawn(accept(listener, telemetry)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, telemetry: Telemetry) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&room).acquire_owned().await.expect("nobody closes the semaphore");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let telemetry = telemetry.clone();
                connections.spawn(async move {
                    let _place = place;
                    // Whoever takes too long is cut off.
                    let _ = tokio::time::timeout(LIFE, serve(stream, telemetry)).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "no connection for metrics");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, telemetry: Telemetry) {
    let service = service_fn(move |request: Request<_>| {
        let telemetry = telemetry.clone();
        async move { Ok::<_, Infallible>(answer(request.method(), request.uri().path(), &telemetry).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .max_buf_size(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection for metrics ended badly");
    }
}

async fn answer(method: &Method, path: &str, telemetry: &Telemetry) -> Response<Full<Bytes>> {
    if !matches!(path, "/health" | "/ready" | "/metrics") {
        let text = "there is no such page; there are /metrics, /health and /ready\n";
        return response(StatusCode::NOT_FOUND, PLAIN, text.to_owned());
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused =
            response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "this page can only be read\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/health" => verdict(telemetry.unhealthy().await),
        "/ready" => verdict(telemetry.unready().await),
        _ => metrics(telemetry.clone()).await,
    }
}

fn verdict(wrong: Vec<String>) -> Response<Full<Bytes>> {
    match wrong.is_empty() {
        true => response(StatusCode::OK, PLAIN, "ok\n".to_owned()),
        false => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, wrong.join("\n") + "\n"),
    }
}

async fn metrics(telemetry: Telemetry) -> Response<Full<Bytes>> {
    // Counting tasks may take some milliseconds, in which others shall go on.
    match tokio::task::spawn_blocking(move || telemetry.metrics()).await {
        Ok(Ok(text)) => response(StatusCode::OK, OPEN_METRICS, text),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> Response<Full<Bytes>> {
    tracing::warn!(error = %error, "the metrics could not be collected");
    response(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the metrics could not be collected\n".to_owned())
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;

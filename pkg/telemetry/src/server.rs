//! The HTTP/1.1 server: three read-only paths.
//!
//! It must not affect the work of the node: few connections, each with one request and a short lifetime.

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

use crate::component::Telemetry;

/// Maximum number of connections; further ones wait in the kernel.
const CONNECTIONS: usize = 16;
/// Maximum lifetime of a connection. Probes take at most two seconds, a scrape of a large cluster some milliseconds.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(10);
/// Timeout of receiving a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the request head, in bytes.
const MAX_HEADERS_SIZE: usize = 16 << 10;
/// Delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Error of listening on the address.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}: {source}")]
pub struct MetricsBindError {
    /// Requested address.
    pub address: SocketAddr,
    /// Cause.
    pub source: std::io::Error,
}

/// Serves `/health`, `/ready` and `/metrics`. Dropping it stops the server.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl MetricsServer {
    /// Listens on `address` and serves `telemetry`. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`MetricsBindError`].
    pub async fn start(address: SocketAddr, telemetry: Telemetry) -> Result<Self, MetricsBindError> {
        let failed = |source| MetricsBindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        tracing::info!(address = %bound, "serving /metrics, /health and /ready");
        Ok(Self { address: bound, accepting: tokio::spawn(accept(listener, telemetry)) })
    }

    /// Listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, telemetry: Telemetry) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let telemetry = telemetry.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    // Slow connections are closed.
                    let _ = tokio::time::timeout(CONNECTION_LIFETIME, serve(stream, telemetry)).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "failed to accept a metrics connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, telemetry: Telemetry) {
    let service = service_fn(move |request: Request<_>| {
        let telemetry = telemetry.clone();
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), &telemetry).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_HEADERS_SIZE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a metrics connection failed");
    }
}

async fn respond(method: &Method, path: &str, telemetry: &Telemetry) -> Response<Full<Bytes>> {
    if !matches!(path, "/health" | "/ready" | "/metrics") {
        let text = "not found; use /metrics, /health or /ready\n";
        return response(StatusCode::NOT_FOUND, PLAIN, text.to_owned());
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused =
            response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET and HEAD are allowed\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/health" => status_response(telemetry.unhealthy().await),
        "/ready" => status_response(telemetry.unready().await),
        _ => metrics(telemetry.clone()).await,
    }
}

fn status_response(wrong: Vec<String>) -> Response<Full<Bytes>> {
    match wrong.is_empty() {
        true => response(StatusCode::OK, PLAIN, "ok\n".to_owned()),
        false => response(StatusCode::SERVICE_UNAVAILABLE, PLAIN, wrong.join("\n") + "\n"),
    }
}

async fn metrics(telemetry: Telemetry) -> Response<Full<Bytes>> {
    // Off the runtime, since it may take some milliseconds.
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

//! The server over real sockets.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{Counter, StatusProbe, TelemetryComponent};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What came back: the status, the head in lower case, the body.
async fn ask(server: &MetricsServer, request: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

async fn get(server: &MetricsServer, path: &str) -> (u16, String, String) {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")).await
}

async fn node() -> (MetricsServer, Telemetry, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(true));
    let seen = Arc::clone(&works);
    let check = move || {
        let works = seen.load(Ordering::Relaxed);
        async move { works.then_some(()).ok_or_else(|| "no session with a manager".to_owned()) }
    };
    let mut part = TelemetryComponent {
        readiness: vec![StatusProbe::new("session", check)],
        ..TelemetryComponent::default()
    };
    let counter = Counter::<u64>::default();
    counter.inc();
    part.metrics.register("worker_task_failures", "Tasks that failed", counter);
    let telemetry = Telemetry::with_components(&["worker"]);
    telemetry.add("worker", part);
    (MetricsServer::start(ANY_PORT, telemetry.clone()).await.unwrap(), telemetry, works)
}

#[tokio::test]
async fn three_pages_are_served_and_nothing_else() {
    let (server, telemetry, _) = node().await;
    let (status, head, body) = get(&server, "/metrics").await;
    assert_eq!((status, body), (200, telemetry.metrics().unwrap()));
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert_eq!(get(&server, "/health?verbose").await.0, 200);
    assert_eq!(get(&server, "/ready").await.2, "ok\n");
    for path in ["/", "/metrics/", "/debug", "/health/../metrics"] {
        assert_eq!(get(&server, path).await.0, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let (status, head, _) =
            ask(&server, &format!("{method} /metrics HTTP/1.1\r\nHost: node\r\n\r\n")).await;
        assert!(status == 405 && head.contains("allow: get, head"), "{method}: {head}");
    }
    let (status, _, body) = ask(&server, "HEAD /metrics HTTP/1.1\r\nHost: node\r\n\r\n").await;
    assert_eq!((status, body.as_str()), (200, ""));
}

#[tokio::test]
async fn failed_probe_sets_status_and_body() {
    let (server, _, works) = node().await;
    works.store(false, Ordering::Relaxed);
    let (status, _, body) = get(&server, "/ready").await;
    assert_eq!((status, body.as_str()), (503, "worker: session: no session with a manager\n"));
    assert_eq!(get(&server, "/health").await.0, 200, "what is not ready may still work");
    works.store(true, Ordering::Relaxed);
    assert_eq!(get(&server, "/ready").await.0, 200);
}

#[tokio::test]
async fn an_address_in_use_is_an_error_and_is_free_again_after_a_drop() {
    let (server, telemetry, _) = node().await;
    let address = server.address();
    let error = MetricsServer::start(address, telemetry.clone()).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot serve metrics on {address}: ")), "{error}");
    drop(server);
    // The task that listened ends at its next turn.
    let again = async {
        loop {
            match MetricsServer::start(address, telemetry.clone()).await {
                Ok(server) => return server,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(10), again).await.unwrap();
    assert_eq!(get(&again, "/health").await.0, 200);
}

#[tokio::test]
async fn a_request_that_is_no_http_or_too_large_is_refused() {
    let (server, ..) = node().await;
    assert_eq!(ask(&server, "what is this\r\n\r\n").await.0, 400);
    let long = format!("GET /{} HTTP/1.1\r\nHost: node\r\n\r\n", "a".repeat(2 * MAX_HEADERS_SIZE));
    let (status, ..) = ask(&server, &long).await;
    assert!([414, 431].contains(&status), "{status}");
}

#[tokio::test]
async fn idle_connections_are_bounded() {
    let (server, ..) = node().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").await.unwrap();
        silent.push(stream);
    }
    // All places are taken; the request that waits is answered when the silent ones are cut off.
    let answered = tokio::time::timeout(CONNECTION_LIFETIME * 2, get(&server, "/health")).await.unwrap();
    assert_eq!(answered.0, 200);
    let mut rest = Vec::new();
    silent[0].read_to_end(&mut rest).await.unwrap();
}

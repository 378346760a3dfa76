//! What a gRPC service sees of the peer, through tonic's own server.

use std::future::Ready;
use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::{Endpoint, Server};
use tower::{Service, ServiceExt, service_fn};

use super::*;

/// Answers every call with the peer found in the request, as a header.
#[derive(Clone)]
struct EchoPeer;

impl NamedService for EchoPeer {
    const NAME: &'static str = "test.WhoAmI";
}

impl Service<http::Request<Body>> for EchoPeer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<Peer>().expect("every request carries its peer");
        let response = http::Response::builder().header("peer", peer.to_string());
        std::future::ready(Ok(response.body(Body::empty()).unwrap()))
    }
}

fn spawn_server(
    incoming: IncomingConnections,
) -> tokio::task::JoinHandle<Result<(), tonic::transport::Error>> {
    tokio::spawn(Server::builder().add_service(EchoPeer).serve_with_incoming(incoming))
}

async fn ask(channel: tonic::transport::Channel) -> String {
    let request = http::Request::post("/test.WhoAmI/Ask").body(Body::empty()).unwrap();
    let answer = tokio::time::timeout(SOON, channel.oneshot(request)).await.unwrap().unwrap();
    answer.headers()["peer"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn requests_over_tls_carry_the_peer() {
    let authority = authority();
    let (incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let server = spawn_server(incoming);
    for (shown, expected) in
        [(Some(issue(&authority, Role::User, "alice")), "user alice at "), (None, "anonymous client at ")]
    {
        let config =
            client_config(&authority.roots(), shown.as_ref().map(ReloadableCertificate::new)).unwrap();
        let connector = service_fn(move |_| {
            let config = Arc::clone(&config);
            async move {
                let stream = TcpStream::connect(address).await.unwrap();
                connect(stream, config, SOON).await.map(TokioIo::new)
            }
        });
        let endpoint = Endpoint::from_static("http://warren-manager");
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        let peer = ask(channel).await;
        assert!(peer.starts_with(expected), "{peer}");
    }
    server.abort();
}

#[tokio::test]
async fn requests_over_the_local_socket_carry_the_user() {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("warren.sock");
    let server = spawn_server(serve_local(LocalListener::bind(&path, None).unwrap()));
    let dialled = path.clone();
    let connector = service_fn(move |_| {
        let dialled = dialled.clone();
        async move { UnixStream::connect(dialled).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://local").connect_with_connector(connector).await.unwrap();
    assert_eq!(ask(channel).await, format!("uid {}", nix::unistd::geteuid()));
    server.abort();
}

/// What a server says to a client without a certificate that sends only `hello`, until it closes the connection.
async fn answer_to_idle(authority: &CertificateAuthority, hello: &[u8], lifetime: Duration) -> Vec<u8> {
    let shown = ReloadableCertificate::new(&issue(authority, Role::Manager, "n1"));
    let limits = HandshakeLimits { lifetime, ..untimed() };
    let (incoming, address) = serve_within(authority, shown, limits).await;
    let server = spawn_server(incoming);
    let mut foreign = dial(authority, None, address).await.unwrap();
    let mut answer = Vec::new();
    // Closed in order or not: it is over.
    let _ = foreign.write_all(hello).await;
    let _ = tokio::time::timeout(SOON, foreign.read_to_end(&mut answer)).await.unwrap();
    server.abort();
    answer
}

/// Idle in HTTP/2, where nothing but its time ends it.
#[tokio::test]
async fn idle_anonymous_connection_is_closed() {
    let authority = authority();
    // The preface of HTTP/2 with empty settings (RFC 9113, 3.4), or not even that.
    for hello in [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice(), b""] {
        let mut answer = Vec::new();
        // On a loaded machine a lifetime may end before the server has said anything.
        for lifetime in [1, 4, 16].map(Duration::from_secs) {
            if answer.is_empty() {
                answer = answer_to_idle(&authority, hello, lifetime).await;
            }
        }
        assert!(!answer.is_empty(), "the server's own settings");
    }
}

mod anonymous;
mod local;
mod requests;

use std::time::SystemTime;

use rustls::CertificateError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::client::TlsStream;
use tokio_stream::StreamExt;

use super::*;
use crate::{
    CertificateAuthority, ConnectError, Credentials, ReloadableCertificate, Role, client_config, connect,
    server_config,
};

/// Longer than anything takes on a loaded machine.
const SOON: Duration = Duration::from_secs(60);
/// Much longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(600);
const TWO_YEARS: Duration = Duration::from_secs(2 * 365 * 24 * 60 * 60);

/// The default limits, but no limits of time: a loaded machine may pause a client in the middle of its handshake.
fn untimed() -> HandshakeLimits {
    HandshakeLimits {
        hello_timeout: LONG,
        handshake_timeout: LONG,
        lifetime: LONG,
        ..HandshakeLimits::default()
    }
}

fn authority() -> CertificateAuthority {
    // Made long ago, so that it can have issued what has expired by now.
    CertificateAuthority::create("c1x", SystemTime::now() - TWO_YEARS).unwrap()
}

fn issue(authority: &CertificateAuthority, role: Role, id: &str) -> Credentials {
    authority.issue(&Identity::new("c1x", role, id).unwrap(), SystemTime::now()).unwrap()
}

fn issue_expired(authority: &CertificateAuthority, role: Role) -> Credentials {
    authority.issue(&Identity::new("c1x", role, "old").unwrap(), SystemTime::now() - TWO_YEARS).unwrap()
}

/// A server that shows `shown`, and its address.
async fn serve_as(
    authority: &CertificateAuthority,
    shown: &Credentials,
) -> (IncomingConnections, SocketAddr) {
    serve_within(authority, ReloadableCertificate::new(shown), untimed()).await
}

async fn serve_within(
    authority: &CertificateAuthority,
    shown: Arc<ReloadableCertificate>,
    limits: HandshakeLimits,
) -> (IncomingConnections, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (serve_tls(listener, server_config(&authority.roots(), shown).unwrap(), limits), address)
}

async fn dial(
    trusted: &CertificateAuthority,
    shown: Option<&Credentials>,
    address: SocketAddr,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let config = client_config(&trusted.roots(), shown.map(ReloadableCertificate::new)).unwrap();
    connect(TcpStream::connect(address).await.unwrap(), config, SOON).await
}

async fn next(incoming: &mut IncomingConnections) -> PeerConnection {
    let next = tokio::time::timeout(SOON, incoming.next()).await.expect("a connection arrives");
    let Ok(connection) = next.expect("the server goes on");
    connection
}

/// Sends bytes both ways and gives back who the server saw.
async fn exchange(incoming: &mut IncomingConnections, mut client: TlsStream<TcpStream>) -> Peer {
    let mut server = next(incoming).await;
    let mut heard = [0; 4];
    client.write_all(b"ping").await.unwrap();
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
    server.write_all(b"pong").await.unwrap();
    server.flush().await.unwrap();
    client.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"pong");
    assert_eq!(client.get_ref().1.alpn_protocol(), Some(HTTP_2));
    assert_eq!(client.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    server.peer().clone()
}

const HTTP_2: &[u8] = b"h2";

/// The server refuses a certificate after the client's side of the handshake: the first read tells.
async fn refusal(client: Result<TlsStream<TcpStream>, ConnectError>) -> String {
    let error = tokio::time::timeout(SOON, client.unwrap().read_u8()).await.unwrap().unwrap_err();
    error.to_string()
}

fn refused_as_manager(result: Result<TlsStream<TcpStream>, ConnectError>) -> CertificateError {
    match result {
        Err(ConnectError::NotAManager(rustls::Error::InvalidCertificate(reason))) => reason,
        other => panic!("wanted a refused manager, found {other:?}"),
    }
}

#[tokio::test]
async fn every_role_is_recognized_and_others_are_anonymous() {
    let authority = authority();
    let (mut incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    for role in Role::ALL {
        let shown = issue(&authority, role, "n2");
        let client = dial(&authority, Some(&shown), address).await.unwrap();
        let from = client.get_ref().0.local_addr().unwrap();
        let peer = exchange(&mut incoming, client).await;
        let key = shown.key().public_hash().unwrap();
        assert_eq!(peer, Peer::Certificate { identity: shown.identity().clone(), key, address: from });
        assert_eq!(peer.to_string(), format!("{role} n2 at {from}"));
    }
    let foreign = dial(&authority, None, address).await.unwrap();
    let address = foreign.get_ref().0.local_addr().unwrap();
    assert_eq!(exchange(&mut incoming, foreign).await, Peer::Anonymous { address });
}

#[tokio::test]
async fn foreign_authority_is_refused_both_ways() {
    let (ours, theirs) = (authority(), authority());
    let (mut incoming, address) = serve_as(&ours, &issue(&ours, Role::Manager, "n1")).await;
    let reason = refused_as_manager(dial(&theirs, None, address).await);
    assert!(matches!(reason, CertificateError::UnknownIssuer | CertificateError::BadSignature), "{reason:?}");
    let intruder = issue(&theirs, Role::User, "eve");
    let text = refusal(dial(&ours, Some(&intruder), address).await).await;
    assert!(text.contains("UnknownCA") || text.contains("DecryptError"), "{text}");
    // Neither of them became a connection: the next one is the good one.
    let good = dial(&ours, Some(&issue(&ours, Role::User, "alice")), address).await.unwrap();
    assert!(exchange(&mut incoming, good).await.to_string().starts_with("user alice"));
}

#[tokio::test]
async fn only_manager_certificates_serve() {
    let authority = authority();
    for role in [Role::Worker, Role::User] {
        let pretender = issue(&authority, role, crate::MANAGER_NAME);
        let (_incoming, address) = serve_as(&authority, &pretender).await;
        let reason = refused_as_manager(dial(&authority, None, address).await);
        let by_name = matches!(
            reason,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        );
        let by_purpose = matches!(
            reason,
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. }
        );
        assert!(by_name || by_purpose, "{reason:?}");
    }
}

#[tokio::test]
async fn expired_certificates_are_refused_both_ways() {
    let authority = authority();
    let (_incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let text = refusal(dial(&authority, Some(&issue_expired(&authority, Role::User)), address).await).await;
    assert!(text.contains("CertificateExpired"), "{text}");

    let (_incoming, address) = serve_as(&authority, &issue_expired(&authority, Role::Manager)).await;
    let reason = refused_as_manager(dial(&authority, None, address).await);
    assert!(
        matches!(reason, CertificateError::Expired | CertificateError::ExpiredContext { .. }),
        "{reason:?}"
    );
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_from_the_next_handshake_on() {
    let authority = authority();
    let shown = ReloadableCertificate::new(&issue_expired(&authority, Role::Manager));
    let (mut incoming, address) = serve_within(&authority, Arc::clone(&shown), untimed()).await;
    refused_as_manager(dial(&authority, None, address).await);
    shown.replace(&issue(&authority, Role::Manager, "n1"));
    assert_eq!(shown.identity().id(), "n1");
    let client = dial(&authority, None, address).await.unwrap();
    exchange(&mut incoming, client).await;
}

#[tokio::test]
async fn a_client_shows_its_renewed_certificate_without_a_new_start() {
    let authority = authority();
    let (mut incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let first = issue(&authority, Role::Worker, "first");
    let live = ReloadableCertificate::new(&first);
    let config = client_config(&authority.roots(), Some(Arc::clone(&live))).unwrap();
    let dial = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        connect(stream, Arc::clone(&config), SOON).await.unwrap()
    };
    let mut open = dial().await;
    let mut open_there = next(&mut incoming).await;
    // The connection that is open goes on under the first certificate, the next one is under the second.
    for id in ["second", "third"] {
        live.replace(&issue(&authority, Role::Worker, id));
        let seen = exchange(&mut incoming, dial().await).await.to_string();
        assert!(seen.starts_with(&format!("worker {id} at ")), "{seen}");
    }
    open.write_all(b"x").await.unwrap();
    assert_eq!(open_there.read_u8().await.unwrap(), b'x');
    assert!(open_there.peer().to_string().starts_with("worker first at "));
    // What is not renewed in time is refused.
    live.replace(&issue_expired(&authority, Role::Worker));
    let text = refusal(Ok(dial().await)).await;
    assert!(text.contains("CertificateExpired"), "{text}");
}

#[tokio::test]
async fn tls_sessions_are_never_resumed() {
    let authority = authority();
    let (mut incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let shown = ReloadableCertificate::new(&issue(&authority, Role::Worker, "n2"));
    let mut eager = (*client_config(&authority.roots(), Some(shown)).unwrap()).clone();
    eager.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let eager = Arc::new(eager);
    for _ in 0..2 {
        let stream = TcpStream::connect(address).await.unwrap();
        let client = connect(stream, Arc::clone(&eager), SOON).await.unwrap();
        assert_eq!(client.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        exchange(&mut incoming, client).await;
    }
}

/// A ClientHello of TLS 1.2 (RFC 5246, 7.4.1.2) as a client sends it that knows nothing newer.
fn hello_of_tls_1_2() -> Vec<u8> {
    let extensions: &[&[u8]] = &[
        &[0, 10, 0, 4, 0, 2, 0, 23],         // supported_groups: secp256r1
        &[0, 11, 0, 2, 1, 0],                // ec_point_formats: uncompressed
        &[0, 13, 0, 4, 0, 2, 4, 3],          // signature_algorithms: ecdsa_secp256r1_sha256
        &[0, 16, 0, 5, 0, 3, 2, b'h', b'2'], // ALPN: h2
    ];
    let extensions = extensions.concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]); // no session, ECDHE-ECDSA-AES128-GCM-SHA256, no compression
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(u16::try_from(message.len()).unwrap().to_be_bytes());
    record.extend(message);
    record
}

#[tokio::test]
async fn tls_1_2_is_refused_by_its_version() {
    let authority = authority();
    let (_incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&hello_of_tls_1_2()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    // One alert record: fatal (2), protocol_version (70).
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
}

#[tokio::test]
async fn a_server_that_never_answers_runs_into_the_clients_deadline() {
    let authority = authority();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let config = client_config(&authority.roots(), None).unwrap();
    let short = Duration::from_millis(50);
    let refused = connect(stream, config, short).await.unwrap_err();
    assert!(matches!(refused, ConnectError::TimedOut(waited) if waited == short));
}

#[tokio::test]
async fn dropping_incoming_closes_listener_and_handshakes() {
    let authority = authority();
    let (incoming, address) = serve_as(&authority, &issue(&authority, Role::Manager, "n1")).await;
    let mut under_way = TcpStream::connect(address).await.unwrap();
    drop(incoming);
    let closed = tokio::time::timeout(SOON, under_way.read(&mut [0; 1])).await.unwrap();
    assert_eq!(closed.unwrap_or(0), 0);
    let free = async {
        while TcpListener::bind(address).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, free).await.expect("the port is free again");
}

use std::time::SystemTime;

use tokio::net::TcpListener;
use tonic::transport::Server;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::sessions_server::SessionsServer;
use warren_security::{
    CertificateAuthority, HandshakeLimits, Identity, ReloadableCertificate, Role, client_config, serve_tls,
    server_config,
};

use super::*;
use crate::fake_manager::new_service;

fn certificate(authority: &CertificateAuthority, role: Role) -> Arc<ReloadableCertificate> {
    let identity = Identity::new(authority.cluster(), role, "1").unwrap();
    ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1", SystemTime::now()).unwrap()
}

/// A manager of `authority` on a port of this machine.
async fn manager(authority: &CertificateAuthority) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tls = server_config(&authority.roots(), certificate(authority, Role::Manager)).unwrap();
    let incoming = serve_tls(listener, tls, HandshakeLimits::default());
    let (service, sessions, attached) = new_service();
    let server = Server::builder().add_service(SessionsServer::new(service));
    let server = tokio::spawn(async move {
        let _ends = (sessions, attached);
        server.serve_with_incoming(incoming).await.unwrap();
    });
    (address, server)
}

fn dialer(authority: &CertificateAuthority, managers: &[&str]) -> TlsDialer {
    let tls = client_config(&authority.roots(), Some(certificate(authority, Role::Worker))).unwrap();
    TlsDialer::new(
        warren_types::NodeId(warren_types::Id(7)),
        managers.iter().map(ToString::to_string).collect(),
        tls,
    )
}

#[tokio::test]
async fn managers_are_dialled_in_turn_over_tls() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    // A port that was just released has no listener.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    // Their order is that of this node.
    let dialer = dialer(&authority, &[&gone, &address]);
    assert_eq!(dialer.manager_count(), 2);
    let mut met = Vec::new();
    for _ in 0..4 {
        met.push(match dialer.dial().await {
            Ok(connected) => {
                assert_eq!(connected.dialled_from.as_deref(), Some("127.0.0.1"));
                connected.manager
            }
            Err(ManagerDialError::Unreachable { manager, .. }) => manager,
            Err(other) => panic!("{other}"),
        });
    }
    assert!(met[0] != met[1] && met[..2] == met[2..], "{met:?}");
    dialer.record_good_session(&gone);
    let connected = dialer.dial().await.unwrap();
    assert_eq!(connected.manager, address, "not the one that was left");
    let frames = tokio_stream::iter([v1::WorkerFrame::default()]);
    SessionsClient::new(connected.channel.clone()).establish(frames).await.unwrap();
    dialer.record_good_session(&address);
    assert!(dialer.dial().await.is_err(), "the other one's turn");
    // A lost connection is not re-established without the session.
    server.abort();
    let _ = server.await;
    let mut client = SessionsClient::new(connected.channel);
    let lost = async {
        loop {
            let frames = tokio_stream::iter([v1::WorkerFrame::default()]);
            if client.establish(frames).await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), lost).await.unwrap();
}

#[tokio::test]
async fn manager_of_other_cluster_is_refused() {
    let (address, server) = manager(&authority()).await;
    let refused = dialer(&authority(), &[&address]).dial().await;
    assert!(matches!(refused, Err(ManagerDialError::Insecure { .. })));
    server.abort();
    let nobody = dialer(&authority(), &[]).dial().await;
    assert!(matches!(nobody, Err(ManagerDialError::NoAddress)));
}

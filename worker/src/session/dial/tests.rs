use std::time::SystemTime;

use tokio::net::TcpListener;
use tonic::transport::Server;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::sessions_server::SessionsServer;
use warren_security::{
    CertificateAuthority, Identity, LiveCertificate, Role, StrangerLimits, client_config, serve_tls,
    server_config,
};

use super::*;
use crate::scripted::service;

fn certificate(authority: &CertificateAuthority, role: Role) -> Arc<LiveCertificate> {
    let identity = Identity::new(authority.cluster(), role, "1").unwrap();
    LiveCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1", SystemTime::now()).unwrap()
}

/// A manager of `authority` on a port of this machine.
async fn manager(authority: &CertificateAuthority) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tls = server_config(&authority.roots(), certificate(authority, Role::Manager)).unwrap();
    let incoming = serve_tls(listener, tls, StrangerLimits::default());
    let (service, sessions, attached) = service();
    let server = Server::builder().add_service(SessionsServer::new(service));
    let server = tokio::spawn(async move {
        let _ends = (sessions, attached);
        server.serve_with_incoming(incoming).await.unwrap();
    });
    (address, server)
}

fn dialer(authority: &CertificateAuthority, managers: &[&str]) -> Dialer {
    let tls = client_config(&authority.roots(), Some(certificate(authority, Role::Worker))).unwrap();
    Dialer::new(managers.iter().map(ToString::to_string).collect(), tls)
}

#[tokio::test]
async fn managers_are_dialled_in_turn_over_tls() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    // A port that was just given back is not served by anybody.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let dialer = dialer(&authority, &[&gone, &address]);
    assert!(matches!(dialer.dial().await, Err(DialError::Unreachable { manager, .. }) if manager == gone));
    let connected = dialer.dial().await.unwrap();
    assert_eq!((connected.manager, connected.dialled_from.as_deref()), (address, Some("127.0.0.1")));
    let frames = tokio_stream::iter([v1::WorkerFrame::default()]);
    SessionsClient::new(connected.channel.clone()).establish(frames).await.unwrap();
    assert!(dialer.dial().await.is_err(), "the first one's turn again");
    // A connection that is lost is not made again behind the session's back.
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
async fn a_manager_of_another_cluster_is_not_talked_to() {
    let (address, server) = manager(&authority()).await;
    let refused = dialer(&authority(), &[&address]).dial().await;
    assert!(matches!(refused, Err(DialError::Insecure { .. })));
    server.abort();
    let nobody = dialer(&authority(), &[]).dial().await;
    assert!(matches!(nobody, Err(DialError::NoAddress)));
}

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
    Dialer::new(
        warren_types::NodeId(warren_types::Id(7)),
        managers.iter().map(ToString::to_string).collect(),
        tls,
    )
}

#[tokio::test]
async fn managers_are_dialled_in_turn_over_tls() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    // A port that was just given back is not served by anybody.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    // Their order is that of this node.
    let dialer = dialer(&authority, &[&gone, &address]);
    assert_eq!(dialer.known(), 2);
    let mut met = Vec::new();
    for _ in 0..4 {
        met.push(match dialer.dial().await {
            Ok(connected) => {
                assert_eq!(connected.dialled_from.as_deref(), Some("127.0.0.1"));
                connected.manager
            }
            Err(DialError::Unreachable { manager, .. }) => manager,
            Err(other) => panic!("{other}"),
        });
    }
    assert!(met[0] != met[1] && met[..2] == met[2..], "{met:?}");
    dialer.lasted(&gone);
    let connected = dialer.dial().await.unwrap();
    assert_eq!(connected.manager, address, "not the one that was left");
    let frames = tokio_stream::iter([v1::WorkerFrame::default()]);
    SessionsClient::new(connected.channel.clone()).establish(frames).await.unwrap();
    dialer.lasted(&address);
    assert!(dialer.dial().await.is_err(), "the other one's turn");
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

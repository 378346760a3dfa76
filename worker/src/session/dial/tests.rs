use std::time::SystemTime;

use tokio::net::{TcpListener, TcpSocket};
use tonic::transport::Server;
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::sessions_server::SessionsServer;
use warren_security::{
    CertificateAuthority, HandshakeLimits, Identity, ReloadableCertificate, Revocations, Role, Trust,
    client_config, serve_tls, trusting_client_config, trusting_server_config,
};
use warren_task::DesiredState;
use warren_types::{Id, ManagerId, NodeSettings};

use super::*;
use crate::fake_manager::new_service;
use crate::fixtures::settings;
use crate::session::refuse_departed;

const NODE: NodeId = NodeId(Id(7));

fn certificate(authority: &CertificateAuthority, role: Role) -> Arc<ReloadableCertificate> {
    let identity = Identity::new(authority.cluster(), role, NODE.to_string()).unwrap();
    ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
}

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1", SystemTime::now()).unwrap()
}

/// A manager of `authority` on a port of this machine.
async fn manager(authority: &CertificateAuthority) -> (String, tokio::task::JoinHandle<()>) {
    manager_trusting(authority, Trust::new(&authority.roots()).unwrap()).await
}

async fn manager_trusting(
    authority: &CertificateAuthority,
    trust: Arc<Trust>,
) -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tls = trusting_server_config(trust, certificate(authority, Role::Manager)).unwrap();
    // A loaded machine may pause a client in the middle of its handshake.
    let long = Duration::from_secs(60);
    let limits = HandshakeLimits { hello_timeout: long, handshake_timeout: long, ..Default::default() };
    let incoming = serve_tls(listener, tls, limits);
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
    TlsDialer::new(NODE, managers.iter().map(ToString::to_string).collect(), tls)
}

/// The address of a port that refuses connections, and the socket that keeps the port from others.
fn closed_port() -> (String, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    (socket.local_addr().unwrap().to_string(), socket)
}

#[tokio::test]
async fn managers_are_dialled_in_turn_over_tls() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    let (gone, _held) = closed_port();
    // Their order is that of this node.
    let dialer = dialer(&authority, &[&gone, &address]);
    assert_eq!(dialer.manager_count(), 2);
    let mut met = Vec::new();
    for _ in 0..4 {
        met.push(match dialer.dial().await {
            Ok(connected) => {
                assert_eq!(connected.dialled_from.as_deref(), Some("127.0.0.1"));
                assert_eq!(connected.id, Some(ManagerId(NODE.0)));
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
    assert!(refused.is_err_and(|error| error.is_untrusted_manager()));
    server.abort();
    let nobody = dialer(&authority(), &[]).dial().await;
    assert!(matches!(nobody, Err(ManagerDialError::NoAddress)));
}

/// As on a machine that was off while the authority was replaced too often.
#[tokio::test]
async fn manager_that_no_earlier_authority_vouches_for_is_untrusted() {
    let ours = authority();
    let followed = ours.successor(SystemTime::now()).unwrap().without_predecessors();
    for (shown, is_untrusted) in [(&ours, false), (&followed, false), (&authority(), true)] {
        let (address, server) = manager(shown).await;
        let dialled = dialer(&ours, &[&address]).dial_anonymously().await;
        assert_eq!(dialled.is_err_and(|error| error.is_untrusted_manager()), is_untrusted);
        server.abort();
    }
    let (gone, _held) = closed_port();
    let dialled = dialer(&ours, &[&gone]).dial_anonymously().await;
    assert!(dialled.is_err_and(|error| !error.is_untrusted_manager()), "nothing is known of it");
}

#[tokio::test]
async fn removed_node_is_refused_and_learns_it_without_its_certificate() {
    let authority = authority();
    let trust = Trust::new(&authority.roots()).unwrap();
    let (address, server) = manager_trusting(&authority, Arc::clone(&trust)).await;
    let dialer = dialer(&authority, &[&address]);
    assert!(dialer.dial().await.is_ok());
    trust.revoke(Revocations { nodes: [NODE].into(), ..Revocations::default() });
    let refused = dialer.dial().await.err().expect("the certificate is revoked");
    assert_eq!(refused.refused_by(), Some(&*address), "{refused}");
    let request = v1::CheckNodeRequest { node_id: NODE.to_string(), version: None };
    let status = dialer.check_node(address, request).await.expect("it was removed");
    assert_eq!(Problem::from(&status).reason, NODE_REMOVED, "{status}");
    server.abort();
}

#[tokio::test]
async fn expired_certificate_is_refused_and_the_manager_is_dialled_without_it() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    let identity = Identity::new(authority.cluster(), Role::Worker, NODE.to_string()).unwrap();
    let long_ago = SystemTime::now() - 2 * Role::Worker.validity();
    let expired = ReloadableCertificate::new(&authority.issue(&identity, long_ago).unwrap());
    let tls = client_config(&authority.roots(), Some(expired)).unwrap();
    let dialer = TlsDialer::new(NODE, vec![address.clone()], tls);
    let refused = dialer.dial().await.err().expect("the certificate has expired");
    assert!(refused.is_certificate_expired(), "{refused}");
    assert_eq!(refused.refused_by(), Some(&*address), "it asks whether it was removed");
    assert_eq!(dialer.dial_anonymously().await.unwrap().manager, address);
    server.abort();
}

#[tokio::test]
async fn manager_that_left_is_refused() {
    let authority = authority();
    let (address, server) = manager(&authority).await;
    let trust = Trust::new(&authority.roots()).unwrap();
    let tls =
        trusting_client_config(Arc::clone(&trust), Some(certificate(&authority, Role::Worker))).unwrap();
    let dialer = TlsDialer::new(NODE, vec![address], tls);
    assert!(dialer.dial().await.is_ok());
    let settings = NodeSettings { revoked_managers: vec![ManagerId(NODE.0)], ..settings() };
    refuse_departed(&trust, &DesiredState { settings: Some(settings), ..DesiredState::default() });
    let refused = dialer.dial().await.err().expect("its certificate is revoked");
    assert!(refused.is_departed_manager(), "{refused}");
    server.abort();
}

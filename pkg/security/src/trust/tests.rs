use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_stream::StreamExt;
use warren_types::{Id, ManagerId, NodeId};

use super::*;
use crate::{
    CertificateAuthority, ConnectError, Credentials, HandshakeLimits, IncomingConnections,
    ReloadableCertificate, connect, connect_accepted, serve_tls, trusting_client_config,
    trusting_server_config,
};

const SOON: Duration = Duration::from_secs(60);

fn issue(authority: &CertificateAuthority, role: Role) -> Credentials {
    authority.issue(&Identity::new("c1x", role, "n1").unwrap(), SystemTime::now()).unwrap()
}

fn only(authority: &CertificateAuthority) -> Roots {
    Roots::parse(authority.certificate_pem()).unwrap()
}

/// An authority, the one that replaced it, and the one that replaced that.
fn authorities() -> [CertificateAuthority; 3] {
    let first = CertificateAuthority::create("c1x", SystemTime::now()).unwrap();
    let second = first.successor(SystemTime::now()).unwrap();
    let third = second.without_predecessors().successor(SystemTime::now()).unwrap();
    [first, second, third]
}

async fn serve(trust: Arc<Trust>, shown: &Credentials) -> (IncomingConnections, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let config = trusting_server_config(trust, ReloadableCertificate::new(shown)).unwrap();
    // A loaded machine may pause a client in the middle of its handshake.
    let limits = HandshakeLimits { hello_timeout: SOON, handshake_timeout: SOON, ..Default::default() };
    (serve_tls(listener, config, limits), address)
}

/// Whether both sides accept each other.
async fn meets(
    (incoming, address): &mut (IncomingConnections, SocketAddr),
    trust: &Arc<Trust>,
    shown: &Credentials,
) -> bool {
    let config = trusting_client_config(Arc::clone(trust), Some(ReloadableCertificate::new(shown))).unwrap();
    let stream = TcpStream::connect(*address).await.unwrap();
    let Ok(mut client) = connect(stream, config, SOON).await else { return false };
    // A server that refuses the certificate says so with the first read.
    let mut heard = [0; 1];
    tokio::select! {
        accepted = incoming.next() => {
            let Ok(mut server) = accepted.unwrap();
            server.write_all(b"x").await.unwrap();
            server.flush().await.unwrap();
            client.read_exact(&mut heard).await.is_ok()
        }
        refused = client.read_u8() => {
            assert!(refused.is_err());
            false
        }
    }
}

#[test]
fn a_successor_survives_its_file() {
    let [first, second, third] = authorities();
    for (authority, trusted) in [
        (&second, vec![second.digest(), first.digest()]),
        (&third, vec![third.digest(), second.digest()]),
        (&third.without_predecessors(), vec![third.digest()]),
    ] {
        let again = CertificateAuthority::parse_pem(&authority.to_pem()).unwrap();
        assert_eq!((again.digest(), again.cluster()), (authority.digest(), "c1x"));
        assert_eq!(again.roots().digests(), trusted);
        assert_eq!(again.trusts_predecessors(), trusted.len() > 1);
        assert_eq!(*again.to_pem(), *authority.to_pem());
        assert!(authority.has_replaced(&first) && !first.has_replaced(authority));
    }
    assert!(third.has_replaced(&second) && !second.has_replaced(&third) && !first.has_replaced(&first));
}

#[test]
fn earlier_roots_accept_certificates_of_their_successors_but_not_the_other_way_round() {
    let [first, second, third] = authorities();
    for role in Role::ALL {
        let (old, new, newest) = (issue(&first, role), issue(&second, role), issue(&third, role));
        only(&first).check_issued(&new).unwrap();
        only(&second).check_issued(&new).unwrap();
        for root in [&first, &second, &third] {
            only(root).check_issued(&newest).unwrap();
        }
        only(&second).check_issued(&old).unwrap_err();
        second.roots().check_issued(&old).unwrap();
        only(&third).check_issued(&new).unwrap_err();
    }
}

#[tokio::test]
async fn a_stolen_key_is_that_of_no_manager_after_its_authority_was_replaced() {
    let [stolen, current, _] = authorities();
    let (user, trust) = (issue(&current, Role::User), Trust::new(&only(&current)).unwrap());
    let mut impostor = serve(Trust::new(&only(&stolen)).unwrap(), &issue(&stolen, Role::Manager)).await;
    assert!(!meets(&mut impostor, &trust, &user).await);
    // The manager accepts the machine, whose key is listed, and no manager.
    let trust_of_manager = Trust::new(&only(&current)).unwrap();
    let mut manager = serve(Arc::clone(&trust_of_manager), &issue(&current, Role::Manager)).await;
    assert!(meets(&mut manager, &trust, &user).await);
    let away = Trust::new(&only(&stolen)).unwrap();
    assert!(!meets(&mut manager, &away, &issue(&stolen, Role::Worker)).await, "nothing is accepted before");
    trust_of_manager.replace(&only(&current), &[stolen.certificate_pem().to_owned()]).unwrap();
    assert!(meets(&mut manager, &away, &issue(&stolen, Role::Worker)).await);
    assert!(!meets(&mut manager, &away, &issue(&stolen, Role::Manager)).await);
}

#[tokio::test]
async fn trust_is_replaced_for_the_next_handshake() {
    let [old, new, _] = authorities();
    let mut server = serve(Trust::new(&new.roots()).unwrap(), &issue(&old, Role::Manager)).await;
    let (trust, user) = (Trust::new(&new.roots()).unwrap(), issue(&new, Role::User));
    let mut changes = trust.changes();
    assert!(meets(&mut server, &trust, &user).await);
    trust.replace(&new.roots(), &[]).unwrap();
    assert!(!changes.has_changed().unwrap(), "they are the same");
    trust.replace(&only(&new), &[]).unwrap();
    changes.changed().await.unwrap();
    assert!(!meets(&mut server, &trust, &user).await);
    assert_eq!(trust.roots().digests(), [new.digest()]);
}

/// A machine whose id is that number, or a user.
fn issue_numbered(authority: &CertificateAuthority, role: Role, id: u128) -> Credentials {
    let identity = Identity::new("c1x", role, NodeId(Id(id)).to_string()).unwrap();
    authority.issue(&identity, SystemTime::now()).unwrap()
}

#[tokio::test]
async fn revoked_clients_are_refused_in_the_handshake_and_others_are_not() {
    let [authority, ..] = authorities();
    let (trust, client) = (Trust::new(&only(&authority)).unwrap(), Trust::new(&only(&authority)).unwrap());
    let mut server = serve(Arc::clone(&trust), &issue(&authority, Role::Manager)).await;
    let shown = Role::ALL.map(|role| issue_numbered(&authority, role, 7));
    let [manager, worker, user] = &shown;
    let renewed = authority
        .issue_for(user.identity(), user.key().clone(), SystemTime::now() + Duration::from_secs(1))
        .unwrap();
    let key = user.key().public_hash().unwrap();
    let (nodes, managers, keys) = ([NodeId(Id(7))].into(), [ManagerId(Id(7))].into(), [key].into());
    let nothing = Revocations::default;
    for (revoked, accepted) in [
        (nothing(), [true; 4]),
        (Revocations { nodes, ..nothing() }, [true, false, true, true]),
        (Revocations { managers, ..nothing() }, [false, true, true, true]),
        (Revocations { keys, ..nothing() }, [true, true, false, false]),
        (Revocations { nodes: [NodeId(Id(8))].into(), ..nothing() }, [true; 4]),
    ] {
        trust.revoke(revoked.clone());
        for (shown, expected) in [manager, worker, user, &renewed].into_iter().zip(accepted) {
            let found = meets(&mut server, &client, shown).await;
            assert_eq!(found, expected, "{} with {revoked:?}", shown.identity());
        }
    }
}

#[tokio::test]
async fn both_sides_learn_that_a_certificate_is_revoked() {
    let [authority, ..] = authorities();
    let (trust, client) = (Trust::new(&only(&authority)).unwrap(), Trust::new(&only(&authority)).unwrap());
    let (_incoming, address) = serve(Arc::clone(&trust), &issue_numbered(&authority, Role::Manager, 7)).await;
    let node = issue_numbered(&authority, Role::Worker, 8);
    let dial = async || {
        let config = trusting_client_config(Arc::clone(&client), Some(ReloadableCertificate::new(&node)));
        connect_accepted(TcpStream::connect(address).await.unwrap(), config.unwrap(), SOON).await
    };
    trust.revoke(Revocations { nodes: [NodeId(Id(8))].into(), ..Revocations::default() });
    let refused = dial().await.unwrap_err();
    assert!(matches!(refused, ConnectError::Revoked), "{refused:?}");
    client.revoke(Revocations { managers: [ManagerId(Id(7))].into(), ..Revocations::default() });
    let refused = dial().await.unwrap_err();
    assert!(matches!(refused, ConnectError::RevokedManager), "{refused:?}");
}

#[tokio::test]
async fn client_learns_that_its_certificate_is_not_valid_now() {
    let [authority, ..] = authorities();
    let trust = Trust::new(&only(&authority)).unwrap();
    let (_incoming, address) = serve(Arc::clone(&trust), &issue(&authority, Role::Manager)).await;
    let (node, now) = (issue(&authority, Role::Worker), SystemTime::now());
    for issued_at in [now - 2 * Role::Worker.validity(), now + Duration::from_secs(3600)] {
        let shown = authority.issue_for(node.identity(), node.key().clone(), issued_at).unwrap();
        let shown = ReloadableCertificate::new(&shown);
        let config = trusting_client_config(Arc::clone(&trust), Some(shown)).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let refused = connect_accepted(stream, config, SOON).await.unwrap_err();
        assert!(matches!(refused, ConnectError::Expired), "{refused:?}");
    }
}

#[tokio::test]
async fn an_open_connection_ends_soon_after_its_certificate_is_revoked() {
    let [authority, ..] = authorities();
    let trust = Trust::new(&only(&authority)).unwrap();
    let (mut incoming, address) = serve(Arc::clone(&trust), &issue(&authority, Role::Manager)).await;
    let mut open = Vec::new();
    for id in [7, 8] {
        let shown = ReloadableCertificate::new(&issue_numbered(&authority, Role::Worker, id));
        let config = trusting_client_config(Trust::new(&only(&authority)).unwrap(), Some(shown)).unwrap();
        let client = connect(TcpStream::connect(address).await.unwrap(), config, SOON).await.unwrap();
        let Ok(server) = incoming.next().await.unwrap();
        open.push((client, server));
    }
    // No timer is set, so the time stands still until it is advanced.
    tokio::time::pause();
    trust.revoke(Revocations { nodes: [NodeId(Id(7))].into(), ..Revocations::default() });
    for (client, server) in &mut open {
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x', "there is time for a last word");
        client.write_all(b"y").await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(4)).await;
    // Another revocation gives no more time.
    trust.revoke(Revocations { nodes: [NodeId(Id(7)), NodeId(Id(9))].into(), ..Revocations::default() });
    let [(_, revoked), (_, other)] = &mut open[..] else { unreachable!("two were opened") };
    assert_eq!(revoked.read_u8().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    assert_eq!(other.read_u8().await.unwrap(), b'y');
}

//! Who is let in, by whom, and what is said when there is nobody.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::Instant;
use warren_security::Role;

use super::closed_port;
use super::scripted_server::{ScriptedApiServer, admin, authority};
use crate::contexts::{ClientIdentity, ClientTarget, PrivateKeyPem};
use crate::{Client, Error};

fn tcp(address: &str, identity: ClientIdentity) -> ClientTarget {
    ClientTarget::Tcp { addresses: vec![address.parse().unwrap()], identity }
}

#[tokio::test]
async fn an_admin_reaches_a_manager_of_the_cluster() {
    let (ours, manager) = (authority(), ScriptedApiServer::default());
    let (address, _serving) = manager.serve_port(&ours, Role::Manager);
    let client = Client::connect(&tcp(&address, admin(&ours, &ours))).await.unwrap();
    client.services().get("web").await.unwrap();
    assert_eq!(client.address(), address);
}

#[tokio::test]
async fn server_without_manager_certificate_is_refused() {
    let (ours, theirs, manager) = (authority(), authority(), ScriptedApiServer::default());
    // Of another cluster; and of ours, but only a worker.
    for (signer, role) in [(&theirs, Role::Manager), (&ours, Role::Worker)] {
        let (address, _serving) = manager.serve_port(signer, role);
        let error = Client::connect(&tcp(&address, admin(&ours, &ours))).await.unwrap_err();
        assert!(matches!(&error, Error::Untrusted { .. }), "{error:?}");
    }
    assert_eq!(manager.requests(), [""; 0]);
}

#[tokio::test]
async fn a_certificate_of_another_cluster_is_denied() {
    let (ours, theirs, manager) = (authority(), authority(), ScriptedApiServer::default());
    let (address, _serving) = manager.serve_port(&theirs, Role::Manager);
    // The refusal comes after the handshake (TLS 1.3): when connecting, or with the first call.
    let error = match Client::connect(&tcp(&address, admin(&theirs, &ours))).await {
        Ok(client) => client.services().get("web").await.unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(&error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn closed_port_is_unreachable() {
    let (ours, (address, _held)) = (authority(), closed_port());
    let error = Client::connect(&tcp(&address, admin(&ours, &ours))).await.unwrap_err().to_string();
    let expected = format!("cannot reach the manager at {address}: Connection refused");
    assert!(error.starts_with(&expected), "{error}");
}

#[tokio::test]
async fn handshake_that_a_manager_ends_is_repeated() {
    let (ours, manager) = (authority(), ScriptedApiServer::default());
    let (server, _serving) = manager.serve_port(&ours, Role::Manager);
    let connect = async |ended: usize| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, server) = (listener.local_addr().unwrap().to_string(), server.clone());
        let proxy = tokio::spawn(async move {
            for _ in 0..ended {
                drop(listener.accept().await.unwrap());
            }
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
        let begun = Instant::now();
        let connected = Client::connect(&tcp(&address, admin(&ours, &ours))).await;
        proxy.abort();
        (connected, begun.elapsed())
    };
    for (ended, is_reached) in [(2, true), (4, false)] {
        let (mut connected, mut took) = connect(ended).await;
        for _ in 0..10 {
            // On a loaded machine the client may have no time left to repeat the handshake.
            if is_reached && connected.is_err() && took > Duration::from_secs(2) {
                (connected, took) = connect(ended).await;
            }
        }
        assert_eq!(connected.is_ok(), is_reached, "{ended} ended: {connected:?}");
        let is_unreachable = matches!(connected, Err(Error::Unreachable { .. }));
        assert_eq!(is_unreachable, !is_reached);
    }
}

#[tokio::test]
async fn silent_server_is_unreachable_after_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ours = authority();
    // The kernel accepts, and no program answers; the paused clock jumps to the deadline.
    tokio::time::pause();
    let error = Client::connect(&tcp(&address, admin(&ours, &ours))).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn missing_and_unserved_sockets_differ() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let connect = async |socket: &std::path::Path| {
        let target = ClientTarget::Unix { socket: socket.to_owned() };
        Client::connect(&target).await.unwrap_err().to_string()
    };
    let error = connect(&socket).await;
    assert!(error.ends_with("does not exist; no manager runs here"), "{error}");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = connect(&socket).await;
    assert!(error.ends_with("the manager that created the socket does not run"), "{error}");
}

#[tokio::test]
async fn a_connection_that_was_lost_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, manager) = (dir.path().join("s"), ScriptedApiServer::default());
    let serving = manager.serve_socket_at(&socket);
    let client = Client::connect(&ClientTarget::Unix { socket: socket.clone() }).await.unwrap();
    client.services().get("a").await.unwrap();
    drop(serving);
    let _serving = manager.serve_socket_at(&socket);
    client.services().get("b").await.unwrap();
    assert_eq!(manager.requests(), ["a", "b"]);
}

#[tokio::test]
async fn manager_without_listener_is_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, manager) = (dir.path().join("s"), ScriptedApiServer::default());
    let serving = manager.serve_socket_at(&socket);
    let client = Client::connect(&ClientTarget::Unix { socket: socket.clone() }).await.unwrap();
    drop(serving);
    let error = client.services().get("a").await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn invalid_certificate_is_refused_before_dialing() {
    let ours = authority();
    let good = admin(&ours, &ours);
    let broken = [
        ClientIdentity { ca: "x".into(), ..good.clone() },
        ClientIdentity { certificate: "x".into(), ..good.clone() },
        ClientIdentity { key: PrivateKeyPem("SECRET".into()), ..good.clone() },
        ClientIdentity { key: admin(&ours, &ours).key, ..good },
    ];
    for identity in broken {
        let error = Client::connect(&tcp("127.0.0.1:1", identity)).await.unwrap_err();
        assert!(matches!(&error, Error::Identity { .. }), "{error:?}");
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
}

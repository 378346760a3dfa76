//! Those who show no certificate: what they may cost, and that they do not keep others out.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use tokio::net::TcpSocket;

use super::*;

/// Strangers hold what they have as long as they can.
const LONG_LIMITS: HandshakeLimits = HandshakeLimits {
    handshakes: 8,
    waiting: 16,
    hello_timeout: LONG,
    handshake_timeout: LONG,
    connections: 4,
    lifetime: LONG,
    bytes: 1 << 10,
};

/// A connection from another machine, as far as the server can see.
async fn dial_from(last: u8, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    tokio::time::timeout(SOON, socket.connect(address)).await.unwrap().unwrap()
}

async fn anonymous_from(
    last: u8,
    address: SocketAddr,
    authority: &CertificateAuthority,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let config = client_config(&authority.roots(), None).unwrap();
    connect(dial_from(last, address).await, config, SOON).await
}

async fn is_closed(connection: &mut (impl AsyncReadExt + Unpin)) -> bool {
    tokio::time::timeout(SOON, connection.read(&mut [0; 1])).await.unwrap().unwrap_or(0) == 0
}

/// What ended the server's side.
async fn read_until_closed(connection: &mut PeerConnection) -> String {
    let ended = tokio::time::timeout(SOON, connection.read(&mut [0; 1])).await.unwrap();
    ended.unwrap_err().to_string()
}

async fn serve_anonymous(
    authority: &CertificateAuthority,
    limits: HandshakeLimits,
) -> (IncomingConnections, SocketAddr) {
    let shown = ReloadableCertificate::new(&issue(authority, Role::Manager, "n1"));
    serve_within(authority, shown, limits).await
}

#[tokio::test]
async fn silent_connections_time_out_and_are_bounded() {
    let authority = authority();
    let hello_timeout = Duration::from_millis(300);
    let limits = HandshakeLimits { handshakes: 2, hello_timeout, ..untimed() };
    let (mut incoming, address) = serve_anonymous(&authority, limits).await;
    let (begin, mut silent) = (std::time::Instant::now(), Vec::new());
    for _ in 0..3 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // The address has one permit at a time, and still the one that speaks is served after them.
    let client = dial(&authority, None, address).await.unwrap();
    exchange(&mut incoming, client).await;
    assert!(begin.elapsed() >= 3 * hello_timeout, "{:?}", begin.elapsed());
    for mut stream in silent {
        assert!(is_closed(&mut stream).await);
    }
}

#[tokio::test]
async fn flood_of_silent_connections_does_not_delay_another_address() {
    let authority = authority();
    let (mut incoming, address) = serve_anonymous(&authority, LONG_LIMITS).await;
    let mut silent = Vec::new();
    for _ in 0..LONG_LIMITS.handshakes + LONG_LIMITS.waiting {
        silent.push(dial_from(9, address).await);
    }
    let worker = issue(&authority, Role::Worker, "n2");
    for _ in 0..2 {
        let seen = exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
        assert!(seen.to_string().starts_with("worker n2 at "));
    }
    let last = silent.last_mut().unwrap();
    assert!(is_closed(last).await, "half of the handshakes and the whole queue are taken");
}

/// The first word of a handshake.
fn hello(authority: &CertificateAuthority) -> Vec<u8> {
    let config = client_config(&authority.roots(), None).unwrap();
    let name = rustls_pki_types::ServerName::try_from(crate::MANAGER_NAME).unwrap();
    let mut hello = Vec::new();
    rustls::ClientConnection::new(config, name).unwrap().write_tls(&mut hello).unwrap();
    hello
}

/// Dials and says hello, but never answers.
async fn hello_from(last: u8, address: SocketAddr, authority: &CertificateAuthority) -> TcpStream {
    let mut stream = dial_from(last, address).await;
    stream.write_all(&hello(authority)).await.unwrap();
    stream
}

#[tokio::test]
async fn connection_closed_before_its_turn_is_not_answered() {
    let authority = authority();
    let limits = HandshakeLimits { handshakes: 1, ..LONG_LIMITS };
    let (mut incoming, address) = serve_anonymous(&authority, limits).await;
    let first = dial_from(9, address).await;
    let mut left = hello_from(9, address, &authority).await;
    left.shutdown().await.unwrap();
    drop(first);
    let worker = issue(&authority, Role::Worker, "n2");
    exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, left.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.is_empty(), "it got no handshake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_at_once_are_all_served() {
    const MANY: usize = 400;
    let authority = authority();
    let limits = HandshakeLimits { waiting: MANY, ..LONG_LIMITS };
    let (mut incoming, address) = serve_anonymous(&authority, limits).await;
    let worker = issue(&authority, Role::Worker, "n2");
    let config = client_config(&authority.roots(), Some(ReloadableCertificate::new(&worker))).unwrap();
    let mut dialling = JoinSet::new();
    for _ in 0..MANY {
        let config = Arc::clone(&config);
        dialling.spawn(async move { connect(dial_from(1, address).await, config, LONG).await });
    }
    let served = async {
        let mut connections = Vec::new();
        while connections.len() < MANY {
            connections.push(next(&mut incoming).await);
        }
        connections
    };
    let (served, dialled) = tokio::join!(served, dialling.join_all());
    assert_eq!((served.len(), dialled.iter().filter(|dialled| dialled.is_ok()).count()), (MANY, MANY));
}

#[tokio::test]
async fn anonymous_flood_delays_neither_workers_nor_joiners() {
    let authority = authority();
    let (mut incoming, address) = serve_anonymous(&authority, LONG_LIMITS).await;
    let (mut holders, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..LONG_LIMITS.connections / 2 {
        theirs.push(anonymous_from(9, address, &authority).await.unwrap());
        holders.push(next(&mut incoming).await);
    }
    // More of them from the same address wait, with the permits of their handshakes.
    for _ in 0..3 {
        theirs.push(anonymous_from(9, address, &authority).await.unwrap());
    }
    let worker = issue(&authority, Role::Worker, "n2");
    let seen = exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    assert!(seen.to_string().starts_with("worker n2 at "));
    let joiner = dial(&authority, None, address).await.unwrap();
    let seen = exchange(&mut incoming, joiner).await;
    assert!(matches!(seen, Peer::Anonymous { address } if address.ip() == Ipv4Addr::LOCALHOST), "{seen}");
    drop(holders.pop());
    let seen = next(&mut incoming).await.peer().to_string();
    assert!(seen.contains("127.0.0.9"), "the first that waited is next: {seen}");
}

#[tokio::test]
async fn closed_anonymous_connection_frees_a_permit() {
    let authority = authority();
    let limits = HandshakeLimits { connections: 1, ..LONG_LIMITS };
    let (mut incoming, address) = serve_anonymous(&authority, limits).await;
    for _ in 0..3 {
        let client = dial(&authority, None, address).await.unwrap();
        exchange(&mut incoming, client).await;
    }
}

#[tokio::test]
async fn anonymous_connection_has_a_lifetime() {
    let authority = authority();
    let limits = HandshakeLimits { lifetime: Duration::from_millis(100), ..LONG_LIMITS };
    let (mut incoming, address) = serve_anonymous(&authority, limits).await;
    let shown = issue(&authority, Role::Worker, "n2");
    let mut worker = dial(&authority, Some(&shown), address).await.unwrap();
    let mut worker_there = next(&mut incoming).await;
    let _stranger = dial(&authority, None, address).await.unwrap();
    let mut stranger_there = next(&mut incoming).await;
    let text = read_until_closed(&mut stranger_there).await;
    assert!(text.contains("its time limit is exceeded"), "{text}");
    assert!(stranger_there.write_all(b"x").await.is_err());
    worker.write_all(b"x").await.unwrap();
    assert_eq!(worker_there.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn anonymous_connection_has_a_byte_limit() {
    let authority = authority();
    let (mut incoming, address) = serve_anonymous(&authority, LONG_LIMITS).await;
    let worker = issue(&authority, Role::Worker, "n2");
    for (shown, may) in [(None, false), (Some(&worker), true)] {
        let mut client = dial(&authority, shown, address).await.unwrap();
        let mut server = next(&mut incoming).await;
        client.write_all(&vec![7; LONG_LIMITS.bytes + 1]).await.unwrap();
        let mut buffer = vec![0; LONG_LIMITS.bytes + 1];
        let heard = server.read_exact(&mut buffer);
        let heard = tokio::time::timeout(SOON, heard).await.unwrap();
        assert_eq!(heard.is_ok(), may, "{heard:?}");
    }
}

/// As fast as one machine can dial, against the numbers of connections that are in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_connect_during_an_endless_flood() {
    let authority = authority();
    let (mut incoming, address) = serve_anonymous(&authority, untimed()).await;
    let flood = tokio::spawn(async move {
        let mut held = VecDeque::new();
        loop {
            let stream = dial_from(9, address).await;
            // Otherwise the ports of those that were closed stay in use, until none is left.
            stream.set_zero_linger().unwrap();
            held.push_back(stream);
            if held.len() > 4 * HandshakeLimits::default().handshakes {
                held.pop_front();
            }
            tokio::task::yield_now().await;
        }
    });
    let worker = issue(&authority, Role::Worker, "n2");
    for _ in 0..5 {
        // The kernel may drop the first attempts to connect, and makes more.
        let dialled = tokio::time::timeout(SOON, dial(&authority, Some(&worker), address)).await;
        exchange(&mut incoming, dialled.expect("it gets through").unwrap()).await;
    }
    assert!(!flood.is_finished());
    flood.abort();
}

/// Twice as many connections from one address as there are handshakes. Each sends a ClientHello and nothing else, and
/// dials again as soon as it is closed. No handshake times out: a worker that had to wait for one would not connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_hellos_do_not_delay_workers() {
    let (authority, many) = (authority(), 2 * HandshakeLimits::default().handshakes);
    let (mut incoming, address) = serve_anonymous(&authority, untimed()).await;
    let (output, mut reported) = mpsc::channel(many);
    let (hello, mut flood) = (hello(&authority), JoinSet::new());
    for _ in 0..many {
        let (hello, text) = (hello.clone(), output.clone());
        flood.spawn(async move {
            loop {
                let mut stream = dial_from(9, address).await;
                // It may have to make way at any time.
                let _ = stream.write_all(&hello).await;
                let _ = text.try_send(());
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
    }
    let worker = ReloadableCertificate::new(&issue(&authority, Role::Worker, "n2"));
    let config = client_config(&authority.roots(), Some(worker)).unwrap();
    for _ in 0..many {
        tokio::time::timeout(SOON, reported.recv()).await.expect("all of them say hello");
    }
    for _ in 0..3 {
        let stream = dial_from(1, address).await;
        let worker = connect(stream, Arc::clone(&config), SOON).await.expect("it does not wait");
        exchange(&mut incoming, worker).await;
    }
    assert!(flood.try_join_next().is_none());
}

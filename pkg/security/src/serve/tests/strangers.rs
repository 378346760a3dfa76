//! Those who show no certificate: what they may cost, and that they do not keep others out.

use std::collections::VecDeque;

use tokio::net::TcpSocket;

use super::*;

/// Much longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(600);

/// Strangers hold what they have as long as they can.
const HOLDING: StrangerLimits = StrangerLimits {
    handshakes: 8,
    deadline: LONG,
    patience: LONG,
    answered: 8,
    answer_patience: LONG,
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

async fn stranger_from(
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
async fn ended(connection: &mut Connection) -> String {
    let ended = tokio::time::timeout(SOON, connection.read(&mut [0; 1])).await.unwrap();
    ended.unwrap_err().to_string()
}

async fn serve_strangers(authority: &CertificateAuthority, limits: StrangerLimits) -> (Incoming, SocketAddr) {
    let shown = LiveCertificate::new(&issue(authority, Role::Manager, "n1"));
    serve_within(authority, shown, limits).await
}

#[tokio::test]
async fn silent_strangers_are_closed_at_the_deadline_and_bounded_in_number() {
    let authority = authority();
    let limits = StrangerLimits {
        handshakes: 2,
        deadline: Duration::from_millis(300),
        patience: Duration::from_secs(60),
        ..StrangerLimits::default()
    };
    let shown = LiveCertificate::new(&issue(&authority, Role::Manager, "n1"));
    let (mut incoming, address) = serve_within(&authority, shown, limits).await;
    let (begin, mut silent) = (std::time::Instant::now(), Vec::new());
    for _ in 0..4 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // All places are taken twice over, and still the one who speaks is served after them.
    let client = dial(&authority, None, address).await.unwrap();
    exchange(&mut incoming, client).await;
    assert!(begin.elapsed() >= 2 * limits.deadline, "{:?}", begin.elapsed());
    for mut stream in silent {
        let closed = tokio::time::timeout(SOON, stream.read(&mut [0; 1])).await.unwrap();
        assert_eq!(closed.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn a_flood_of_silent_strangers_does_not_keep_a_worker_out() {
    let authority = authority();
    let limits = StrangerLimits { patience: Duration::from_millis(20), ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    let mut silent = Vec::new();
    for _ in 0..4 * limits.handshakes {
        silent.push(dial_from(9, address).await);
    }
    let worker = dial(&authority, Some(&issue(&authority, Role::Worker, "n2")), address).await.unwrap();
    assert!(exchange(&mut incoming, worker).await.to_string().starts_with("worker n2 at "));
    // It is the first who had to go.
    assert!(is_closed(&mut silent[0]).await);
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
async fn whoever_leaves_us_without_an_answer_gives_way_to_others_and_may_still_answer() {
    let authority = authority();
    let limits = StrangerLimits { answered: 1, answer_patience: Duration::from_millis(20), ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(hello_from(9, address, &authority).await);
    }
    let slow = LiveCertificate::new(&issue(&authority, Role::Worker, "n1"));
    let config = client_config(&authority.roots(), Some(slow)).unwrap();
    let name = rustls_pki_types::ServerName::try_from(crate::MANAGER_NAME).unwrap();
    let mut slow = rustls::ClientConnection::new(config, name).unwrap();
    let mut stream = dial_from(1, address).await.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    slow.write_tls(&mut stream).unwrap();
    // All of them are answered, and one after the other: the next one after each had its time.
    for stream in &mut silent {
        assert!(!is_closed(stream).await);
    }
    let worker = issue(&authority, Role::Worker, "n2");
    let seen = exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    assert!(seen.to_string().starts_with("worker n2 at "));
    let answered = tokio::task::spawn_blocking(move || slow.complete_io(&mut stream).map(|_| stream));
    let seen = next(&mut incoming).await.peer().to_string();
    assert!(seen.starts_with("worker n1 at "), "{seen}");
    answered.await.unwrap().unwrap();
}

#[tokio::test]
async fn who_left_before_its_turn_is_not_answered() {
    let authority = authority();
    let limits = StrangerLimits { answered: 1, answer_patience: Duration::from_millis(50), ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    let _first = hello_from(9, address, &authority).await;
    let mut left = hello_from(9, address, &authority).await;
    left.shutdown().await.unwrap();
    let worker = issue(&authority, Role::Worker, "n2");
    exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, left.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.is_empty(), "it got no handshake");
}

/// Whoever comes waits for its turn, and nothing that was begun is given up for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_who_come_at_once_are_served_in_turn_and_nobody_twice() {
    const MANY: usize = 400;
    let authority = authority();
    let limits = StrangerLimits { handshakes: 64, answered: 4, ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    let worker = issue(&authority, Role::Worker, "n2");
    let config = client_config(&authority.roots(), Some(LiveCertificate::new(&worker))).unwrap();
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
async fn silent_strangers_make_way_for_other_machines_at_once() {
    let authority = authority();
    let (mut incoming, address) = serve_strangers(&authority, HOLDING).await;
    let mut silent = Vec::new();
    for _ in 0..HOLDING.handshakes {
        silent.push(dial_from(9, address).await);
    }
    let worker = issue(&authority, Role::Worker, "n2");
    for _ in 0..2 {
        exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    }
    assert!(is_closed(&mut silent[0]).await);
}

#[tokio::test]
async fn strangers_who_hold_all_their_places_keep_neither_workers_nor_joiners_out() {
    let authority = authority();
    let (mut incoming, address) = serve_strangers(&authority, HOLDING).await;
    let (mut holders, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..HOLDING.connections {
        theirs.push(stranger_from(9, address, &authority).await.unwrap());
        holders.push(next(&mut incoming).await);
    }
    // More of them from the same machine wait, and take only handshakes.
    for _ in 0..3 {
        theirs.push(stranger_from(9, address, &authority).await.unwrap());
    }
    let worker = issue(&authority, Role::Worker, "n2");
    let seen = exchange(&mut incoming, dial(&authority, Some(&worker), address).await.unwrap()).await;
    assert!(seen.to_string().starts_with("worker n2 at "));
    let joiner = dial(&authority, None, address).await.unwrap();
    let seen = exchange(&mut incoming, joiner).await;
    assert!(matches!(seen, Peer::Anonymous { address } if address.ip() == Ipv4Addr::LOCALHOST), "{seen}");
    let text = ended(&mut holders[0]).await;
    assert!(text.contains("its place was needed for another"), "{text}");
    holders.remove(0);
    assert!(is_closed(&mut theirs[0]).await);
}

#[tokio::test]
async fn a_stranger_that_leaves_makes_room_for_the_next() {
    let authority = authority();
    let limits = StrangerLimits { connections: 1, ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    for _ in 0..3 {
        let client = dial(&authority, None, address).await.unwrap();
        exchange(&mut incoming, client).await;
    }
}

#[tokio::test]
async fn a_stranger_is_closed_at_the_end_of_its_time_and_a_worker_is_not() {
    let authority = authority();
    let limits = StrangerLimits { lifetime: Duration::from_millis(100), ..HOLDING };
    let (mut incoming, address) = serve_strangers(&authority, limits).await;
    let shown = issue(&authority, Role::Worker, "n2");
    let mut worker = dial(&authority, Some(&shown), address).await.unwrap();
    let mut worker_there = next(&mut incoming).await;
    let _stranger = dial(&authority, None, address).await.unwrap();
    let mut stranger_there = next(&mut incoming).await;
    let text = ended(&mut stranger_there).await;
    assert!(text.contains("its time was over"), "{text}");
    assert!(stranger_there.write_all(b"x").await.is_err());
    worker.write_all(b"x").await.unwrap();
    assert_eq!(worker_there.read_u8().await.unwrap(), b'x');
}

#[tokio::test]
async fn a_stranger_that_talks_too_much_is_closed_and_a_worker_is_not() {
    let authority = authority();
    let (mut incoming, address) = serve_strangers(&authority, HOLDING).await;
    let worker = issue(&authority, Role::Worker, "n2");
    for (shown, may) in [(None, false), (Some(&worker), true)] {
        let mut client = dial(&authority, shown, address).await.unwrap();
        let mut server = next(&mut incoming).await;
        client.write_all(&vec![7; HOLDING.bytes + 1]).await.unwrap();
        let mut buffer = vec![0; HOLDING.bytes + 1];
        let heard = server.read_exact(&mut buffer);
        let heard = tokio::time::timeout(SOON, heard).await.unwrap();
        assert_eq!(heard.is_ok(), may, "{heard:?}");
    }
}

/// As fast as one machine can dial, against the limits that are in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_get_through_a_flood_that_does_not_end() {
    let authority = authority();
    let (mut incoming, address) = serve_strangers(&authority, StrangerLimits::default()).await;
    let flood = tokio::spawn(async move {
        let mut held = VecDeque::new();
        loop {
            held.push_back(dial_from(9, address).await);
            if held.len() > 2 * StrangerLimits::default().handshakes {
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

/// So many connections from one address as there are places, each of which says hello and nothing else, and comes again
/// as soon as it is closed; against the limits that are in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_who_say_hello_and_nothing_else_do_not_make_a_worker_wait() {
    /// As long as managers give each other for a handshake.
    const PATIENCE: Duration = Duration::from_secs(2);
    let (authority, many) = (authority(), StrangerLimits::default().handshakes);
    let (mut incoming, address) = serve_strangers(&authority, StrangerLimits::default()).await;
    let (said, mut told) = mpsc::channel(many);
    let (hello, mut flood) = (hello(&authority), JoinSet::new());
    for _ in 0..many {
        let (hello, said) = (hello.clone(), said.clone());
        flood.spawn(async move {
            loop {
                let mut stream = dial_from(9, address).await;
                // It may have to make way at any time.
                let _ = stream.write_all(&hello).await;
                let _ = said.try_send(());
                let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            }
        });
    }
    let worker = LiveCertificate::new(&issue(&authority, Role::Worker, "n2"));
    let config = client_config(&authority.roots(), Some(worker)).unwrap();
    for _ in 0..many {
        tokio::time::timeout(SOON, told.recv()).await.expect("all of them say hello");
    }
    for _ in 0..3 {
        let stream = dial_from(1, address).await;
        let worker = connect(stream, Arc::clone(&config), PATIENCE).await.expect("it does not wait");
        exchange(&mut incoming, worker).await;
    }
    assert!(flood.try_join_next().is_none());
}

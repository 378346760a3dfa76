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

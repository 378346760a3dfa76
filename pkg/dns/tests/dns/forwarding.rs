//! Answers of upstreams.

use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_server::proto::rr::Record;
use hickory_server::proto::rr::rdata::{A, SOA};
use tokio::net::TcpListener;

use super::*;

/// What an upstream does with a query.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    Answer {
        host: u8,
        ttl: u32,
    },
    Silent,
    Code(ResponseCode),
    /// Says over UDP that the answer is too long, and answers over TCP.
    Truncate {
        host: u8,
    },
    /// First sends answers with a wrong id, to another question, and no answer.
    Forge {
        host: u8,
    },
    /// Asks this server the same from that address, and answers what it gets.
    AskBack {
        server: SocketAddr,
        from: Ipv4Addr,
    },
}

struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Upstream {
    /// At an address of its own, 127.0.1.NUMBER.
    async fn start(number: u8, behaviour: Behaviour) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 1, number), 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        if let Behaviour::Truncate { host } = behaviour {
            tokio::spawn(serve_tcp(TcpListener::bind(address).await.unwrap(), host));
        }
        tokio::spawn(serve(Arc::new(socket), behaviour, Arc::clone(&asked)));
        Self { address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn reply(query: &Message, host: u8, ttl: u32) -> Message {
    let mut reply = query.clone().into_response();
    reply.metadata.message_type = MessageType::Response;
    let name = query.queries[0].name().clone();
    reply.add_answer(Record::from_rdata(name, ttl, RData::A(A::new(192, 0, 2, host))));
    reply
}

async fn serve(socket: Arc<UdpSocket>, behaviour: Behaviour, asked: Arc<AtomicUsize>) {
    let mut buffer = [0; 4096];
    loop {
        let (size, from) = socket.recv_from(&mut buffer).await.unwrap();
        asked.fetch_add(1, Ordering::SeqCst);
        let query = Message::from_vec(&buffer[..size]).unwrap();
        let send = async |message: &Message| {
            socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        };
        match behaviour {
            Behaviour::Answer { host, ttl } => send(&reply(&query, host, ttl)).await,
            Behaviour::Silent => {}
            Behaviour::Code(code) => {
                let mut reply = query.clone().into_response();
                reply.metadata.response_code = code;
                if code == ResponseCode::NXDomain {
                    let data = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, 20);
                    reply.add_authority(Record::from_rdata(Name::root(), 60, RData::SOA(data)));
                }
                send(&reply).await;
            }
            Behaviour::Truncate { .. } => {
                let mut reply = query.clone().into_response();
                reply.metadata.truncation = true;
                send(&reply).await;
            }
            Behaviour::Forge { host } => {
                let mut forged = reply(&query, 66, 60);
                forged.metadata.id ^= 1;
                send(&forged).await;
                let mut forged = reply(&query, 66, 60);
                forged.queries[0].set_name(Name::from_ascii("other.example.").unwrap());
                send(&forged).await;
                send(&query).await;
                socket.send_to(b"x", from).await.unwrap();
                send(&reply(&query, host, 60)).await;
            }
            Behaviour::AskBack { server, from: own } => {
                let socket = Arc::clone(&socket);
                tokio::spawn(async move {
                    let back = UdpSocket::bind((own, 0)).await.unwrap();
                    let mut question = query.clone();
                    question.metadata.id ^= 0xff;
                    back.send_to(&question.to_vec().unwrap(), server).await.unwrap();
                    let mut buffer = [0; 4096];
                    let size = back.recv(&mut buffer).await.unwrap();
                    let mut reply = Message::from_vec(&buffer[..size]).unwrap();
                    reply.metadata.id = query.id;
                    socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
                });
            }
        }
    }
}

async fn serve_tcp(listener: TcpListener, host: u8) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let query = receive(&mut stream).await.unwrap();
        let mut long = reply(&query, host, 60);
        for other in 0..250 {
            let record = reply(&query, other, 60).answers.remove(0);
            long.add_answer(record);
        }
        send(&mut stream, &long.to_vec().unwrap()).await;
    }
}

fn answer(host: u8) -> Behaviour {
    Behaviour::Answer { host, ttl: 60 }
}

fn host(number: u8) -> Vec<Ipv4Addr> {
    vec![Ipv4Addr::new(192, 0, 2, number)]
}

fn use_upstreams(server: &DnsServer, upstreams: &[&Upstream]) {
    server.set_upstreams(&upstreams.iter().map(|upstream| upstream.address).collect::<Vec<_>>());
}

#[tokio::test]
async fn name_outside_is_forwarded_once_and_then_cached() {
    let (server, upstream) = (start(), Upstream::start(1, answer(1)).await);
    use_upstreams(&server, &[&upstream]);
    let question = with_edns(query("WwW.eXample.com.", RecordType::A), 1232);
    for from in [CLIENT, OTHER] {
        let answer = ask(&server, from, &question).await;
        assert_eq!(addresses_in(&answer), host(1));
        assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
        assert!(answer.queries[0].name().eq_case(question.queries[0].name()));
        assert!(answer.edns.is_some() && answer.answers[0].ttl <= 60);
    }
    assert_eq!(addresses(&server, "www.example.com.").await, host(1), "another case, and no EDNS");
    let counters = server.counters();
    assert_eq!((upstream.asked(), counters.forwarded, counters.cached), (1, 1, 2));
    let upstreams = Upstream::start(2, answer(2)).await;
    use_upstreams(&server, &[&upstreams]);
    assert_eq!(addresses(&server, "www.example.com.").await, host(2), "the answer of another upstream");
}

#[tokio::test]
async fn names_of_the_cluster_never_leave() {
    let (server, upstream) = (start(), Upstream::start(1, answer(1)).await);
    use_upstreams(&server, &[&upstream]);
    for name in ["nope.", "nope.warren.", "web.", "a.b.warren.", "9.200.210.10.in-addr.arpa.", "warren."] {
        for record in [RecordType::A, RecordType::AAAA, RecordType::PTR, RecordType::SRV, RecordType::NS] {
            ask(&server, CLIENT, &query(name, record)).await;
        }
    }
    assert_eq!((upstream.asked(), server.counters().forwarded), (0, 0));
}

#[tokio::test]
async fn absence_is_cached() {
    let server = start();
    let upstream = Upstream::start(1, Behaviour::Code(ResponseCode::NXDomain)).await;
    use_upstreams(&server, &[&upstream]);
    for _ in 0..3 {
        let answer = ask(&server, CLIENT, &query("nope.example.com.", RecordType::A)).await;
        assert_eq!((answer.response_code, answer.authorities.len()), (ResponseCode::NXDomain, 1));
    }
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn silent_upstream_is_asked_last_afterwards() {
    let server = start();
    let (silent, next) = (Upstream::start(1, Behaviour::Silent).await, Upstream::start(2, answer(2)).await);
    use_upstreams(&server, &[&silent, &next]);
    for name in ["a.example.com.", "b.example.com.", "c.example.com."] {
        assert_eq!(addresses(&server, name).await, host(2));
    }
    assert_eq!((silent.asked(), next.asked(), server.counters().upstream_timeouts), (1, 3, 1));
}

#[tokio::test]
async fn upstream_that_fails_or_is_not_there_is_passed_over() {
    let server = start();
    // No process listens on this port.
    let gone = SocketAddr::from((Ipv4Addr::new(127, 0, 1, 9), 1));
    let failing = Upstream::start(1, Behaviour::Code(ResponseCode::ServFail)).await;
    let refusing = Upstream::start(2, Behaviour::Code(ResponseCode::Refused)).await;
    let next = Upstream::start(3, answer(3)).await;
    server.set_upstreams(&[gone, failing.address, refusing.address, next.address]);
    assert_eq!(addresses(&server, "a.example.com.").await, host(3));
    assert_eq!((failing.asked(), refusing.asked(), next.asked()), (1, 1, 1));
    server.set_upstreams(&[failing.address, gone]);
    let mut failures = 0;
    for name in ["a.example.com.", "b.example.com.", "c.example.com."] {
        let before = failing.asked();
        for _ in 0..2 {
            assert_eq!(code(&server, CLIENT, name).await, ResponseCode::ServFail);
            failures += 1;
        }
        // It is cached for a second; on a busy machine the second question may come later.
        if failing.asked() == before + 1 {
            break;
        }
        assert_ne!(name, "c.example.com.", "a failure is cached");
    }
    server.set_upstreams(&[]);
    assert_eq!(code(&server, CLIENT, "d.example.com.").await, ResponseCode::ServFail);
    assert_eq!(server.counters().failures, failures + 1);
}

#[tokio::test]
async fn answer_too_long_for_a_datagram_is_fetched_over_tcp() {
    let (server, upstream) = (start(), Upstream::start(1, Behaviour::Truncate { host: 77 }).await);
    use_upstreams(&server, &[&upstream]);
    let question = query("long.example.com.", RecordType::A);
    let answer = ask(&server, CLIENT, &question).await;
    assert!(answer.metadata.truncation && answer.answers.len() > 10, "{}", answer.answers.len());
    let mut stream = connect(&server, CLIENT).await;
    send(&mut stream, &question.to_vec().unwrap()).await;
    let answer = receive(&mut stream).await.unwrap();
    assert_eq!((answer.answers.len(), answer.metadata.truncation), (251, false));
}

#[tokio::test]
async fn forged_answers_are_ignored() {
    let (server, upstream) = (start(), Upstream::start(1, Behaviour::Forge { host: 5 }).await);
    use_upstreams(&server, &[&upstream]);
    assert_eq!(addresses(&server, "a.example.com.").await, host(5));
    assert_eq!(upstream.asked(), 1);
}

#[tokio::test]
async fn servers_of_a_client_are_asked_instead() {
    let server = start();
    let (of_node, own) = (Upstream::start(1, answer(1)).await, Upstream::start(2, answer(2)).await);
    use_upstreams(&server, &[&of_node]);
    server.set_table(table(&[(CLIENT, client(&[own.address])), (OTHER, client(&[]))].into()));
    assert_eq!(addresses(&server, "a.example.com.").await, host(2));
    let answer = ask(&server, OTHER, &query("a.example.com.", RecordType::A)).await;
    assert_eq!(addresses_in(&answer), host(1), "the cache of others is not used");
    assert_eq!((of_node.asked(), own.asked()), (1, 1));
}

#[tokio::test]
async fn this_server_is_no_upstream_of_itself() {
    let server = start();
    server.set_upstreams(server.addresses());
    server.set_table(table(&[(CLIENT, client(server.addresses()))].into()));
    assert_eq!(code(&server, CLIENT, "a.example.com.").await, ResponseCode::ServFail);
    let counters = server.counters();
    assert_eq!((counters.queries, counters.forwarded), (1, 0));
}

#[tokio::test]
async fn upstream_that_asks_back_is_found_out() {
    let server = start();
    let looping = Behaviour::AskBack { server: server.addresses()[0], from: Ipv4Addr::new(127, 0, 1, 1) };
    let (looping, next) = (Upstream::start(1, looping).await, Upstream::start(2, answer(2)).await);
    server.set_table(table(&[(CLIENT, client(&[])), (Ipv4Addr::new(127, 0, 1, 1), client(&[]))].into()));
    use_upstreams(&server, &[&looping, &next]);
    for name in ["a.example.com.", "b.example.com."] {
        assert_eq!(addresses(&server, name).await, host(2));
    }
    assert_eq!((looping.asked(), next.asked(), server.counters().loops), (1, 2, 1));
}

#[tokio::test]
async fn query_that_comes_back_from_elsewhere_is_not_forwarded_again() {
    let server = start();
    let looping = Behaviour::AskBack { server: server.addresses()[0], from: OTHER };
    let (looping, next) = (Upstream::start(1, looping).await, Upstream::start(2, answer(2)).await);
    use_upstreams(&server, &[&looping, &next]);
    assert_eq!(addresses(&server, "a.example.com.").await, host(2));
    let counters = server.counters();
    assert_eq!((looping.asked(), next.asked()), (1, 1));
    assert_eq!((counters.forwarded, counters.joined), (1, 1));
}

#[tokio::test]
async fn too_many_waiting_queries_fail_at_once_and_names_of_services_do_not() {
    let (server, silent) = (start(), Upstream::start(1, Behaviour::Silent).await);
    use_upstreams(&server, &[&silent]);
    let socket = UdpSocket::bind((CLIENT, 0)).await.unwrap();
    for number in 0..65 {
        let mut question = query(&format!("n{number}.example.com."), RecordType::A);
        question.metadata.id = number;
        socket.send_to(&question.to_vec().unwrap(), server.addresses()[0]).await.unwrap();
    }
    let mut buffer = [0; 512];
    let size = timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let answer = Message::from_vec(&buffer[..size]).unwrap();
    assert_eq!((answer.id, answer.response_code), (64, ResponseCode::ServFail));
    assert_eq!(addresses(&server, "web.").await, [address(0xe001)]);
    assert_eq!(server.counters().overloads, 1);
    // Queries that still wait fail when the server stops.
    server.stop().await;
    let size = timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(Message::from_vec(&buffer[..size]).unwrap().response_code, ResponseCode::ServFail);
}

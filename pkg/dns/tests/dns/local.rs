//! Answers from the table.

use tokio::time::Instant;
use warren_dns::{ENDPOINT_TTL, NEGATIVE_TTL, VIRTUAL_ADDRESS_TTL};

use super::*;

#[tokio::test]
async fn service_is_answered_over_udp_and_tcp_in_the_case_of_the_question() {
    let server = start();
    let question = query("WeB.wArReN.", RecordType::A);
    let over_udp = ask(&server, CLIENT, &question).await;
    let mut stream = connect(&server, CLIENT).await;
    send(&mut stream, &question.to_vec().unwrap()).await;
    let over_tcp = receive(&mut stream).await.unwrap();
    for answer in [over_udp, over_tcp] {
        assert_eq!(addresses_in(&answer), [address(0xe001)]);
        let (metadata, record) = (&answer.metadata, &answer.answers[0]);
        assert!(metadata.authoritative && metadata.recursion_available && metadata.recursion_desired);
        assert!(!metadata.truncation && answer.edns.is_none());
        assert_eq!(record.ttl, VIRTUAL_ADDRESS_TTL);
        assert!(answer.queries[0].name().eq_case(question.queries[0].name()), "{}", answer.queries[0]);
        assert!(record.name.eq_case(question.queries[0].name()), "{}", record.name);
    }
    let counters = server.counters();
    assert_eq!((counters.queries, counters.answered, counters.failures), (2, 2, 0));
}

#[tokio::test]
async fn absence_has_a_start_of_authority() {
    let server = start();
    for (name, record, code, owner) in [
        ("web.", RecordType::AAAA, ResponseCode::NoError, "."),
        ("web.warren.", RecordType::TXT, ResponseCode::NoError, "warren."),
        ("nope.warren.", RecordType::A, ResponseCode::NXDomain, "warren."),
        ("nope.", RecordType::AAAA, ResponseCode::NXDomain, "."),
        ("9.200.210.10.in-addr.arpa.", RecordType::PTR, ResponseCode::NXDomain, "in-addr.arpa."),
    ] {
        let answer = ask(&server, CLIENT, &query(name, record)).await;
        assert_eq!((answer.response_code, answer.answers.len()), (code, 0), "{name}");
        let [authority] = &answer.authorities[..] else { panic!("{name}: {answer}") };
        assert_eq!((authority.name.to_ascii().as_str(), authority.ttl), (owner, NEGATIVE_TTL), "{name}");
        let RData::SOA(data) = &authority.data else { panic!("{authority}") };
        assert_eq!(data.minimum, NEGATIVE_TTL);
    }
}

#[tokio::test]
async fn answer_that_does_not_fit_is_truncated_and_complete_over_tcp() {
    let server = start();
    for (question, limit) in [
        (query("many.", RecordType::A), 512),
        (with_edns(query("many.", RecordType::A), 512), 512),
        (with_edns(query("many.", RecordType::A), 700), 700),
        (with_edns(query("many.", RecordType::A), 65_535), 1232),
        (with_edns(query("_http._tcp.many.", RecordType::SRV), 65_535), 1232),
    ] {
        let bytes = exchange(&server, CLIENT, &question.to_vec().unwrap()).await;
        let answer = Message::from_vec(&bytes).unwrap();
        assert!(answer.metadata.truncation && bytes.len() <= limit, "{} bytes", bytes.len());
        assert!(bytes.len() > limit - 100, "{} bytes: more records would fit", bytes.len());
        assert!(!answer.answers.is_empty() && answer.additionals.is_empty());
        assert_eq!(answer.edns.is_some(), question.edns.is_some());
    }
    let mut stream = connect(&server, CLIENT).await;
    send(&mut stream, &query("many.", RecordType::A).to_vec().unwrap()).await;
    send(&mut stream, &query("_http._tcp.many.", RecordType::SRV).to_vec().unwrap()).await;
    send(&mut stream, &query("huge.", RecordType::A).to_vec().unwrap()).await;
    let answer = receive(&mut stream).await.unwrap();
    assert_eq!(addresses_in(&answer), (100..300).map(address).collect::<Vec<_>>());
    let answer = receive(&mut stream).await.unwrap();
    assert_eq!(
        (answer.answers.len(), answer.additionals.len(), answer.metadata.truncation),
        (200, 200, false)
    );
    let answer = receive(&mut stream).await.unwrap();
    assert!(answer.metadata.truncation && answer.answers.len() > 2_000, "{}", answer.answers.len());
}

#[tokio::test]
async fn service_records_have_the_addresses_of_their_targets() {
    let server = start();
    let answer = ask(&server, CLIENT, &query("_80._tcp.web.warren.", RecordType::SRV)).await;
    let mut found = Vec::new();
    for record in &answer.answers {
        let RData::SRV(data) = &record.data else { panic!("{record}") };
        assert_eq!((data.port, record.ttl), (80, ENDPOINT_TTL));
        let target = answer.additionals.iter().find(|beside| beside.name == data.target).unwrap();
        found.push(format!("{} {}", data.target, target.data));
    }
    found.sort();
    assert_eq!(found, ["web-1.warren. 10.210.0.2", "web-2.warren. 10.210.0.3", "web-3.warren. 10.210.0.4"]);
    let answer = ask(&server, CLIENT, &query("2.0.210.10.in-addr.arpa.", RecordType::PTR)).await;
    assert_eq!(answer.answers[0].data.to_string(), "web-1.warren.");
}

#[tokio::test]
async fn kind_of_query_that_is_not_served_is_refused() {
    let server = start();
    let answer = ask(&server, CLIENT, &query("web.", RecordType::ANY)).await;
    assert_eq!(answer.answers[0].record_type(), RecordType::HINFO);
    assert_eq!(answer.answers.len(), 1);
    let mut old = with_edns(query("web.", RecordType::A), 1232);
    old.edns.as_mut().unwrap().set_version(1);
    let answer = ask(&server, CLIENT, &old).await;
    // It shares its number with BADSIG.
    assert_eq!(u16::from(answer.response_code), u16::from(ResponseCode::BADVERS));
    for record in [RecordType::AXFR, RecordType::IXFR] {
        let answer = ask(&server, CLIENT, &query("warren.", record)).await;
        assert_eq!(answer.response_code, ResponseCode::Refused);
    }
    let mut chaos = query("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(hickory_server::proto::rr::DNSClass::CH);
    assert_eq!(ask(&server, CLIENT, &chaos).await.response_code, ResponseCode::Refused);
    // The node itself is no client: names outside of the cluster are not looked up for it.
    assert_eq!(code(&server, Ipv4Addr::LOCALHOST, "example.com.").await, ResponseCode::Refused);
    assert_eq!(code(&server, Ipv4Addr::LOCALHOST, "web.").await, ResponseCode::NoError);
    assert_eq!(server.counters().refused, 4);
}

#[tokio::test]
async fn malformed_and_huge_packets_do_no_harm() {
    let server = start();
    let good = query("web.", RecordType::A).to_vec().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let header = |counts: [u8; 8], rest: &[u8]| [&[0x12, 0x67, 1, 0][..], &counts, rest].concat();
    let one = [0, 1, 0, 0, 0, 0, 0, 0];
    let labels = [&[60][..], &[b'a'; 60]].concat().repeat(5);
    let format_error = [
        good[..12].to_vec(),
        good[..good.len() - 1].to_vec(),
        changed(5, 0),
        changed(5, 2),
        changed(4, 0xff),
        changed(7, 1),
        changed(11, 1),
        // Pointers to the header, to itself and behind itself, a label of 64 bytes, a name of 300, text after it.
        header(one, &[1, b'a', 0xc0, 2, 0, 1, 0, 1]),
        header(one, &[0xc0, 12, 0, 1, 0, 1]),
        header(one, &[0xc0, 200, 0, 1, 0, 1]),
        header(one, &[&[64][..], &[b'a'; 64], &[0, 0, 1, 0, 1]].concat()),
        header(one, &[&labels[..], &[0, 0, 1, 0, 1]].concat()),
        header([0xff; 8], &[0; 4000]),
        header([0, 1, 0, 0, 0, 0, 0xff, 0xff], &vec![0; 60_000]),
    ];
    for bytes in &format_error {
        let answer = exchange(&server, CLIENT, bytes).await;
        assert_eq!((answer.len(), answer[3] & 15), (12, 1), "{bytes:02x?}: {answer:02x?}");
        assert_eq!(answer[..2], bytes[..2]);
        assert_eq!(answer[2] & 0x80, 0x80);
    }
    let notify = exchange(&server, CLIENT, &changed(2, 0x21)).await;
    assert_eq!((notify.len(), notify[2], notify[3] & 15), (12, 0xa1, 4));
    let malformed = server.counters().malformed;
    assert_eq!(malformed, format_error.len() as u64 + 1);
    // What is no query has no answer: the next one on the same socket is that of the query.
    let socket = UdpSocket::bind((CLIENT, 0)).await.unwrap();
    for bytes in [&good[..0], &[0; 5], &good[..11], &changed(2, 0x81)[..]] {
        socket.send_to(bytes, server.addresses()[0]).await.unwrap();
    }
    socket.send_to(&good, server.addresses()[0]).await.unwrap();
    let mut buffer = [0; 512];
    let size = timeout(ANSWER_LIMIT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(addresses_in(&Message::from_vec(&buffer[..size]).unwrap()), [address(0xe001)]);
}

#[tokio::test]
async fn connections_of_one_client_are_limited() {
    let server = start();
    let question = query("web.", RecordType::A).to_vec().unwrap();
    let mut open = Vec::new();
    for _ in 0..16 {
        let mut stream = connect(&server, CLIENT).await;
        send(&mut stream, &question).await;
        assert!(receive(&mut stream).await.is_some());
        open.push(stream);
    }
    assert!(receive(&mut connect(&server, CLIENT).await).await.is_none());
    assert_eq!(server.counters().rejected_connections, 1);
    let mut other = connect(&server, OTHER).await;
    send(&mut other, &question).await;
    assert!(receive(&mut other).await.is_some());
    // A message that is no query ends its connection, and makes room for another.
    let mut first = open.remove(0);
    send(&mut first, &[0; 3]).await;
    assert!(receive(&mut first).await.is_none());
    let mut next = connect(&server, CLIENT).await;
    send(&mut next, &question).await;
    assert!(receive(&mut next).await.is_some());
}

/// In virtual time, which passes while both sides wait.
#[tokio::test(start_paused = true)]
async fn idle_and_slow_connections_are_closed() {
    let server = start();
    for (sent, seconds) in [(&[][..], 10), (&[0, 50, 1, 2, 3][..], 5)] {
        let mut stream = connect(&server, CLIENT).await;
        let start = Instant::now();
        stream.write_all(sent).await.unwrap();
        assert!(receive(&mut stream).await.is_none());
        assert_eq!(start.elapsed().as_secs(), seconds);
    }
}

#[tokio::test]
async fn table_is_replaced_while_the_server_runs() {
    let server = start();
    assert_eq!(addresses(&server, "web.").await, [address(0xe001)]);
    server.set_table(NameTable::default());
    // Without clients the sender is the node itself, and nothing is known yet.
    assert_eq!(code(&server, CLIENT, "web.").await, ResponseCode::ServFail);
    server.set_table(table(&clients()));
    assert_eq!(addresses(&server, "web.").await, [address(0xe001)]);
}

#[tokio::test]
async fn stopped_server_frees_its_addresses() {
    let server = start();
    let address = server.addresses()[0];
    let error = DnsSockets::bind(address).unwrap_err();
    assert!(error.to_string().contains("/udp; try: ss -ulnp 'sport = :"), "{error}");
    let mut stream = connect(&server, CLIENT).await;
    send(&mut stream, &query("web.", RecordType::A).to_vec().unwrap()).await;
    assert!(receive(&mut stream).await.is_some());
    server.stop().await;
    assert!(receive(&mut stream).await.is_none());
    drop(stream);
    // The closed connection keeps the TCP port for a minute unless it is shared, so only the other is tried.
    UdpSocket::bind(address).await.unwrap();
}

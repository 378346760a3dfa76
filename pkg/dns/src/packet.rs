//! From the bytes of a query to the bytes of its answer, except for what upstreams have to answer. Pure.

use std::net::SocketAddr;
use std::sync::LazyLock;

use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::{Edns, LowerQuery, Message, Metadata, ResponseCode};
use hickory_server::proto::rr::rdata::{A, HINFO, PTR, SOA, SRV};
use hickory_server::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_server::proto::serialize::binary::BinEncoder;
use hickory_server::server::Request;
use hickory_server::zone_handler::MessageResponseBuilder;
use smallvec::SmallVec;

use crate::resolve::{
    DOMAIN, ENDPOINT_TTL, InstanceName, NEGATIVE_TTL, Question, QuestionKind, Resolution, Zone, resolve,
};
use crate::table::NameTable;

/// The size of an answer over UDP that is never fragmented, whatever the client would accept (DNS flag day 2020).
pub(crate) const MAX_UDP_PAYLOAD: u16 = 1232;
/// The size of an answer over UDP for a client without EDNS.
const MIN_UDP_PAYLOAD: u16 = 512;
/// The bytes of an OPT record without options.
const OPT_SIZE: u16 = 11;
/// The bytes of a message's header.
const HEADER_SIZE: usize = 12;

/// How a query arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In one datagram.
    Udp,
    /// On a connection.
    Tcp,
}

/// What is done with a query.
#[derive(Debug)]
pub enum Reaction {
    /// It is no query: nothing.
    Ignore,
    /// These bytes are sent back.
    Reply(Vec<u8>, ReplyKind),
    /// Upstreams are asked.
    Forward(Box<ForwardedQuery>),
}

/// For counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplyKind {
    /// From the table.
    Answered,
    /// The query cannot be read, or is of a kind that is not served.
    Malformed,
    /// The sender may not ask this.
    Refused,
    /// There is no answer now.
    Failed,
}

/// A query that upstreams have to answer.
#[derive(Debug)]
pub struct ForwardedQuery {
    /// The query.
    pub(crate) request: Request,
    /// The client's own upstreams, which are asked instead of those of the node; empty: those of the node.
    pub(crate) servers: Vec<SocketAddr>,
}

/// What is done with `bytes`, which came from the address `from`. `seed` selects the order of addresses.
pub fn react(
    table: &NameTable,
    bytes: Vec<u8>,
    from: SocketAddr,
    transport: Transport,
    seed: u64,
) -> Reaction {
    let malformed = |header: [u8; HEADER_SIZE], code| {
        Reaction::Reply(header_only(header, code).to_vec(), ReplyKind::Malformed)
    };
    let Some(header) = bytes.first_chunk::<HEADER_SIZE>().copied() else { return Reaction::Ignore };
    let is_response = header[2] & 0x80 != 0;
    // Two servers must not answer each other's answers.
    if is_response || from.port() == 0 {
        return Reaction::Ignore;
    }
    if header[2] & 0x78 != 0 {
        return malformed(header, ResponseCode::NotImp);
    }
    if header[4..6] != [0, 1] || !has_plain_name(&bytes[HEADER_SIZE..]) {
        return malformed(header, ResponseCode::FormErr);
    }
    let protocol = match transport {
        Transport::Udp => Protocol::Udp,
        Transport::Tcp => Protocol::Tcp,
    };
    let Ok(request) = Request::from_bytes(bytes, from, protocol) else {
        return malformed(header, ResponseCode::FormErr);
    };
    let Ok(info) = request.request_info() else { return malformed(header, ResponseCode::FormErr) };
    if request.version() > 0 {
        return Reaction::Reply(empty_reply(&request, ResponseCode::BADVERS), ReplyKind::Malformed);
    }
    if info.query.query_class() != DNSClass::IN {
        return Reaction::Reply(empty_reply(&request, ResponseCode::Refused), ReplyKind::Refused);
    }
    let resolution = {
        let labels: SmallVec<[&[u8]; 8]> = info.query.name().iter().collect();
        let question = Question { labels: &labels, kind: kind(info.query.query_type()) };
        resolve(table, from.ip(), &question, seed)
    };
    match resolution {
        Resolution::Forward(servers) => {
            let servers = servers.to_vec();
            Reaction::Forward(Box::new(ForwardedQuery { request, servers }))
        }
        Resolution::Refused => {
            Reaction::Reply(empty_reply(&request, ResponseCode::Refused), ReplyKind::Refused)
        }
        Resolution::Unavailable => Reaction::Reply(failure(&request), ReplyKind::Failed),
        found => Reaction::Reply(local_reply(&request, info.query, found), ReplyKind::Answered),
    }
}

/// Whether a name is written in full. The question is repeated in the reply as it is, where a pointer to the header
/// would mean something else.
fn has_plain_name(mut bytes: &[u8]) -> bool {
    while let Some((length, rest)) = bytes.split_first().filter(|(length, _)| **length < 64) {
        match rest.get(usize::from(*length)..) {
            _ if *length == 0 => return true,
            Some(next) => bytes = next,
            None => return false,
        }
    }
    false
}

fn kind(record: RecordType) -> QuestionKind {
    match record {
        RecordType::A => QuestionKind::Address,
        RecordType::SRV => QuestionKind::Service,
        RecordType::PTR => QuestionKind::Pointer,
        RecordType::ANY => QuestionKind::Any,
        RecordType::AXFR | RecordType::IXFR => QuestionKind::Transfer,
        _ => QuestionKind::Other,
    }
}

/// A reply without the question, for a query that could not be read further.
fn header_only(query: [u8; HEADER_SIZE], code: ResponseCode) -> [u8; HEADER_SIZE] {
    let mut header = [0; HEADER_SIZE];
    header[..2].copy_from_slice(&query[..2]);
    // The answer bit, with the query's operation and the bit with which it asks for recursion.
    header[2] = 0x80 | query[2] & 0x79;
    header[3] = code.low();
    header
}

/// The records of a reply.
#[derive(Default)]
struct Sections {
    answers: Vec<Record>,
    /// The authority section.
    authorities: Vec<Record>,
    additionals: Vec<Record>,
}

fn local_reply(request: &Request, query: &LowerQuery, resolution: Resolution<'_>) -> Vec<u8> {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.authoritative = true;
    metadata.recursion_available = true;
    // In the case of the question, in which resolvers hide random bits (draft-vixie-dnsext-dns0x20).
    let asked = query.original().name();
    let record = |ttl, data| Record::from_rdata(asked.clone(), ttl, data);
    let mut sections = Sections::default();
    match resolution {
        Resolution::Addresses { addresses, ttl } => {
            sections.answers = addresses.iter().map(|address| record(ttl, RData::A(A(*address)))).collect();
        }
        Resolution::Services(targets) => {
            for found in targets {
                let target = name(&found.target);
                let data = RData::SRV(SRV::new(0, 0, found.port, target.clone()));
                sections.answers.push(record(ENDPOINT_TTL, data));
                let address = RData::A(A(found.address));
                sections.additionals.push(Record::from_rdata(target, ENDPOINT_TTL, address));
            }
        }
        Resolution::Names(names) => {
            let data = |found| RData::PTR(PTR(name(found)));
            sections.answers = names.iter().map(|found| record(ENDPOINT_TTL, data(found))).collect();
        }
        Resolution::Minimal => {
            let data = RData::HINFO(HINFO::new("RFC8482".to_owned(), String::new()));
            sections.answers.push(record(ENDPOINT_TTL, data));
        }
        Resolution::NoName(zone) => {
            metadata.response_code = ResponseCode::NXDomain;
            sections.authorities.push(start_of_authority(zone));
        }
        Resolution::NoData(zone) => sections.authorities.push(start_of_authority(zone)),
        Resolution::Forward(_) | Resolution::Refused | Resolution::Unavailable => {
            metadata.response_code = ResponseCode::ServFail;
        }
    }
    encode(request, metadata, &sections)
}

fn name(found: &InstanceName) -> Name {
    Name::from_labels(found.0.iter().map(String::as_bytes)).unwrap_or_default()
}

/// Lets resolvers cache that there is no record.
fn start_of_authority(zone: Zone) -> Record {
    static RECORDS: LazyLock<[Record; 3]> =
        LazyLock::new(|| [authority_of(&[DOMAIN]), authority_of(&[]), authority_of(&["in-addr", "arpa"])]);
    let [cluster, root, reverse] = &*RECORDS;
    match zone {
        Zone::Cluster => cluster,
        Zone::Root => root,
        Zone::Reverse => reverse,
    }
    .clone()
}

fn authority_of(zone: &[&str]) -> Record {
    let name =
        |labels: &[&str]| Name::from_labels(labels.iter().map(|label| label.as_bytes())).unwrap_or_default();
    let (server, person) = (name(&["dns", DOMAIN]), name(&["hostmaster", DOMAIN]));
    let data = SOA::new(server, person, 1, 3600, 600, 86400, NEGATIVE_TTL);
    Record::from_rdata(name(zone), NEGATIVE_TTL, RData::SOA(data))
}

/// A reply with the question and this code.
fn empty_reply(request: &Request, code: ResponseCode) -> Vec<u8> {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.recursion_available = true;
    metadata.response_code = code;
    encode(request, metadata, &Sections::default())
}

/// The reply to a query that cannot be answered now.
pub(crate) fn failure(request: &Request) -> Vec<u8> {
    empty_reply(request, ResponseCode::ServFail)
}

/// The reply with what an upstream answered. The client is not told that the data were validated: whether they were is
/// not known here.
pub(crate) fn forwarded_reply(request: &Request, found: Message) -> Vec<u8> {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.recursion_available = true;
    metadata.response_code = found.metadata.response_code;
    let sections =
        Sections { answers: found.answers, authorities: found.authorities, additionals: found.additionals };
    encode(request, metadata, &sections)
}

/// As many records as fit. A reply that lacks some says so, and its client asks again over TCP; those that do not have
/// what fits.
fn encode(request: &Request, metadata: Metadata, sections: &Sections) -> Vec<u8> {
    let edns = request.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_PAYLOAD).set_dnssec_ok(asked.flags().dnssec_ok);
        edns
    });
    let limit = match request.protocol() {
        Protocol::Udp => request.max_payload().clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD),
        _ => u16::MAX,
    };
    let Sections { answers, authorities, additionals } = sections;
    if let Some((bytes, None)) =
        emit(request, metadata, answers, authorities, additionals, edns.as_ref(), limit)
    {
        return bytes;
    }
    let mut truncated = metadata;
    truncated.truncation = true;
    // Without EDNS, to find how many answers leave room for it.
    let room = if edns.is_some() { limit - OPT_SIZE } else { limit };
    let fit = emit(request, truncated, answers, &[], &[], None, room)
        .map_or(0, |(_, fit)| fit.map_or(answers.len(), usize::from));
    let shown = answers.get(..fit).unwrap_or_default();
    let reply = emit(request, truncated, shown, &[], &[], edns.as_ref(), limit);
    let header = request.as_slice().first_chunk().copied().unwrap_or_default();
    reply.map_or_else(|| header_only(header, ResponseCode::ServFail).to_vec(), |(bytes, _)| bytes)
}

/// The bytes, and the number of answers in them if some record did not fit.
fn emit(
    request: &Request,
    metadata: Metadata,
    answers: &[Record],
    authorities: &[Record],
    additionals: &[Record],
    edns: Option<&Edns>,
    limit: u16,
) -> Option<(Vec<u8>, Option<u16>)> {
    let mut bytes = Vec::with_capacity(usize::from(MIN_UDP_PAYLOAD));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(limit);
    let mut builder = MessageResponseBuilder::from_message_request(request);
    if let Some(edns) = edns {
        builder.edns(edns);
    }
    let response = builder.build(metadata, answers, authorities, [], additionals);
    let info = response.destructive_emit(&mut encoder).ok()?;
    let counts = info.counts();
    let opt = usize::from(edns.is_some());
    let is_whole = usize::from(counts.answers) == answers.len()
        && usize::from(counts.authorities) == authorities.len()
        && usize::from(counts.additionals) == additionals.len() + opt;
    Some((bytes, (!is_whole).then_some(counts.answers)))
}

//! One question to one upstream, and which upstreams answer.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

use crate::packet::MAX_UDP_PAYLOAD;

/// An upstream that left a question without an answer is asked last for this time, and twice as long each time again.
const FIRST_SILENCE: Duration = Duration::from_secs(10);
/// The limit of that.
const MAX_SILENCE: Duration = Duration::from_secs(120);
/// More upstreams than any node and its clients have.
const MAX_TRACKED: usize = 1024;

/// What is asked.
#[derive(Debug, Clone)]
pub(super) struct UpstreamQuery {
    /// With the name as the client wrote it.
    pub(super) question: Query,
    pub(super) dnssec_ok: bool,
    pub(super) checking_disabled: bool,
}

impl UpstreamQuery {
    fn message(&self) -> Message {
        let mut message = Message::new(rand::random(), MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.checking_disabled;
        message.add_query(self.question.clone());
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_PAYLOAD).set_dnssec_ok(self.dnssec_ok);
        message.set_edns(edns);
        message
    }

    /// The answer of `server`, from a new port with a new id, over TCP if it does not fit into a datagram.
    pub(super) async fn send_to(&self, server: SocketAddr) -> io::Result<(Vec<u8>, Message)> {
        let query = self.message();
        let sent = query.to_vec().map_err(io::Error::other)?;
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        // The kernel then drops what others send, and reports an upstream that is not there.
        socket.connect(server).await?;
        socket.send(&sent).await?;
        let mut buffer = vec![0; usize::from(MAX_UDP_PAYLOAD).max(4096)];
        loop {
            let size = socket.recv(&mut buffer).await?;
            let Some(reply) = reply_to(&query, &buffer[..size]) else { continue };
            if reply.metadata.truncation {
                return send_over_tcp(server, &query, &sent).await;
            }
            return Ok((buffer[..size].to_vec(), reply));
        }
    }
}

async fn send_over_tcp(server: SocketAddr, query: &Message, sent: &[u8]) -> io::Result<(Vec<u8>, Message)> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(sent.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), sent].concat()).await?;
    let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut buffer).await?;
    let reply = reply_to(query, &buffer).ok_or_else(|| io::Error::other("an answer to another question"))?;
    Ok((buffer, reply))
}

/// `None` if these bytes are no answer to the query: whoever can send to the port may have made them.
fn reply_to(query: &Message, bytes: &[u8]) -> Option<Message> {
    let is_own = bytes.first_chunk() == Some(&query.metadata.id.to_be_bytes());
    let reply = Message::from_vec(bytes).ok().filter(|_| is_own)?;
    let is_response = reply.metadata.message_type == MessageType::Response;
    (is_response && reply.queries == query.queries).then_some(reply)
}

/// Which upstreams do not answer.
#[derive(Debug, Default)]
pub(super) struct UpstreamHealth(HashMap<SocketAddr, Silence>);

#[derive(Debug, Clone, Copy)]
struct Silence {
    length: Duration,
    until: Instant,
}

impl UpstreamHealth {
    /// In the given order, those that do not answer at the end.
    pub(super) fn order(&self, servers: &[SocketAddr], now: Instant) -> Vec<SocketAddr> {
        let is_silent = |server: &&SocketAddr| self.0.get(*server).is_some_and(|silence| silence.until > now);
        let (silent, answering): (Vec<_>, Vec<_>) = servers.iter().partition(is_silent);
        answering.into_iter().chain(silent).copied().collect()
    }

    pub(super) fn answered(&mut self, server: SocketAddr) {
        self.0.remove(&server);
    }

    pub(super) fn did_not_answer(&mut self, server: SocketAddr, now: Instant) {
        if self.0.len() >= MAX_TRACKED {
            self.0.retain(|_, silence| silence.until > now);
        }
        let length = match self.0.get(&server) {
            // Several questions at a time are one silence.
            Some(silence) if silence.until > now => return,
            Some(silence) => (silence.length * 2).min(MAX_SILENCE),
            None => FIRST_SILENCE,
        };
        self.0.insert(server, Silence { length, until: now + length });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_upstream_is_asked_last_for_a_while() {
        let server = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let (all, now) = ([server(1), server(2), server(3)], Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut health = UpstreamHealth::default();
        assert_eq!(health.order(&all, now), all);
        health.did_not_answer(server(1), now);
        health.did_not_answer(server(1), after(1));
        assert_eq!(health.order(&all, after(9)), [server(2), server(3), server(1)]);
        assert_eq!(health.order(&all, after(10)), all);
        health.did_not_answer(server(1), after(10));
        assert_eq!(health.order(&all, after(29)), [server(2), server(3), server(1)]);
        health.answered(server(1));
        assert_eq!(health.order(&all, after(29)), all);
    }
}

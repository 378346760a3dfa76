//! Queries in datagrams.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{Answerer, PendingReply};
use crate::packet::Transport;

/// Larger datagrams are cut off, and then malformed: no query needs more.
const MAX_QUERY_SIZE: usize = 4096;
/// The most datagrams of one system call.
const BATCH: usize = 32;
/// After an error of the socket, which may be there to stay.
const ERROR_DELAY: Duration = Duration::from_millis(100);

/// A message, and whom it is from or for.
type Datagram = (Vec<u8>, SocketAddr);

/// Answers from the table at once, in order: that is cheaper than a task for each. Only what waits for upstreams
/// becomes a task; the forwarder limits how many.
pub(super) async fn serve(
    socket: Arc<UdpSocket>,
    answerer: Arc<Answerer>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut buffers = vec![vec![0; MAX_QUERY_SIZE]; BATCH];
    let mut stopped = pin!(stop.cancelled());
    loop {
        let received = tokio::select! {
            biased;
            () = &mut stopped => return,
            received = socket.async_io(Interest::READABLE, || receive(&socket, &mut buffers)) => received,
        };
        let queries = match received {
            Ok(queries) => queries,
            Err(error) => {
                tracing::warn!(%error, "cannot receive DNS queries");
                tokio::time::sleep(ERROR_DELAY).await;
                continue;
            }
        };
        let mut replies = Vec::with_capacity(queries.len());
        for (bytes, from) in queries {
            match answerer.answer(bytes, from, Transport::Udp) {
                PendingReply::None => {}
                PendingReply::Ready(bytes) => replies.push((bytes, from)),
                PendingReply::Waiting(waiting) => {
                    let (socket, answerer) = (Arc::clone(&socket), Arc::clone(&answerer));
                    tasks.spawn(async move {
                        let bytes = waiting.reply(&answerer).await;
                        send_all(&socket, &[(bytes, from)]).await;
                    });
                }
            }
        }
        send_all(&socket, &replies).await;
    }
}

/// All datagrams that are there, at most as many as there are buffers.
fn receive(socket: &UdpSocket, buffers: &mut [Vec<u8>]) -> io::Result<Vec<Datagram>> {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(buffers.len(), None);
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let found = recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
    let datagram = |found: nix::sys::socket::RecvMsg<'_, '_, SockaddrStorage>| {
        let from = socket_address(found.address.as_ref()?)?;
        Some((found.iovs().next().unwrap_or_default().to_vec(), from))
    };
    Ok(found.filter_map(datagram).collect())
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let of_ipv4 = || address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    of_ipv4().or_else(|| address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

/// A reply that cannot be sent is lost, as on the way: the client asks again.
async fn send_all(socket: &UdpSocket, mut replies: &[Datagram]) {
    while !replies.is_empty() {
        let sent = match socket.async_io(Interest::WRITABLE, || send(socket, replies)).await {
            Ok(sent) => sent,
            Err(error) => {
                tracing::debug!(%error, to = %replies[0].1, "cannot send a DNS answer");
                1
            }
        };
        replies = replies.get(sent..).unwrap_or_default();
    }
}

/// The number of replies that were sent; an error is that of the first.
fn send(socket: &UdpSocket, replies: &[Datagram]) -> io::Result<usize> {
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(replies.len(), None);
    let slices: Vec<_> = replies.iter().map(|(bytes, _)| [IoSlice::new(bytes)]).collect();
    let addresses: Vec<_> = replies.iter().map(|(_, to)| Some(SockaddrStorage::from(*to))).collect();
    let sent = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, addresses, [], MsgFlags::MSG_DONTWAIT)?;
    Ok(sent.count())
}

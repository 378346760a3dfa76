//! Connects a client to a port in the network of a task. Either side may end its direction first.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use warren_health::SocketFactory;
use warren_proto::v1;
use warren_proto::v1::ExecFailureReason as Reason;
use warren_proto::v1::stream_frame::Frame;

use super::{ExecEnd, MAX_CHUNK, ProgramInput, failure, send_acknowledgements};
use crate::session::attach::{AttachedStream, StreamError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a port at 127.0.0.1 in the network of the task.
pub(super) async fn open(
    sockets: &SocketFactory,
    network: OwnedFd,
    port: u32,
) -> Result<TcpStream, v1::ExecFailure> {
    let number = u16::try_from(port).ok().filter(|port| *port > 0);
    let port = number.ok_or_else(|| failure(Reason::Invalid, "connect", format!("{port} is not a port")))?;
    let network = format!("/proc/self/fd/{}", network.as_raw_fd());
    let socket =
        sockets.tcp(network.as_ref()).await.map_err(|error| failure(Reason::Unspecified, "", error))?;
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
    let connected =
        timeout(CONNECT_TIMEOUT, TcpSocket::from_std_stream(socket).connect(address.into())).await;
    let refused =
        |why: &str| failure(Reason::ConnectionRefused, "", format!("port {port} of the task: {why}"));
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            return Err(refused("connection refused"));
        }
        Ok(Err(error)) => return Err(refused(&error.to_string())),
        Err(_) => return Err(refused(&format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
    };
    // The other end waits for small parts.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Passes bytes on until both directions have ended.
pub(super) async fn serve(
    stream: TcpStream,
    attachment: &mut AttachedStream,
) -> Result<ExecEnd, StreamError> {
    let AttachedStream { inbound, out } = attachment;
    let (mut output, input) = stream.into_split();
    let (consumed, acknowledged) = watch::channel(0);
    // Dropping that half ends its direction.
    let input = ProgramInput::new(None, Some(Box::new(input)), consumed);
    let mut closed = input.closed.subscribe();
    let outputs = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(MAX_CHUNK);
            match output.read_buf(&mut buffer).await {
                Ok(0) => break,
                Ok(_) => out.send_without_deadline(Frame::Data(buffer.split().freeze())).await?,
                // It was reset.
                Err(_) => return Ok(ExecEnd::Exited(0)),
            }
        }
        out.send_without_deadline(Frame::End(v1::EndOfData {})).await?;
        // The sender lives as long as the input.
        let _ = closed.wait_for(|closed| *closed).await;
        Ok(ExecEnd::Exited(0))
    };
    tokio::select! {
        ended = outputs => ended,
        reason = input.receive(inbound) => reason.map(ExecEnd::Failed),
        lost = send_acknowledgements(acknowledged, out) => Err(lost),
    }
}

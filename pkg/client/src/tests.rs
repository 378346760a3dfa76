//! The client against a manager that is scripted, over the real transports.

mod calls;
mod connections;
mod failover;
mod renewal;
mod scripted_server;
mod streams;
mod writes;

use std::time::Duration;

use tokio::net::TcpSocket;

use crate::dial::SwitchTimes;

/// A client with these times leaves no manager that is slow, as any manager is on a loaded machine.
const LONG_TIMES: SwitchTimes =
    SwitchTimes { next_dial_delay: Duration::from_secs(60), keep_alive: Duration::from_secs(60) };

/// The address of a port that refuses connections, and the socket that keeps the port from others.
fn closed_port() -> (String, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    (socket.local_addr().unwrap().to_string(), socket)
}

//! Senders and receivers of UDP and ICMP, beside the TCP ones of the lab.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockProtocol, SockType, shutdown, socket};

use super::NetworkNamespace;

/// Longer than an answer takes on an idle machine; packets that are dropped cost a test this time per attempt.
const ANSWER: Duration = Duration::from_millis(300);
/// A busy machine may take longer.
const ATTEMPTS: usize = 3;

/// Answers each datagram with its name and the sender's address, until it is dropped.
pub struct UdpServer {
    socket: Arc<UdpSocket>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        // Wakes the receiver; the socket is not connected, of which the kernel complains.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl NetworkNamespace {
    /// Serves on a UDP port until the server is dropped.
    pub fn serve_udp(&self, ip: Ipv4Addr, port: u16, name: &'static str) -> UdpServer {
        let socket = Arc::new(self.run(|| UdpSocket::bind((ip, port)).unwrap()));
        let receiving = Arc::clone(&socket);
        let thread = thread::spawn(move || {
            let mut datagram = [0; 64];
            while let Ok((1.., sender)) = receiving.recv_from(&mut datagram) {
                let _ = receiving.send_to(format!("{name} {}", sender.ip()).as_bytes(), sender);
            }
        });
        UdpServer { socket, thread: Some(thread) }
    }

    /// A UDP socket of this namespace that is connected to a server.
    pub fn udp_client(&self, ip: Ipv4Addr, port: u16) -> UdpSocket {
        self.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.set_read_timeout(Some(ANSWER)).unwrap();
            socket.connect(SocketAddrV4::new(ip, port)).unwrap();
            socket
        })
    }

    /// Sends a datagram and reads the answer.
    pub fn fetch_udp(&self, ip: Ipv4Addr, port: u16) -> io::Result<String> {
        ask(&self.udp_client(ip, port))
    }

    /// Whether an ICMP echo is answered.
    pub fn ping(&self, ip: Ipv4Addr) -> bool {
        let echo = || -> io::Result<bool> {
            let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)?;
            // Sending and receiving are the same for every kind of datagram.
            let raw = UdpSocket::from(raw);
            raw.set_read_timeout(Some(ANSWER))?;
            raw.connect(SocketAddrV4::new(ip, 0))?;
            // Type 8, checksum 0xf7fd of it and of the sequence number 2.
            raw.send(&[8, 0, 0xf7, 0xfd, 0, 0, 0, 2])?;
            let mut answer = [0; 64];
            loop {
                let length = uninterrupted(|| raw.recv(&mut answer))?;
                // The answer has its IP header; a socket of this kind also receives echoes from this host.
                match answer.get(20) {
                    Some(0) if length >= 28 => return Ok(true),
                    Some(3) => return Ok(false),
                    _ => {}
                }
            }
        };
        self.run(|| attempt(echo)).unwrap_or(false)
    }
}

/// Sends a datagram over a connected socket and reads the answer.
pub fn ask(socket: &UdpSocket) -> io::Result<String> {
    attempt(|| {
        socket.send(b"?")?;
        let mut answer = [0; 64];
        let length = uninterrupted(|| socket.recv(&mut answer))?;
        Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
    })
}

/// Repeats what a signal interrupted, such as that of the end of a child: the kernel does not restart calls with a
/// timeout by itself.
pub fn uninterrupted<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Repeats what got no answer.
fn attempt<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
    act()
}

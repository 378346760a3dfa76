//! Senders and receivers of UDP and ICMP, beside the TCP ones of the lab.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockProtocol, SockType, shutdown, socket};

use super::{NetworkNamespace, WAIT_DEADLINE};

/// Longer than an answer takes on an idle machine; after this time a datagram is sent again.
const ANSWER: Duration = Duration::from_millis(300);
/// For an answer that nobody should give: three attempts. Packets that are dropped cost a test this time.
const BRIEFLY: Duration = Duration::from_millis(750);
/// The first byte of a datagram that its answer repeats.
const QUESTION: u8 = b'#';

/// Numbers of questions: a late answer to one must not be taken for the answer to the next.
static NUMBERS: AtomicU16 = AtomicU16::new(0);

/// Small enough that the checksum of an echo with it has no carry.
fn next_number() -> u16 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) % 0xf000
}

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
        let socket = Arc::new(self.bind(|| UdpSocket::bind((ip, port))));
        let receiving = Arc::clone(&socket);
        let thread = thread::spawn(move || {
            let mut datagram = [0; 64];
            while let Ok((length @ 1.., sender)) = receiving.recv_from(&mut datagram) {
                let mut answer = format!("{name} {}", sender.ip()).into_bytes();
                if datagram[0] == QUESTION {
                    answer.extend_from_slice(&datagram[..length]);
                }
                let _ = receiving.send_to(&answer, sender);
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

    /// Asks a server.
    pub fn fetch_udp(&self, ip: Ipv4Addr, port: u16) -> io::Result<String> {
        ask(&self.udp_client(ip, port))
    }

    /// Asks where nobody should answer.
    pub fn fetch_udp_briefly(&self, ip: Ipv4Addr, port: u16) -> io::Result<String> {
        ask_briefly(&self.udp_client(ip, port))
    }

    /// Whether an ICMP echo is answered.
    pub fn ping(&self, ip: Ipv4Addr) -> bool {
        self.ping_for(WAIT_DEADLINE, ip)
    }

    /// Whether an ICMP echo is answered that nobody should answer.
    pub fn ping_briefly(&self, ip: Ipv4Addr) -> bool {
        self.ping_for(BRIEFLY, ip)
    }

    fn ping_for(&self, time: Duration, ip: Ipv4Addr) -> bool {
        let number = next_number();
        let ([high, low], sum) = (number.to_be_bytes(), (!(0x0800 + number)).to_be_bytes());
        let echo = || -> io::Result<bool> {
            let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)?;
            // Sending and receiving are the same for every kind of datagram.
            let raw = UdpSocket::from(raw);
            raw.set_read_timeout(Some(ANSWER))?;
            raw.connect(SocketAddrV4::new(ip, 0))?;
            // Type 8, the checksum of it and of the sequence number.
            raw.send(&[8, 0, sum[0], sum[1], 0, 0, high, low])?;
            let mut answer = [0; 64];
            loop {
                let length = uninterrupted(|| raw.recv(&mut answer))?;
                // The answer has its IP header, an error also those of the echo; a socket of this kind also receives
                // echoes from this host, and late answers to others.
                match answer[20] {
                    0 if length >= 28 && answer[26..28] == [high, low] => return Ok(true),
                    3 if length >= 56 && answer[54..56] == [high, low] => return Ok(false),
                    _ => {}
                }
            }
        };
        self.run(|| attempt(time, echo)).unwrap_or(false)
    }
}

/// Asks over a connected socket.
pub fn ask(socket: &UdpSocket) -> io::Result<String> {
    ask_for(WAIT_DEADLINE, socket)
}

/// Asks over a connected socket where nobody should answer.
pub fn ask_briefly(socket: &UdpSocket) -> io::Result<String> {
    ask_for(BRIEFLY, socket)
}

fn ask_for(time: Duration, socket: &UdpSocket) -> io::Result<String> {
    let question = format!("{}{}", char::from(QUESTION), next_number());
    attempt(time, || {
        socket.send(question.as_bytes())?;
        loop {
            if let Some(answer) = receive(socket)?.strip_suffix(question.as_str()) {
                return Ok(answer.to_owned());
            }
        }
    })
}

/// Sends a datagram over a connected socket, and returns its answer.
pub fn exchange(socket: &UdpSocket, datagram: &[u8]) -> io::Result<String> {
    attempt(WAIT_DEADLINE, || {
        socket.send(datagram)?;
        receive(socket)
    })
}

fn receive(socket: &UdpSocket) -> io::Result<String> {
    let mut answer = [0; 64];
    let length = uninterrupted(|| socket.recv(&mut answer))?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
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

/// Repeats what got no answer, for some time.
fn attempt<T>(time: Duration, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let limit = Instant::now() + time;
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < limit => {}
            result => return result,
        }
    }
}

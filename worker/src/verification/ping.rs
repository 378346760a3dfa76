//! ICMP echo requests of the largest size that the route takes.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect, getsockopt, recv,
    send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::network::PacketPath;

/// How often a request is sent until it is answered.
const ATTEMPTS: u16 = 3;
/// How long each may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Headers of IPv4 and ICMP.
const IP_HEADER: usize = 20;
const ICMP_HEADER: usize = 8;
/// No larger packets are sent: the loopback device would take 64 KiB.
const MAX_PACKET: usize = 9000;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

/// The kernel's ICMP, which answers on every data plane.
pub(super) struct IcmpEcho;

impl PacketPath for IcmpEcho {
    /// The packets may not be fragmented on the way: Linux sets DF on those that fit the route.
    fn send(&self, from: Ipv4Addr, to: Ipv4Addr) -> Result<(), String> {
        let mut failure = String::new();
        let identifier = std::process::id() as u16;
        for number in 1..=ATTEMPTS {
            // A node that has just joined may not have its routes yet.
            failure = match open(from, to)
                .map(|(socket, size)| (exchange(&socket, size, (identifier, number)), size))
            {
                Ok((Ok(true), _)) => return Ok(()),
                Ok((Ok(false), size)) => format!("no answer to packets of {size} bytes"),
                Ok((Err(error), size)) => format!("packets of {size} bytes: {error}"),
                Err(error) => {
                    sleep(REPLY_TIMEOUT);
                    format!("no route: {error}")
                }
            };
        }
        Err(failure)
    }
}

/// A socket for packets between the two addresses, and the size of the largest in bytes.
fn open(from: Ipv4Addr, to: Ipv4Addr) -> nix::Result<(OwnedFd, usize)> {
    let address = |ip: Ipv4Addr| {
        let [a, b, c, d] = ip.octets();
        SockaddrIn::new(a, b, c, d, 0)
    };
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Icmp)?;
    bind(socket.as_raw_fd(), &address(from))?;
    connect(socket.as_raw_fd(), &address(to))?;
    let millis = REPLY_TIMEOUT.as_millis() as i64;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(millis / 1000, millis % 1000 * 1000))?;
    let route = usize::try_from(getsockopt(&socket, sockopt::IpMtu)?).unwrap_or(MAX_PACKET);
    Ok((socket, route.clamp(IP_HEADER + ICMP_HEADER, MAX_PACKET)))
}

/// Whether the request was answered in time.
fn exchange(socket: &OwnedFd, size: usize, key: (u16, u16)) -> nix::Result<bool> {
    send(socket.as_raw_fd(), &request(size - IP_HEADER, key), MsgFlags::empty())?;
    let sent = Instant::now();
    let mut buffer = vec![0; MAX_PACKET + IP_HEADER];
    while sent.elapsed() < REPLY_TIMEOUT {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(length) if is_reply(&buffer[..length], size, key) => return Ok(true),
            Ok(_) => {}
            Err(nix::Error::EAGAIN) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn request(length: usize, (identifier, number): (u16, u16)) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[0] = ECHO_REQUEST;
    packet[4..6].copy_from_slice(&identifier.to_be_bytes());
    packet[6..8].copy_from_slice(&number.to_be_bytes());
    let sum = checksum(&packet);
    packet[2..4].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// That of RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Whether the packet, with its IP header, answers the request with that identifier and number.
fn is_reply(packet: &[u8], size: usize, (identifier, number): (u16, u16)) -> bool {
    let Some(first) = packet.first() else { return false };
    let header = usize::from(first & 0x0f) * 4;
    let Some(icmp) = packet.get(header..) else { return false };
    packet.len() >= size
        && icmp.len() >= ICMP_HEADER
        && icmp[0] == ECHO_REPLY
        && icmp[4..6] == identifier.to_be_bytes()
        && icmp[6..8] == number.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_a_packet_with_its_checksum_is_zero() {
        for length in [8, 9, 1430] {
            let packet = request(length, (7, 3));
            assert_eq!((checksum(&packet), packet.len()), (0, length));
        }
    }

    #[test]
    fn only_the_whole_answer_counts() {
        let mut packet = vec![0x45; IP_HEADER];
        packet.extend(request(100, (7, 3)));
        assert!(!is_reply(&packet, 120, (7, 3)), "that is the request");
        packet[IP_HEADER] = ECHO_REPLY;
        assert!(is_reply(&packet, 120, (7, 3)));
        assert!(!is_reply(&packet, 121, (7, 3)));
        assert!(!is_reply(&packet, 120, (7, 4)) && !is_reply(&packet, 120, (8, 3)));
        assert!(!is_reply(&[], 0, (7, 3)) && !is_reply(&[0x4f; 20], 0, (7, 3)));
    }

    #[test]
    fn kernel_answers_on_the_loopback_and_nobody_elsewhere() {
        let own = Ipv4Addr::LOCALHOST;
        assert_eq!(IcmpEcho.send(own, Ipv4Addr::new(127, 0, 0, 9)), Ok(()));
        let refused = IcmpEcho.send(Ipv4Addr::new(192, 0, 2, 7), own).unwrap_err();
        assert!(refused.contains("no route"), "{refused}");
    }
}

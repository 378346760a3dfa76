//! Published ports.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use warren_types::{Protocol, PublishMode, PublishedPort};

use super::split::{set_once, split_commas};

/// The ports of one `--publish`: several if it names a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortList(pub Vec<PublishedPort>);

/// `[IP:]HOST:CONTAINER[/PROTOCOL][,OPTION]...` where both may be ranges, `CONTAINER` alone for an automatic host port,
/// or Docker's `published=PORT,target=PORT[,protocol=tcp][,OPTION]...`. Without a mode it is
/// [`PublishMode::default_for`].
pub fn publish(text: &str) -> Result<PortList, String> {
    if text.starts_with(|first: char| first.is_ascii_lowercase()) && text.contains('=') {
        return publish_long(text);
    }
    let mut parts = text.split(',');
    let address = parts.next().unwrap_or_default();
    let mut options = PortOptions::default();
    for option in parts {
        options.set(option, PortOptions::KNOWN)?;
    }
    let (address, protocol) = address.split_once('/').unwrap_or((address, "tcp"));
    let protocol = protocol.parse()?;
    let (rest, container) =
        address.rsplit_once(':').map_or((None, address), |(rest, port)| (Some(rest), port));
    let (host_ip, host) = match rest.map(|rest| rest.rsplit_once(':').ok_or(rest)) {
        None => (None, None),
        Some(Err(host)) => (None, Some(host)),
        Some(Ok((ip, ""))) => (Some(host_address(ip)?), None),
        Some(Ok((ip, host))) => (Some(host_address(ip)?), Some(host)),
    };
    let host = host.map(host_ports).transpose()?.flatten();
    port_list(host_ip, host, port_range(container)?, (protocol, options))
}

fn publish_long(text: &str) -> Result<PortList, String> {
    let (mut published, mut target, mut protocol) = (None, None, None);
    let mut options = PortOptions::default();
    for option in split_commas(text) {
        match option.split_once('=') {
            Some(("published", ports)) => set_once(&option, &mut published, host_ports(ports)?)?,
            Some(("target", ports)) => set_once(&option, &mut target, port_range(ports)?)?,
            Some(("protocol", name)) => set_once(&option, &mut protocol, name.parse()?)?,
            _ => {
                let known = format!("published=PORT, target=PORT, protocol=tcp, {}", PortOptions::KNOWN);
                options.set(&option, &known)?;
            }
        }
    }
    let target = target.ok_or("target is missing; give the port in the container as target=PORT")?;
    port_list(None, published.flatten(), target, (protocol.unwrap_or(Protocol::Tcp), options))
}

/// What may follow the numbers.
#[derive(Default)]
struct PortOptions {
    mode: Option<PublishMode>,
    prefer_local: Option<bool>,
    client_affinity: Option<bool>,
}

impl PortOptions {
    const KNOWN: &str = "mode=host, mode=ingress, prefer=local and affinity=client";

    /// `known` is for the message about others.
    fn set(&mut self, option: &str, known: &str) -> Result<(), String> {
        match option {
            "mode=host" => set_once(option, &mut self.mode, PublishMode::Host),
            "mode=ingress" => set_once(option, &mut self.mode, PublishMode::Ingress),
            "prefer=local" => set_once(option, &mut self.prefer_local, true),
            "affinity=client" => set_once(option, &mut self.client_affinity, true),
            other => Err(format!("{other:?} is not known; there are {known}")),
        }
    }
}

fn port_list(
    host_ip: Option<Ipv4Addr>,
    host: Option<RangeInclusive<u16>>,
    container: RangeInclusive<u16>,
    (protocol, options): (Protocol, PortOptions),
) -> Result<PortList, String> {
    if let Some(host) = &host
        && host.len() != container.len()
    {
        let (host, container) = (host.len(), container.len());
        return Err(format!("{host} ports of the node cannot be mapped to {container} of the container"));
    }
    let host = host.into_iter().flatten().chain(std::iter::repeat(0));
    let ports = host.zip(container).map(|(host_port, container_port)| PublishedPort {
        host_ip,
        host_port,
        container_port,
        protocol,
        mode: options.mode.unwrap_or(PublishMode::default_for(host_ip)),
        prefer_local: options.prefer_local.unwrap_or_default(),
        client_affinity: options.client_affinity.unwrap_or_default(),
    });
    Ok(PortList(ports.collect()))
}

/// A range of host ports; `None` for 0, an automatic port.
fn host_ports(text: &str) -> Result<Option<RangeInclusive<u16>>, String> {
    if text == "0" { Ok(None) } else { port_range(text).map(Some) }
}

/// `PORT` or `FIRST-LAST`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match port(first)?..=port(last)? {
        range if range.is_empty() => {
            Err(format!("{text:?} is not a range of ports; the first is the smaller one"))
        }
        range => Ok(range),
    }
}

/// Selects published ports to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortRemoval {
    /// These mappings.
    Ports(PortList),
    /// All mappings of this host port.
    HostPort(u16),
}

impl PortRemoval {
    /// Whether `port` is selected. A mapping without a host port selects every one of that container port.
    pub fn matches(&self, port: &PublishedPort) -> bool {
        match self {
            Self::Ports(PortList(unwanted)) => unwanted.iter().any(|unwanted| match unwanted.host_port {
                0 => PublishedPort { host_port: port.host_port, ..*unwanted } == *port,
                _ => unwanted == port,
            }),
            Self::HostPort(unwanted) => *unwanted == port.host_port,
        }
    }
}

/// A full port mapping, or only the host port.
pub fn unpublish(text: &str) -> Result<PortRemoval, String> {
    match text.contains(':') {
        true => publish(text).map(PortRemoval::Ports),
        false => port(text).map(PortRemoval::HostPort),
    }
}

fn host_address(text: &str) -> Result<Ipv4Addr, String> {
    match text.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(IpAddr::V4(ip)) if !text.starts_with('[') => Ok(ip),
        Ok(_) => Err("IPv6 addresses are not supported by this version; give an IPv4 address or none".into()),
        Err(_) => Err(format!("{text:?} is not an IPv4 address")),
    }
}

/// A port of a machine or container.
pub fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port != 0 && !text.starts_with('+'));
    port.ok_or_else(|| format!("{text:?} is not a port; give one of 1 to 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_parse() {
        let check = |text, expected: &str| {
            let listed =
                |PortList(ports)| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            assert_eq!(publish(text).map_or_else(|why| why, listed), expected, "{text}");
        };
        check("8080:80", "8080->80/tcp");
        check("8080:80/tcp,mode=host", "8080->80/tcp");
        check("8080:80/udp", "8080->80/udp");
        check("8080:80/sctp", "8080->80/sctp");
        check("127.0.0.1:8080:80", "127.0.0.1:8080->80/tcp");
        check("80", "0->80/tcp");
        check("0:80/udp", "0->80/udp");
        check("127.0.0.1::80", "127.0.0.1:0->80/tcp");
        check("8080-8082:80-82", "8080->80/tcp 8081->81/tcp 8082->82/tcp");
        check("80-81/udp", "0->80/udp 0->81/udp");
        check("", "\"\" is not a port; give one of 1 to 65535");
        check("8080:65536", "\"65536\" is not a port; give one of 1 to 65535");
        check("+1:80", "\"+1\" is not a port; give one of 1 to 65535");
        check("8080:80-81", "1 ports of the node cannot be mapped to 2 of the container");
        check("8082-8080:80-82", "\"8082-8080\" is not a range of ports; the first is the smaller one");
        check("8080:80/x", "\"x\" is not a protocol; give tcp, udp or sctp");
        check("8080:80,mode=ingress", "8080->80/tcp");
        check(
            "8080:80,x=y",
            "\"x=y\" is not known; there are mode=host, mode=ingress, prefer=local and affinity=client",
        );
        check("host:8080:80", "\"host\" is not an IPv4 address");
        check("published=8080,target=80", "8080->80/tcp");
        check("target=80,published=8080,protocol=udp,mode=host", "8080->80/udp");
        check("target=80", "0->80/tcp");
        check("published=8080", "target is missing; give the port in the container as target=PORT");
        check("published=1,target=2,mode=ingress", "1->2/tcp");
        let modes = ["80:80", "80:80,mode=host", "80:80,mode=ingress", "published=1,target=2,mode=ingress"];
        let modes = modes.map(|text| publish(text).unwrap().0[0].mode);
        let options = ["80:80", "80:80,prefer=local", "target=80,affinity=client,prefer=local"];
        let options = options.map(|text| publish(text).unwrap().0[0]);
        let options = options.map(|port| (port.prefer_local, port.client_affinity));
        assert_eq!(options, [(false, false), (true, false), (true, true)]);
        check("80:80,prefer=local,prefer=local", "option \"prefer=local\" is given twice");
        let (host, ingress) = (PublishMode::Host, PublishMode::Ingress);
        assert_eq!(modes, [ingress, host, ingress, ingress]);
        let options = "there are published=PORT, target=PORT, protocol=tcp, mode=host, mode=ingress, prefer=local and \
                       affinity=client";
        check("published=1,port=2", &format!("\"port=2\" is not known; {options}"));
        let ipv6 = "IPv6 addresses are not supported by this version; give an IPv4 address or none";
        check("[::1]:8080:80", ipv6);
        check("[::]:8080:80", ipv6);
    }

    #[test]
    fn port_removal_by_mapping_or_host_port() {
        let [all, one] = ["8080:80", "127.0.0.1:8080:80"].map(|text| publish(text).unwrap().0[0]);
        let removes = |text: &str| [all, one].map(|port| unpublish(text).unwrap().matches(&port));
        assert_eq!(removes("8080"), [true, true]);
        assert_eq!(removes("8080:80"), [true, false]);
        assert_eq!(removes("8079-8080:79-80"), [true, false]);
        assert_eq!(removes("0:80"), [true, false]);
        assert_eq!(removes("127.0.0.1:8080:80"), [false, true]);
        assert_eq!(removes("80"), [false, false]);
        for bad in ["", "0", "x", "8080:", "1:2:3:4"] {
            assert!(unpublish(bad).is_err(), "{bad}");
        }
    }
}

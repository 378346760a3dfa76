//! `resolv.conf`: that of a container, and what the host's says about upstreams. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::resolve::DOMAIN;
use crate::table::ClientDnsSettings;

/// The port of DNS.
pub const PORT: u16 = 53;
/// The most upstreams of a node, and of a client.
pub const MAX_UPSTREAMS: usize = 8;

/// The file of a container. Its node's server is the only one: any other would not know the names of the cluster, and
/// resolvers ask all that are listed. `ndots:0` asks for a name as it is first. With one server that is beside the
/// container a short time-out is enough; five attempts bridge a restart of the agent.
///
/// A search domain `.` means none, also not `warren`.
pub fn resolv_conf(gateway: Ipv4Addr, dns: &ClientDnsSettings) -> String {
    let mut searches = vec![DOMAIN];
    for search in dns.searches.iter().map(String::as_str) {
        if !searches.contains(&search) {
            searches.push(search);
        }
    }
    let search = match searches.contains(&".") {
        true => String::new(),
        false => format!("search {}\n", searches.join(" ")),
    };
    format!("{search}nameserver {gateway}\noptions ndots:0 timeout:1 attempts:5\n")
}

/// The servers of a host's `resolv.conf`, in order. Lines that cannot be read are skipped, as the C library does.
pub fn parse_nameservers(resolv_conf: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().filter(|keyword| *keyword == "nameserver").and_then(|_| words.next())?;
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, PORT))
    };
    resolv_conf.lines().filter_map(server).take(MAX_UPSTREAMS).collect()
}

/// The upstreams of a node in the order in which they are asked: those of the host, then those of the settings, each
/// once, without the addresses on which this node's server itself answers.
pub fn upstreams(host: &[SocketAddr], settings: &[SocketAddr], own: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for server in host.iter().chain(settings) {
        if !own.contains(server) && !found.contains(server) && found.len() < MAX_UPSTREAMS {
            found.push(*server);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 210, 1, 1);

    fn file(searches: &[&str]) -> String {
        let searches = searches.iter().map(|search| (*search).to_owned()).collect();
        resolv_conf(GATEWAY, &ClientDnsSettings { searches, ..ClientDnsSettings::default() })
    }

    #[test]
    fn gateway_is_the_only_nameserver() {
        let rest = "nameserver 10.210.1.1\noptions ndots:0 timeout:1 attempts:5\n";
        assert_eq!(file(&[]), format!("search warren\n{rest}"));
        assert_eq!(file(&["example.com", "warren", "b"]), format!("search warren example.com b\n{rest}"));
        assert_eq!(file(&["."]), rest);
        let servers = vec!["192.0.2.1:53".parse().unwrap()];
        assert_eq!(
            resolv_conf(GATEWAY, &ClientDnsSettings { servers, ..ClientDnsSettings::default() }),
            file(&[])
        );
    }

    #[test]
    fn host_file_is_read_as_the_c_library_does() {
        let text = "# nameserver 1.1.1.1\nsearch example.com\nnameserver 192.0.2.1\n  nameserver\t2001:db8::1 # x\n\
                    nameserver\nnameserver bad\nnameservers 192.0.2.9\n;nameserver 1.2.3.4\nnameserver 127.0.0.53";
        let found: Vec<String> = parse_nameservers(text).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[2001:db8::1]:53", "127.0.0.53:53"]);
        assert_eq!(parse_nameservers(&"nameserver 192.0.2.1\n".repeat(100)).len(), MAX_UPSTREAMS);
        assert!(parse_nameservers("").is_empty());
    }

    #[test]
    fn own_addresses_are_no_upstreams() {
        let servers = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let host = servers(&["10.210.1.1:53", "192.0.2.1:53", "10.210.1.1:5353"]);
        let settings = servers(&["192.0.2.1:53", "8.8.8.8:53"]);
        let own = servers(&["10.210.1.1:53"]);
        let expected = servers(&["192.0.2.1:53", "10.210.1.1:5353", "8.8.8.8:53"]);
        assert_eq!(upstreams(&host, &settings, &own), expected);
    }
}

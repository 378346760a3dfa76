//! Parsers of flag values.

mod container;
mod health;
mod long_form;
mod mount;
mod secret_object;
mod setting;
mod split;
mod time;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use warren_types::{OnDisconnect, Protocol, PublishMode, PublishedPort};

pub use container::{ModeName, device, host, host_removal, mode, role, sysctl, ulimit};
pub use health::{HttpTarget, header, http_target, shell_words};
pub use long_form::mount;
pub use mount::{bind, tmpfs, volume};
pub use secret_object::{config_mount, registry, secret_mount};
pub use setting::{Setting, setting, text};
pub use time::{TailLines, TokenTtl, since, tail, ttl};

/// A requested number of replicas, unchecked: a negative number is refused as a violation of the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCount(pub i64);

impl FromStr for ReplicaCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| "give a whole number".to_owned())
    }
}

impl fmt::Display for ReplicaCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `SERVICE=N`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleTarget {
    /// Name, id, or id prefix.
    pub service: String,
    /// Requested replicas.
    pub replicas: ReplicaCount,
}

/// An environment variable; a missing value comes from the environment of this command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVariable {
    /// Not empty.
    pub name: String,
    /// `None` if not given.
    pub value: Option<String>,
}

pub fn scaling(text: &str) -> Result<ScaleTarget, String> {
    let wrong = || format!("{text:?} is not SERVICE=N, like web=3");
    let (service, replicas) = text.rsplit_once('=').ok_or_else(wrong)?;
    let replicas = replicas.parse().map_err(|_| wrong())?;
    if service.is_empty() { Err(wrong()) } else { Ok(ScaleTarget { service: service.to_owned(), replicas }) }
}

pub fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    if key.is_empty() {
        return Err("the key is empty; give KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value.to_owned()))
}

pub fn variable(text: &str) -> Result<EnvVariable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(
            "the name is empty; give NAME=VALUE, or NAME to use the value of this environment".to_owned()
        );
    }
    Ok(EnvVariable { name: name.to_owned(), value })
}

/// Variables in a file: one per line as in `--env`, without quotes; `#` at the start of a line is a comment.
///
/// # Errors
/// The line number and the error.
pub fn variables(file: &str) -> Result<Vec<EnvVariable>, String> {
    let lines = file.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start()));
    let meant = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| match variable(line)? {
        EnvVariable { name, .. } if name.contains(char::is_whitespace) => {
            Err(format!("{name:?} has whitespace, which is not allowed in a variable name"))
        }
        variable => Ok(variable),
    };
    meant.map(|(number, line)| read(line).map_err(|why| format!("line {number}: {why}"))).collect()
}

/// A duration in whole milliseconds, like `10s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text)
        .map_err(|_| format!("{text:?} is not a duration; give one like 10s or 5m"))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err("has a precision below one millisecond".to_owned());
    }
    Ok(duration)
}

/// `keep` or `stop-after=TIME`.
pub fn on_disconnect(text: &str) -> Result<OnDisconnect, String> {
    match text.split_once('=') {
        None if text == "keep" => Ok(OnDisconnect::Keep),
        Some(("stop-after", time)) => duration(time).map(OnDisconnect::StopAfter),
        _ => Err("give keep, or stop-after=30s".to_owned()),
    }
}

/// `[IP:]HOST:CONTAINER[/tcp][,mode=host]`, or Docker's `published=PORT,target=PORT[,protocol=tcp][,mode=host]`.
pub fn publish(text: &str) -> Result<PublishedPort, String> {
    if text.starts_with(|first: char| first.is_ascii_lowercase()) && text.contains('=') {
        return long_form::publish(text);
    }
    let mut parts = text.split(',');
    let address = parts.next().unwrap_or_default();
    for option in parts {
        match option {
            "mode=host" => {}
            "mode=ingress" => return Err(NO_INGRESS.into()),
            other => return Err(format!("{other:?} is not known; the only option is mode=host")),
        }
    }
    let (address, protocol) = address.split_once('/').unwrap_or((address, "tcp"));
    let protocol = parse_protocol(protocol)?;
    let (rest, container) = address.rsplit_once(':').ok_or("give HOST:CONTAINER, like 8080:80")?;
    let (host_ip, host) = match rest.rsplit_once(':') {
        Some((ip, host)) => (Some(host_address(ip)?), host),
        None => (None, rest),
    };
    let (host_port, container_port) = (port(host)?, port(container)?);
    Ok(PublishedPort { host_ip, host_port, container_port, protocol, mode: PublishMode::Host })
}

const NO_INGRESS: &str = "mode=ingress is not supported by this version; mode=host is";

fn parse_protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Err("/udp is not supported by this version; /tcp is".to_owned()),
        other => Err(format!("{other:?} is not a protocol; give tcp")),
    }
}

/// Selects published ports to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortRemoval {
    /// One mapping.
    Port(PublishedPort),
    /// All mappings of this host port.
    HostPort(u16),
}

impl PortRemoval {
    /// Whether `port` is selected.
    pub fn matches(self, port: &PublishedPort) -> bool {
        match self {
            Self::Port(unwanted) => unwanted == *port,
            Self::HostPort(unwanted) => unwanted == port.host_port,
        }
    }
}

/// A full port mapping, or only the host port.
pub fn unpublish(text: &str) -> Result<PortRemoval, String> {
    match text.contains(':') {
        true => publish(text).map(PortRemoval::Port),
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
    port.ok_or_else(|| match text.contains('-') {
        true => format!("{text:?}: ranges of ports are not supported by this version; give each port"),
        false => format!("{text:?} is not a port; give one of 1 to 65535"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ports_parse() {
        let check = |text, expected: &str| {
            let found = publish(text).map_or_else(|why| why, |port| port.to_string());
            assert_eq!(found, expected, "{text}");
        };
        check("8080:80", "8080->80/tcp");
        check("8080:80/tcp,mode=host", "8080->80/tcp");
        check("127.0.0.1:8080:80", "127.0.0.1:8080->80/tcp");
        check("80", "give HOST:CONTAINER, like 8080:80");
        check("", "give HOST:CONTAINER, like 8080:80");
        check("0:80", "\"0\" is not a port; give one of 1 to 65535");
        check("8080:65536", "\"65536\" is not a port; give one of 1 to 65535");
        check("+1:80", "\"+1\" is not a port; give one of 1 to 65535");
        check("8080:80-81", "\"80-81\": ranges of ports are not supported by this version; give each port");
        check("8080:80/udp", "/udp is not supported by this version; /tcp is");
        check("8080:80/sctp", "\"sctp\" is not a protocol; give tcp");
        check("8080:80,mode=ingress", "mode=ingress is not supported by this version; mode=host is");
        check("8080:80,x=y", "\"x=y\" is not known; the only option is mode=host");
        check("host:8080:80", "\"host\" is not an IPv4 address");
        check("published=8080,target=80", "8080->80/tcp");
        check("target=80,published=8080,protocol=tcp,mode=host", "8080->80/tcp");
        check("target=80", "published is missing; Warren chooses no port by itself: give published=PORT");
        check("published=8080", "target is missing; give the port in the container as target=PORT");
        check(
            "published=1,target=2,mode=ingress",
            "mode=ingress is not supported by this version; mode=host is",
        );
        check("published=1,target=2,protocol=udp", "/udp is not supported by this version; /tcp is");
        let options = "there are published=PORT, target=PORT, protocol=tcp and mode=host";
        check("published=1,port=2", &format!("\"port=2\" is not known; {options}"));
        let ipv6 = "IPv6 addresses are not supported by this version; give an IPv4 address or none";
        check("[::1]:8080:80", ipv6);
    }

    #[test]
    fn port_removal_by_mapping_or_host_port() {
        let [all, one] = ["8080:80", "127.0.0.1:8080:80"].map(|text| publish(text).unwrap());
        let removes = |text: &str| [all, one].map(|port| unpublish(text).unwrap().matches(&port));
        assert_eq!(removes("8080"), [true, true]);
        assert_eq!(removes("8080:80"), [true, false]);
        assert_eq!(removes("127.0.0.1:8080:80"), [false, true]);
        assert_eq!(removes("80"), [false, false]);
        for bad in ["", "0", "x", "8080:", "1:2:3:4"] {
            assert!(unpublish(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn variable_values_are_unrestricted() {
        let some = |name: &str, value: &str| EnvVariable { name: name.into(), value: Some(value.into()) };
        assert_eq!(variable("A=b=c"), Ok(some("A", "b=c")));
        assert_eq!(variable("A="), Ok(some("A", "")));
        assert_eq!(variable("A"), Ok(EnvVariable { name: "A".into(), value: None }));
        assert!(variable("=b").is_err() && variable("").is_err());
        let file = "# comment\n\n  A=1\nB=two words # kept\r\nC\n";
        let expected =
            [some("A", "1"), some("B", "two words # kept"), EnvVariable { name: "C".into(), value: None }];
        assert_eq!(variables(file), Ok(expected.to_vec()));
        assert_eq!(variables("A=1\n=2").unwrap_err()[..7], *"line 2:");
        let blank = "line 1: \"export A\" has whitespace, which is not allowed in a variable name";
        assert_eq!(variables("export A=1").unwrap_err(), blank);
    }

    #[test]
    fn scalings_and_labels_are_pairs() {
        let scaling = |text| scaling(text).map(|s| (s.service, s.replicas.0));
        assert_eq!(scaling("web=3"), Ok(("web".into(), 3)));
        assert_eq!(scaling("web=-1"), Ok(("web".into(), -1)));
        for bad in ["web", "web=", "=3", "web=x", "web=1.5"] {
            assert!(scaling(bad).is_err(), "{bad}");
        }
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("a").is_err() && label("=b").is_err());
    }

    #[test]
    fn durations_are_whole_milliseconds() {
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "10", "-1s", "1us", "x"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(on_disconnect("keep"), Ok(OnDisconnect::Keep));
        let half_a_minute = OnDisconnect::StopAfter(Duration::from_secs(30));
        assert_eq!(on_disconnect("stop-after=30s"), Ok(half_a_minute));
        for bad in ["stop", "stop-after", "stop-after=", "keep=1s", "30s"] {
            assert!(on_disconnect(bad).is_err(), "{bad}");
        }
    }
}

//! Ports of `task port-forward` and `service port-forward`.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;

/// Notes at the end of `port-forward --help`.
pub const FORWARD_NOTES: &str = "\
Each connection to a local port is passed on to 127.0.0.1 in the network of the task; a service gives each one to a \
ready task. It works on any node and for ports that are not published. If nothing accepts a connection there, it is \
closed and the reason is printed. It ends with a signal: the exit code is then 128 + its number.";

#[derive(Debug, Clone, Args)]
pub struct ForwardArgs {
    /// Local and remote port; LOCAL empty or 0: a free one (repeatable) [format: [ADDRESS:]LOCAL:REMOTE or PORT]
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help has optional parts in brackets")]
    #[arg(value_name = "PORTS", required = true, value_parser = forwarded_port)]
    pub ports: Vec<ForwardedPort>,
}

/// A local port that leads to one of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardedPort {
    pub address: IpAddr,
    /// 0: a free one.
    pub local: u16,
    pub remote: u16,
}

fn forwarded_port(text: &str) -> Result<ForwardedPort, String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("{text:?} is not a port of 1 to 65535"));
    let (front, remote) = text.rsplit_once(':').unwrap_or((text, text));
    let (address, local) = match front.rsplit_once(':') {
        None => (Ipv4Addr::LOCALHOST.into(), front),
        Some((address, local)) => {
            let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
            (bare.parse().map_err(|_| format!("{address:?} is not an address of this machine"))?, local)
        }
    };
    let local = if local.is_empty() { 0 } else { port(local)? };
    match port(remote)? {
        0 => Err("port 0 of a task cannot be connected to".to_owned()),
        remote => Ok(ForwardedPort { address, local, remote }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_every_form() {
        let parsed =
            |text| forwarded_port(text).map(|port| (port.address.to_string(), port.local, port.remote));
        for (text, address, local, remote) in [
            ("80", "127.0.0.1", 80, 80),
            ("8080:80", "127.0.0.1", 8080, 80),
            (":80", "127.0.0.1", 0, 80),
            ("0:80", "127.0.0.1", 0, 80),
            ("0.0.0.0:8080:80", "0.0.0.0", 8080, 80),
            ("[::1]::80", "::1", 0, 80),
        ] {
            assert_eq!(parsed(text), Ok((address.to_owned(), local, remote)), "{text}");
        }
        for (text, words) in [
            ("web", "\"web\" is not a port"),
            ("8080:", "\"\" is not a port"),
            ("8080:0", "port 0 of a task"),
            ("70000:80", "\"70000\" is not a port"),
            ("example:8080:80", "\"example\" is not an address"),
        ] {
            assert!(parsed(text).unwrap_err().contains(words), "{text}");
        }
    }
}

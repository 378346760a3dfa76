//! Where other machines reach a manager, as people write it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use warren_client::Address;

/// Where other machines reach this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertise {
    /// An address or a name; an IPv6 address without brackets.
    pub host: String,
    /// `None` is the port that is listened on.
    pub port: Option<u16>,
}

impl FromStr for Advertise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port: None });
        }
        // A name without a port is one that has a port when one is added.
        let (address, given) = match text.parse::<Address>() {
            Ok(_) => (text.to_owned(), true),
            Err(_) => (format!("{text}:1"), false),
        };
        let known = address.parse::<Address>().ok().and_then(|_| address.rsplit_once(':'));
        let (host, port) = known.ok_or("give HOST or HOST:PORT, like 10.0.0.7:8080")?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: port.parse().ok().filter(|_| given) })
    }
}

impl fmt::Display for Advertise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (None, _) => f.write_str(&self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advertised_may_have_a_port() {
        for text in ["10.0.0.7", "10.0.0.7:8080", "::1", "[::1]:8080", "node-1.example.org", "node-1:1"] {
            let advertise: Advertise = text.parse().unwrap();
            assert_eq!(advertise.to_string(), text);
            assert_eq!(advertise.port.is_some(), text.contains(':') && text != "::1", "{text}");
        }
        for bad in ["", ":80", "a b", "a:x", "a:0"] {
            assert!(bad.parse::<Advertise>().is_err(), "{bad}");
        }
    }
}

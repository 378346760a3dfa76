//! Where other machines reach a manager, as people write it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use warren_types::{ManagerAddress, ParseAddressError};

/// Where other machines reach this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertise {
    /// An address or a name; an IPv6 address without brackets.
    pub host: String,
    /// `None` is the port that is listened on.
    pub port: Option<u16>,
}

impl Advertise {
    /// The whole address of a manager that listens on this port.
    ///
    /// # Errors
    /// It is none.
    pub fn at(&self, bound: u16) -> Result<ManagerAddress, ParseAddressError> {
        let port = self.port.unwrap_or(bound);
        Self { host: self.host.clone(), port: Some(port) }.to_string().parse()
    }
}

impl From<ManagerAddress> for Advertise {
    fn from(address: ManagerAddress) -> Self {
        Self { host: address.host().to_owned(), port: Some(address.port()) }
    }
}

impl FromStr for Advertise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port: None });
        }
        // A name without a port is one that has a port when one is added.
        let wrong = |_| "give HOST or HOST:PORT, like 10.0.0.7:8080".to_owned();
        match text.parse::<ManagerAddress>() {
            Ok(address) => Ok(address.into()),
            Err(_) => {
                let address = format!("{text}:1").parse::<ManagerAddress>().map_err(wrong)?;
                Ok(Self { host: address.host().to_owned(), port: None })
            }
        }
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
        let at = |text: &str| text.parse::<Advertise>().unwrap().at(9).unwrap().to_string();
        assert_eq!(["a", "a:1", "::1"].map(at), ["a:9", "a:1", "[::1]:9"]);
        for bad in ["", ":80", "a b", "a:x", "a:0"] {
            assert!(bad.parse::<Advertise>().is_err(), "{bad}");
        }
    }
}

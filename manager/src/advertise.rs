//! The advertised address of a manager, as written by users.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use warren_types::{ManagerAddress, ParseManagerAddressError};

/// The address that other machines use to reach this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertiseAddress {
    /// An IP address or host name; an IPv6 address without brackets.
    pub host: String,
    /// `None`: the listen port.
    pub port: Option<u16>,
}

impl AdvertiseAddress {
    /// The full address of a manager that listens on `bound`.
    ///
    /// # Errors
    /// The address is invalid.
    pub fn resolve(&self, bound: u16) -> Result<ManagerAddress, ParseManagerAddressError> {
        let port = self.port.unwrap_or(bound);
        Self { host: self.host.clone(), port: Some(port) }.to_string().parse()
    }
}

impl From<ManagerAddress> for AdvertiseAddress {
    fn from(address: ManagerAddress) -> Self {
        Self { host: address.host().to_owned(), port: Some(address.port()) }
    }
}

impl FromStr for AdvertiseAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self { host: ip.to_string(), port: None });
        }
        // A name without a port is valid if it is valid with a port.
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

impl fmt::Display for AdvertiseAddress {
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
    fn advertise_address_may_have_port() {
        for text in ["10.0.0.7", "10.0.0.7:8080", "::1", "[::1]:8080", "node-1.example.org", "node-1:1"] {
            let advertise: AdvertiseAddress = text.parse().unwrap();
            assert_eq!(advertise.to_string(), text);
            assert_eq!(advertise.port.is_some(), text.contains(':') && text != "::1", "{text}");
        }
        let at = |text: &str| text.parse::<AdvertiseAddress>().unwrap().resolve(9).unwrap().to_string();
        assert_eq!(["a", "a:1", "::1"].map(at), ["a:9", "a:1", "[::1]:9"]);
        for bad in ["", ":80", "a b", "a:x", "a:0"] {
            assert!(bad.parse::<AdvertiseAddress>().is_err(), "{bad}");
        }
    }
}

//! How packets between containers of different nodes are carried.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What carries packets between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPlane {
    /// VXLAN: whoever sees the network between the nodes can read and forge packets.
    #[default]
    Vxlan,
    /// VXLAN in WireGuard: only the nodes of the cluster can read and send packets.
    Wireguard,
    /// Routes without a tunnel, for nodes on one L2 network: whoever is on it can read and forge packets.
    Routes,
}

impl DataPlane {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Vxlan, Self::Wireguard, Self::Routes];

    /// As in files and flags: `vxlan`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::Wireguard => "wireguard",
            Self::Routes => "routes",
        }
    }

    /// For people: `encrypted (WireGuard)`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Vxlan => "not encrypted (VXLAN)",
            Self::Wireguard => "encrypted (WireGuard)",
            Self::Routes => "not encrypted (routes)",
        }
    }
}

impl fmt::Display for DataPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for DataPlane {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a data plane; give vxlan, wireguard or routes"))
    }
}

/// The public key of a node, with which others encrypt packets for it (X25519).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireGuardKey(pub [u8; 32]);

impl fmt::Display for WireGuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for WireGuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WireGuardKey({self})")
    }
}

impl FromStr for WireGuardKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a WireGuard key has 64 hexadecimal digits".to_owned();
        let mut key = [0; 32];
        if text.len() != 2 * key.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        for (byte, place) in key.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[place..place + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(key))
    }
}

impl Serialize for WireGuardKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WireGuardKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_plane_is_text() {
        for kind in DataPlane::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for bad in ["", "VXLAN", "route", "ipsec"] {
            let refused = bad.parse::<DataPlane>().unwrap_err();
            assert!(refused.contains("give vxlan, wireguard or routes"), "{refused}");
        }
    }

    #[test]
    fn key_is_hexadecimal() {
        let key = WireGuardKey(std::array::from_fn(|place| place as u8 * 8));
        assert!(key.to_string().starts_with("00081018"));
        assert_eq!(key.to_string().parse(), Ok(key));
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(serde_json::from_str::<WireGuardKey>(&json).unwrap(), key);
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"+1".repeat(32)] {
            assert!(bad.parse::<WireGuardKey>().is_err(), "{bad}");
        }
    }
}

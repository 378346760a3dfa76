//! The key pair of a node (X25519, RFC 7748).

use std::fmt;
use std::str::FromStr;

use gotatun::x25519;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;

/// Text that is no key: it has not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key has 64 hexadecimal digits")]
pub struct InvalidKey;

/// The secret half. It is never shown, and overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct WireGuardPrivateKey(Zeroizing<[u8; KEY_BYTES]>);

impl WireGuardPrivateKey {
    /// A new random key; `None` if the system has no randomness.
    pub fn generate() -> Option<Self> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        SystemRandom::new().fill(&mut *bytes).ok()?;
        // The form that the kernel's WireGuard reports (RFC 7748, section 5).
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        Some(Self(bytes))
    }

    /// The public half.
    pub fn public_key(&self) -> WireGuardPublicKey {
        WireGuardPublicKey(x25519::PublicKey::from(&x25519::StaticSecret::from(*self.0)).to_bytes())
    }

    /// 64 hexadecimal digits: the form for files and for the protocol.
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex(&self.0))
    }
}

impl fmt::Debug for WireGuardPrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WireGuardPrivateKey(..)")
    }
}

impl FromStr for WireGuardPrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        Ok(Self(Zeroizing::new(parse_hex(text)?)))
    }
}

/// The public half, by which peers know a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireGuardPublicKey(pub [u8; KEY_BYTES]);

impl fmt::Display for WireGuardPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for WireGuardPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WireGuardPublicKey({self})")
    }
}

impl FromStr for WireGuardPublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        parse_hex(text).map(Self)
    }
}

fn hex(bytes: &[u8; KEY_BYTES]) -> String {
    // With room from the start, so that no copy of a key is left behind.
    let mut text = String::with_capacity(2 * KEY_BYTES);
    for digit in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
    }
    text
}

fn parse_hex(text: &str) -> Result<[u8; KEY_BYTES], InvalidKey> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return Err(InvalidKey);
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(InvalidKey);
        let value = digit(pair[0])? << 4 | digit(pair[1])?;
        *byte = u8::try_from(value).map_err(|_| InvalidKey)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_key_follows_from_the_private_one() {
        // As OpenSSL computes it.
        let private = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ac177fba51db92c2a";
        let public = "2953e97dca1229f97c600bec2c17feeaab35ce4bedf66b1d42f16a449dc5c05f";
        let key: WireGuardPrivateKey = private.parse().unwrap();
        assert_eq!(key.public_key().to_string(), public);
        assert_eq!(*key.to_hex(), private);
        assert_eq!(format!("{key:?}"), "WireGuardPrivateKey(..)");
    }

    #[test]
    fn keys_differ_and_survive_their_text_form() {
        let (one, other) =
            (WireGuardPrivateKey::generate().unwrap(), WireGuardPrivateKey::generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.to_hex().parse::<WireGuardPrivateKey>().unwrap(), one);
        let public = one.public_key();
        assert_eq!(public.to_string().parse::<WireGuardPublicKey>().unwrap(), public);
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(63), &"0".repeat(65)] {
            assert_eq!(bad.parse::<WireGuardPublicKey>(), Err(InvalidKey), "{bad}");
        }
    }
}

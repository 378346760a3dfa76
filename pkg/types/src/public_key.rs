//! Public keys, by which users and administrators are recognised.

use std::fmt;
use std::str::FromStr;

use crate::name::ParseNameError;

/// SHA-256 of a public key in DER (SubjectPublicKeyInfo).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKeyHash(pub [u8; 32]);

/// 64 lower-case hexadecimal digits.
impl fmt::Display for PublicKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PublicKeyHash {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let wrong = || ParseNameError::new("the SHA-256 of a key, which has 64 hexadecimal digits", text);
        let digits = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate().filter(|_| digits) {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        digits.then_some(Self(bytes)).ok_or_else(wrong)
    }
}

impl fmt::Debug for PublicKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKeyHash({self})")
    }
}

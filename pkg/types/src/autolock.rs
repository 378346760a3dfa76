//! The unlock key of a cluster, without which the keys on the disks of its managers cannot be read.

use std::fmt;
use std::str::FromStr;

use crate::SealedData;

/// Names an unlock key where it must not be shown: the first 8 bytes of a hash of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnlockKeyId(pub u64);

/// A text that does not name an unlock key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of an unlock key, which has 16 hexadecimal digits")]
pub struct ParseUnlockKeyIdError(String);

/// 16 lower-case hexadecimal digits.
impl fmt::Display for UnlockKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for UnlockKeyId {
    type Err = ParseUnlockKeyIdError;

    fn from_str(text: &str) -> Result<Self, ParseUnlockKeyIdError> {
        let is_hex = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let parsed = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        parsed.map(Self).ok_or_else(|| ParseUnlockKeyIdError(text.to_owned()))
    }
}

/// The unlock key of a cluster, as its state has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedUnlockKey {
    /// Names it.
    pub id: UnlockKeyId,
    /// The key, sealed for managers.
    pub sealed: SealedData,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_16_digits() {
        let id = UnlockKeyId(0xab);
        assert_eq!((id.to_string().as_str(), id.to_string().parse()), ("00000000000000ab", Ok(id)));
        for bad in ["", "ab", "+0000000000000ab", "00000000000000abc", "00000000000000xx", "0000000000000é"]
        {
            let refused = bad.parse::<UnlockKeyId>().unwrap_err().to_string();
            assert!(refused.contains("16 hexadecimal digits"), "{refused}");
        }
    }
}

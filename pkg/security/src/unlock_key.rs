//! Unlock keys: what opens the keys on the disk of a locked manager.
//!
//! `WARREN-UNLOCK-1-<key, 64 digits><check, 4 digits>`, hexadecimal in either case. 1 is the version of this form. The
//! check digits are the first two bytes of SHA-256 over `WARREN-UNLOCK-1-` and the key: they tell a typing error from
//! another key.

use std::fmt;

use aes_gcm::aead::Generate;
use sha2::{Digest, Sha256};
use warren_types::UnlockKeyId;
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY};
use crate::hex;

const MAGIC: &str = "WARREN-UNLOCK-";
const VERSION: u32 = 1;
const PREFIX: &str = "WARREN-UNLOCK-1-";
const CHECK: usize = 2;
const LENGTH: usize = PREFIX.len() + 2 * (KEY + CHECK);
/// What else is hashed with a key, so that no other use of the hash gives its id.
const ID_CONTEXT: &[u8] = b"warren unlock key";

/// Why a text is not an unlock key. Repeats nothing of the text but its version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnlockKeyError {
    /// It does not look like one at all.
    #[error("expected an unlock key, which begins with {PREFIX}: `warren cluster unlock-key` prints it")]
    NotAnUnlockKey,
    /// Another version of Warren made it.
    #[error(
        "the unlock key has version {found}, this program supports version {VERSION}: use the same version of Warren \
         as the cluster"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Something is missing or was added.
    #[error(
        "an unlock key has {LENGTH} characters, this one has {found}: copy all of it, without spaces or line breaks"
    )]
    Length {
        /// Its number of characters.
        found: usize,
    },
    /// A character that no unlock key has in this place.
    #[error(
        "character {position} of the unlock key is wrong: after {PREFIX} it has only the digits 0-9 and a-f"
    )]
    Character {
        /// Where it stands, counted from 1.
        position: usize,
    },
    /// Its parts do not belong together.
    #[error("the unlock key's check digits do not match: a character was mistyped, copy it again")]
    Check,
}

/// An unlock key, wiped from memory in the end. `Debug` shows its id only.
#[derive(Clone)]
pub struct UnlockKey(Zeroizing<[u8; KEY]>);

impl UnlockKey {
    /// A new key of 256 bits from the operating system.
    pub fn generate() -> Self {
        Self(Zeroizing::new(Generate::generate()))
    }

    /// Reads a key as somebody typed or pasted it: space around it and the case of its letters do not count.
    ///
    /// # Errors
    /// [`UnlockKeyError`].
    pub fn parse(text: &str) -> Result<Self, UnlockKeyError> {
        let text = text.trim();
        check_version(text)?;
        let found = text.chars().count();
        if found != LENGTH {
            return Err(UnlockKeyError::Length { found });
        }
        if let Some(index) = text.chars().position(|letter| !letter.is_ascii()) {
            return Err(UnlockKeyError::Character { position: index + 1 });
        }
        let mut bytes = Zeroizing::new([0; KEY + CHECK]);
        hex::parse(&text.as_bytes()[PREFIX.len()..], &mut *bytes)
            .map_err(|index| UnlockKeyError::Character { position: PREFIX.len() + index + 1 })?;
        let (found, check) = bytes.split_at(KEY);
        let mut key = Zeroizing::new([0; KEY]);
        key.copy_from_slice(found);
        let key = Self(key);
        if key.check() == check { Ok(key) } else { Err(UnlockKeyError::Check) }
    }

    /// The key as text. What is done with it must keep it from logs and errors.
    pub fn reveal(&self) -> Zeroizing<String> {
        // Never grows, so that no copy is left behind in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(LENGTH));
        text.push_str(PREFIX);
        text.extend(hex::digits(&self.0[..]).chain(hex::digits(&self.check())));
        text
    }

    /// Names the key where it must not be shown.
    pub fn id(&self) -> UnlockKeyId {
        let hash = Sha256::new().chain_update(ID_CONTEXT).chain_update(&self.0[..]).finalize();
        UnlockKeyId(u64::from_be_bytes(*hash.first_chunk().expect("a hash has 32 bytes")))
    }

    pub(crate) fn cipher(&self) -> Cipher {
        Cipher::new(&self.0)
    }

    fn check(&self) -> [u8; CHECK] {
        let hash = Sha256::new().chain_update(PREFIX).chain_update(&self.0[..]).finalize();
        [hash[0], hash[1]]
    }
}

impl fmt::Debug for UnlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnlockKey({})", self.id())
    }
}

fn check_version(text: &str) -> Result<(), UnlockKeyError> {
    let marked = text.get(..MAGIC.len()).is_some_and(|mark| mark.eq_ignore_ascii_case(MAGIC));
    let version = marked.then(|| text[MAGIC.len()..].split_once('-')).flatten().map(|(version, _)| version);
    match version {
        Some("1") => Ok(()),
        Some(other) if other.bytes().all(|byte| byte.is_ascii_digit()) => match other.parse() {
            Ok(found) if found != VERSION => Err(UnlockKeyError::Version { found }),
            _ => Err(UnlockKeyError::NotAnUnlockKey),
        },
        _ => Err(UnlockKeyError::NotAnUnlockKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_in_either_case() {
        let key = UnlockKey::generate();
        let text = key.reveal();
        assert_eq!((text.len(), &text[..PREFIX.len()]), (LENGTH, PREFIX));
        for typed in [text.to_string(), text.to_lowercase(), format!("  {}\n", *text)] {
            let read = UnlockKey::parse(&typed).unwrap();
            assert_eq!((read.id(), &*read.reveal()), (key.id(), &*text));
        }
        assert_ne!(UnlockKey::generate().id(), key.id());
        assert_eq!(format!("{key:?}"), format!("UnlockKey({})", key.id()));
    }

    #[test]
    fn text_that_is_no_key_is_refused_and_not_repeated() {
        // Known bytes: two check digits miss one mistake in 65 536.
        let text = UnlockKey(Zeroizing::new(std::array::from_fn(|at| at as u8))).reveal();
        let digits = &text[PREFIX.len()..];
        let check = |text: &str| UnlockKey::parse(text).unwrap_err();
        for bad in ["", "WRN-1-ab", "WARREN-UNLOCK", "WARREN-UNLOCK-01-ab", "WARREN-UNLOCK-x-ab", digits] {
            assert_eq!(check(bad), UnlockKeyError::NotAnUnlockKey, "{bad}");
        }
        assert_eq!(check(&text.replace("-1-", "-2-")), UnlockKeyError::Version { found: 2 });
        assert_eq!(check(&text[..LENGTH - 1]), UnlockKeyError::Length { found: LENGTH - 1 });
        let position = PREFIX.len() + 1;
        assert_eq!(check(&format!("{PREFIX}x{}", &digits[1..])), UnlockKeyError::Character { position });
        assert_eq!(check(&format!("{PREFIX}é{}", &digits[1..])), UnlockKeyError::Character { position });
        let mistyped = check(&format!("{PREFIX}a{}", &digits[1..]));
        assert_eq!(mistyped, UnlockKeyError::Check);
        assert!(!mistyped.to_string().contains(&digits[2..20]));
    }
}

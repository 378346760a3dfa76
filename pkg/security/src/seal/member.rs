//! The member key: one line of text in a file of its own.
//!
//! `warren-member-key <format version> <key, 64 hexadecimal digits> <fingerprint, 16 of them>`
//!
//! The fingerprint finds a damaged line, and names the key where it must not be shown.

use std::fmt::{self, Write};
use std::io::ErrorKind;
use std::path::Path;

use aes_gcm::aead::Generate;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::cipher::{Cipher, KEY};
use super::keyring::KeyringError;
use crate::files::{FileError, read_private, write_private};

const MARK: &str = "warren-member-key";
/// The format version of the file that this program writes, and the latest it reads.
const FORMAT: u32 = 1;
/// What else is hashed with a key, so that no other use of the hash gives its fingerprint.
const FINGERPRINT: &[u8] = b"warren member key";

/// The first bytes of a hash of the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub(super) [u8; 8]);

/// 16 lower-case hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What wraps the data keys of one manager.
pub(super) struct MemberKey(Zeroizing<[u8; KEY]>);

impl MemberKey {
    pub(super) fn new(key: [u8; KEY]) -> Self {
        Self(Zeroizing::new(key))
    }

    /// The key in the file; `None` when there is no file.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, KeyringError> {
        match read_private(path) {
            Ok(text) => parse(path, &text).map(Some),
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A new key; it is durable in the file when this returns.
    pub(super) fn create(path: &Path) -> Result<Self, KeyringError> {
        let key = Self::new(<[u8; KEY]>::generate());
        write_private(path, key.line().as_bytes())?;
        Ok(key)
    }

    pub(super) fn cipher(&self) -> Cipher {
        Cipher::new(&self.0)
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        let hash = Sha256::new().chain_update(FINGERPRINT).chain_update(&self.0[..]).finalize();
        Fingerprint(*hash.first_chunk().expect("a hash has 32 bytes"))
    }

    pub(super) fn line(&self) -> Zeroizing<String> {
        // Room for all of it: growing would leave a copy in freed memory.
        let mut line = Zeroizing::new(String::with_capacity(128));
        let written = write!(line, "{MARK} {FORMAT} ").and_then(|()| {
            self.0.iter().try_for_each(|byte| write!(line, "{byte:02x}"))?;
            writeln!(line, " {}", self.fingerprint())
        });
        written.expect("a string takes everything");
        line
    }
}

fn parse(path: &Path, text: &str) -> Result<MemberKey, KeyringError> {
    let damaged = |what: &str| KeyringError::Damaged { path: path.to_owned(), what: what.into() };
    let mut words = text.split_ascii_whitespace();
    if words.next() != Some(MARK) {
        return Err(damaged("it does not begin with `warren-member-key`"));
    }
    match words.next().and_then(|version| version.parse().ok()) {
        None => return Err(damaged("it has no format version")),
        Some(found) if found > FORMAT => {
            return Err(KeyringError::Newer { path: path.to_owned(), found, supported: FORMAT });
        }
        Some(_) => {}
    }
    let (Some(key), Some(sum), None) = (words.next(), words.next(), words.next()) else {
        return Err(damaged("wanted a key and its fingerprint"));
    };
    let key = key_from_hex(key).ok_or_else(|| damaged("the key is not of 64 hexadecimal digits"))?;
    if key.fingerprint().to_string() != sum {
        return Err(damaged("the key and its fingerprint do not match"));
    }
    Ok(key)
}

fn key_from_hex(text: &str) -> Option<MemberKey> {
    if text.len() != 2 * KEY || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY]);
    for (byte, start) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[start..start + 2], 16).ok()?;
    }
    Some(MemberKey(key))
}

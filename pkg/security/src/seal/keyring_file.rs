//! The file of the keyring: the data keys of one manager, each wrapped by its member key.
//!
//! | part        | content                                                                              |
//! |-------------|--------------------------------------------------------------------------------------|
//! | header      | `WRNKEYS\n`, format version u32, fingerprint of the member key, last id given out u32  |
//! | keys        | how many u32, then of each: id u32, nonce of 12 bytes, wrapped key of 32, tag of 16    |
//! | footer      | SHA-256 of everything before                                                         |
//!
//! A key is wrapped by AES-256-GCM under the member key with a random nonce; `warren data key` and the id are
//! authenticated with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, KEY, NONCE, TAG};
use crate::files::{FileError, read_private_bytes};
use crate::key_file::{KeyFileError, KeyFingerprint};

/// The format version of the file that this program writes, and the latest it reads.
const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"WRNKEYS\n";
const CHECKSUM: usize = 32;
/// How many keys are kept that nothing needs.
const MAX_RETIRED_KEYS: usize = 64;
const WRAP_AAD: &[u8] = b"warren data key";
/// Its name in the manager's directory.
pub(super) const FILE: &str = "keyring";

/// Names a data key; rises with every start of the manager, and with every renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

impl KeyId {
    pub(super) fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The file's content.
#[derive(Clone)]
pub(super) struct KeyringFile {
    pub(super) last_id: KeyId,
    pub(super) wrapped: BTreeMap<KeyId, WrappedKey>,
}

impl Default for KeyringFile {
    fn default() -> Self {
        Self { last_id: KeyId(0), wrapped: BTreeMap::new() }
    }
}

/// A data key under the member key.
#[derive(Clone)]
pub(super) struct WrappedKey {
    nonce: [u8; NONCE],
    text: [u8; KEY],
    tag: [u8; TAG],
}

impl WrappedKey {
    pub(super) fn seal(member: &Cipher, id: KeyId, key: &[u8; KEY], nonce: [u8; NONCE]) -> Self {
        let mut text = *key;
        let tag = member.seal_under(&nonce, &aad(id), &mut text);
        Self { nonce, text, tag }
    }

    pub(super) fn open(&self, member: &Cipher, id: KeyId) -> Option<Zeroizing<[u8; KEY]>> {
        let mut key = Zeroizing::new(self.text);
        member.open_under(&self.nonce, &aad(id), &mut key[..], &self.tag).then_some(key)
    }
}

fn aad(id: KeyId) -> Vec<u8> {
    [WRAP_AAD, &id.0.to_le_bytes()].concat()
}

impl KeyringFile {
    /// Removes keys that nothing needs, but for some: a log that was moved away, or replaced by an older one, can
    /// still be put back. Where nothing needs any key, they are the oldest, since a manager that is started over and
    /// over without its log makes only new ones that it never uses.
    pub(super) fn prune(&mut self, in_use: &BTreeSet<KeyId>) {
        let mut spare: Vec<KeyId> = self.wrapped.keys().filter(|id| !in_use.contains(id)).copied().collect();
        if !in_use.is_empty() {
            spare.reverse();
        }
        for id in spare.into_iter().skip(MAX_RETIRED_KEYS) {
            self.wrapped.remove(&id);
        }
    }

    pub(super) fn encode(&self, member: KeyFingerprint) -> Vec<u8> {
        let count =
            u32::try_from(self.wrapped.len()).expect("ids are of 32 bits, and the highest is not given out");
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&member.0);
        bytes.extend_from_slice(&self.last_id.0.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        for (id, WrappedKey { nonce, text, tag }) in &self.wrapped {
            bytes.extend_from_slice(&id.0.to_le_bytes());
            for part in [&nonce[..], text, tag] {
                bytes.extend_from_slice(part);
            }
        }
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        bytes
    }
}

/// What the file holds; `None` when there is none.
pub(super) fn load(path: &Path) -> Result<Option<(KeyFingerprint, KeyringFile)>, KeyFileError> {
    let bytes = match read_private_bytes(path) {
        Ok(bytes) => bytes,
        Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |what: &str| KeyFileError::Damaged { path: path.to_owned(), what: what.into() };
    let mut fields = KeyringReader(&bytes);
    if fields.read_bytes() != Some(MAGIC) {
        return Err(damaged("it does not begin like a keyring"));
    }
    // The version comes before the checksum: a later version may sum differently.
    match fields.read_u32() {
        None => return Err(damaged("it is too short")),
        Some(found) if found > FORMAT => {
            return Err(KeyFileError::UnsupportedFormat { path: path.to_owned(), found, supported: FORMAT });
        }
        Some(_) => {}
    }
    let (summed, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or_else(|| damaged("it is too short"))?;
    if Sha256::digest(summed)[..] != sum[..] {
        return Err(damaged("its checksum does not match"));
    }
    let mut fields = KeyringReader(&summed[MAGIC.len() + size_of_val(&FORMAT)..]);
    parse(&mut fields).map(Some).ok_or_else(|| damaged("its length is not the one it says"))
}

fn parse(fields: &mut KeyringReader<'_>) -> Option<(KeyFingerprint, KeyringFile)> {
    let member = KeyFingerprint(*fields.read_bytes()?);
    let last = KeyId(fields.read_u32()?);
    let count = fields.read_u32()?;
    let mut wrapped = BTreeMap::new();
    for _ in 0..count {
        let id = KeyId(fields.read_u32()?);
        let (nonce, text, tag) = (*fields.read_bytes()?, *fields.read_bytes()?, *fields.read_bytes()?);
        wrapped.insert(id, WrappedKey { nonce, text, tag });
    }
    fields.0.is_empty().then_some((member, KeyringFile { last_id: last, wrapped }))
}

/// What is left to be read.
struct KeyringReader<'a>(&'a [u8]);

impl<'a> KeyringReader<'a> {
    fn read_bytes<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn read_u32(&mut self) -> Option<u32> {
        self.read_bytes().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

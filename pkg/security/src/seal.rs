//! Sealing: what a manager writes is encrypted before it reaches the disk.
//!
//! A manager has one *member key*, in a file of its own. It wraps the *data keys* in the [`Keyring`], a file too:
//! one data key per start or renewal, under which everything is sealed by AES-256-GCM with a counter for the nonce
//! until the next one. A data key is new each time and only one process uses it, so no nonce is ever used twice, also
//! after the directory was restored from a backup.
//!
//! What is sealed is bound to its *place*, a few bytes that say where it belongs: moved elsewhere, it does not open.
//! There are two forms: a value, sealed as a whole ([`Keyring::seal`]), and a stream of chunks for what is large
//! ([`SealingWriter`]). Integers are little-endian.
//!
//! | value  | content                                                                  |
//! |--------|--------------------------------------------------------------------------|
//! | header | format version u8, key id u32, counter u64                               |
//! | body   | ciphertext, tag of 16 bytes                                              |
//!
//! | stream | content                                                                  |
//! |--------|--------------------------------------------------------------------------|
//! | header | format version u8, key id u32, the stream's number u64, from the counter |
//! | chunk  | 1 if it is the last else 0 u8, length u32, counter u64, ciphertext, tag  |
//!
//! The nonce is four zero bytes and the counter. Authenticated with a value: `V`, the header, the place; with a
//! chunk: `S`, the header, the chunk's number u64, whether it is the last u8, the place.
//!
//! This hides data from whoever comes by the log or a snapshot without the member key: a copy, a backup without it,
//! a page of the disk that was freed. It hides nothing from whoever can read the whole directory, unless the manager
//! locks its keys ([`KeyFiles`]).

mod key_files;
mod keyring;
mod keyring_file;
mod member;
mod stream;

use crate::cipher::TAG;
pub use key_files::KeyFiles;
pub use keyring::{Keyring, KeyringError, PreparedKeyring};
pub use keyring_file::KeyId;
pub use stream::SealingWriter;

/// The format version of values and streams that this program writes, and the latest it reads. No message in
/// protobuf begins with this byte, so that what was never sealed is recognised.
pub const SEAL_FORMAT: u8 = 1;

/// Format version, key id, counter.
const HEADER: usize = 13;
const VALUE: u8 = b'V';
const STREAM: u8 = b'S';

/// Why something cannot be sealed, or what was sealed cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It begins with another version.
    #[error("it was not sealed, or by another version of Warren: expected format {SEAL_FORMAT}, found {0}")]
    Format(u8),
    /// It ends too early.
    #[error("it is cut short")]
    Short,
    /// Something follows after its end.
    #[error("{0} bytes follow after its end")]
    Trailing(usize),
    /// The key is not in the keyring.
    #[error(
        "it is sealed with the data key {0}, which the keyring does not hold: restore the keyring as well"
    )]
    UnknownKey(KeyId),
    /// It does not open.
    #[error("it does not open with the data key {0}: it is damaged, or belongs elsewhere")]
    Refused(KeyId),
    /// No nonce is left.
    #[error("the data key {0} has reached its limit: restart the manager, which creates a new one")]
    CounterExhausted(KeyId),
}

/// Which key something is sealed with.
///
/// # Errors
/// [`SealError::Format`] and [`SealError::Short`]: it is nothing that was sealed.
pub fn key_id_of(sealed: &[u8]) -> Result<KeyId, SealError> {
    Ok(SealHeader::parse(sealed)?.0.key)
}

/// What both forms begin with.
#[derive(Clone, Copy)]
struct SealHeader {
    key: KeyId,
    counter: u64,
}

impl SealHeader {
    /// The header and what follows it.
    fn parse(sealed: &[u8]) -> Result<(Self, &[u8]), SealError> {
        match sealed.first() {
            None => return Err(SealError::Short),
            Some(&SEAL_FORMAT) => {}
            Some(other) => return Err(SealError::Format(*other)),
        }
        let (header, rest) = sealed.split_first_chunk::<HEADER>().ok_or(SealError::Short)?;
        let [_, k0, k1, k2, k3, counter @ ..] = *header;
        let key = KeyId(u32::from_le_bytes([k0, k1, k2, k3]));
        Ok((Self { key, counter: u64::from_le_bytes(counter) }, rest))
    }

    fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [SEAL_FORMAT; HEADER];
        bytes[1..5].copy_from_slice(&self.key.0.to_le_bytes());
        bytes[5..].copy_from_slice(&self.counter.to_le_bytes());
        bytes
    }
}

fn value_aad(header: SealHeader, place: &[u8]) -> Vec<u8> {
    let mut about = Vec::with_capacity(1 + HEADER + place.len());
    about.push(VALUE);
    about.extend_from_slice(&header.to_bytes());
    about.extend_from_slice(place);
    about
}

impl Keyring {
    /// Seals a value that belongs to `place`; it grows by 29 bytes.
    ///
    /// # Errors
    /// [`SealError::CounterExhausted`].
    pub fn seal(&self, place: &[u8], plain: &[u8]) -> Result<Vec<u8>, SealError> {
        let current = self.current_key();
        let header = SealHeader { key: current.id, counter: current.next_counter()? };
        let mut sealed = Vec::with_capacity(HEADER + plain.len() + TAG);
        sealed.extend_from_slice(&header.to_bytes());
        sealed.extend_from_slice(plain);
        let about = value_aad(header, place);
        let tag = current.cipher.seal(header.counter, &about, &mut sealed[HEADER..]);
        sealed.extend_from_slice(&tag);
        Ok(sealed)
    }

    /// Opens a value that [`Keyring::seal`] sealed for `place`.
    ///
    /// # Errors
    /// All but [`SealError::CounterExhausted`].
    pub fn unseal(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (header, body) = SealHeader::parse(sealed)?;
        let (text, tag) = body.split_last_chunk::<TAG>().ok_or(SealError::Short)?;
        let cipher = self.cipher_for(header.key)?;
        let mut plain = text.to_vec();
        let opened = cipher.open(header.counter, &value_aad(header, place), &mut plain, tag);
        if opened { Ok(plain) } else { Err(SealError::Refused(header.key)) }
    }
}

#[cfg(test)]
mod tests;

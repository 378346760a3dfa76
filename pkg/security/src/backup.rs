//! The format of backups: a stream that is encrypted with a passphrase.
//!
//! | part   | content                                                             |
//! |--------|---------------------------------------------------------------------|
//! | header | `WRNBACK\n`, format version u32, rounds u32, salt of 16 bytes        |
//! | chunk  | 1 if it is the last else 0 u8, length u32, ciphertext, tag of 16     |
//!
//! Integers are little-endian. The key is PBKDF2-HMAC-SHA256 (RFC 8018) of the passphrase and the salt. Since the
//! salt is random, no two backups share a key, and the number of the chunk is the nonce of AES-256-GCM.
//! The AAD of a chunk: `warren backup`, the header, the number of the chunk u64, whether it is the last u8. So a
//! truncated, changed or mixed backup does not open.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU32;

use aes_gcm::aead::Generate;
use ring::pbkdf2;
use zeroize::{Zeroize, Zeroizing};

use crate::cipher::{Cipher, KEY, TAG};

/// The format version that this program writes, and the latest it reads.
pub const BACKUP_FORMAT: u32 = 1;
/// Minimum length in characters, against guessing.
pub const MIN_PASSPHRASE: usize = 8;
/// Maximum length in bytes; a longer text is probably a file.
pub const MAX_PASSPHRASE: usize = 1024;

const MAGIC: &[u8; 8] = b"WRNBACK\n";
const SALT: usize = 16;
const HEADER: usize = 8 + 4 + 4 + SALT;
/// Rounds as recommended by OWASP for PBKDF2-HMAC-SHA256.
const ROUNDS: u32 = 600_000;
/// Maximum rounds that are accepted: more would take minutes.
const MAX_ROUNDS: u32 = 10_000_000;
/// Bytes of plaintext in each chunk except the last.
const CHUNK: usize = 64 << 10;
/// Header of a chunk: whether it is the last, and its length.
const FRAME: usize = 5;
const LAST_CHUNK: u8 = 1;
const AAD: &[u8] = b"warren backup";

/// Why a passphrase is refused. Contains nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PassphraseError {
    /// Too short.
    #[error("the passphrase has {found} characters; give at least {MIN_PASSPHRASE}")]
    Short {
        /// Its number of characters.
        found: usize,
    },
    /// Too long.
    #[error("the passphrase has {found} bytes; give at most {MAX_PASSPHRASE}")]
    Long {
        /// Its number of bytes.
        found: usize,
    },
}

/// Passphrase of a backup. `Debug` redacts it, and it is wiped on drop.
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Validates a passphrase; the text is not changed.
    ///
    /// # Errors
    /// [`PassphraseError`].
    pub fn parse(text: Zeroizing<String>) -> Result<Self, PassphraseError> {
        let found = text.chars().count();
        if found < MIN_PASSPHRASE {
            return Err(PassphraseError::Short { found });
        }
        if text.len() > MAX_PASSPHRASE {
            return Err(PassphraseError::Long { found: text.len() });
        }
        Ok(Self(text))
    }

    /// The text, which must not get into logs, errors or command lines.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase(redacted)")
    }
}

/// Why a backup does not open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// Wrong magic.
    #[error("not a Warren backup: wrong magic")]
    NotABackup,
    /// Written by a later version.
    #[error(
        "the backup has format version {found}, and this version of Warren reads up to {BACKUP_FORMAT}: use the \
         version that wrote it"
    )]
    UnsupportedFormat {
        /// Its version.
        found: u32,
    },
    /// The header is invalid.
    #[error("the header of the backup is damaged: {0} PBKDF2 rounds are out of range")]
    Header(u32),
    /// Truncated.
    #[error("the backup is truncated")]
    Short,
    /// Trailing bytes.
    #[error("the backup is damaged: {0} trailing bytes")]
    Trailing(usize),
    /// The first chunk cannot be decrypted.
    #[error("the backup cannot be decrypted: wrong passphrase, or the start of the file is damaged")]
    Passphrase,
    /// A later chunk cannot be decrypted.
    #[error("the backup is damaged in chunk {0}")]
    Damaged(u64),
}

/// Encrypts a backup. It only opens after [`BackupWriter::finish`].
pub struct BackupWriter<W> {
    chunks: ChunkCipher,
    out: W,
    /// Plaintext of the current chunk.
    plain: Zeroizing<Vec<u8>>,
}

impl<W: Write> BackupWriter<W> {
    /// Writes a backup to `out`. Deriving the key deliberately takes some tenths of a second.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(passphrase: &Passphrase, out: W) -> io::Result<Self> {
        Self::with(passphrase, Generate::generate(), ROUNDS, out)
    }

    fn with(passphrase: &Passphrase, salt: [u8; SALT], rounds: u32, mut out: W) -> io::Result<Self> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&BACKUP_FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&rounds.to_le_bytes());
        header[16..].copy_from_slice(&salt);
        out.write_all(&header)?;
        let rounds = NonZeroU32::new(rounds).expect("this program asks for some");
        let chunks = ChunkCipher::new(passphrase, &header, rounds);
        Ok(Self { chunks, out, plain: Zeroizing::new(Vec::with_capacity(CHUNK)) })
    }

    /// Writes the last chunk and returns the inner writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal_chunk(LAST_CHUNK)?;
        Ok(self.out)
    }

    fn seal_chunk(&mut self, last: u8) -> io::Result<()> {
        let (number, about) = self.chunks.next_aad(last);
        let tag = self.chunks.cipher.seal(number, &about, &mut self.plain);
        let length = u32::try_from(self.plain.len()).expect("a chunk is short");
        let mut frame = [last; FRAME];
        frame[1..].copy_from_slice(&length.to_le_bytes());
        for part in [&frame[..], &self.plain, &tag] {
            self.out.write_all(part)?;
        }
        self.plain.clear();
        Ok(())
    }
}

impl<W: Write> Write for BackupWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is written once more data follows, since the last one is marked.
        if self.plain.len() == CHUNK && !bytes.is_empty() {
            self.seal_chunk(0)?;
        }
        let taken = bytes.len().min(CHUNK - self.plain.len());
        self.plain.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Does not write a partial chunk: a reader needs the whole backup anyway.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Decrypts and authenticates a whole backup in place.
///
/// # Errors
/// [`BackupError`].
pub fn open_backup(passphrase: &Passphrase, sealed: Vec<u8>) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    let mut sealed = Zeroizing::new(sealed);
    let (header, rounds) = parse_header(&sealed)?;
    let mut chunks = ChunkCipher::new(passphrase, &header, rounds);
    let (mut read, mut plain) = (HEADER, 0);
    loop {
        let (frame, rest) = sealed[read..].split_first_chunk_mut::<FRAME>().ok_or(BackupError::Short)?;
        let [last, length @ ..] = *frame;
        let length = u32::from_le_bytes(length) as usize;
        let (text, rest) = rest.split_at_mut_checked(length).ok_or(BackupError::Short)?;
        let tag = rest.first_chunk::<TAG>().ok_or(BackupError::Short)?;
        let (number, about) = chunks.next_aad(last);
        if !chunks.cipher.open(number, &about, text, tag) {
            return Err(if number == 0 { BackupError::Passphrase } else { BackupError::Damaged(number) });
        }
        let start = read + FRAME;
        sealed.copy_within(start..start + length, plain);
        (read, plain) = (start + length + TAG, plain + length);
        if last == LAST_CHUNK {
            break;
        }
    }
    if read < sealed.len() {
        return Err(BackupError::Trailing(sealed.len() - read));
    }
    // The bytes after the plaintext were plaintext too.
    sealed[plain..].zeroize();
    sealed.truncate(plain);
    Ok(sealed)
}

fn parse_header(sealed: &[u8]) -> Result<([u8; HEADER], NonZeroU32), BackupError> {
    if !sealed.starts_with(MAGIC) {
        return Err(BackupError::NotABackup);
    }
    let header = *sealed.first_chunk::<HEADER>().ok_or(BackupError::Short)?;
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (found, rounds) = (number(8), number(12));
    if found > BACKUP_FORMAT {
        return Err(BackupError::UnsupportedFormat { found });
    }
    let rounds = NonZeroU32::new(rounds).filter(|rounds| rounds.get() <= MAX_ROUNDS);
    Ok((header, rounds.ok_or_else(|| BackupError::Header(number(12)))?))
}

/// Cipher and AAD of the chunks, and the number of the next one.
struct ChunkCipher {
    cipher: Cipher,
    header: [u8; HEADER],
    number: u64,
}

impl ChunkCipher {
    fn new(passphrase: &Passphrase, header: &[u8; HEADER], rounds: NonZeroU32) -> Self {
        let salt = &header[HEADER - SALT..];
        let mut key = Zeroizing::new([0; KEY]);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, passphrase.0.as_bytes(), &mut key[..]);
        Self { cipher: Cipher::new(&key), header: *header, number: 0 }
    }

    /// The number of the next chunk, and its AAD.
    fn next_aad(&mut self, last: u8) -> (u64, Vec<u8>) {
        let number = self.number;
        self.number += 1;
        (number, [AAD, &self.header, &number.to_le_bytes(), &[last]].concat())
    }
}

#[cfg(test)]
mod tests;

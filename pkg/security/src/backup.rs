//! Backups: a stream that whoever knows the passphrase can open, and nobody else.
//!
//! | part   | content                                                             |
//! |--------|---------------------------------------------------------------------|
//! | header | `WRNBACK\n`, format version u32, rounds u32, salt of 16 bytes        |
//! | chunk  | 1 if it is the last else 0 u8, length u32, ciphertext, tag of 16     |
//!
//! Integers are little-endian. The key is PBKDF2-HMAC-SHA256 (RFC 8018) of the passphrase and the salt. Since the
//! salt is random, no two backups have a key in common, and the chunk's number serves as nonce of AES-256-GCM.
//! Authenticated with a chunk: `warren backup`, the header, the chunk's number u64, whether it is the last u8. So a
//! backup that was cut, changed or put together from two does not open.

use std::fmt;
use std::io::{self, Write};
use std::num::NonZeroU32;

use aes_gcm::aead::Generate;
use ring::pbkdf2;
use zeroize::{Zeroize, Zeroizing};

use crate::cipher::{Cipher, KEY, TAG};

/// The format version that this program writes, and the latest it reads.
pub const BACKUP_FORMAT: u32 = 1;
/// Fewer characters than this are guessed too soon.
pub const SHORTEST_PASSPHRASE: usize = 8;
/// A longer one is a file that was taken for a passphrase.
pub const LONGEST_PASSPHRASE: usize = 1024;

const MAGIC: &[u8; 8] = b"WRNBACK\n";
const SALT: usize = 16;
const HEADER: usize = 8 + 4 + 4 + SALT;
/// What a guess costs: as many rounds as OWASP recommends for PBKDF2-HMAC-SHA256.
const ROUNDS: u32 = 600_000;
/// A header that asks for more would keep its reader busy for minutes.
const MOST_ROUNDS: u32 = 10_000_000;
/// Bytes of plain text in each chunk but the last.
const CHUNK: usize = 64 << 10;
/// Before a chunk's text: whether it is the last, and its length.
const FRAME: usize = 5;
const LAST_CHUNK: u8 = 1;
const ABOUT: &[u8] = b"warren backup";

/// Why a passphrase is none. Repeats nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PassphraseError {
    /// It would be guessed.
    #[error("the passphrase has {found} characters; give at least {SHORTEST_PASSPHRASE}")]
    Short {
        /// Its number of characters.
        found: usize,
    },
    /// It is something else.
    #[error("the passphrase has {found} bytes; give at most {LONGEST_PASSPHRASE}")]
    Long {
        /// Its number of bytes.
        found: usize,
    },
}

/// What a backup is encrypted with. `Debug` shows nothing of it, and it is wiped from memory in the end.
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes a text for a passphrase, as it is.
    ///
    /// # Errors
    /// [`PassphraseError`].
    pub fn parse(text: Zeroizing<String>) -> Result<Self, PassphraseError> {
        let found = text.chars().count();
        if found < SHORTEST_PASSPHRASE {
            return Err(PassphraseError::Short { found });
        }
        if text.len() > LONGEST_PASSPHRASE {
            return Err(PassphraseError::Long { found: text.len() });
        }
        Ok(Self(text))
    }

    /// The text. What is done with it must keep it from logs, errors and command lines.
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
    /// It is something else.
    #[error("it is no backup of a Warren manager: it does not begin like one")]
    NotABackup,
    /// A later version wrote it.
    #[error(
        "the backup has format version {found}, and this version of Warren reads up to {BACKUP_FORMAT}: use the \
         version that wrote it"
    )]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Its header cannot be.
    #[error("the backup's header is damaged: {0} rounds cannot be")]
    Header(u32),
    /// It ends too early.
    #[error("the backup is cut short: it was not written to its end, or not copied whole")]
    Short,
    /// Something follows after its end.
    #[error("the backup is damaged: {0} bytes follow after its end")]
    Trailing(usize),
    /// The first chunk does not open.
    #[error("the backup does not open: the passphrase is another one, or the file's beginning is damaged")]
    Passphrase,
    /// A later chunk does not open.
    #[error("the backup is damaged in its chunk {0}")]
    Damaged(u64),
}

/// Encrypts what is written to it. Only [`BackupWriter::finish`] makes it whole: what was written without it does not
/// open.
pub struct BackupWriter<W> {
    chunks: Chunks,
    out: W,
    /// The chunk that fills.
    plain: Zeroizing<Vec<u8>>,
}

impl<W: Write> BackupWriter<W> {
    /// Writes a backup to `out`. Finding the key takes some tenths of a second of a processor, on purpose.
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
        let chunks = Chunks::new(passphrase, &header, rounds);
        Ok(Self { chunks, out, plain: Zeroizing::new(Vec::with_capacity(CHUNK)) })
    }

    /// Writes the last chunk, and returns what all went to.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal_chunk(LAST_CHUNK)?;
        Ok(self.out)
    }

    fn seal_chunk(&mut self, last: u8) -> io::Result<()> {
        let (number, about) = self.chunks.next(last);
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
        // A full chunk waits until it is known not to be the last.
        if self.plain.len() == CHUNK && !bytes.is_empty() {
            self.seal_chunk(0)?;
        }
        let taken = bytes.len().min(CHUNK - self.plain.len());
        self.plain.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Does nothing for the chunk that is not full: a reader needs all of it anyway.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Opens all of a backup, in the memory that it came in. Every byte of it is checked.
///
/// # Errors
/// [`BackupError`].
pub fn open_backup(passphrase: &Passphrase, sealed: Vec<u8>) -> Result<Zeroizing<Vec<u8>>, BackupError> {
    let mut sealed = Zeroizing::new(sealed);
    let (header, rounds) = parse_header(&sealed)?;
    let mut chunks = Chunks::new(passphrase, &header, rounds);
    let (mut read, mut plain) = (HEADER, 0);
    loop {
        let (frame, rest) = sealed[read..].split_first_chunk_mut::<FRAME>().ok_or(BackupError::Short)?;
        let [last, length @ ..] = *frame;
        let length = u32::from_le_bytes(length) as usize;
        let (text, rest) = rest.split_at_mut_checked(length).ok_or(BackupError::Short)?;
        let tag = rest.first_chunk::<TAG>().ok_or(BackupError::Short)?;
        let (number, about) = chunks.next(last);
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
    // What stands behind the text was text too.
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
        return Err(BackupError::Newer { found });
    }
    let rounds = NonZeroU32::new(rounds).filter(|rounds| rounds.get() <= MOST_ROUNDS);
    Ok((header, rounds.ok_or_else(|| BackupError::Header(number(12)))?))
}

/// What all chunks of a backup have in common, and the number of the next one.
struct Chunks {
    cipher: Cipher,
    header: [u8; HEADER],
    number: u64,
}

impl Chunks {
    fn new(passphrase: &Passphrase, header: &[u8; HEADER], rounds: NonZeroU32) -> Self {
        let salt = &header[HEADER - SALT..];
        let mut key = Zeroizing::new([0; KEY]);
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, salt, passphrase.0.as_bytes(), &mut key[..]);
        Self { cipher: Cipher::new(&key), header: *header, number: 0 }
    }

    /// The next chunk's number, and what is authenticated with it.
    fn next(&mut self, last: u8) -> (u64, Vec<u8>) {
        let number = self.number;
        self.number += 1;
        (number, [ABOUT, &self.header, &number.to_le_bytes(), &[last]].concat())
    }
}

#[cfg(test)]
mod tests;

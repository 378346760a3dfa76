//! The format of large data: chunks that are decrypted one by one, in their order; a missing chunk is an error.

use std::io::{self, Write};
use std::sync::Arc;

use super::keyring::CurrentKey;
use super::{HEADER, KeyId, Keyring, STREAM, SealError, SealHeader};
use crate::cipher::TAG;

/// Bytes of plain text in each chunk but the last.
const CHUNK: usize = 64 << 10;
/// Before a chunk's text: whether it is the last, its length, its counter.
const FRAME: usize = 13;
const LAST_CHUNK: u8 = 1;

/// Seals what is written to it, chunk by chunk. Only [`SealingWriter::finish`] makes it whole: what was written
/// without it does not open.
pub struct SealingWriter<W> {
    key: Arc<CurrentKey>,
    out: W,
    aad: ChunkAad,
    /// Bytes of plain text in each chunk but the last.
    chunk: usize,
    /// The chunk that fills.
    plain: Vec<u8>,
}

impl<W: Write> SealingWriter<W> {
    /// Writes a stream that belongs to `place` to `out`.
    ///
    /// # Errors
    /// Those of `out`, and [`SealError::CounterExhausted`].
    pub fn new(keyring: &Keyring, place: &[u8], out: W) -> io::Result<Self> {
        Self::with_chunks(keyring, place, out, CHUNK)
    }

    /// Chunks of another length, which a reader does not mind.
    pub(super) fn with_chunks(keyring: &Keyring, place: &[u8], mut out: W, chunk: usize) -> io::Result<Self> {
        let key = keyring.current_key();
        let header = SealHeader { key: key.id, counter: key.next_counter().map_err(io::Error::other)? };
        out.write_all(&header.to_bytes())?;
        Ok(Self { key, out, aad: ChunkAad::new(header, place), chunk, plain: Vec::with_capacity(chunk) })
    }

    /// The key that seals it.
    pub fn key_id(&self) -> KeyId {
        self.key.id
    }

    /// Writes the last chunk, and returns what all went to.
    ///
    /// # Errors
    /// Those of the writer, and [`SealError::CounterExhausted`].
    pub fn finish(mut self) -> io::Result<W> {
        self.seal_chunk(LAST_CHUNK)?;
        Ok(self.out)
    }

    fn seal_chunk(&mut self, last: u8) -> io::Result<()> {
        let counter = self.key.next_counter().map_err(io::Error::other)?;
        let tag = self.key.cipher.seal(counter, self.aad.next(last), &mut self.plain);
        let length = u32::try_from(self.plain.len()).expect("a chunk is short");
        let mut frame = [last; FRAME];
        frame[1..5].copy_from_slice(&length.to_le_bytes());
        frame[5..].copy_from_slice(&counter.to_le_bytes());
        for part in [&frame[..], &self.plain, &tag] {
            self.out.write_all(part)?;
        }
        self.plain.clear();
        Ok(())
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk waits until it is known not to be the last.
        if self.plain.len() == self.chunk && !bytes.is_empty() {
            self.seal_chunk(0)?;
        }
        let taken = bytes.len().min(self.chunk - self.plain.len());
        self.plain.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Does nothing for the chunk that is not full: a reader needs all of it anyway.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What is authenticated with the next chunk: `S`, the header, the chunk's number, whether it is the last, the place.
struct ChunkAad {
    bytes: Vec<u8>,
    number: u64,
}

const NUMBER: usize = 1 + HEADER;
const LAST: usize = NUMBER + size_of::<u64>();

impl ChunkAad {
    fn new(header: SealHeader, place: &[u8]) -> Self {
        let mut bytes = vec![STREAM];
        bytes.extend_from_slice(&header.to_bytes());
        bytes.resize(LAST + 1, 0);
        bytes.extend_from_slice(place);
        Self { bytes, number: 0 }
    }

    fn next(&mut self, last: u8) -> &[u8] {
        self.bytes[NUMBER..LAST].copy_from_slice(&self.number.to_le_bytes());
        self.bytes[LAST] = last;
        self.number += 1;
        &self.bytes
    }
}

impl Keyring {
    /// Opens all of a stream that was sealed for `place`, in the memory that it came in.
    ///
    /// # Errors
    /// All but [`SealError::CounterExhausted`].
    pub fn unseal_stream(&self, place: &[u8], mut sealed: Vec<u8>) -> Result<Vec<u8>, SealError> {
        let (header, _) = SealHeader::parse(&sealed)?;
        let cipher = self.cipher_for(header.key)?;
        let mut about = ChunkAad::new(header, place);
        let (mut read, mut plain) = (HEADER, 0);
        loop {
            let (frame, rest) = sealed[read..].split_first_chunk_mut::<FRAME>().ok_or(SealError::Short)?;
            let [last, l0, l1, l2, l3, counter @ ..] = *frame;
            let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            let (text, rest) = rest.split_at_mut_checked(length).ok_or(SealError::Short)?;
            let tag = rest.first_chunk::<TAG>().ok_or(SealError::Short)?;
            if !cipher.open(u64::from_le_bytes(counter), about.next(last), text, tag) {
                return Err(SealError::Refused(header.key));
            }
            let start = read + FRAME;
            sealed.copy_within(start..start + length, plain);
            (read, plain) = (start + length + TAG, plain + length);
            if last == LAST_CHUNK {
                break;
            }
        }
        if read < sealed.len() {
            return Err(SealError::Trailing(sealed.len() - read));
        }
        sealed.truncate(plain);
        Ok(sealed)
    }
}

//! Encoding of values on disk, in format [`LOG_FORMAT`]. All numbers are little-endian.
//!
//! Every value starts with the CRC32C (4 bytes) of its key followed by the rest of the value, so that a
//! value stored under a wrong key does not verify either.
//!
//! | value      | after the checksum                                                       |
//! |------------|--------------------------------------------------------------------------|
//! | format     | format version u32                                                       |
//! | entry      | kind u8, term u64, data to the end                                       |
//! | owner      | whose log it is: `owner.rs`                                              |
//! | head       | number of the write u64; first and last index of the log u64 each; sum   |
//! |            | of the entries' checksums u64; hard state; members; u8, 1 if a snapshot  |
//! |            | follows; then what members acknowledged                                   |
//! | hard state | term u64, vote u64, commit u64                                           |
//! | members    | four times count u32, ids u64: voters, learners, outgoing voters, next   |
//! |            | learners; then u8, 1 for auto-leave                                      |
//! | snapshot   | index u64, term u64, members                                             |
//! | acknowl-   | count u32, for each member its id u64 and the index u64 and term u64 of  |
//! | edged      | the entry                                                                |
//!
//! Hard state, members, snapshot and acknowledgements are parts of the head without their own checksum.

use bytes::Bytes;

use warren_types::raft::{AcknowledgedEntry, ConfState, EntryKind, HardState, RaftEntry, SnapshotMeta};

/// The version of this format; logs of other versions are not opened.
pub const LOG_FORMAT: u32 = 3;

const CHECKSUM_LEN: usize = 4;
const KIND_NOOP: u8 = 0;
const KIND_COMMAND: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

/// Length of an encoded hard state.
pub(crate) const HARD_STATE_LEN: usize = 24;

/// Length of a stored entry.
pub(crate) fn entry_len(entry: &RaftEntry) -> usize {
    CHECKSUM_LEN + 9 + entry.data.len()
}

/// Length of the stored members.
pub(crate) fn conf_state_len(conf_state: &ConfState) -> usize {
    let ids: usize = ids(conf_state).iter().map(|ids| 4 + 8 * ids.len()).sum();
    ids + 1
}

/// Length of a stored snapshot pointer.
pub(crate) fn snapshot_meta_len(snapshot: &SnapshotMeta) -> usize {
    16 + conf_state_len(&snapshot.conf_state)
}

/// Length of the encoded acknowledgements of members.
pub(crate) fn acknowledged_len(acknowledged: &[AcknowledgedEntry]) -> usize {
    4 + 24 * acknowledged.len()
}

/// Prefixes `body` with the checksum of `key` and `body`.
pub(crate) fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(CHECKSUM_LEN + body.len());
    value.extend(checksum(key, body).to_le_bytes());
    value.extend(body);
    value
}

/// The body of a sealed value; `None` if it does not verify under `key`.
pub(crate) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (stored, body) = value.split_first_chunk::<CHECKSUM_LEN>()?;
    (u32::from_le_bytes(*stored) == checksum(key, body)).then_some(body)
}

/// The CRC32C of `key` and `body`.
pub(crate) fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

/// An entry as stored under its index.
pub(crate) fn encode_entry(entry: &RaftEntry) -> Vec<u8> {
    let mut body = Vec::with_capacity(entry_len(entry));
    body.push(match entry.kind {
        EntryKind::Noop => KIND_NOOP,
        EntryKind::Command => KIND_COMMAND,
        EntryKind::Membership => KIND_MEMBERSHIP,
    });
    body.extend(entry.term.to_le_bytes());
    body.extend(&entry.data);
    seal(&entry.index.to_le_bytes(), &body)
}

/// Decodes the entry stored under `index`.
pub(crate) fn decode_entry(index: u64, value: &[u8]) -> Result<RaftEntry, &'static str> {
    let body = unseal(&index.to_le_bytes(), value).ok_or("its checksum does not match")?;
    let mut fields = FieldDecoder(body);
    let kind = match fields.u8() {
        Some(KIND_NOOP) => EntryKind::Noop,
        Some(KIND_COMMAND) => EntryKind::Command,
        Some(KIND_MEMBERSHIP) => EntryKind::Membership,
        Some(_) => return Err("its kind is unknown"),
        None => return Err("truncated"),
    };
    let term = fields.u64().ok_or("truncated")?;
    Ok(RaftEntry { index, term, kind, data: Bytes::copy_from_slice(fields.0) })
}

/// The contribution of a value to the sum of the entries: its checksum.
pub(crate) fn entry_checksum(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc).into())
}

/// Encodes a hard state for the head record.
pub(crate) fn encode_hard_state(hard_state: &HardState) -> Vec<u8> {
    [hard_state.term, hard_state.vote, hard_state.commit].map(u64::to_le_bytes).concat()
}

/// Encodes members for the head record.
pub(crate) fn encode_conf_state(conf_state: &ConfState) -> Vec<u8> {
    let mut body = Vec::new();
    for ids in ids(conf_state) {
        body.extend((ids.len() as u32).to_le_bytes());
        body.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
    }
    body.push(conf_state.auto_leave.into());
    body
}

fn ids(conf_state: &ConfState) -> [&[u64]; 4] {
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave: _ } = conf_state;
    [voters, learners, voters_outgoing, learners_next]
}

/// Encodes a snapshot pointer for the head record and the header of a snapshot file.
pub(crate) fn encode_snapshot(snapshot: &SnapshotMeta) -> Vec<u8> {
    let mut body = [snapshot.index, snapshot.term].map(u64::to_le_bytes).concat();
    body.extend(encode_conf_state(&snapshot.conf_state));
    body
}

/// Reads fields from the front of a byte slice; `None` at its end.
pub(crate) struct FieldDecoder<'a>(pub &'a [u8]);

impl FieldDecoder<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    /// The next byte, 0 or 1.
    pub fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// The next snapshot pointer.
    pub fn snapshot(&mut self) -> Option<SnapshotMeta> {
        let (index, term) = (self.u64()?, self.u64()?);
        Some(SnapshotMeta { index, term, conf_state: self.conf_state()? })
    }

    /// The next hard state.
    pub fn hard_state(&mut self) -> Option<HardState> {
        Some(HardState { term: self.u64()?, vote: self.u64()?, commit: self.u64()? })
    }

    /// The next members.
    pub fn conf_state(&mut self) -> Option<ConfState> {
        Some(ConfState {
            voters: self.ids()?,
            learners: self.ids()?,
            voters_outgoing: self.ids()?,
            learners_next: self.ids()?,
            auto_leave: self.bool()?,
        })
    }

    fn ids(&mut self) -> Option<Vec<u64>> {
        let count = self.count(8)?;
        (0..count).map(|_| self.u64()).collect()
    }

    /// The next acknowledgements.
    pub fn acknowledged(&mut self) -> Option<Vec<AcknowledgedEntry>> {
        let count = self.count(24)?;
        let one = |_| Some(AcknowledgedEntry { member: self.u64()?, index: self.u64()?, term: self.u64()? });
        (0..count).map(one).collect()
    }

    /// Reads the count of elements of the given size. Checked before memory is reserved: a damaged count
    /// may be huge.
    fn count(&mut self, bytes: usize) -> Option<u32> {
        let count = self.u32()?;
        (self.0.len() >= count as usize * bytes).then_some(count)
    }

    /// `value` if no bytes remain.
    pub fn finish<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests;

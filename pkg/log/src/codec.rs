//! How values look on disk, in format [`LOG_FORMAT`]. All numbers are little-endian.
//!
//! Every value starts with the CRC32C (4 bytes) of its key followed by the rest of the value, so
//! that a value that ended up under another key does not verify either.
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
//! Hard state, members, snapshot and what members acknowledged are parts of the head and have no checksum of their own.

use bytes::Bytes;

use warren_types::raft::{Acknowledged, ConfState, Entry, EntryKind, HardState, SnapshotMeta};

use crate::{extent::Extent, head::Head};

/// The version of this page, which a log must have to be opened.
pub const LOG_FORMAT: u32 = 3;

const CHECKSUM_LEN: usize = 4;
const KIND_NOOP: u8 = 0;
const KIND_COMMAND: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

/// Length of a stored hard state.
pub(crate) const HARD_STATE_LEN: usize = 24;

/// Length of a stored entry.
pub(crate) fn entry_len(entry: &Entry) -> usize {
    CHECKSUM_LEN + 9 + entry.data.len()
}

/// Length of the stored members.
pub(crate) fn conf_state_len(conf_state: &ConfState) -> usize {
    let ids: usize = ids(conf_state).iter().map(|ids| 4 + 8 * ids.len()).sum();
    ids + 1
}

/// Length of a stored snapshot pointer.
pub(crate) fn snapshot_len(snapshot: &SnapshotMeta) -> usize {
    16 + conf_state_len(&snapshot.conf_state)
}

/// Length of what members acknowledged, as stored.
pub(crate) fn acknowledged_len(acknowledged: &[Acknowledged]) -> usize {
    4 + 24 * acknowledged.len()
}

/// Puts the checksum of `key` and `body` before `body`.
pub(crate) fn seal(key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(CHECKSUM_LEN + body.len());
    value.extend(checksum(key, body).to_le_bytes());
    value.extend(body);
    value
}

/// The body of a sealed value, or `None` if it is not what was stored under `key`.
pub(crate) fn unseal<'a>(key: &[u8], value: &'a [u8]) -> Option<&'a [u8]> {
    let (stored, body) = value.split_first_chunk::<CHECKSUM_LEN>()?;
    (u32::from_le_bytes(*stored) == checksum(key, body)).then_some(body)
}

/// The CRC32C of `key` and `body`.
pub(crate) fn checksum(key: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), body)
}

/// An entry as stored under its index.
pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
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

/// The entry stored under `index`, or what is wrong with it.
pub(crate) fn decode_entry(index: u64, value: &[u8]) -> Result<Entry, &'static str> {
    let body = unseal(&index.to_le_bytes(), value).ok_or("its checksum does not match")?;
    let mut fields = Fields(body);
    let kind = match fields.u8() {
        Some(KIND_NOOP) => EntryKind::Noop,
        Some(KIND_COMMAND) => EntryKind::Command,
        Some(KIND_MEMBERSHIP) => EntryKind::Membership,
        Some(_) => return Err("its kind is not known to this program"),
        None => return Err("it is too short"),
    };
    let term = fields.u64().ok_or("it is too short")?;
    Ok(Entry { index, term, kind, data: Bytes::copy_from_slice(fields.0) })
}

/// What a value adds to the sum of the entries: its checksum.
pub(crate) fn addend(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |crc| u32::from_le_bytes(*crc).into())
}

/// The head's body.
pub(crate) fn encode_head(head: &Head) -> Vec<u8> {
    let Head { number, extent, sum, hard_state, conf_state, snapshot, acknowledged } = head;
    let mut body = [*number, extent.first, extent.last, *sum].map(u64::to_le_bytes).concat();
    body.extend(encode_hard_state(hard_state));
    body.extend(encode_conf_state(conf_state));
    body.push(snapshot.is_some().into());
    body.extend(snapshot.iter().flat_map(encode_snapshot));
    body.extend((acknowledged.len() as u32).to_le_bytes());
    let numbers = acknowledged.iter().flat_map(|it| [it.member, it.index, it.term]);
    body.extend(numbers.flat_map(u64::to_le_bytes));
    body
}

/// The head in a body.
pub(crate) fn decode_head(body: &[u8]) -> Option<Head> {
    let mut fields = Fields(body);
    let (number, first, last, sum) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let hard_state = fields.hard_state()?;
    let conf_state = fields.conf_state()?;
    let snapshot = if fields.bool()? { Some(fields.snapshot()?) } else { None };
    let acknowledged = fields.acknowledged()?;
    let covered = snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
    // Nothing before the log may be missing, and an empty log ends just before its start.
    if first == 0 || first > covered + 1 || last + 1 < first {
        return None;
    }
    let extent = Extent { snapshot: covered, first, last };
    fields.end(Head { number, extent, sum, hard_state, conf_state, snapshot, acknowledged })
}

fn encode_hard_state(hard_state: &HardState) -> Vec<u8> {
    [hard_state.term, hard_state.vote, hard_state.commit].map(u64::to_le_bytes).concat()
}

fn encode_conf_state(conf_state: &ConfState) -> Vec<u8> {
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

/// A snapshot pointer, as in the head and in the header of a snapshot file.
pub(crate) fn encode_snapshot(snapshot: &SnapshotMeta) -> Vec<u8> {
    let mut body = [snapshot.index, snapshot.term].map(u64::to_le_bytes).concat();
    body.extend(encode_conf_state(&snapshot.conf_state));
    body
}

/// Takes fields off the front of a byte slice; `None` when it ends too early.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
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

    fn hard_state(&mut self) -> Option<HardState> {
        Some(HardState { term: self.u64()?, vote: self.u64()?, commit: self.u64()? })
    }

    fn conf_state(&mut self) -> Option<ConfState> {
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

    fn acknowledged(&mut self) -> Option<Vec<Acknowledged>> {
        let count = self.count(24)?;
        let one = |_| Some(Acknowledged { member: self.u64()?, index: self.u64()?, term: self.u64()? });
        (0..count).map(one).collect()
    }

    /// How many follow that take so many bytes each. Checked before anything is reserved for them: a damaged count may
    /// be huge.
    fn count(&mut self, bytes: usize) -> Option<u32> {
        let count = self.u32()?;
        (self.0.len() >= count as usize * bytes).then_some(count)
    }

    /// `value` if nothing is left over.
    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

#[cfg(test)]
mod tests;

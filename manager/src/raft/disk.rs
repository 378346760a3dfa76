//! Between what the raft machine asks for and what the log does: what entries carry is sealed in the log.
//!
//! An entry's place, to which its data is bound, is its index u64, its term u64 (little-endian) and its kind u8. An
//! entry that begins a term carries nothing, and nothing is sealed. Terms, votes and members are numbers, which stay
//! readable: the log itself needs them.

use std::collections::BTreeSet;

use warren_consensus::{EntryKind, Persist, Restored};
use warren_log::{Batch, Entry, Loaded};
use warren_security::seal::{KeyId, Keyring, SealError, key_of};

/// An entry that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} of the log: {source}")]
pub struct SealedEntry {
    index: u64,
    source: SealError,
}

/// What one durable write holds.
///
/// # Errors
/// The key is used up.
pub fn batch(persist: Persist, keyring: &Keyring) -> Result<Batch, SealError> {
    let Persist { number: _, snapshot, mut entries, hard_state, acknowledged } = persist;
    for entry in entries.iter_mut().filter(|entry| is_sealed(entry)) {
        entry.data = keyring.seal(&place(entry), &entry.data)?.into();
    }
    Ok(Batch { snapshot, entries, hard_state, conf_state: None, acknowledged })
}

/// What the machine starts from.
///
/// # Errors
/// An entry does not open.
pub fn restored(loaded: Loaded, keyring: &Keyring) -> Result<Restored, SealedEntry> {
    let Loaded { hard_state, conf_state, snapshot, mut entries, acknowledged, recovered: _ } = loaded;
    for entry in entries.iter_mut().filter(|entry| is_sealed(entry)) {
        let opened = keyring.unseal(&place(entry), &entry.data);
        entry.data = opened.map_err(|source| SealedEntry { index: entry.index, source })?.into();
    }
    Ok(Restored { hard_state, conf_state, snapshot, entries, acknowledged })
}

/// The keys that the log needs.
///
/// # Errors
/// An entry was not sealed.
pub fn keys(loaded: &Loaded) -> Result<BTreeSet<KeyId>, SealedEntry> {
    let sealed = loaded.entries.iter().filter(|entry| is_sealed(entry));
    let key =
        |entry: &Entry| key_of(&entry.data).map_err(|source| SealedEntry { index: entry.index, source });
    sealed.map(key).collect()
}

fn is_sealed(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::Noop => false,
        EntryKind::Command | EntryKind::Membership => true,
    }
}

fn place(entry: &Entry) -> [u8; 17] {
    let mut place = [0; 17];
    place[..8].copy_from_slice(&entry.index.to_le_bytes());
    place[8..16].copy_from_slice(&entry.term.to_le_bytes());
    place[16] = match entry.kind {
        EntryKind::Noop => 0,
        EntryKind::Command => 1,
        EntryKind::Membership => 2,
    };
    place
}

#[cfg(test)]
mod tests;

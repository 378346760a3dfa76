//! Seals entry data between the raft machine and the log.
//!
//! The associated data of an entry is its index u64, its term u64 (little-endian) and its kind u8. An entry
//! that starts a term has no data, and is not sealed. Terms, votes and members are not sealed: the log itself
//! needs them.

use std::collections::BTreeSet;

use warren_consensus::{DurableWrite, EntryKind, PersistentState};
use warren_log::{RaftEntry, StoredLog, WriteBatch};
use warren_security::seal::{KeyId, Keyring, SealError, key_id_of};

/// An entry that cannot be decrypted.
#[derive(Debug, thiserror::Error)]
#[error("entry {index} of the log: {source}")]
pub struct OpenEntryError {
    index: u64,
    source: SealError,
}

/// Seals the entries of one durable write.
///
/// # Errors
/// The key's limit is reached.
pub fn seal_batch(persist: DurableWrite, keyring: &Keyring) -> Result<WriteBatch, SealError> {
    let DurableWrite { number: _, snapshot, mut entries, hard_state, acknowledged } = persist;
    for entry in entries.iter_mut().filter(|entry| is_sealed(entry)) {
        entry.data = keyring.seal(&entry_aad(entry), &entry.data)?.into();
    }
    Ok(WriteBatch { snapshot, entries, hard_state, conf_state: None, acknowledged })
}

/// Decrypts a loaded log for the machine.
///
/// # Errors
/// An entry cannot be decrypted.
pub fn open_loaded(loaded: StoredLog, keyring: &Keyring) -> Result<PersistentState, OpenEntryError> {
    let StoredLog { hard_state, conf_state, snapshot, mut entries, acknowledged, recovered: _ } = loaded;
    for entry in entries.iter_mut().filter(|entry| is_sealed(entry)) {
        let opened = keyring.unseal(&entry_aad(entry), &entry.data);
        entry.data = opened.map_err(|source| OpenEntryError { index: entry.index, source })?.into();
    }
    Ok(PersistentState { hard_state, conf_state, snapshot, entries, acknowledged })
}

/// The keys that are required to open the log.
///
/// # Errors
/// An entry is not sealed.
pub fn required_keys(loaded: &StoredLog) -> Result<BTreeSet<KeyId>, OpenEntryError> {
    let sealed = loaded.entries.iter().filter(|entry| is_sealed(entry));
    let key = |entry: &RaftEntry| {
        key_id_of(&entry.data).map_err(|source| OpenEntryError { index: entry.index, source })
    };
    sealed.map(key).collect()
}

fn is_sealed(entry: &RaftEntry) -> bool {
    match entry.kind {
        EntryKind::Noop => false,
        EntryKind::Command | EntryKind::Membership => true,
    }
}

fn entry_aad(entry: &RaftEntry) -> [u8; 17] {
    let mut aad = [0; 17];
    aad[..8].copy_from_slice(&entry.index.to_le_bytes());
    aad[8..16].copy_from_slice(&entry.term.to_le_bytes());
    aad[16] = match entry.kind {
        EntryKind::Noop => 0,
        EntryKind::Command => 1,
        EntryKind::Membership => 2,
    };
    aad
}

#[cfg(test)]
mod tests;

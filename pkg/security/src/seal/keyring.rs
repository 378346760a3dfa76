//! The keyring: the data keys of one manager, each wrapped by its member key.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use aes_gcm::aead::Generate;
use zeroize::Zeroizing;

use super::SealError;
use super::key_files::{KeyFiles, MEMBER_FILE};
use super::keyring_file::{self, FILE, KeyId, KeyringFile, WrappedKey};
use super::member::MemberKey;
use crate::UnlockKey;
use crate::cipher::{Cipher, KEY};
use crate::files::{FileError, read_private_bytes, write_private};
use crate::key_file::{KeyFileError, KeyFingerprint};

const LAST_ID: &str = "its last data key has the highest id there is";

/// Why the keys of a manager cannot be used. Nothing on the disk was changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// One of the files cannot be read, or is not what was written.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The member key is gone, but what it wrapped is there.
    #[error(
        "{member} is missing, and without it nothing that this manager stored can be read: \
         restore it from a backup of this manager"
    )]
    MemberKeyMissing {
        /// Where it should be.
        member: PathBuf,
    },
    /// The keyring is gone, but what its keys sealed is there.
    #[error(
        "{path} is missing, and without it nothing that this manager stored can be read (the log or the snapshot \
         needs the data key {key}): restore it from a backup of this manager"
    )]
    Missing {
        /// Where it should be.
        path: PathBuf,
        /// One of its keys.
        key: KeyId,
    },
    /// The keyring belongs to another member key.
    #[error(
        "{member} is the member key {found}, but {path} was written with {wanted}: put the two that belong \
         together back, from a backup of this manager"
    )]
    MemberKeyMismatch {
        /// The file of the member key.
        member: PathBuf,
        /// The keyring.
        path: PathBuf,
        /// What wrapped the keyring's keys.
        wanted: KeyFingerprint,
        /// What is there.
        found: KeyFingerprint,
    },
    /// The keyring is older or newer than what is stored.
    #[error(
        "{path} does not hold the data key {key}, which the log or the snapshot needs: put the keyring that belongs \
         to them back, from the same backup"
    )]
    UnknownKey {
        /// The keyring.
        path: PathBuf,
        /// Which key.
        key: KeyId,
    },
}

/// Seals under a data key that is new in this process, and opens what earlier ones sealed. `Debug` shows no key.
pub struct Keyring(RwLock<DataKeys>);

struct DataKeys {
    path: PathBuf,
    /// What the file has, once `is_saved`.
    stored: KeyringFile,
    /// Wraps the keys in `stored`.
    member: Arc<MemberKey>,
    is_saved: bool,
    ciphers: BTreeMap<KeyId, Arc<Cipher>>,
    current: Arc<CurrentKey>,
}

/// The data key that everything is sealed with now.
pub(super) struct CurrentKey {
    pub(super) id: KeyId,
    pub(super) cipher: Arc<Cipher>,
    /// The next nonce.
    counter: AtomicU64,
}

impl CurrentKey {
    /// A new key. `stored` gets it, wrapped by `wrapping`.
    fn generate(id: KeyId, wrapping: &Cipher, stored: &mut KeyringFile) -> Arc<Self> {
        let key = Zeroizing::new(<[u8; KEY]>::generate());
        stored.wrapped.insert(id, WrappedKey::seal(wrapping, id, &key, Generate::generate()));
        stored.last_id = id;
        Arc::new(Self { id, cipher: Arc::new(Cipher::new(&key)), counter: AtomicU64::new(1) })
    }

    /// A number that was never used under this key.
    pub(super) fn next_counter(&self) -> Result<u64, SealError> {
        let counted =
            self.counter.try_update(Ordering::Relaxed, Ordering::Relaxed, |last| last.checked_add(1));
        counted.map_err(|_| SealError::CounterExhausted(self.id))
    }
}

impl DataKeys {
    /// Writes the file. If that fails, `stored` and `member` are what is in the file all the same.
    fn store(&mut self, stored: KeyringFile, member: Arc<MemberKey>) -> Result<(), FileError> {
        let bytes = stored.encode(member.fingerprint());
        let written = write_private(&self.path, &bytes);
        if written.is_ok() || read_private_bytes(&self.path).is_ok_and(|found| *found == bytes) {
            (self.stored, self.member, self.is_saved) = (stored, member, true);
        }
        written
    }

    fn damaged(&self, what: String) -> KeyFileError {
        KeyFileError::Damaged { path: self.path.clone(), what }
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("current", &self.current()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// A file of the keyring in the manager's directory `dir`, if there is one. It is made after the log.
    pub fn file_in(dir: &Path) -> Option<PathBuf> {
        [FILE, MEMBER_FILE].map(|file| dir.join(file)).into_iter().find(|path| path.exists())
    }

    /// [Prepares](Keyring::prepare) the keyring in `dir`, whose manager is not locked, and commits that.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn open(dir: &Path, in_use: &BTreeSet<KeyId>) -> Result<Self, KeyringError> {
        Self::prepare(&KeyFiles::open(dir, None)?, in_use)?.commit()
    }

    /// Reads the keyring in the manager's directory, for a log and a snapshot that are sealed with the keys `in_use`,
    /// adds a new key, and removes keys that were not in use for long. Where nothing was ever sealed, member key and
    /// keyring are made. Nothing is written before [`PreparedKeyring::commit`].
    ///
    /// # Errors
    /// [`KeyringError`], above all when the files do not fit each other or what is in use.
    pub fn prepare(files: &Arc<KeyFiles>, in_use: &BTreeSet<KeyId>) -> Result<PreparedKeyring, KeyringError> {
        let (member_path, path) = (files.dir().join(MEMBER_FILE), files.dir().join(FILE));
        let stored = keyring_file::load(&path)?;
        let member = files.member_key(stored.as_ref().map(|(wanted, _)| *wanted));
        let is_new = member.is_none();
        let (member, mut stored) = match (stored, member, in_use.last()) {
            (None, _, Some(&key)) => return Err(KeyringError::Missing { path, key }),
            (Some(_), None, _) => return Err(KeyringError::MemberKeyMissing { member: member_path }),
            (None, None, None) => (Arc::new(MemberKey::generate()), KeyringFile::default()),
            (None, Some(member), None) => (member, KeyringFile::default()),
            (Some((wanted, stored)), Some(member), _) => {
                let found = member.fingerprint();
                if found != wanted {
                    return Err(KeyringError::MemberKeyMismatch { member: member_path, path, wanted, found });
                }
                (member, stored)
            }
        };
        if let Some(&key) = in_use.iter().find(|id| !stored.wrapped.contains_key(id)) {
            return Err(KeyringError::UnknownKey { path, key });
        }
        stored.prune(in_use);
        let damaged = |what| KeyFileError::Damaged { path: path.clone(), what };
        let wrapping = member.cipher();
        let mut ciphers = BTreeMap::new();
        for (id, wrapped) in &stored.wrapped {
            let key = wrapped.open(&wrapping, *id);
            let key = key.ok_or_else(|| damaged(format!("the data key {id} does not open")))?;
            ciphers.insert(*id, Arc::new(Cipher::new(&key)));
        }
        let last = in_use.last().copied().max(Some(stored.last_id));
        let next = last.and_then(KeyId::next).ok_or_else(|| damaged(LAST_ID.to_owned()))?;
        let current = CurrentKey::generate(next, &wrapping, &mut stored);
        ciphers.insert(next, current.cipher.clone());
        let new_member = is_new.then(|| (files.clone(), member.clone()));
        let keys = DataKeys { path, stored, member, is_saved: false, ciphers, current };
        let keyring = Self(RwLock::new(keys));
        Ok(PreparedKeyring { keyring, member: new_member, has_live_keys: !in_use.is_empty() })
    }

    /// Makes the current key durable, if it is not yet. Nothing that is sealed with it may reach the disk before.
    ///
    /// # Errors
    /// [`FileError::Write`]; the key can be used all the same once this was repeated.
    pub fn save(&self) -> Result<(), FileError> {
        if self.keys().is_saved {
            return Ok(());
        }
        let mut keys = self.keys_mut();
        write_private(&keys.path, &keys.stored.encode(keys.member.fingerprint()))?;
        keys.is_saved = true;
        Ok(())
    }

    /// Seals with a new key from now on, which is durable when this returns.
    ///
    /// # Errors
    /// [`KeyFileError`]; the keys are as before.
    pub fn renew(&self) -> Result<(), KeyFileError> {
        let mut keys = self.keys_mut();
        let next = keys.stored.last_id.next().ok_or_else(|| keys.damaged(LAST_ID.to_owned()))?;
        let (mut stored, member) = (keys.stored.clone(), keys.member.clone());
        let current = CurrentKey::generate(next, &member.cipher(), &mut stored);
        keys.store(stored, member)?;
        keys.ciphers.insert(next, current.cipher.clone());
        keys.current = current;
        Ok(())
    }

    /// Forgets all keys but the current one and those `in_use`. Returns the earlier ones that are left.
    ///
    /// # Errors
    /// [`FileError`]; this process has forgotten no key.
    pub fn forget_unused(&self, in_use: &BTreeSet<KeyId>) -> Result<BTreeSet<KeyId>, FileError> {
        let mut keys = self.keys_mut();
        let current = keys.current.id;
        let is_kept = |id: &KeyId| *id == current || in_use.contains(id);
        let mut stored = keys.stored.clone();
        stored.wrapped.retain(|id, _| is_kept(id));
        let member = keys.member.clone();
        keys.store(stored, member)?;
        keys.ciphers.retain(|id, _| is_kept(id));
        Ok(keys.ciphers.keys().filter(|id| **id != current).copied().collect())
    }

    /// Wraps the keys with a new member key, beside which [`KeyFiles::rewrite`] still has to remove the earlier one.
    /// `unlock_key` is the key that locks the manager, if something does.
    ///
    /// # Errors
    /// [`KeyFileError`]; one of both member keys is in use.
    pub fn replace_member_key(
        &self,
        files: &KeyFiles,
        unlock_key: Option<&UnlockKey>,
    ) -> Result<(), KeyFileError> {
        let next = Arc::new(MemberKey::generate());
        files.add_member_key(&next, unlock_key)?;
        let mut keys = self.keys_mut();
        let (wrapping, wrapped_by) = (next.cipher(), keys.member.cipher());
        let mut stored = KeyringFile { last_id: keys.stored.last_id, wrapped: BTreeMap::new() };
        for (id, wrapped) in &keys.stored.wrapped {
            let key = wrapped.open(&wrapped_by, *id);
            let key = key.ok_or_else(|| keys.damaged(format!("the data key {id} does not open")))?;
            stored.wrapped.insert(*id, WrappedKey::seal(&wrapping, *id, &key, Generate::generate()));
        }
        let stored = keys.store(stored, next);
        files.member_key(Some(keys.member.fingerprint()));
        Ok(stored?)
    }

    /// The key that everything is sealed with now.
    pub fn current(&self) -> KeyId {
        self.keys().current.id
    }

    pub(super) fn current_key(&self) -> Arc<CurrentKey> {
        self.keys().current.clone()
    }

    pub(super) fn cipher_for(&self, key: KeyId) -> Result<Arc<Cipher>, SealError> {
        self.keys().ciphers.get(&key).cloned().ok_or(SealError::UnknownKey(key))
    }

    fn keys(&self) -> RwLockReadGuard<'_, DataKeys> {
        // No panic leaves them half changed.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys_mut(&self) -> RwLockWriteGuard<'_, DataKeys> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A keyring with one key that a test chose, so that what it writes can be foretold.
    #[cfg(test)]
    pub(super) fn of(id: KeyId, key: &[u8; KEY], counter: u64) -> Self {
        let cipher = Arc::new(Cipher::new(key));
        let current = Arc::new(CurrentKey { id, cipher: cipher.clone(), counter: AtomicU64::new(counter) });
        Self(RwLock::new(DataKeys {
            path: PathBuf::new(),
            stored: KeyringFile::default(),
            member: Arc::new(MemberKey::generate()),
            is_saved: true,
            ciphers: BTreeMap::from([(id, cipher)]),
            current,
        }))
    }
}

/// A keyring that opens what earlier ones sealed, and whose new key is not on the disk yet.
pub struct PreparedKeyring {
    keyring: Keyring,
    /// The member key, if it is new, and where it belongs.
    member: Option<(Arc<KeyFiles>, Arc<MemberKey>)>,
    /// The log or a snapshot is sealed with one of the keys.
    has_live_keys: bool,
}

impl PreparedKeyring {
    /// To open what is sealed, before it is clear that it is this manager's. Nothing must be sealed with it.
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Writes the new key, and the member key if that is new. Both are durable when this returns, unless there is no
    /// room on the disk: then what is there can be opened, and [`Keyring::save`] has to be repeated.
    ///
    /// # Errors
    /// [`KeyringError::KeyFile`].
    pub fn commit(self) -> Result<Keyring, KeyringError> {
        if let Some((files, member)) = &self.member {
            files.create_member_key(member).map_err(KeyFileError::from)?;
        }
        match self.keyring.save() {
            Err(error) if error.is_out_of_space() && self.has_live_keys => {}
            saved => saved.map_err(KeyFileError::from)?,
        }
        Ok(self.keyring)
    }
}

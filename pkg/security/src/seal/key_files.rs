//! The files with keys in a manager's directory.
//!
//! While a manager locks its keys, the member key is sealed by the unlock key of the cluster, and every other key by
//! the member key: the private keys of certificates, and the secret object key. Certificates stay readable.
//!
//! | file               | plain                                    | locked                                         |
//! |--------------------|------------------------------------------|------------------------------------------------|
//! | `member.key`       | a line (`crate::key_file`)               | a sealed line, by the unlock key               |
//! | secret object key  | the same                                 | a sealed line, by the member key               |
//! | certificates (PEM) | certificates, then a `PRIVATE KEY`       | certificates, then a `WARREN SEALED PRIVATE KEY` |
//!
//! The form of `member.key` says whether the manager is locked. It is written first, and each file as a whole: after a
//! crash between two of them, the others are read in either form until [`KeyFiles::rewrite`] has completed the change.
//!
//! While the member key is replaced, `member.key` has a line for the next one as well. The keyring says which of them
//! is in use, and each opens what it sealed, until [`KeyFiles::rewrite`] has sealed everything with the one in use.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_types::UnlockKeyId;
use zeroize::Zeroizing;

use super::keyring_file;
use super::member::MemberKey;
use crate::certificate_bundle::{self, CertificateBundle};
use crate::files::{self, FileError};
use crate::key_file::{KeyFileError, KeyFingerprint, KeyLine, SealedKey, StoredKey};
use crate::{
    CertificateAuthority, Credentials, MaterialError, PrivateKey, SecretObjectKey, UnlockKey,
    secret_object_key,
};

/// The member key's file.
pub(super) const MEMBER_FILE: &str = "member.key";
const AAD: &[u8] = b"warren sealed private key ";

/// The keys in a manager's directory, which can be read and written. `Debug` shows none.
pub struct KeyFiles {
    dir: PathBuf,
    lock: Mutex<Lock>,
    /// Held while `lock` is changed and `member.key` written. `lock` is not held then: its readers must not wait for
    /// the disk.
    writing: Mutex<()>,
}

/// What opens the files.
#[derive(Clone, Default)]
struct Lock {
    /// The first one is in use. None until the manager's log is opened for the first time.
    members: Vec<StoredMember>,
    /// What seals the member key; `None` while the manager is not locked.
    unlock_key: Option<UnlockKeyId>,
    /// The other keys were written in the form that this demands.
    is_complete: bool,
}

/// A member key, and its sealed form while the manager is locked.
#[derive(Clone)]
struct StoredMember {
    key: Arc<MemberKey>,
    sealed: Option<Arc<SealedKey>>,
}

impl StoredMember {
    fn new(key: Arc<MemberKey>, unlock_key: Option<&UnlockKey>) -> Self {
        let sealed = unlock_key.map(|unlock_key| Arc::new(key.lock(unlock_key)));
        Self { key, sealed }
    }

    fn line(&self) -> Zeroizing<String> {
        self.sealed.as_ref().map_or_else(|| self.key.line(), |sealed| Zeroizing::new(sealed.line()))
    }
}

impl fmt::Debug for KeyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFiles").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl KeyFiles {
    /// The unlock key that the manager in `dir` is locked with; `None` if it can be started without one.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn locked_with(dir: &Path) -> Result<Option<UnlockKeyId>, KeyFileError> {
        let lines = MemberKey::load_lines(&dir.join(MEMBER_FILE))?;
        Ok(lines.iter().find_map(|line| match line {
            KeyLine::Sealed(sealed) => Some(sealed.sealed_by().into()),
            KeyLine::Plain(_) => None,
        }))
    }

    /// Opens the keys in the manager's directory `dir`, with `unlock_key` if they are locked.
    ///
    /// # Errors
    /// [`KeyFileError`], above all [`KeyFileError::Locked`] and [`KeyFileError::WrongUnlockKey`].
    pub fn open(dir: &Path, unlock_key: Option<&UnlockKey>) -> Result<Arc<Self>, KeyFileError> {
        let path = dir.join(MEMBER_FILE);
        let mut lock = Lock::default();
        for line in MemberKey::load_lines(&path)? {
            let (key, sealed) = match line {
                KeyLine::Plain(key) => (key, None),
                KeyLine::Sealed(sealed) => {
                    let Some(key) = unlock_key else { return Err(KeyFileError::Locked { path }) };
                    let (wanted, found) = (UnlockKeyId::from(sealed.sealed_by()), key.id());
                    if wanted != found {
                        return Err(KeyFileError::WrongUnlockKey { path, wanted, found });
                    }
                    let Some(opened) = sealed.open(&key.cipher()) else {
                        let what = "the sealed key does not open".to_owned();
                        return Err(KeyFileError::Damaged { path, what });
                    };
                    lock.unlock_key = Some(found);
                    (opened, Some(Arc::new(sealed)))
                }
            };
            lock.members.push(StoredMember { key: Arc::new(MemberKey::of(key)), sealed });
        }
        Ok(Arc::new(Self { dir: dir.to_owned(), lock: Mutex::new(lock), writing: Mutex::default() }))
    }

    /// The manager's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The unlock key that the manager is locked with from its next start on.
    pub fn unlock_key(&self) -> Option<UnlockKeyId> {
        self.lock().unlock_key
    }

    /// Locks the manager with this key, in place of an earlier one, or no more. The other keys stay as they are until
    /// [`KeyFiles::rewrite`].
    ///
    /// # Errors
    /// [`KeyFileError`]: the manager is locked as before.
    pub fn set_unlock_key(&self, key: Option<&UnlockKey>) -> Result<(), KeyFileError> {
        let _writing = self.writing();
        let Lock { members, .. } = self.lock().clone();
        if members.is_empty() {
            let what = "it is missing".to_owned();
            return Err(KeyFileError::Damaged { path: self.dir.join(MEMBER_FILE), what });
        }
        let members = members.into_iter().map(|member| StoredMember::new(member.key, key)).collect();
        Ok(self.save(Lock { members, unlock_key: key.map(UnlockKey::id), is_complete: false })?)
    }

    /// Whether all keys are in the form that the lock demands, as far as this process knows.
    pub fn is_complete(&self) -> bool {
        self.lock().is_complete
    }

    /// Writes keys that are not in the form that the lock demands: the private keys in the files `certificates`, and
    /// the secret object key. Files that do not exist are left out. Only the member key in use is left then.
    ///
    /// # Errors
    /// [`KeyFileError`]; a repeated call completes it.
    pub fn rewrite(&self, certificates: &[&str], secret_object_key: &str) -> Result<(), KeyFileError> {
        let Lock { unlock_key, members, .. } = self.lock().clone();
        let (is_locked, is_replaced) = (unlock_key.is_some(), members.len() > 1);
        if is_replaced {
            self.check_in_use(&members[0].key)?;
        }
        for file in certificates {
            let text = match files::read_private(&self.dir.join(file)) {
                Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
                text => text?,
            };
            if certificate_bundle::is_sealed(&text) != is_locked || is_locked && is_replaced {
                self.save_bundle(file, &self.open_bundle(file, &text)?)?;
            }
        }
        let lines = KeyLine::load(&secret_object_key::PURPOSE, &self.dir.join(secret_object_key))?;
        let is_wanted = |line: &KeyLine| match line {
            KeyLine::Plain(_) => !is_locked,
            KeyLine::Sealed(_) => is_locked && !is_replaced,
        };
        if !lines.iter().all(is_wanted)
            && let Some(key) = self.secret_object_key(secret_object_key)?
        {
            self.save_secret_object_key(secret_object_key, &key)?;
        }
        let _writing = self.writing();
        if is_replaced {
            let Lock { mut members, unlock_key, .. } = self.lock().clone();
            members.truncate(1);
            self.save(Lock { members, unlock_key, is_complete: true })?;
        }
        self.lock().is_complete = true;
        Ok(())
    }

    /// Writes the private key in this file as it is, whether the manager is locked or not: for a node whose manager was
    /// removed, and whose key the cluster does not know any more. Nothing is done if the file does not exist.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn release(&self, file: &str) -> Result<(), FileError> {
        let path = self.dir.join(file);
        match files::read_private(&path) {
            Ok(text) if certificate_bundle::is_sealed(&text) => {
                let CertificateBundle { certificates, key } = self.open_bundle(file, &text)?;
                files::write_private(&path, certificate_bundle::join(&certificates, &key).as_bytes())
            }
            Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
            text => text.map(drop),
        }
    }

    /// The certificate and key in this file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn credentials(&self, file: &str) -> Result<Credentials, FileError> {
        let CertificateBundle { certificates, key } = self.load_bundle(file)?;
        Credentials::new(certificates, key).map_err(|source| self.material(file, source))
    }

    /// Writes certificate and key atomically.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save_credentials(&self, file: &str, credentials: &Credentials) -> Result<(), FileError> {
        let (certificates, key) = (credentials.certificate_pem().to_owned(), credentials.key().clone());
        self.save_bundle(file, &CertificateBundle { certificates, key })
    }

    /// The authority in this file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn authority(&self, file: &str) -> Result<CertificateAuthority, FileError> {
        let CertificateBundle { certificates, key } = self.load_bundle(file)?;
        CertificateAuthority::parse(&certificates, key.pem()).map_err(|source| self.material(file, source))
    }

    /// Writes the authority atomically.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save_authority(&self, file: &str, authority: &CertificateAuthority) -> Result<(), FileError> {
        let bundle = CertificateBundle::parse(&authority.to_pem());
        self.save_bundle(file, &bundle.map_err(|source| self.material(file, source))?)
    }

    /// The secret object key in this file; `None` when there is no file.
    ///
    /// # Errors
    /// [`KeyFileError`].
    pub fn secret_object_key(&self, file: &str) -> Result<Option<SecretObjectKey>, KeyFileError> {
        let path = self.dir.join(file);
        let lines = KeyLine::load(&secret_object_key::PURPOSE, &path)?;
        let open = |line: KeyLine| -> Result<StoredKey, KeyFileError> {
            match line {
                KeyLine::Plain(key) => Ok(key),
                KeyLine::Sealed(sealed) => {
                    let what = "the sealed key does not open with the member key".to_owned();
                    let damaged = KeyFileError::Damaged { path: path.clone(), what };
                    self.open_with_member(|member| sealed.open(&member.cipher())).ok_or(damaged)
                }
            }
        };
        let keys: Result<Vec<StoredKey>, KeyFileError> = lines.into_iter().map(open).collect();
        keys.map(SecretObjectKey::of)
    }

    /// Writes the secret object key.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save_secret_object_key(&self, file: &str, key: &SecretObjectKey) -> Result<(), FileError> {
        let path = self.dir.join(file);
        let Some(member) = self.sealing_key() else { return key.save(&path) };
        let (cipher, name) = (member.cipher(), member.fingerprint());
        let lines = key.stored(|key| SealedKey::seal(key, &cipher, name).line());
        files::write_private(&path, lines.concat().as_bytes())
    }

    /// The key that wraps the data keys, which is in use from now on: the one with this fingerprint, if it is known.
    /// `None` if there is none yet.
    pub(super) fn member_key(&self, wraps: Option<KeyFingerprint>) -> Option<Arc<MemberKey>> {
        let _writing = self.writing();
        let mut lock = self.lock();
        let place = lock.members.iter().position(|member| Some(member.key.fingerprint()) == wraps);
        if let Some(place) = place {
            lock.members.swap(0, place);
        }
        lock.members.first().map(|member| member.key.clone())
    }

    /// Writes the first member key. The manager is not locked before it has one.
    pub(super) fn create_member_key(&self, member: &Arc<MemberKey>) -> Result<(), FileError> {
        let _writing = self.writing();
        let members = vec![StoredMember::new(member.clone(), None)];
        self.save(Lock { members, unlock_key: self.unlock_key(), is_complete: false })
    }

    /// Writes another member key beside the one in use; locked by `unlock_key`, if the manager is.
    pub(super) fn add_member_key(
        &self,
        member: &Arc<MemberKey>,
        unlock_key: Option<&UnlockKey>,
    ) -> Result<(), KeyFileError> {
        let _writing = self.writing();
        let Lock { mut members, unlock_key: locked_with, .. } = self.lock().clone();
        if let Some(wanted) = locked_with {
            let (path, found) = (self.dir.join(MEMBER_FILE), unlock_key.map(UnlockKey::id));
            match found {
                Some(found) if found == wanted => {}
                Some(found) => return Err(KeyFileError::WrongUnlockKey { path, wanted, found }),
                None => return Err(KeyFileError::Locked { path }),
            }
        }
        let unlock_key = unlock_key.filter(|_| locked_with.is_some());
        members.push(StoredMember::new(member.clone(), unlock_key));
        Ok(self.save(Lock { members, unlock_key: locked_with, is_complete: false })?)
    }

    /// Writes the member keys, and uses them from now on. The caller holds `writing`.
    fn save(&self, changed: Lock) -> Result<(), FileError> {
        let lines: Vec<_> = changed.members.iter().map(StoredMember::line).collect();
        // Never grows, so that no copy of a key is left behind in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(lines.iter().map(|line| line.len()).sum()));
        lines.iter().for_each(|line| text.push_str(line));
        files::write_private(&self.dir.join(MEMBER_FILE), text.as_bytes())?;
        *self.lock() = changed;
        Ok(())
    }

    /// What the first member key opens that can.
    fn open_with_member<T>(&self, open: impl Fn(&MemberKey) -> Option<T>) -> Option<T> {
        self.lock().members.iter().find_map(|member| open(&member.key))
    }

    fn lock(&self) -> MutexGuard<'_, Lock> {
        // It is replaced as a whole.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread changes the lock.
    #[cfg(test)]
    pub(super) fn is_writing(&self) -> bool {
        self.writing.try_lock().is_err()
    }

    /// The key that seals the others; `None` while the manager is not locked.
    fn sealing_key(&self) -> Option<Arc<MemberKey>> {
        let lock = self.lock();
        let member = lock.members.first().map(|member| member.key.clone());
        lock.unlock_key.and(member)
    }

    fn load_bundle(&self, file: &str) -> Result<CertificateBundle, FileError> {
        let text = files::read_private(&self.dir.join(file))?;
        self.open_bundle(file, &text)
    }

    /// Checks that the keyring needs this member key. The keyring may have been replaced by a write that failed.
    fn check_in_use(&self, member: &MemberKey) -> Result<(), KeyFileError> {
        let path = self.dir.join(keyring_file::FILE);
        match keyring_file::load(&path)? {
            Some((wraps, _)) if wraps == member.fingerprint() => Ok(()),
            _ => Err(KeyFileError::MemberKeyInDoubt { path }),
        }
    }

    /// The certificates and the key in a text in either form.
    fn open_bundle(&self, file: &str, text: &str) -> Result<CertificateBundle, FileError> {
        let read = || {
            if !certificate_bundle::is_sealed(text) {
                return CertificateBundle::parse(text);
            }
            let sealed = certificate_bundle::sealed_key(text)?;
            let open = |member: &MemberKey| member.cipher().open_at_random(&aad(file), &sealed);
            let key = self.open_with_member(open).ok_or(MaterialError::SealedElsewhere)?;
            let key = std::str::from_utf8(&key).map_err(|_| MaterialError::SealedElsewhere)?;
            let certificates = certificate_bundle::certificates(text);
            Ok(CertificateBundle { certificates, key: PrivateKey::parse(key)? })
        };
        read().map_err(|source| self.material(file, source))
    }

    fn save_bundle(&self, file: &str, bundle: &CertificateBundle) -> Result<(), FileError> {
        let (path, CertificateBundle { certificates, key }) = (self.dir.join(file), bundle);
        match self.sealing_key() {
            None => files::write_private(&path, certificate_bundle::join(certificates, key).as_bytes()),
            Some(member) => {
                let sealed = member.cipher().seal_at_random(&aad(file), key.pem().as_bytes());
                files::write_private(&path, certificate_bundle::join_sealed(certificates, sealed).as_bytes())
            }
        }
    }

    fn material(&self, file: &str, source: MaterialError) -> FileError {
        FileError::Material { path: self.dir.join(file), source }
    }
}

/// A private key opens in the file that it was sealed for, and in no other.
fn aad(file: &str) -> Vec<u8> {
    [AAD, file.as_bytes()].concat()
}

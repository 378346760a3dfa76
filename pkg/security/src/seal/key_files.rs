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

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_types::UnlockKeyId;

use super::member::MemberKey;
use crate::certificate_bundle::{self, CertificateBundle};
use crate::files::{self, FileError};
use crate::key_file::{KeyFileError, KeyLine, SealedKey};
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
}

/// What opens the files.
#[derive(Clone, Default)]
struct Lock {
    /// `None` until the manager's log is opened for the first time.
    member: Option<Arc<MemberKey>>,
    /// What seals the member key; `None` while the manager is not locked.
    unlock_key: Option<UnlockKeyId>,
    /// The other keys were written in the form that this demands.
    is_complete: bool,
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
        Ok(match MemberKey::load_line(&dir.join(MEMBER_FILE))? {
            Some(KeyLine::Sealed(sealed)) => Some(sealed.sealed_by().into()),
            Some(KeyLine::Plain(_)) | None => None,
        })
    }

    /// Opens the keys in the manager's directory `dir`, with `unlock_key` if they are locked.
    ///
    /// # Errors
    /// [`KeyFileError`], above all [`KeyFileError::Locked`] and [`KeyFileError::WrongUnlockKey`].
    pub fn open(dir: &Path, unlock_key: Option<&UnlockKey>) -> Result<Arc<Self>, KeyFileError> {
        let path = dir.join(MEMBER_FILE);
        let lock = match MemberKey::load_line(&path)? {
            None => Lock::default(),
            Some(KeyLine::Plain(key)) => {
                Lock { member: Some(Arc::new(MemberKey::of(key))), ..Lock::default() }
            }
            Some(KeyLine::Sealed(sealed)) => {
                let Some(key) = unlock_key else { return Err(KeyFileError::Locked { path }) };
                let (wanted, found) = (UnlockKeyId::from(sealed.sealed_by()), key.id());
                if wanted != found {
                    return Err(KeyFileError::WrongUnlockKey { path, wanted, found });
                }
                let Some(opened) = sealed.open(&key.cipher()) else {
                    return Err(KeyFileError::Damaged {
                        path,
                        what: "the sealed key does not open".to_owned(),
                    });
                };
                let member = Some(Arc::new(MemberKey::of(opened)));
                Lock { member, unlock_key: Some(found), is_complete: false }
            }
        };
        Ok(Arc::new(Self { dir: dir.to_owned(), lock: Mutex::new(lock) }))
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
        let mut lock = self.lock();
        let path = self.dir.join(MEMBER_FILE);
        let Some(member) = &lock.member else {
            return Err(KeyFileError::Damaged { path, what: "it is missing".to_owned() });
        };
        match key {
            Some(key) => member.lock(key).save(&path)?,
            None => member.save(&path)?,
        }
        (lock.unlock_key, lock.is_complete) = (key.map(UnlockKey::id), false);
        Ok(())
    }

    /// Whether all keys are in the form that the lock demands, as far as this process knows.
    pub fn is_complete(&self) -> bool {
        self.lock().is_complete
    }

    /// Writes keys that are not in the form that the lock demands: the private keys in the files `certificates`, and
    /// the secret object key. Files that do not exist are left out.
    ///
    /// # Errors
    /// [`KeyFileError`]; a repeated call completes it.
    pub fn rewrite(&self, certificates: &[&str], secret_object_key: &str) -> Result<(), KeyFileError> {
        let is_locked = self.unlock_key().is_some();
        for file in certificates {
            let text = match files::read_private(&self.dir.join(file)) {
                Err(FileError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
                text => text?,
            };
            if certificate_bundle::is_sealed(&text) != is_locked {
                self.save_bundle(file, &self.open_bundle(file, &text)?)?;
            }
        }
        match KeyLine::load(&secret_object_key::PURPOSE, &self.dir.join(secret_object_key))? {
            Some(KeyLine::Plain(key)) if is_locked => {
                self.save_secret_object_key(secret_object_key, &SecretObjectKey::new(key))?;
            }
            Some(KeyLine::Sealed(_)) if !is_locked => {
                if let Some(key) = self.secret_object_key(secret_object_key)? {
                    self.save_secret_object_key(secret_object_key, &key)?;
                }
            }
            _ => {}
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
        let key = match KeyLine::load(&secret_object_key::PURPOSE, &path)? {
            None => return Ok(None),
            Some(KeyLine::Plain(key)) => key,
            Some(KeyLine::Sealed(sealed)) => {
                let opened = self.lock().member.as_ref().and_then(|member| sealed.open(&member.cipher()));
                let what = "the sealed key does not open with the member key".to_owned();
                opened.ok_or(KeyFileError::Damaged { path, what })?
            }
        };
        Ok(Some(SecretObjectKey::new(key)))
    }

    /// Writes the secret object key.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn save_secret_object_key(&self, file: &str, key: &SecretObjectKey) -> Result<(), FileError> {
        let path = self.dir.join(file);
        match self.sealing_key() {
            None => key.save(&path),
            Some(member) => SealedKey::seal(key.stored(), &member.cipher(), member.fingerprint()).save(&path),
        }
    }

    /// The key that wraps the data keys; `None` if there is none yet.
    pub(super) fn member_key(&self) -> Option<Arc<MemberKey>> {
        self.lock().member.clone()
    }

    /// Writes the first member key. The manager is not locked before it has one.
    pub(super) fn create_member_key(&self, member: &Arc<MemberKey>) -> Result<(), FileError> {
        let mut lock = self.lock();
        member.save(&self.dir.join(MEMBER_FILE))?;
        lock.member = Some(member.clone());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Lock> {
        // It is replaced as a whole.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that seals the others; `None` while the manager is not locked.
    fn sealing_key(&self) -> Option<Arc<MemberKey>> {
        let Lock { member, unlock_key, .. } = self.lock().clone();
        unlock_key.and(member)
    }

    fn load_bundle(&self, file: &str) -> Result<CertificateBundle, FileError> {
        let text = files::read_private(&self.dir.join(file))?;
        self.open_bundle(file, &text)
    }

    /// The certificates and the key in a text in either form.
    fn open_bundle(&self, file: &str, text: &str) -> Result<CertificateBundle, FileError> {
        let read = || {
            if !certificate_bundle::is_sealed(text) {
                return CertificateBundle::parse(text);
            }
            let sealed = certificate_bundle::sealed_key(text)?;
            let opened = |member: Arc<MemberKey>| member.cipher().open_at_random(&aad(file), &sealed);
            let key = self.member_key().and_then(opened).ok_or(MaterialError::SealedElsewhere)?;
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

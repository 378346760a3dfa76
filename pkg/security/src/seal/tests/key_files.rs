//! The files of a locked manager: no key in plain, nothing but the unlock key opens them, and a change that was
//! interrupted between two of them is completed.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::*;
use crate::key_file::KeyFileError;
use crate::seal::member::MemberKey;
use crate::{
    CertificateAuthority, Credentials, FileError, Identity, MaterialError, PrivateKey, Role, SecretObjectKey,
    UnlockKey,
};

const CERTIFICATES: [&str; 2] = ["ca.pem", "manager.pem"];
const SECRET: &str = "secret-objects.key";

/// The keys of a manager that has sealed something.
struct ManagerFiles {
    dir: TempDir,
    files: Arc<KeyFiles>,
    authority: CertificateAuthority,
    manager: Credentials,
    secret_object_key: SecretObjectKey,
    sealed: Vec<u8>,
    /// Every file while nothing is locked.
    plain: BTreeMap<String, Vec<u8>>,
}

impl ManagerFiles {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = KeyFiles::open(dir.path(), None).unwrap();
        let keyring = Keyring::prepare(&files, &BTreeSet::new()).unwrap().commit().unwrap();
        let sealed = keyring.seal(b"here", b"x").unwrap();
        let now = SystemTime::now();
        let authority = CertificateAuthority::create("c1", now).unwrap();
        let identity = Identity::new("c1", Role::Manager, "m1").unwrap();
        let manager = authority.issue(&identity, now).unwrap();
        let secret_object_key = SecretObjectKey::generate();
        files.save_authority(CERTIFICATES[0], &authority).unwrap();
        files.save_credentials(CERTIFICATES[1], &manager).unwrap();
        files.save_secret_object_key(SECRET, &secret_object_key).unwrap();
        let plain = BTreeMap::new();
        let made = Self { dir, files, authority, manager, secret_object_key, sealed, plain };
        Self { plain: made.content(), ..made }
    }

    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let files = fs::read_dir(self.dir.path()).unwrap().map(|file| file.unwrap());
        files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
    }

    /// The keys as they stand in plain files, and their bytes.
    fn keys(&self) -> Vec<Vec<u8>> {
        let line = |file: &str| String::from_utf8(self.plain[file].clone()).unwrap();
        let digits = ["member.key", SECRET].map(|file| line(file).split(' ').nth(2).unwrap().to_owned());
        let bytes = digits.each_ref().map(|digits| {
            let mut bytes = vec![0; digits.len() / 2];
            crate::hex::parse(digits.as_bytes(), &mut bytes).unwrap();
            bytes
        });
        let pem = |key: &PrivateKey| {
            let body: Vec<u8> = key.pem().lines().nth(1).unwrap().as_bytes().to_vec();
            [body, ::pem::parse(key.pem()).unwrap().into_contents()]
        };
        let pem = [pem(self.authority.key()), pem(self.manager.key())].concat();
        digits.map(String::into_bytes).into_iter().chain(bytes).chain(pem).collect()
    }

    /// The files that contain one of the keys.
    fn files_with_keys(&self) -> Vec<String> {
        let keys = self.keys();
        let has_key = |content: &[u8]| {
            keys.iter().any(|key| content.windows(key.len()).any(|window| window == key.as_slice()))
        };
        self.content().into_iter().filter(|(_, content)| has_key(content)).map(|(file, _)| file).collect()
    }

    /// Everything can be read with these keys.
    fn check(&self, files: &Arc<KeyFiles>) {
        assert_eq!(files.authority("ca.pem").unwrap().to_pem(), self.authority.to_pem());
        assert_eq!(files.credentials("manager.pem").unwrap().to_pem(), self.manager.to_pem());
        let secret = files.secret_object_key(SECRET).unwrap().unwrap();
        assert_eq!(secret.key_fingerprint(), self.secret_object_key.key_fingerprint());
        let keyring = Keyring::prepare(files, &BTreeSet::from([key_id_of(&self.sealed).unwrap()])).unwrap();
        assert_eq!(keyring.keyring().unseal(b"here", &self.sealed).unwrap(), b"x");
    }

    fn reopened(&self, key: Option<&UnlockKey>) -> Result<Arc<KeyFiles>, KeyFileError> {
        KeyFiles::open(self.dir.path(), key)
    }
}

#[test]
fn locked_files_contain_no_key() {
    let manager = ManagerFiles::new();
    assert_eq!(manager.files_with_keys(), ["ca.pem", "manager.pem", "member.key", SECRET]);
    let key = UnlockKey::generate();
    for _ in 0..2 {
        manager.files.set_unlock_key(Some(&key)).unwrap();
        manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
        assert_eq!(manager.files_with_keys(), [""; 0]);
        assert!(manager.content().keys().eq(manager.plain.keys()), "nothing is left over");
        manager.check(&manager.files);
    }
    // Also what is written later is locked.
    manager.files.save_authority("ca.pem", &manager.authority).unwrap();
    manager.files.save_credentials("manager.pem", &manager.manager).unwrap();
    manager.files.save_secret_object_key(SECRET, &manager.secret_object_key).unwrap();
    assert_eq!(manager.files_with_keys(), [""; 0]);
    manager.check(&manager.reopened(Some(&key)).unwrap());
}

#[test]
fn only_the_unlock_key_opens_locked_files() {
    let manager = ManagerFiles::new();
    let (key, other) = (UnlockKey::generate(), UnlockKey::generate());
    assert_eq!(KeyFiles::locked_with(manager.dir.path()).unwrap(), None);
    manager.check(&manager.reopened(Some(&other)).unwrap());
    manager.files.set_unlock_key(Some(&key)).unwrap();
    manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
    assert_eq!(KeyFiles::locked_with(manager.dir.path()).unwrap(), Some(key.id()));
    let before = manager.content();
    let refused = manager.reopened(None).unwrap_err();
    assert!(matches!(refused, KeyFileError::Locked { .. }), "{refused}");
    let refused = manager.reopened(Some(&other)).unwrap_err();
    let KeyFileError::WrongUnlockKey { wanted, found, .. } = refused else { panic!("{refused}") };
    assert_eq!((wanted, found), (key.id(), other.id()));
    let refused = Keyring::open(manager.dir.path(), &BTreeSet::new()).unwrap_err();
    assert!(matches!(refused, KeyringError::KeyFile(KeyFileError::Locked { .. })), "{refused}");
    assert_eq!(manager.content(), before);
    manager.check(&manager.reopened(Some(&key)).unwrap());

    // What is public can be read by everybody.
    let path = |file: &str| manager.dir.path().join(file);
    let sealed = Credentials::load(&path("manager.pem")).unwrap_err();
    assert!(matches!(sealed, FileError::Material { source: MaterialError::Sealed, .. }), "{sealed}");
    assert_eq!(Credentials::load_identity(&path("manager.pem")).unwrap(), *manager.manager.identity());
    let roots = CertificateAuthority::load_roots(&path("ca.pem")).unwrap();
    assert_eq!(roots.digests(), [manager.authority.digest()]);
    assert!(SecretObjectKey::load(&path(SECRET)).is_err());

    // Another unlock key takes its place, and nothing else has to be written.
    manager.files.set_unlock_key(Some(&other)).unwrap();
    let mut after = manager.content();
    assert_ne!(
        after.insert("member.key".to_owned(), before["member.key"].clone()),
        Some(before["member.key"].clone())
    );
    assert_eq!(after, before);
    assert!(matches!(manager.reopened(Some(&key)).unwrap_err(), KeyFileError::WrongUnlockKey { .. }));
    manager.check(&manager.reopened(Some(&other)).unwrap());
}

#[test]
fn interrupted_change_is_completed() {
    let manager = ManagerFiles::new();
    let key = UnlockKey::generate();
    for written in 0..=CERTIFICATES.len() {
        manager.files.set_unlock_key(Some(&key)).unwrap();
        manager.files.rewrite(&CERTIFICATES[..written], "none").unwrap();
        let files = manager.reopened(Some(&key)).unwrap();
        manager.check(&files);
        assert!(!manager.files_with_keys().is_empty(), "{written} files were written");
        files.rewrite(&CERTIFICATES, SECRET).unwrap();
        assert_eq!(manager.files_with_keys(), [""; 0]);

        files.set_unlock_key(None).unwrap();
        files.rewrite(&CERTIFICATES[..written], "none").unwrap();
        let files = manager.reopened(None).unwrap();
        manager.check(&files);
        files.rewrite(&CERTIFICATES, SECRET).unwrap();
        assert_eq!(manager.content(), manager.plain, "as before, after {written} files");
        manager.files.set_unlock_key(None).unwrap();
    }
}

#[test]
fn lock_is_read_while_the_disk_stalls() {
    let manager = ManagerFiles::new();
    let (files, key) = (&manager.files, UnlockKey::generate());
    let stalled = fs::File::create(manager.dir.path().join(".member.key.partial")).unwrap();
    stalled.lock().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| files.set_unlock_key(Some(&key)));
        while !files.is_writing() {
            std::thread::yield_now();
        }
        let (sender, found) = mpsc::channel();
        scope.spawn(move || sender.send((files.unlock_key(), files.is_complete())));
        let found = found.recv_timeout(Duration::from_secs(60));
        drop(stalled);
        writer.join().unwrap().unwrap();
        assert_eq!(found, Ok((None, false)));
    });
    assert_eq!(files.unlock_key(), Some(key.id()));
}

#[test]
fn damaged_or_moved_keys_are_refused() {
    let manager = ManagerFiles::new();
    let key = UnlockKey::generate();
    manager.files.set_unlock_key(Some(&key)).unwrap();
    manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
    let path = |file: &str| manager.dir.path().join(file);
    fs::copy(path("manager.pem"), path("node.pem")).unwrap();
    let moved = manager.files.credentials("node.pem").unwrap_err();
    assert!(matches!(moved, FileError::Material { source: MaterialError::SealedElsewhere, .. }), "{moved}");
    for file in ["member.key", SECRET] {
        let line = fs::read_to_string(path(file)).unwrap();
        let digit = line.split(' ').nth(2).unwrap().chars().next().unwrap();
        let other = if digit == '0' { '1' } else { '0' };
        let damaged = line.replacen(&format!(" 2 {digit}"), &format!(" 2 {other}"), 1);
        assert_ne!(damaged, line);
        crate::files::write_private(&path(file), damaged.as_bytes()).unwrap();
        let refused = match file {
            SECRET => manager.files.secret_object_key(SECRET).map(drop).unwrap_err(),
            _ => manager.reopened(Some(&key)).unwrap_err(),
        };
        assert!(matches!(refused, KeyFileError::Damaged { .. }), "{file}: {refused}");
        crate::files::write_private(&path(file), line.as_bytes()).unwrap();
    }
    manager.check(&manager.reopened(Some(&key)).unwrap());
}

#[test]
fn released_key_is_plain_and_the_others_stay_locked() {
    let manager = ManagerFiles::new();
    manager.files.set_unlock_key(Some(&UnlockKey::generate())).unwrap();
    manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
    for _ in 0..2 {
        manager.files.release("manager.pem").unwrap();
        manager.files.release("none.pem").unwrap();
        assert_eq!(manager.files_with_keys(), ["manager.pem"]);
    }
    let released = Credentials::load(&manager.dir.path().join("manager.pem")).unwrap();
    assert_eq!(released.to_pem(), manager.manager.to_pem());
}

#[test]
fn debug_shows_no_key_of_the_files() {
    let manager = ManagerFiles::new();
    let shown = format!("{:?}", manager.files).into_bytes();
    assert!(
        manager.keys().iter().all(|key| !shown.windows(key.len()).any(|window| window == key.as_slice()))
    );
}

/// The earlier member key is in no file, and the files open with the ones that are there.
fn check_replaced(manager: &ManagerFiles, files: &Arc<KeyFiles>, unlock_key: Option<&UnlockKey>) {
    manager.check(files);
    let reopened = manager.reopened(unlock_key).unwrap();
    manager.check(&reopened);
    let lines = fs::read_to_string(manager.dir.path().join("member.key")).unwrap();
    assert_eq!(lines.lines().count(), 1, "only the member key in use is left");
    let earlier = String::from_utf8(manager.plain["member.key"].clone()).unwrap();
    let name = earlier.trim_end().rsplit(' ').next().unwrap();
    assert!(!lines.contains(name), "it is another one");
}

#[test]
fn replaced_member_key_opens_nothing_any_more() {
    for unlock_key in [None, Some(UnlockKey::generate())] {
        let manager = ManagerFiles::new();
        let (files, unlock_key) = (&manager.files, unlock_key.as_ref());
        files.set_unlock_key(unlock_key).unwrap();
        files.rewrite(&CERTIFICATES, SECRET).unwrap();
        let keyring = open_keyring(&manager, files);
        let before = manager.content();
        keyring.replace_member_key(files, unlock_key).unwrap();
        assert!(!files.is_complete());
        files.rewrite(&CERTIFICATES, SECRET).unwrap();
        assert!(files.is_complete());
        check_replaced(&manager, files, unlock_key);
        if unlock_key.is_some() {
            assert_eq!(manager.files_with_keys(), [""; 0]);
            assert!(
                manager.content().iter().all(|(file, content)| before[file] != *content),
                "all are sealed again"
            );
        }
    }
}

fn open_keyring(manager: &ManagerFiles, files: &Arc<KeyFiles>) -> Keyring {
    let in_use = BTreeSet::from([key_id_of(&manager.sealed).unwrap()]);
    Keyring::prepare(files, &in_use).unwrap().commit().unwrap()
}

#[test]
fn interrupted_replacement_of_the_member_key_is_completed() {
    let unlock_key = UnlockKey::generate();
    // Killed before the keyring was written, after it, and between two of the other files.
    for (keyring_written, files_written) in [(false, 0), (true, 0), (true, 1)] {
        let manager = ManagerFiles::new();
        manager.files.set_unlock_key(Some(&unlock_key)).unwrap();
        manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
        let keyring = open_keyring(&manager, &manager.files);
        if keyring_written {
            keyring.replace_member_key(&manager.files, Some(&unlock_key)).unwrap();
        } else {
            manager.files.add_member_key(&Arc::new(MemberKey::generate()), Some(&unlock_key)).unwrap();
        }
        for file in &CERTIFICATES[..files_written] {
            let content = match *file {
                "ca.pem" => manager.files.save_authority(file, &manager.authority),
                _ => manager.files.save_credentials(file, &manager.manager),
            };
            content.unwrap();
        }
        let files = manager.reopened(Some(&unlock_key)).unwrap();
        manager.check(&files);
        assert_eq!(manager.files_with_keys(), [""; 0]);
        files.rewrite(&CERTIFICATES, SECRET).unwrap();
        if keyring_written {
            check_replaced(&manager, &files, Some(&unlock_key));
        } else {
            manager.check(&manager.reopened(Some(&unlock_key)).unwrap());
        }
    }
}

#[test]
fn member_key_that_the_keyring_needs_is_not_removed() {
    let manager = ManagerFiles::new();
    let keyring = open_keyring(&manager, &manager.files);
    keyring.replace_member_key(&manager.files, None).unwrap();
    // It uses the earlier key, like a process whose write of the keyring failed after it took effect.
    let files = manager.reopened(None).unwrap();
    let before = manager.content();
    let refused = files.rewrite(&CERTIFICATES, SECRET).unwrap_err();
    assert!(matches!(refused, KeyFileError::MemberKeyInDoubt { .. }), "{refused}");
    assert_eq!(manager.content(), before);
    manager.check(&files);
    files.rewrite(&CERTIFICATES, SECRET).unwrap();
    check_replaced(&manager, &files, None);
}

#[test]
fn locked_member_key_is_replaced_with_the_unlock_key_only() {
    let manager = ManagerFiles::new();
    let (key, other) = (UnlockKey::generate(), UnlockKey::generate());
    manager.files.set_unlock_key(Some(&key)).unwrap();
    manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
    let keyring = open_keyring(&manager, &manager.files);
    let before = manager.content();
    let refused = keyring.replace_member_key(&manager.files, None).unwrap_err();
    assert!(matches!(refused, KeyFileError::Locked { .. }), "{refused}");
    let refused = keyring.replace_member_key(&manager.files, Some(&other)).unwrap_err();
    assert!(matches!(refused, KeyFileError::WrongUnlockKey { .. }), "{refused}");
    assert_eq!(manager.content(), before);
}

#[test]
fn both_secret_object_keys_are_locked_while_one_is_replaced() {
    let manager = ManagerFiles::new();
    let next = SecretObjectKey::generate();
    let both = manager.secret_object_key.with(&next);
    manager.files.save_secret_object_key(SECRET, &both).unwrap();
    let plain = fs::read_to_string(manager.dir.path().join(SECRET)).unwrap();
    assert_eq!(plain, *both.reveal());
    let unlock_key = UnlockKey::generate();
    manager.files.set_unlock_key(Some(&unlock_key)).unwrap();
    manager.files.rewrite(&CERTIFICATES, SECRET).unwrap();
    let locked = fs::read_to_string(manager.dir.path().join(SECRET)).unwrap();
    for line in plain.lines() {
        assert!(!locked.contains(line.split(' ').nth(2).unwrap()), "a key is in plain");
    }
    let read = manager.reopened(Some(&unlock_key)).unwrap().secret_object_key(SECRET).unwrap().unwrap();
    assert_eq!(read.key_fingerprints(), both.key_fingerprints());
    assert_eq!(*read.reveal(), plain);
}

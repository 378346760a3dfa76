use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use warren_types::Id;

use super::*;

const KEY_LINE: &str = include_str!("golden/secret-objects.key.1");
const SEALED_1: &[u8] = include_bytes!("golden/sealed.1");
const SEALED_2: &[u8] = include_bytes!("golden/sealed.2");
const ID: SecretObjectId = SecretObjectId(Id(7));
const TEXT: &[u8] = b"what is sealed";

fn golden() -> (tempfile::TempDir, SecretObjectKey) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret-objects.key");
    crate::files::write_private(&path, KEY_LINE.as_bytes()).unwrap();
    let key = SecretObjectKey::load(&path).unwrap().unwrap();
    (dir, key)
}

#[test]
fn each_format_opens() {
    let (_dir, key) = golden();
    let fingerprint = key.fingerprint(ID, TEXT);
    let size = TEXT.len() as u32;
    for (sealed, names) in
        [(SEALED_1, None), (SEALED_2, Some(SecretObjectKeyId::from(key.key_fingerprint())))]
    {
        let sealed = SealedData { size, fingerprint, sealed: sealed.to_vec() };
        assert_eq!(key.open(ID, &sealed).unwrap().as_slice(), TEXT);
        assert_eq!(sealed.key(), names);
    }
    let hex: String = crate::hex::digits(&fingerprint).collect();
    assert_eq!(hex, include_str!("golden/fingerprint.1").trim_end());
}

#[test]
fn a_key_is_made_once_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret-objects.key");
    assert!(SecretObjectKey::load(&path).unwrap().is_none());
    let made = SecretObjectKey::create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    let read = SecretObjectKey::load(&path).unwrap().unwrap();
    let sealed = made.seal(ID, TEXT);
    assert_eq!(read.open(ID, &sealed).unwrap().as_slice(), TEXT);
    assert_eq!(read.fingerprint(ID, TEXT), sealed.fingerprint);
    assert_eq!((sealed.size as usize, sealed.sealed.len()), (TEXT.len(), TEXT.len() + 37));
}

#[test]
fn a_file_that_is_not_the_key_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret-objects.key");
    let member = KEY_LINE.replace("secret-object", "member");
    let other_digit = KEY_LINE.replacen(" 1 1", " 1 2", 1);
    let newer = KEY_LINE.replace(" 1 ", " 9 ");
    for (text, expected) in [
        ("", "does not begin with `warren-secret-object-key`"),
        (member.as_str(), "does not begin with"),
        (other_digit.as_str(), "do not match"),
        (newer.as_str(), "has format version 9"),
        (&KEY_LINE[..66], "expected a key"),
    ] {
        crate::files::write_private(&path, text.as_bytes()).unwrap();
        let error = SecretObjectKey::load(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains(&KEY_LINE[27..46]), "the key is not shown: {error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    crate::files::write_private(&path, KEY_LINE.as_bytes()).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let open = SecretObjectKey::load(&path).unwrap_err();
    assert!(matches!(open, KeyFileError::File(FileError::InsecureMode { mode: 0o644, .. })));
}

#[test]
fn debug_shows_no_key_or_plaintext() {
    let (_dir, key) = golden();
    let sealed = key.seal(ID, TEXT);
    let shown = format!("{key:?} {sealed:?}");
    assert!(!shown.contains(&KEY_LINE[27..46]) && !shown.contains("what is sealed"), "{shown}");
    assert!(!sealed.sealed.windows(4).any(|window| window == b"what"));
}

#[test]
fn modified_ciphertext_does_not_open() {
    let (_dir, key) = golden();
    let (_other_dir, other) = {
        let dir = tempfile::tempdir().unwrap();
        let key = SecretObjectKey::create(&dir.path().join("secret-objects.key")).unwrap();
        (dir, key)
    };
    let sealed = key.seal(ID, TEXT);
    assert!(matches!(other.open(ID, &sealed), Err(SecretObjectKeyError::Refused(_))), "another key");
    let elsewhere = SecretObjectId(Id(8));
    assert!(matches!(key.open(elsewhere, &sealed), Err(SecretObjectKeyError::Refused(_))), "another content");
    let swapped = SealedData { fingerprint: key.fingerprint(ID, b"else"), ..sealed.clone() };
    assert!(matches!(key.open(ID, &swapped), Err(SecretObjectKeyError::Refused(_))), "another fingerprint");
    for at in 0..sealed.sealed.len() {
        let mut changed = sealed.clone();
        changed.sealed[at] ^= 1;
        assert!(key.open(ID, &changed).is_err(), "byte {at}");
        changed.sealed.truncate(at);
        assert!(key.open(ID, &changed).is_err(), "cut to {at}");
    }
}

proptest! {
    #[test]
    fn sealing_is_randomized_and_opens(plain in prop::collection::vec(any::<u8>(), 0..300), id: u128) {
        let (_dir, key) = golden();
        let id = SecretObjectId(Id(id));
        let (one, two) = (key.seal(id, &plain), key.seal(id, &plain));
        prop_assert_eq!(one.fingerprint, two.fingerprint);
        prop_assert_ne!(&one.sealed, &two.sealed);
        prop_assert_eq!(&*key.open(id, &one).unwrap(), &plain);
    }
}

#[test]
fn another_manager_gets_the_same_key() {
    let (dir, key) = golden();
    let line = key.reveal();
    assert_eq!(line.as_str(), KEY_LINE);
    let copy = SecretObjectKey::parse(std::path::Path::new("the answer"), &line).unwrap();
    assert_eq!(copy.key_fingerprint(), key.key_fingerprint());
    let path = dir.path().join("copy.key");
    copy.save(&path).unwrap();
    let stored = SecretObjectKey::load(&path).unwrap().unwrap();
    assert_eq!(stored.open(ID, &key.seal(ID, TEXT)).unwrap().as_slice(), TEXT);
    let damaged =
        SecretObjectKey::parse(std::path::Path::new("the answer"), "warren-secret-object-key 1 x y")
            .unwrap_err();
    assert!(damaged.to_string().starts_with("the answer is damaged"), "{damaged}");
}

#[test]
fn replaced_key_opens_until_it_is_left_out() {
    let (dir, old) = golden();
    let new = SecretObjectKey::generate();
    let [old_id, new_id] = [&old, &new].map(|key| SecretObjectKeyId::from(key.key_fingerprint()));
    let (by_old, by_new) = (old.seal(ID, TEXT), new.seal(ID, TEXT));
    assert_eq!((by_old.key(), by_new.key()), (Some(old_id), Some(new_id)));
    assert_ne!(by_old.fingerprint, by_new.fingerprint);
    assert!(old.open(ID, &by_new).is_err() && new.open(ID, &by_old).is_err());

    let both = old.with(&new);
    assert_eq!(both.with(&new).key_fingerprints(), both.key_fingerprints());
    assert_eq!(both.seal(ID, TEXT).key(), Some(old_id));
    let turned = both.sealing_with(new_id).unwrap();
    assert_eq!(turned.seal(ID, TEXT).key(), Some(new_id));
    assert!(old.sealing_with(new_id).is_none());
    let unnamed = SealedData { sealed: SEALED_1.to_vec(), ..by_old.clone() };
    for keys in [&both, &turned] {
        for sealed in [&by_old, &by_new, &unnamed] {
            assert_eq!(keys.open(ID, sealed).unwrap().as_slice(), TEXT);
        }
        let path = dir.path().join("both.key");
        keys.save(&path).unwrap();
        let read = SecretObjectKey::load(&path).unwrap().unwrap();
        assert_eq!(read.key_fingerprints(), keys.key_fingerprints());
        let copy = SecretObjectKey::parse(std::path::Path::new("the answer"), &keys.reveal()).unwrap();
        assert_eq!(copy.key_fingerprints(), keys.key_fingerprints());
    }
    let alone = turned.alone();
    assert_eq!(alone.open(ID, &by_new).unwrap().as_slice(), TEXT);
    assert!(alone.open(ID, &by_old).is_err() && alone.open(ID, &unnamed).is_err());

    old.replace(&turned);
    assert_eq!(old.key_fingerprints(), turned.key_fingerprints());
    assert_eq!(old.open(ID, &by_new).unwrap().as_slice(), TEXT);
}

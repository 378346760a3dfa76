//! The two files: what they hold over many starts, and what is refused without changing anything.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::files::{FileError, write_private};
use crate::key_file::KeyFileError;

fn open(dir: &TempDir, in_use: &[u32]) -> Result<Keyring, KeyringError> {
    Keyring::open(dir.path(), &in_use.iter().copied().map(KeyId).collect())
}

fn directory_content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Opening is refused twice, and no file is made or changed by it.
fn refused(dir: &TempDir, in_use: &[u32]) -> KeyringError {
    let before = directory_content(dir.path());
    open(dir, in_use).unwrap_err();
    let error = open(dir, in_use).unwrap_err();
    assert_eq!(directory_content(dir.path()), before, "{error}");
    error
}

#[test]
fn each_start_has_a_new_key_and_opens_older_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut sealed: Vec<(u8, Vec<u8>)> = Vec::new();
    for start in 1..=3 {
        let in_use: Vec<u32> = (1..start).collect();
        let keyring = open(&dir, &in_use).unwrap();
        assert_eq!(keyring.current(), KeyId(start));
        for (number, old) in &sealed {
            assert_eq!(keyring.unseal(b"here", old).unwrap(), [*number]);
        }
        sealed.push((start as u8, keyring.seal(b"here", &[start as u8]).unwrap()));
        assert_eq!(key_id_of(&sealed.last().unwrap().1).unwrap(), KeyId(start));
    }
    assert_eq!(directory_content(dir.path()).into_keys().collect::<Vec<_>>(), ["keyring", "member.key"]);
    for file in ["keyring", "member.key"] {
        let mode = fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "{file}");
    }
}

#[test]
fn unused_keys_are_pruned_and_ids_not_reused() {
    let dir = tempfile::tempdir().unwrap();
    let old = open(&dir, &[]).unwrap().seal(b"here", b"old").unwrap();
    let mut sizes = Vec::new();
    for start in 2..=90 {
        let keyring = open(&dir, &[start - 1]).unwrap();
        assert_eq!(keyring.current(), KeyId(start));
        sizes.push(directory_content(dir.path())["keyring"].len());
        match keyring.unseal(b"here", &old) {
            Ok(plain) => assert_eq!(plain, b"old"),
            Err(error) => assert!(start > 60 && matches!(error, SealError::UnknownKey(KeyId(1))), "{error}"),
        }
    }
    assert!(matches!(refused(&dir, &[1]), KeyringError::UnknownKey { key: KeyId(1), .. }));
    let [.., before, last] = sizes[..] else { panic!("there were many starts") };
    assert_eq!(before, last, "the file does not grow with starts: {sizes:?}");
}

#[test]
fn keys_survive_starts_without_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let sealed =
        [&[][..], &[1], &[1, 2]].map(|in_use| open(&dir, in_use).unwrap().seal(b"here", b"x").unwrap());
    let mut sizes = Vec::new();
    for _ in 0..90 {
        open(&dir, &[]).unwrap();
        sizes.push(directory_content(dir.path())["keyring"].len());
    }
    assert_eq!(sizes[88], sizes[89], "the file does not grow with starts: {sizes:?}");
    let keyring = open(&dir, &[1, 2, 3]).unwrap();
    assert!(sealed.iter().all(|value| keyring.unseal(b"here", value).unwrap() == b"x"));
}

#[test]
fn only_the_member_key_opens_the_keyring() {
    let dir = tempfile::tempdir().unwrap();
    let value = open(&dir, &[]).unwrap().seal(b"here", b"x").unwrap();
    let member = dir.path().join("member.key");
    let good = fs::read(&member).unwrap();

    fs::remove_file(&member).unwrap();
    let error = refused(&dir, &[1]);
    assert!(matches!(&error, KeyringError::MemberKeyMissing { member: path } if *path == member));
    assert!(error.to_string().contains("member.key is missing"), "{error}");
    refused(&dir, &[]);

    let foreign = tempfile::tempdir().unwrap();
    open(&foreign, &[]).unwrap();
    fs::copy(foreign.path().join("member.key"), &member).unwrap();
    let error = refused(&dir, &[1]);
    assert!(matches!(error, KeyringError::MemberKeyMismatch { .. }), "{error}");
    assert!(error.to_string().contains("put the two that belong together back"), "{error}");

    fs::write(&member, &good).unwrap();
    assert_eq!(open(&dir, &[1]).unwrap().unseal(b"here", &value).unwrap(), b"x");
}

#[test]
fn invalid_member_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir, &[]).unwrap();
    let member = dir.path().join("member.key");
    let good = fs::read_to_string(&member).unwrap();
    let mut words = good.split_ascii_whitespace();
    let (mark, version, key) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    assert_eq!((mark, version, key.len()), ("warren-member-key", "1", 64));
    let swapped: String = key.chars().rev().collect();
    let cases = [
        (String::new(), "does not begin with"),
        ("-----BEGIN PRIVATE KEY-----\n".into(), "does not begin with"),
        ("warren-member-key\n".into(), "no format version"),
        (good[..good.len() - 18].into(), "expected a key and its fingerprint"),
        (good.replace(key, &key[..62]), "64 hexadecimal digits"),
        (good.replace(key, &format!("{}zz", &key[..62])), "64 hexadecimal digits"),
        (good.replace(key, &format!("{}éa", &key[..61])), "64 hexadecimal digits"),
        (good.replace(key, &swapped), "do not match"),
        (good.replace(" 1 ", " 2 "), "expected a sealed key"),
        (good.replace(" 1 ", " 3 "), "has format version 3"),
    ];
    for (bad, expected) in cases {
        fs::write(&member, &bad).unwrap();
        let text = refused(&dir, &[]).to_string();
        assert!(text.contains(expected) && text.contains("member.key"), "{text}");
        assert!(!text.contains(&key[..16]), "a key is never shown");
    }
    fs::write(&member, &good).unwrap();
    fs::set_permissions(&member, Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(
        refused(&dir, &[]),
        KeyringError::KeyFile(KeyFileError::File(FileError::InsecureMode { mode: 0o644, .. }))
    ));
}

#[test]
fn mismatched_keyring_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir, &[]).unwrap();
    let first = directory_content(dir.path());
    open(&dir, &[1]).unwrap();
    let path = dir.path().join("keyring");
    let good = fs::read(&path).unwrap();
    let write = |bytes: &[u8]| fs::write(&path, bytes).unwrap();

    assert!(matches!(refused(&dir, &[1, 2, 3]), KeyringError::UnknownKey { key: KeyId(3), .. }));
    write(&first["keyring"]);
    assert!(matches!(refused(&dir, &[1, 2]), KeyringError::UnknownKey { key: KeyId(2), .. }), "an old copy");

    fs::remove_file(&path).unwrap();
    assert!(matches!(refused(&dir, &[1]), KeyringError::Missing { key: KeyId(1), .. }));
    write_private(&path, &good).unwrap();

    for length in 0..good.len() {
        write(&good[..length]);
        assert!(
            matches!(refused(&dir, &[1]), KeyringError::KeyFile(KeyFileError::Damaged { .. })),
            "cut to {length}"
        );
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        write(&bad);
        let error = refused(&dir, &[1]);
        // The lowest bit of the version makes a version 0 of it, which is summed like any other.
        assert!(
            matches!(
                error,
                KeyringError::KeyFile(KeyFileError::Damaged { .. } | KeyFileError::UnsupportedFormat { .. })
            ),
            "byte {at}: {error}"
        );
    }
    let mut newer = good.clone();
    newer[8] = 9;
    write(&newer);
    assert!(matches!(
        refused(&dir, &[1]),
        KeyringError::KeyFile(KeyFileError::UnsupportedFormat { found: 9, .. })
    ));
    write(&good);
    open(&dir, &[1, 2]).unwrap();
}

#[test]
fn interrupted_first_start_completes() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir, &[]).unwrap();
    let member = directory_content(dir.path())["member.key"].clone();
    fs::remove_file(dir.path().join("keyring")).unwrap();
    assert_eq!(open(&dir, &[]).unwrap().current(), KeyId(1));
    assert_eq!(directory_content(dir.path())["member.key"], member, "the member key is never made twice");
}

#[test]
fn a_copy_of_the_directory_never_seals_with_the_same_key() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(&dir, &[]).unwrap();
    for (name, bytes) in directory_content(dir.path()) {
        write_private(&copy.path().join(name), &bytes).unwrap();
    }
    let sealed = [&dir, &copy].map(|dir| open(dir, &[]).unwrap().seal(b"here", b"text").unwrap());
    assert_eq!(key_id_of(&sealed[0]).unwrap(), key_id_of(&sealed[1]).unwrap());
    assert_ne!(sealed[0], sealed[1]);
}

#[test]
fn debug_shows_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = open(&dir, &[]).unwrap();
    assert_eq!(format!("{keyring:?}"), "Keyring { current: KeyId(1), .. }");
}

#[test]
fn renewed_key_seals_and_earlier_keys_are_forgotten_when_unused() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = open(&dir, &[]).unwrap();
    let old = keyring.seal(b"here", b"old").unwrap();
    keyring.renew().unwrap();
    let new = keyring.seal(b"here", b"new").unwrap();
    assert_eq!((key_id_of(&old).unwrap(), key_id_of(&new).unwrap()), (KeyId(1), KeyId(2)));
    assert_eq!(keyring.unseal(b"here", &old).unwrap(), b"old");

    assert_eq!(keyring.forget_unused(&BTreeSet::from([KeyId(1)])).unwrap(), BTreeSet::from([KeyId(1)]));
    assert_eq!(keyring.unseal(b"here", &old).unwrap(), b"old");
    let with_both = directory_content(dir.path())["keyring"].len();
    assert_eq!(keyring.forget_unused(&BTreeSet::new()).unwrap(), BTreeSet::new());
    assert!(matches!(keyring.unseal(b"here", &old), Err(SealError::UnknownKey(KeyId(1)))));
    assert_eq!(keyring.unseal(b"here", &new).unwrap(), b"new");
    assert!(directory_content(dir.path())["keyring"].len() < with_both);

    // As in the file.
    assert!(matches!(refused(&dir, &[1]), KeyringError::UnknownKey { key: KeyId(1), .. }));
    let restarted = open(&dir, &[2]).unwrap();
    assert_eq!(restarted.current(), KeyId(3));
    assert_eq!(restarted.unseal(b"here", &new).unwrap(), b"new");
}

#[test]
fn stream_keeps_the_key_that_it_began_with() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = open(&dir, &[]).unwrap();
    let mut writer = SealingWriter::with_chunks(&keyring, b"here", Vec::new(), 2).unwrap();
    writer.write_all(b"before ").unwrap();
    keyring.renew().unwrap();
    writer.write_all(b"and after").unwrap();
    let sealed = writer.finish().unwrap();
    assert_eq!(key_id_of(&sealed).unwrap(), KeyId(1));
    assert_eq!(keyring.unseal_stream(b"here", sealed).unwrap(), b"before and after");
}

#[test]
fn key_that_cannot_be_stored_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = open(&dir, &[]).unwrap();
    let path = dir.path().join("keyring");
    let content = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    keyring.renew().unwrap_err();
    assert_eq!(keyring.current(), KeyId(1));
    fs::remove_dir(&path).unwrap();
    write_private(&path, &content).unwrap();
    keyring.renew().unwrap();
    assert_eq!(keyring.current(), KeyId(2));
}

//! What each format version looks like, byte by byte. A file here is never changed: a new version gets its own.

use super::*;
use crate::seal::keyring_file::{KeyringFile, WrappedKey};
use crate::seal::member::MemberKey;

const PLACE: &[u8] = b"where it belongs";
const TEXT: &[u8] = b"what is sealed";
const MEMBER: [u8; 32] = [0x11; 32];
const VALUE: &[u8] = include_bytes!("golden/value.1");
const STREAM: &[u8] = include_bytes!("golden/stream.1");
const KEYRING: &[u8] = include_bytes!("golden/keyring.1");
const MEMBER_KEY: &str = include_str!("golden/member.key.1");

/// Two chunks.
fn short_stream() -> Vec<u8> {
    let keyring = ring();
    let mut writer = SealingWriter::with_chunks(&keyring, PLACE, Vec::new(), 8).unwrap();
    writer.write_all(TEXT).unwrap();
    writer.finish().unwrap()
}

fn keyring_file() -> Vec<u8> {
    let member = MemberKey::new(MEMBER);
    let key = |id: KeyId, key, nonce| (id, WrappedKey::seal(&member.cipher(), id, key, nonce));
    let wrapped = [key(ID, &KEY, [1; 12]), key(KeyId(5), &[9; 32], [2; 12])];
    KeyringFile { last_id: KeyId(5), wrapped: wrapped.into() }.encode(member.fingerprint())
}

#[test]
fn version_1_encoding_is_stable() {
    assert_eq!(ring().seal(PLACE, TEXT).unwrap(), VALUE);
    assert_eq!(short_stream(), STREAM);
    assert_eq!(keyring_file(), KEYRING);
    assert_eq!(*MemberKey::new(MEMBER).line(), MEMBER_KEY);
}

#[test]
fn version_1_log_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [("keyring", KEYRING), ("member.key", MEMBER_KEY.as_bytes())] {
        crate::files::write_private(&dir.path().join(name), content).unwrap();
    }
    let keyring = Keyring::open(dir.path(), &BTreeSet::from([ID])).unwrap();
    assert_eq!(keyring.current(), KeyId(6));
    assert_eq!(keyring.unseal(PLACE, VALUE).unwrap(), TEXT);
    assert_eq!(keyring.unseal_stream(PLACE, STREAM.to_vec()).unwrap(), TEXT);
}

use proptest::prelude::*;

use super::*;

/// A backup that version 1 of the format wrote, with few rounds, of [`TEXT`].
const GOLDEN: &[u8] = include_bytes!("golden/backup.1");
const TEXT: &[u8] = b"all that another machine needs";
const FEW_ROUNDS: u32 = 3;

fn passphrase(text: &str) -> Passphrase {
    Passphrase::parse(Zeroizing::new(text.to_owned())).unwrap()
}

fn test_passphrase() -> Passphrase {
    passphrase("correct horse")
}

fn written(plain: &[u8]) -> Vec<u8> {
    let mut writer = BackupWriter::with(&test_passphrase(), [7; SALT], FEW_ROUNDS, Vec::new()).unwrap();
    writer.write_all(plain).unwrap();
    writer.finish().unwrap()
}

#[test]
fn format_is_stable() {
    let found = written(TEXT);
    assert_eq!(
        found, GOLDEN,
        "a changed format needs another version, and its own golden file beside this one"
    );
    assert_eq!(
        &GOLDEN[..HEADER],
        b"WRNBACK\n\x01\0\0\0\x03\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07"
    );
    assert_eq!(open_backup(&test_passphrase(), GOLDEN.to_vec()).unwrap().as_slice(), TEXT);
}

#[test]
fn key_derivation_has_full_cost_and_fresh_salt() {
    let made = || BackupWriter::new(&test_passphrase(), Vec::new()).unwrap().finish().unwrap();
    let (one, other) = (made(), made());
    assert_eq!(one[12..16], ROUNDS.to_le_bytes());
    assert_ne!(one[16..HEADER], other[16..HEADER]);
    assert!(open_backup(&test_passphrase(), one).unwrap().is_empty());
}

#[test]
fn passphrase_length_is_bounded() {
    let parse = |text: &str| Passphrase::parse(Zeroizing::new(text.to_owned()));
    assert_eq!(parse("ä234567").unwrap_err(), PassphraseError::Short { found: 7 });
    assert_eq!(parse(&"x".repeat(1025)).unwrap_err(), PassphraseError::Long { found: 1025 });
    assert_eq!(format!("{:?}", parse("12345678").unwrap()), "Passphrase(redacted)");
}

#[test]
fn incomplete_backup_is_refused_with_reason() {
    let whole = written(&[5; 3 * CHUNK]);
    let open = |bytes: &[u8]| open_backup(&test_passphrase(), bytes.to_vec()).unwrap_err();
    for length in [0, 7, HEADER - 1] {
        let expected = if length < 8 { BackupError::NotABackup } else { BackupError::Short };
        assert_eq!(open(&whole[..length]), expected);
    }
    let chunk = FRAME + CHUNK + TAG;
    for length in [HEADER, HEADER + 3, HEADER + chunk, HEADER + 2 * chunk, whole.len() - 1] {
        assert_eq!(open(&whole[..length]), BackupError::Short, "{length}");
    }
    assert_eq!(open(&[&whole[..], b"more"].concat()), BackupError::Trailing(4));
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        open(&bytes)
    };
    assert_eq!(changed(0, b'X'), BackupError::NotABackup);
    assert_eq!(changed(8, 2), BackupError::UnsupportedFormat { found: 2 });
    assert_eq!(changed(12, 0), BackupError::Header(0));
    assert_eq!(changed(15, 0xff), BackupError::Header(0xff00_0003));
    assert_eq!(changed(20, 9), BackupError::Passphrase);
    assert_eq!(changed(HEADER + FRAME + 9, 9), BackupError::Passphrase);
    assert_eq!(changed(HEADER + chunk + FRAME + 9, 9), BackupError::Damaged(1));
    assert_eq!(changed(HEADER + chunk, 1), BackupError::Damaged(1), "a chunk that passes for the last");
    let other = open_backup(&passphrase("wrong horse"), whole.clone()).unwrap_err();
    assert_eq!(other, BackupError::Passphrase);
}

#[test]
fn unfinished_backup_does_not_open() {
    let mut out = Vec::new();
    let mut writer = BackupWriter::with(&test_passphrase(), [7; SALT], FEW_ROUNDS, &mut out).unwrap();
    writer.write_all(&[1; 300_000]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    assert_eq!(open_backup(&test_passphrase(), out).unwrap_err(), BackupError::Short);
}

#[test]
fn chunks_cannot_be_moved() {
    let whole = written(&[5; 3 * CHUNK]);
    let chunk = FRAME + CHUNK + TAG;
    let (first, second) = (HEADER..HEADER + chunk, HEADER + chunk..HEADER + 2 * chunk);
    let mut swapped = whole.clone();
    swapped[first.clone()].copy_from_slice(&whole[second.clone()]);
    swapped[second].copy_from_slice(&whole[first]);
    assert_eq!(open_backup(&test_passphrase(), swapped).unwrap_err(), BackupError::Passphrase);
}

proptest! {
    #[test]
    fn backup_round_trips_for_any_write_sizes(lengths in prop::collection::vec(0usize..90_000, 0..6)) {
        let mut writer = BackupWriter::with(&test_passphrase(), [1; SALT], FEW_ROUNDS, Vec::new()).unwrap();
        let parts: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(length, byte)| vec![byte; *length]).collect();
        for part in &parts {
            writer.write_all(part).unwrap();
        }
        let sealed = writer.finish().unwrap();
        let plain = open_backup(&test_passphrase(), sealed).unwrap();
        prop_assert_eq!(plain.as_slice(), parts.concat());
    }
}

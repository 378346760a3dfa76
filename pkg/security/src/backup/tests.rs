use proptest::prelude::*;

use super::*;

/// A backup that version 1 of the format wrote, with few rounds, of [`TEXT`].
const GOLDEN: &[u8] = include_bytes!("golden/backup.1");
const TEXT: &[u8] = b"all that another machine needs";
const FEW_ROUNDS: u32 = 3;

fn passphrase(text: &str) -> Passphrase {
    Passphrase::parse(Zeroizing::new(text.to_owned())).unwrap()
}

fn own() -> Passphrase {
    passphrase("correct horse")
}

fn written(plain: &[u8]) -> Vec<u8> {
    let mut writer = BackupWriter::with(&own(), [7; SALT], FEW_ROUNDS, Vec::new()).unwrap();
    writer.write_all(plain).unwrap();
    writer.finish().unwrap()
}

#[test]
fn the_format_is_what_it_was() {
    let found = written(TEXT);
    assert_eq!(
        found, GOLDEN,
        "a changed format needs another version, and its own golden file beside this one"
    );
    assert_eq!(
        &GOLDEN[..HEADER],
        b"WRNBACK\n\x01\0\0\0\x03\0\0\0\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07"
    );
    assert_eq!(open_backup(&own(), GOLDEN.to_vec()).unwrap().as_slice(), TEXT);
}

#[test]
fn the_key_costs_what_it_should_and_salts_differ() {
    let made = || BackupWriter::new(&own(), Vec::new()).unwrap().finish().unwrap();
    let (one, other) = (made(), made());
    assert_eq!(one[12..16], ROUNDS.to_le_bytes());
    assert_ne!(one[16..HEADER], other[16..HEADER]);
    assert!(open_backup(&own(), one).unwrap().is_empty());
}

#[test]
fn a_passphrase_is_neither_short_nor_a_book() {
    let parse = |text: &str| Passphrase::parse(Zeroizing::new(text.to_owned()));
    assert_eq!(parse("ä234567").unwrap_err(), PassphraseError::Short { found: 7 });
    assert_eq!(parse(&"x".repeat(1025)).unwrap_err(), PassphraseError::Long { found: 1025 });
    assert_eq!(format!("{:?}", parse("12345678").unwrap()), "Passphrase(redacted)");
}

#[test]
fn what_is_no_whole_backup_is_refused_with_what_is_wrong() {
    let whole = written(&[5; 3 * CHUNK]);
    let open = |bytes: &[u8]| open_backup(&own(), bytes.to_vec()).unwrap_err();
    for length in [0, 7, HEADER - 1] {
        let wanted = if length < 8 { BackupError::NotABackup } else { BackupError::Short };
        assert_eq!(open(&whole[..length]), wanted);
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
    assert_eq!(changed(8, 2), BackupError::Newer { found: 2 });
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
fn what_was_not_finished_does_not_open() {
    let mut out = Vec::new();
    let mut writer = BackupWriter::with(&own(), [7; SALT], FEW_ROUNDS, &mut out).unwrap();
    writer.write_all(&[1; 300_000]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    assert_eq!(open_backup(&own(), out).unwrap_err(), BackupError::Short);
}

#[test]
fn chunks_cannot_be_moved() {
    let whole = written(&[5; 3 * CHUNK]);
    let chunk = FRAME + CHUNK + TAG;
    let (first, second) = (HEADER..HEADER + chunk, HEADER + chunk..HEADER + 2 * chunk);
    let mut swapped = whole.clone();
    swapped[first.clone()].copy_from_slice(&whole[second.clone()]);
    swapped[second].copy_from_slice(&whole[first]);
    assert_eq!(open_backup(&own(), swapped).unwrap_err(), BackupError::Passphrase);
}

proptest! {
    #[test]
    fn what_was_written_comes_back_whatever_the_writes_were(lengths in prop::collection::vec(0usize..90_000, 0..6)) {
        let mut writer = BackupWriter::with(&own(), [1; SALT], FEW_ROUNDS, Vec::new()).unwrap();
        let parts: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(length, byte)| vec![byte; *length]).collect();
        for part in &parts {
            writer.write_all(part).unwrap();
        }
        let sealed = writer.finish().unwrap();
        let plain = open_backup(&own(), sealed).unwrap();
        prop_assert_eq!(plain.as_slice(), parts.concat());
    }
}

use std::fs::OpenOptions;
use std::io::Write as _;

use proptest::prelude::*;
use warren_testkit::scratch::ScratchDir;

use super::cursor::ReadResult;
use super::*;
use crate::record::{FILE_HEADER, MAX_TEXT};
use crate::segment;
use crate::writer::{RotationLimits, SegmentWriter};

const FOLLOW: ReadOptions = ReadOptions { tail: None, since: None, follow: true };
const ALL: ReadOptions = ReadOptions { tail: None, since: None, follow: false };

/// Writes lines whose times are their numbers, from 1 on.
struct Writer {
    files: SegmentWriter,
    next: u64,
}

impl Writer {
    fn new(dir: &Path, max_size: u64, max_files: u64) -> Writer {
        Writer { files: SegmentWriter::new(dir.to_owned(), RotationLimits { max_size, max_files }), next: 1 }
    }

    fn line(&mut self, stream: OutputStream, partial: bool, text: &[u8]) {
        self.files.write_line(self.next, stream, partial, text);
        self.files.flush(self.next);
        self.next += 1;
    }

    fn lines(&mut self, count: usize) {
        for _ in 0..count {
            self.line(OutputStream::Stdout, false, format!("line {}", self.next).as_bytes());
        }
    }
}

fn open(dir: &Path, options: ReadOptions) -> SegmentCursor {
    SegmentCursor::open(dir, options).unwrap()
}

/// Everything up to the end, or until there is no new data.
fn drain(cursor: &mut SegmentCursor) -> Vec<OutputEntry> {
    let mut found = Vec::new();
    while let ReadStep::Found(entries) = cursor.read().unwrap() {
        assert!(!entries.is_empty());
        found.extend(entries);
    }
    found
}

fn at(entries: &[OutputEntry]) -> Vec<u64> {
    let at = |entry: &OutputEntry| match entry {
        OutputEntry::Line(line) => line.at,
        other => panic!("{other:?}"),
    };
    entries.iter().map(at).collect()
}

fn read(dir: &Path, options: ReadOptions) -> Vec<u64> {
    at(&drain(&mut open(dir, options)))
}

fn range(from: u64, to: u64) -> Vec<u64> {
    (from..=to).collect()
}

#[test]
fn entries_are_read_in_order() {
    let scratch = ScratchDir::new();
    let mut writer = Writer::new(scratch.path(), 1000, 3);
    writer.files.write_attempt(1, 7);
    writer.next = 2;
    writer.line(OutputStream::Stdout, false, b"one");
    writer.line(OutputStream::Stderr, true, b"two\r\xff");
    writer.line(OutputStream::Stderr, false, b"");
    let line = |at, stream, text: &'static [u8], partial| {
        OutputEntry::Line(OutputLine { at, stream, text: Bytes::from_static(text), partial })
    };
    let expected = [
        OutputEntry::Attempt { at: 1, attempt: 7 },
        line(2, OutputStream::Stdout, b"one", false),
        line(3, OutputStream::Stderr, b"two\r\xff", true),
        line(4, OutputStream::Stderr, b"", false),
    ];
    assert_eq!(drain(&mut open(scratch.path(), ALL)), expected);
    let since = ReadOptions { since: Some(2), ..ALL };
    assert_eq!(drain(&mut open(scratch.path(), since)), expected[1..]);
}

#[test]
fn position_is_found_by_time_and_tail() {
    let scratch = ScratchDir::new();
    let mut writer = Writer::new(scratch.path(), 1 << 20, 10);
    for _ in 0..20_000 {
        let long = "x".repeat(150);
        writer.files.write_line(writer.next, OutputStream::Stdout, false, long.as_bytes());
        writer.next += 1;
    }
    writer.files.flush(0);
    assert!(segment::list(scratch.path()).unwrap().len() > 3);
    let places = [0, 1, 2, 999, 5000, 5001, 5610, 5611, 5612, 12_345, 19_999, 20_000, 20_001, u64::MAX];
    for place in places {
        let since = ReadOptions { since: Some(place), ..ALL };
        assert_eq!(read(scratch.path(), since), range(place.max(1), 20_000), "since {place}");
        let tail = ReadOptions { tail: Some(place), ..ALL };
        let first = 20_000_u64.saturating_sub(place) + 1;
        assert_eq!(read(scratch.path(), tail), range(first, 20_000), "tail {place}");
        let both = ReadOptions { tail: Some(5000), since: Some(place), follow: false };
        assert_eq!(read(scratch.path(), both), range(place.max(15_001), 20_000), "both {place}");
    }
}

#[test]
fn tail_counts_lines_not_pieces() {
    let scratch = ScratchDir::new();
    let mut writer = Writer::new(scratch.path(), 1 << 20, 10);
    for partial in [false, true, true, false, true, false, true] {
        writer.line(OutputStream::Stdout, partial, b"text");
    }
    // 1 | 2 3 4 | 5 6 | 7
    for (tail, first) in [(0, 7), (1, 5), (2, 2), (3, 1), (4, 1)] {
        let tail = ReadOptions { tail: Some(tail), ..ALL };
        assert_eq!(read(scratch.path(), tail), range(first, 7), "{tail:?}");
    }
}

#[test]
fn read_without_follow_ends_at_initial_end() {
    let scratch = ScratchDir::new();
    let mut none = open(scratch.path(), ALL);
    let mut writer = Writer::new(scratch.path(), 200, 10);
    writer.lines(10);
    let mut some = open(scratch.path(), ALL);
    writer.lines(10);
    assert_eq!(drain(&mut none), []);
    assert_eq!(at(&drain(&mut some)), range(1, 10));
    assert_eq!(some.read().unwrap(), ReadStep::End);
}

#[test]
fn follow_continues_across_rotation() {
    let scratch = ScratchDir::new();
    let mut follower = open(scratch.path(), FOLLOW);
    let mut last = open(scratch.path(), ReadOptions { tail: Some(0), ..FOLLOW });
    assert_eq!(follower.read().unwrap(), ReadStep::Pending);
    let mut writer = Writer::new(scratch.path(), 150, 3);
    for round in 0..10 {
        writer.lines(3);
        let expected = range(round * 3 + 1, round * 3 + 3);
        assert_eq!(at(&drain(&mut follower)), expected);
        assert_eq!(at(&drain(&mut last)), expected);
        let mut tail = open(scratch.path(), ReadOptions { tail: Some(1), ..FOLLOW });
        assert_eq!(at(&drain(&mut tail)), [round * 3 + 3]);
    }
    std::fs::remove_dir_all(scratch.path()).unwrap();
    assert_eq!(follower.read().unwrap(), ReadStep::End);
    std::fs::create_dir(scratch.path()).unwrap();
}

#[test]
fn rotated_away_files_are_reported() {
    let scratch = ScratchDir::new();
    // Two lines per file.
    let mut writer = Writer::new(scratch.path(), 110, 3);
    writer.lines(3);
    assert_eq!(segment::list(scratch.path()).unwrap(), [1, 2]);
    let mut slow = open(scratch.path(), FOLLOW);
    let mut bounded = open(scratch.path(), ALL);
    assert!(matches!(slow.read().unwrap(), ReadStep::Found(found) if at(&found) == [1, 2]));
    assert!(matches!(bounded.read().unwrap(), ReadStep::Found(found) if at(&found) == [1, 2]));
    writer.lines(17);
    assert_eq!(segment::list(scratch.path()).unwrap(), [8, 9, 10]);
    let found = drain(&mut slow);
    assert_eq!(found[0], OutputEntry::RotatedAway { files: 6 });
    assert_eq!(at(&found[1..]), range(15, 20));
    assert_eq!(drain(&mut bounded), [OutputEntry::RotatedAway { files: 1 }]);
    assert_eq!(bounded.read().unwrap(), ReadStep::End);
}

#[test]
fn removed_file_is_read_to_end() {
    let scratch = ScratchDir::new();
    let mut writer = Writer::new(scratch.path(), 1 << 20, 1);
    let text = vec![b'x'; MAX_TEXT];
    while segment::list(scratch.path()).unwrap() != [2] {
        let is_reading = writer.next == 2;
        writer.line(OutputStream::Stdout, false, &text);
        if is_reading {
            // The first file stays open from here on.
            let mut reader = open(scratch.path(), FOLLOW);
            assert_eq!(at(&drain(&mut reader)), [1, 2]);
            while segment::list(scratch.path()).unwrap() != [2] {
                writer.line(OutputStream::Stdout, false, &text);
            }
            writer.lines(5);
            assert_eq!(at(&drain(&mut reader)), range(3, writer.next - 1));
        }
    }
}

#[test]
fn last_line_before_rotation_is_read() {
    let scratch = ScratchDir::new();
    // Two lines per file.
    let mut writer = Writer::new(scratch.path(), 110, 10);
    writer.lines(1);
    let mut follower = open(scratch.path(), FOLLOW);
    assert_eq!(at(&drain(&mut follower)), [1]);
    // It reads, finds nothing, and before it looks for a newer file all of this happens.
    let rest = follower.read_here().unwrap();
    writer.lines(4);
    assert_eq!(segment::list(scratch.path()).unwrap(), [1, 2, 3]);
    let ReadResult::Partial(0) = rest else { panic!("there was no more") };
    assert_eq!(follower.after_partial(0).unwrap(), None);
    assert_eq!(at(&drain(&mut follower)), range(2, 5));
}

#[test]
fn torn_record_is_awaited_or_skipped() {
    let scratch = ScratchDir::new();
    let mut writer = Writer::new(scratch.path(), 1000, 10);
    writer.lines(2);
    let (mut follower, mut bounded) = (open(scratch.path(), FOLLOW), open(scratch.path(), ALL));
    let mut file = OpenOptions::new().append(true).open(segment::segment_path(scratch.path(), 1)).unwrap();
    file.write_all(b"1970-01-01T00:00:00.000000003Z ou").unwrap();
    assert_eq!(at(&drain(&mut follower)), [1, 2]);
    assert_eq!(read(scratch.path(), ALL), [1, 2]);
    assert_eq!(read(scratch.path(), ReadOptions { tail: Some(1), ..ALL }), [2]);
    file.write_all(b"t: rest\n").unwrap();
    assert_eq!(at(&drain(&mut follower)), [3]);
    assert_eq!(at(&drain(&mut bounded)), [1, 2]);

    file.write_all(b"1970-01").unwrap();
    assert_eq!(follower.read().unwrap(), ReadStep::Pending);
    let next = [FILE_HEADER, b"1970-01-01T00:00:00.000000004Z out: next\n"].concat();
    std::fs::write(segment::segment_path(scratch.path(), 2), next).unwrap();
    let found = drain(&mut follower);
    assert_eq!(found[0], OutputEntry::Damaged { bytes: 7 });
    assert_eq!(at(&found[1..]), [4]);
    assert_eq!(read(scratch.path(), ReadOptions { since: Some(4), ..ALL }), [4]);
}

#[test]
fn damage_is_reported_and_skipped() {
    let scratch = ScratchDir::new();
    let mut content = FILE_HEADER.to_vec();
    content.extend(b"1970-01-01T00:00:00.000000001Z out: one\nnonsense\n");
    content.extend(vec![0; 600_000]);
    content.extend(b"\n1970-01-01T00:00:00.000000002Z out: two\n");
    std::fs::write(segment::segment_path(scratch.path(), 1), content).unwrap();
    std::fs::write(segment::segment_path(scratch.path(), 2), "no header\n").unwrap();
    let lines = |found: &[OutputEntry]| {
        let lines = found.iter().filter(|entry| matches!(entry, OutputEntry::Line(_)));
        at(&lines.cloned().collect::<Vec<_>>())
    };
    let found = drain(&mut open(scratch.path(), ALL));
    assert_eq!(lines(&found), [1, 2]);
    let damaged = |entry: &OutputEntry| if let OutputEntry::Damaged { bytes } = entry { *bytes } else { 0 };
    assert_eq!(found.iter().map(damaged).sum::<u64>(), 9 + 600_001 + 10);
    assert_eq!(lines(&drain(&mut open(scratch.path(), ReadOptions { tail: Some(1), ..ALL }))), [2]);
    assert_eq!(lines(&drain(&mut open(scratch.path(), ReadOptions { since: Some(2), ..ALL }))), [2]);
}

#[test]
fn unreadable_dir_is_error() {
    let scratch = ScratchDir::new();
    let error = SegmentCursor::open(&scratch.path().join("none"), ALL).unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");

    std::fs::write(segment::segment_path(scratch.path(), 1), "warren-logger 2\n{}\n").unwrap();
    for options in [ReadOptions { tail: Some(1), ..ALL }, ReadOptions { since: Some(1), ..ALL }] {
        let error = SegmentCursor::open(scratch.path(), options).unwrap_err();
        assert!(matches!(error, Error::Version { found: 2, known: 1, .. }), "{error}");
    }
    let error = open(scratch.path(), ALL).read().unwrap_err();
    assert!(error.to_string().contains("format version 2, and this program reads up to 1"), "{error}");
}

#[tokio::test]
async fn following_reader_waits_and_ends() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("output");
    let error = OutputReader::open(&dir, FOLLOW).await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    std::fs::create_dir(&dir).unwrap();
    let mut reader = OutputReader::open(&dir, FOLLOW).await.unwrap();
    let mut writer = Writer::new(&dir, 300, 10);
    let mut found = Vec::new();
    for round in 1..=30 {
        // Cancelled at any point, it loses nothing.
        let given_up = tokio::time::timeout(Duration::from_millis(round % 7), reader.next()).await;
        found.extend(given_up.ok().and_then(|entries| entries.unwrap()).unwrap_or_default());
        writer.lines(2);
    }
    while found.len() < 60 {
        found.extend(reader.next().await.unwrap().unwrap());
    }
    let OutputEntry::RotatedAway { .. } = &found[0] else {
        assert_eq!(at(&found), range(1, 60));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(reader.next().await.unwrap(), None);
        assert_eq!(reader.next().await.unwrap(), None);
        return;
    };
    panic!("{found:?}");
}

#[tokio::test]
async fn reader_ends_after_error() {
    let scratch = ScratchDir::new();
    std::fs::write(segment::segment_path(scratch.path(), 1), "warren-logger 3\n").unwrap();
    let mut reader = OutputReader::open(scratch.path(), ALL).await.unwrap();
    assert!(matches!(reader.next().await.unwrap_err(), Error::Version { found: 3, .. }));
    assert!(matches!(reader.next().await.unwrap_err(), Error::ReaderEnded { .. }));
}

/// Steps of the property test.
#[derive(Debug, Clone)]
enum ReaderAction {
    Line { is_out: bool, length: usize },
    Restart,
    Read,
}

fn act() -> impl Strategy<Value = ReaderAction> {
    prop_oneof![
        6 => (any::<bool>(), prop_oneof![0..40_usize, 0..MAX_TEXT])
            .prop_map(|(is_out, length)| ReaderAction::Line { is_out, length }),
        1 => Just(ReaderAction::Restart),
        2 => Just(ReaderAction::Read),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(warren_testkit::soak::count(100, 1000) as u32))]

    /// With enough space, every line is read once, in order, for any limits, restarts and reads in between.
    #[test]
    fn every_line_is_read_once(
        acts in proptest::collection::vec(act(), 1..80),
        max_size in prop_oneof![1..2000_u64, 1..100_000_u64],
        place: prop::sample::Index,
    ) {
        let scratch = ScratchDir::new();
        let dir = scratch.path();
        let mut follower = open(dir, FOLLOW);
        let mut writer = Writer::new(dir, max_size, 1000);
        let (mut written, mut read) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                ReaderAction::Line { is_out, length } => {
                    let stream = if is_out { OutputStream::Stdout } else { OutputStream::Stderr };
                    let text = Bytes::from(vec![b'a' + (writer.next % 26) as u8; length]);
                    let line = OutputLine { at: writer.next, stream, text: text.clone(), partial: false };
                    written.push(OutputEntry::Line(line));
                    writer.line(stream, false, &text);
                }
                ReaderAction::Restart => {
                    let next = writer.next;
                    drop(writer);
                    writer = Writer { next, ..Writer::new(dir, max_size, 1000) };
                }
                ReaderAction::Read => read.extend(drain(&mut follower)),
            }
        }
        read.extend(drain(&mut follower));
        prop_assert!(read == written);
        prop_assert!(drain(&mut open(dir, ALL)) == written);
        let from = place.index(written.len() + 1);
        let since = ReadOptions { since: Some(from as u64 + 1), ..ALL };
        prop_assert!(drain(&mut open(dir, since)) == written[from..]);
        let tail = ReadOptions { tail: Some((written.len() - from) as u64), ..ALL };
        prop_assert!(drain(&mut open(dir, tail)) == written[from..]);
    }
}

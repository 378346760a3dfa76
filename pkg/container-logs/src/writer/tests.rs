use std::fs::OpenOptions;
use std::io::Write as _;

use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually;

use super::*;
use crate::record::MAX_TEXT;

const NOW: u64 = 1_795_205_665_000_000_000;

fn writer(dir: &Path, max_size: u64, max_files: u64) -> SegmentWriter {
    SegmentWriter::new(dir.to_owned(), RotationLimits { max_size, max_files })
}

fn write(writer: &mut SegmentWriter, text: &str) {
    writer.write_line(NOW, OutputStream::Stdout, false, text.as_bytes());
    writer.flush(NOW);
}

/// All files, without headers and record heads, one line each.
fn texts(dir: &Path) -> Vec<String> {
    let mut texts = Vec::new();
    for number in segment::list(dir).unwrap() {
        let content = std::fs::read(segment::segment_path(dir, number)).unwrap();
        let records = content.strip_prefix(FILE_HEADER).unwrap();
        for line in records.split_inclusive(|byte| *byte == b'\n') {
            let record = record::decode(line.strip_suffix(b"\n").unwrap()).unwrap();
            texts.push(match record {
                OutputRecord::Line { text, .. } => String::from_utf8(text.to_vec()).unwrap(),
                OutputRecord::Attempt { attempt, .. } => format!("attempt {attempt}"),
                OutputRecord::Lost { lines, bytes, .. } => format!("lost {lines} {bytes}"),
            });
        }
    }
    texts
}

fn times(dir: &Path) -> Vec<u64> {
    let mut times = Vec::new();
    for number in segment::list(dir).unwrap() {
        let content = std::fs::read(segment::segment_path(dir, number)).unwrap();
        times.extend(content.split(|byte| *byte == b'\n').filter_map(record::decode).map(|found| found.at()));
    }
    times
}

#[test]
fn no_file_before_first_write() {
    let scratch = ScratchDir::new();
    let mut writer = writer(scratch.path(), 1000, 3);
    writer.flush(NOW);
    assert!(segment::list(scratch.path()).unwrap().is_empty());
    writer.write_attempt(NOW, 1);
    writer.flush(NOW);
    write(&mut writer, "a line");
    assert_eq!(segment::list(scratch.path()).unwrap(), [1]);
    assert_eq!(texts(scratch.path()), ["attempt 1", "a line"]);
}

#[test]
fn rotation_bounds_size_and_count() {
    for (max_size, max_files) in [(200, 3), (1, 1), (1, 3), (100_000, 1), (200_000, 2)] {
        let scratch = ScratchDir::new();
        let mut writer = writer(scratch.path(), max_size, max_files);
        let longest = "x".repeat(MAX_TEXT);
        let record = (FILE_HEADER.len() + RECORD_HEAD_BYTES + MAX_TEXT + 1) as u64;
        for round in 0..100_usize {
            let text = if round % 3 == 0 { &longest[..] } else { "short" };
            writer.write_line(NOW, OutputStream::Stdout, false, text.as_bytes());
            if round % 7 == 0 {
                writer.flush(NOW);
            }
            let numbers = segment::list(scratch.path()).unwrap();
            assert!(numbers.len() as u64 <= max_files, "{numbers:?}");
            assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
            for number in numbers {
                let length = std::fs::metadata(segment::segment_path(scratch.path(), number)).unwrap().len();
                assert!(length <= max_size.max(record), "{length} of {max_size}");
            }
        }
        writer.flush(NOW);
        assert_eq!(texts(scratch.path()).last().unwrap(), &longest);
        assert_eq!(writer.lost, LossCount::default());
    }
}

#[test]
fn newest_file_is_continued_with_rising_time() {
    let scratch = ScratchDir::new();
    for attempt in 1..=3 {
        // The clock goes back with every attempt.
        let now = NOW - attempt * 1_000_000_000;
        let mut writer = writer(scratch.path(), 10_000, 3);
        writer.write_attempt(now, attempt);
        writer.write_line(now, OutputStream::Stderr, false, b"text");
        writer.flush(now);
    }
    assert_eq!(segment::list(scratch.path()).unwrap(), [1]);
    assert_eq!(texts(scratch.path()), ["attempt 1", "text", "attempt 2", "text", "attempt 3", "text"]);
    let first = NOW - 1_000_000_000;
    assert_eq!(times(scratch.path()), (first..first + 6).collect::<Vec<_>>());

    // The time continues from an older file when the newest has none.
    std::fs::write(segment::segment_path(scratch.path(), 2), FILE_HEADER).unwrap();
    write(&mut writer(scratch.path(), 10_000, 3), "more");
    let next = NOW.max(first + 6);
    assert_eq!(times(scratch.path()).last(), Some(&next));
    assert_eq!(segment::list(scratch.path()).unwrap(), [1, 2]);
}

#[test]
fn smaller_limits_apply_at_next_start() {
    let scratch = ScratchDir::new();
    let mut wide = writer(scratch.path(), 100, 6);
    for index in 0..10 {
        write(&mut wide, &format!("line {index} {}", "x".repeat(50)));
    }
    drop(wide);
    assert_eq!(segment::list(scratch.path()).unwrap(), [5, 6, 7, 8, 9, 10]);
    write(&mut writer(scratch.path(), 200, 2), "new");
    assert_eq!(segment::list(scratch.path()).unwrap(), [9, 10]);
    write(&mut writer(scratch.path(), 50, 2), "newer");
    assert_eq!(segment::list(scratch.path()).unwrap(), [10, 11]);
    assert_eq!(texts(scratch.path())[1..], ["new", "newer"]);
}

#[test]
fn torn_record_is_truncated_before_append() {
    let scratch = ScratchDir::new();
    write(&mut writer(scratch.path(), 10_000, 3), "whole");
    let path = segment::segment_path(scratch.path(), 1);
    for torn in ["2026-11-20T20:14:25.1234", "\0\0\0\0\0\0"] {
        OpenOptions::new().append(true).open(&path).unwrap().write_all(torn.as_bytes()).unwrap();
        write(&mut writer(scratch.path(), 10_000, 3), "after");
    }
    assert_eq!(texts(scratch.path()), ["whole", "after", "after"]);
}

#[test]
fn other_version_is_not_appended_to() {
    let scratch = ScratchDir::new();
    for strange in ["warren-logger 2\nsomething\n", "warren-", ""] {
        let number = segment::list(scratch.path()).unwrap().last().copied().unwrap_or(0) + 1;
        let path = segment::segment_path(scratch.path(), number);
        std::fs::write(&path, strange).unwrap();
        write(&mut writer(scratch.path(), 10_000, 9), "own");
        assert!(strange.starts_with(&std::fs::read_to_string(&path).unwrap()));
        let own = std::fs::read(segment::segment_path(scratch.path(), number + 1)).unwrap();
        assert!(own.starts_with(FILE_HEADER) && own.ends_with(b"own\n"));
    }
}

#[test]
fn concurrent_loggers_use_different_files() {
    let scratch = ScratchDir::new();
    let mut old = writer(scratch.path(), 10_000, 3);
    write(&mut old, "old");
    // The other one waits, and then creates its own file.
    let mut new = writer(scratch.path(), 10_000, 3);
    write(&mut new, "new");
    write(&mut old, "old again");
    write(&mut new, "new again");
    assert_eq!(texts(scratch.path()), ["old", "old again", "new", "new again"]);
    assert_eq!(segment::list(scratch.path()).unwrap(), [1, 2]);
}

/// A file system may take a while to reuse freed space.
fn flush_until_loss_is_recorded(writer: &mut SegmentWriter) {
    eventually(Duration::from_secs(10), "words about the loss", || {
        writer.flush(NOW);
        if writer.has_unrecorded_loss() { Err(format!("{:?}", writer.lost)) } else { Ok(()) }
    });
}

#[test]
fn full_disk_drops_lines_and_counts_them() {
    let scratch = ScratchDir::new();
    let disk = SmallDisk::new(scratch.path(), 4);
    let mut writer = writer(disk.path(), 1 << 20, 3);
    let long = "x".repeat(3000);
    for round in 1..=2 {
        write(&mut writer, &format!("before {round}"));
        disk.fill();
        // The rest of a block still holds some records, also the record of the loss.
        for _ in 0..10 {
            write(&mut writer, &long);
        }
        for _ in 0..100 {
            write(&mut writer, "short");
        }
        // While nothing can be written, the record of the loss cannot either.
        writer.flush(NOW);
        assert!(writer.has_unrecorded_loss());
        disk.free();
        flush_until_loss_is_recorded(&mut writer);
        write(&mut writer, &format!("after {round}"));
    }
    let found = texts(disk.path());
    let of = |text: &str| found.iter().filter(|found| *found == text).count() as u64;
    let marks: Vec<&String> =
        found.iter().filter(|text| text.starts_with("before") || text.starts_with("after")).collect();
    assert_eq!(marks, ["before 1", "after 1", "before 2", "after 2"]);
    let lost = found.iter().filter_map(|text| {
        let (lines, bytes) = text.strip_prefix("lost ")?.split_once(' ')?;
        Some((lines.parse::<u64>().unwrap(), bytes.parse::<u64>().unwrap()))
    });
    let (lines, bytes) = lost.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    assert!(lines > 100, "{found:?}");
    assert_eq!(lines + of("short") + of(&long), 220);
    assert_eq!(bytes, (200 - of("short")) * 6 + (20 - of(&long)) * 3001);
}

#[test]
fn full_disk_at_start_is_retried() {
    let scratch = ScratchDir::new();
    let disk = SmallDisk::new(scratch.path(), 4);
    disk.fill();
    let mut writer = writer(disk.path(), 1 << 20, 3);
    writer.write_attempt(NOW, 1);
    write(&mut writer, "gone");
    assert!(writer.last_error().is_some() || writer.has_unrecorded_loss());
    disk.free();
    flush_until_loss_is_recorded(&mut writer);
    write(&mut writer, "after");
    assert_eq!(texts(disk.path()), ["lost 1 5", "after"]);
}

#[test]
fn late_directory_is_used() {
    let scratch = ScratchDir::new();
    let dir = scratch.path().join("output");
    let mut writer = writer(&dir, 1000, 3);
    write(&mut writer, "gone");
    assert_eq!(writer.lost, LossCount { lines: 1, bytes: 5 });
    std::fs::create_dir(&dir).unwrap();
    flush_until_loss_is_recorded(&mut writer);
    assert_eq!(texts(&dir), ["lost 1 5"]);
}

#[test]
fn time_stays_ordered_at_maximum() {
    let scratch = ScratchDir::new();
    let mut writer = writer(scratch.path(), 1 << 20, 3);
    for now in [5, 5, 3, 100, 7] {
        writer.write_line(now, OutputStream::Stdout, false, b"");
    }
    writer.flush(7);
    assert_eq!(times(scratch.path()), [5, 6, 7, 100, 101]);
}

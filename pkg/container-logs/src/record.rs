//! The file format, version 1: lines that can be searched with `grep` and by time.
//!
//! A file is the line `warren-logger 1` followed by records. A record is one line: its newline shows
//! that it is complete, and the next newline
//! leads to the next record from any position in a file:
//! ```text
//! 2026-11-20T20:14:25.123456789Z out: a whole line, or the last piece of one
//! 2026-11-20T20:14:25.123456790Z err+ a piece of a line that goes on in the next record of the same stream
//! 2026-11-20T20:14:25.123456791Z log# attempt 3
//! 2026-11-20T20:14:25.123456792Z log# lost 12 lines 3456 bytes
//! ```
//!
//! The head has a fixed width: RFC 3339 in UTC with nanoseconds, a space, source and kind, a space. The
//! text is the container's output, byte by byte, without the newline, at most [`MAX_TEXT`] bytes; longer
//! lines are split into pieces. Times are unique and increase from record to record over all files of a
//! directory, also when the clock is set back (then by one nanosecond each, until the clock has caught up).
//! So a time also identifies a position.
//!
//! This module is compiled into the logger and the library: it must use only the standard library.

use std::io::BufRead;

/// The version that this code writes, and the newest it reads.
pub const VERSION: u32 = 1;
/// First line of a file of this version.
pub const FILE_HEADER: &[u8] = b"warren-logger 1\n";
/// Prefix of the first line of a file of any version.
const HEADER_PREFIX: &[u8] = b"warren-logger ";
/// Length of a time.
const STAMP_BYTES: usize = 30;
/// Length of the head of a record.
pub const RECORD_HEAD_BYTES: usize = STAMP_BYTES + 6;
/// Limit of text in one record, in bytes.
pub const MAX_TEXT: usize = 16 * 1024;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;

/// The output stream of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputStream {
    /// Standard output; all output when it has a terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One record. `at` is in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputRecord<'a> {
    /// Output of the container.
    Line {
        /// When it was read from the container.
        at: u64,
        /// Its stream.
        stream: OutputStream,
        /// Whether the line continues in the next record of the stream.
        partial: bool,
        /// Without the newline.
        text: &'a [u8],
    },
    /// A container started that writes to the same files as earlier attempts.
    Attempt {
        /// Start time.
        at: u64,
        /// Attempt number, from the agent.
        attempt: u64,
    },
    /// Output missing here because the disk was full or broken.
    Lost {
        /// When writing succeeded again.
        at: u64,
        /// Lost records of lines.
        lines: u64,
        /// Lost text, with newlines.
        bytes: u64,
    },
}

impl OutputRecord<'_> {
    /// Time of the record, in nanoseconds since 1970.
    #[must_use]
    pub fn at(&self) -> u64 {
        match self {
            OutputRecord::Line { at, .. }
            | OutputRecord::Attempt { at, .. }
            | OutputRecord::Lost { at, .. } => *at,
        }
    }

    /// Appends the record with its newline to `out`. The text of a line must not contain a newline.
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_time(out, self.at());
        match self {
            OutputRecord::Line { stream, partial, text, .. } => {
                out.extend_from_slice(match (stream, partial) {
                    (OutputStream::Stdout, false) => b" out: ",
                    (OutputStream::Stdout, true) => b" out+ ",
                    (OutputStream::Stderr, false) => b" err: ",
                    (OutputStream::Stderr, true) => b" err+ ",
                });
                out.extend_from_slice(text);
            }
            OutputRecord::Attempt { attempt, .. } => {
                out.extend_from_slice(format!(" log# attempt {attempt}").as_bytes());
            }
            OutputRecord::Lost { lines, bytes, .. } => {
                out.extend_from_slice(format!(" log# lost {lines} lines {bytes} bytes").as_bytes());
            }
        }
        out.push(b'\n');
    }
}

/// Parses a record from a line without its newline; `None` when it is invalid.
#[must_use]
pub fn decode(line: &[u8]) -> Option<OutputRecord<'_>> {
    let (head, text) = line.split_at_checked(RECORD_HEAD_BYTES)?;
    let at = parse_time(head)?;
    let (stream, partial) = match &head[STAMP_BYTES..] {
        b" out: " => (OutputStream::Stdout, false),
        b" out+ " => (OutputStream::Stdout, true),
        b" err: " => (OutputStream::Stderr, false),
        b" err+ " => (OutputStream::Stderr, true),
        b" log# " => return decode_meta(at, text),
        _ => return None,
    };
    Some(OutputRecord::Line { at, stream, partial, text })
}

fn decode_meta(at: u64, text: &[u8]) -> Option<OutputRecord<'static>> {
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words[..] {
        ["attempt", attempt] => Some(OutputRecord::Attempt { at, attempt: attempt.parse().ok()? }),
        ["lost", lines, "lines", bytes, "bytes"] => {
            Some(OutputRecord::Lost { at, lines: lines.parse().ok()?, bytes: bytes.parse().ok()? })
        }
        _ => None,
    }
}

/// The version in the first line of a file (without its newline); `None` when it is not such a line.
#[must_use]
pub fn header_version(first_line: &[u8]) -> Option<u32> {
    std::str::from_utf8(first_line.strip_prefix(HEADER_PREFIX)?).ok()?.parse().ok()
}

/// Position of the first newline.
#[must_use]
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    // `skip_until` uses `memchr`, which checks many bytes at a time.
    let mut rest = bytes;
    let skipped = rest.skip_until(b'\n').expect("reading from memory does not fail");
    (skipped > 0 && bytes[skipped - 1] == b'\n').then(|| skipped - 1)
}

/// The time at the start of `bytes`; `None` if invalid.
#[must_use]
pub fn parse_time(bytes: &[u8]) -> Option<u64> {
    let stamp = bytes.get(..STAMP_BYTES)?;
    for (index, mark) in [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'.'), (29, b'Z')] {
        if stamp[index] != mark {
            return None;
        }
    }
    let number = |from: usize, to: usize| {
        stamp[from..to]
            .iter()
            .try_fold(0_u64, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0')))
    };
    let days = days_from_civil(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days * DAY + hour * 3600 + minute * 60 + second;
    seconds.checked_mul(SECOND)?.checked_add(number(20, 29)?)
}

fn push_time(out: &mut Vec<u8>, at: u64) {
    let (seconds, nanoseconds) = (at / SECOND, at % SECOND);
    let (year, month, day) = civil_from_days(seconds / DAY);
    let second = seconds % DAY;
    let mut stamp = *b"0000-00-00T00:00:00.000000000Z";
    let mut put = |from: usize, to: usize, mut value: u64| {
        for digit in stamp[from..to].iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, year);
    put(5, 7, month);
    put(8, 10, day);
    put(11, 13, second / 3600);
    put(14, 16, second / 60 % 60);
    put(17, 19, second % 60);
    put(20, 29, nanoseconds);
    out.extend_from_slice(&stamp);
}

// Both conversions count in eras of 400 years that begin on 1 March, so that the leap day is the last day
// of its year.
const ERA: u64 = 146_097;
/// Days from 1 March of year 0 to 1970.
const EPOCH: u64 = 719_468;

fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH;
    let (era, of_era) = (days / ERA, days % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// `None` for an invalid date, or one before 1970.
fn days_from_civil(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year.checked_sub(u64::from(month <= 2))?;
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    days.checked_sub(EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(record: OutputRecord<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    #[test]
    fn record_format_matches_docs() {
        let at = 1_795_205_665_123_456_789;
        let line = |stream, partial| encoded(OutputRecord::Line { at, stream, partial, text: b"some text" });
        assert_eq!(line(OutputStream::Stdout, false), b"2026-11-20T20:14:25.123456789Z out: some text\n");
        assert_eq!(line(OutputStream::Stderr, true), b"2026-11-20T20:14:25.123456789Z err+ some text\n");
        let attempt = encoded(OutputRecord::Attempt { at, attempt: 3 });
        assert_eq!(attempt, b"2026-11-20T20:14:25.123456789Z log# attempt 3\n");
        let lost = encoded(OutputRecord::Lost { at, lines: 12, bytes: 3456 });
        assert_eq!(lost, b"2026-11-20T20:14:25.123456789Z log# lost 12 lines 3456 bytes\n");
        assert_eq!(header_version(&FILE_HEADER[..FILE_HEADER.len() - 1]), Some(VERSION));
    }

    #[test]
    fn dates_match_calendar() {
        let seconds = [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_767_225_599, "2025-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ];
        for (second, text) in seconds {
            let mut out = Vec::new();
            push_time(&mut out, second * SECOND + 7);
            assert_eq!(String::from_utf8(out.clone()).unwrap(), format!("{text}.000000007Z"));
            assert_eq!(parse_time(&out), Some(second * SECOND + 7));
        }
    }

    #[test]
    fn invalid_record_is_none() {
        let good = b"2026-11-20T20:14:25.123456789Z out: text";
        assert!(decode(good).is_some());
        for index in 0..RECORD_HEAD_BYTES {
            let mut bad = good.to_vec();
            bad[index] = b'x';
            assert_eq!(decode(&bad), None, "{}", String::from_utf8_lossy(&bad));
        }
        for bad in [
            &b""[..],
            b"2026-11-20T20:14:25.123456789Z out:",
            b"2026-13-20T20:14:25.123456789Z out: text",
            b"2026-11-20T24:14:25.123456789Z out: text",
            b"1969-12-31T20:14:25.123456789Z out: text",
            b"9999-12-31T20:14:25.123456789Z out: text",
            b"2026-11-20T20:14:25.123456789Z log# attempt",
            b"2026-11-20T20:14:25.123456789Z log# attempt -1",
            b"2026-11-20T20:14:25.123456789Z log# lost 1 lines",
            b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert_eq!(decode(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(header_version(b"warren-logger x"), None);
        assert_eq!(header_version(b"warren-logger 2"), Some(2));
        assert_eq!(header_version(b"something 1"), None);
    }

    #[test]
    fn the_first_newline_is_found() {
        assert_eq!(line_end(b""), None);
        assert_eq!(line_end(b"abc"), None);
        assert_eq!(line_end(b"\n"), Some(0));
        assert_eq!(line_end(b"ab\ncd\n"), Some(2));
    }

    proptest! {
        #[test]
        fn records_round_trip(
            at: u64,
            is_out: bool,
            partial: bool,
            text in proptest::collection::vec(b'\n' + 1..=u8::MAX, 0..200),
            numbers: (u64, u64),
        ) {
            let stream = if is_out { OutputStream::Stdout } else { OutputStream::Stderr };
            for record in [
                OutputRecord::Line { at, stream, partial, text: &text },
                OutputRecord::Attempt { at, attempt: numbers.0 },
                OutputRecord::Lost { at, lines: numbers.0, bytes: numbers.1 },
            ] {
                let out = encoded(record);
                prop_assert_eq!(line_end(&out), Some(out.len() - 1));
                prop_assert_eq!(decode(&out[..out.len() - 1]), Some(record));
            }
        }
    }
}

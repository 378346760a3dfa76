//! The format of the files, version 1: lines that a person can read with `grep` and a program can find its
//! place in.
//!
//! A file is `warren-logger 1\n` and then records. A record is one line, so that it is known to be whole when
//! its newline is there, and a place in the middle of a file leads to the next record by the next newline:
//!
//! ```text
//! 2026-11-20T20:14:25.123456789Z out: a whole line, or the last piece of one
//! 2026-11-20T20:14:25.123456790Z err+ a piece of a line that goes on in the next record of the same stream
//! 2026-11-20T20:14:25.123456791Z log# attempt 3
//! 2026-11-20T20:14:25.123456792Z log# lost 12 lines 3456 bytes
//! ```
//!
//! The head has a fixed width: RFC 3339 in UTC with nanoseconds, a space, source and kind, a space. The text
//! is what the container wrote, byte by byte, without the newline; it is of at most [`LONGEST_TEXT`] bytes,
//! whatever is longer comes in pieces. Times are unique and rise from record to record over all files of a
//! directory, also when the clock is set back (then by one nanosecond each, until the clock has caught up).
//! So a time is also a place.
//!
//! This module is compiled into the logger as well as into the library: it must use nothing but the standard
//! library.

use std::io::BufRead;

/// The version that this code writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// What a file of this version begins with.
pub const HEADER: &[u8] = b"warren-logger 1\n";
/// What comes before the number in the first line of a file of any version.
const NAME: &[u8] = b"warren-logger ";
/// Bytes of a time.
const STAMP: usize = 30;
/// Bytes before the text of a record.
pub const HEAD: usize = STAMP + 6;
/// The most bytes of text in one record.
pub const LONGEST_TEXT: usize = 16 * 1024;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;

/// Where a container wrote a line to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Its standard output; everything, when it has a terminal.
    Out,
    /// Its standard error.
    Err,
}

/// One record. `at` is in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
    /// Something that the container wrote.
    Line {
        /// When it was read from the container.
        at: u64,
        /// Where it was written to.
        stream: Stream,
        /// Whether the line goes on in the next record of the stream.
        partial: bool,
        /// Without the newline.
        text: &'a [u8],
    },
    /// A container was started that writes to the same files as those before it.
    Attempt {
        /// When.
        at: u64,
        /// Its number, from whoever started it.
        attempt: u64,
    },
    /// The disk was full or broken; this is how much of what the container wrote meanwhile is missing here.
    Lost {
        /// When writing worked again.
        at: u64,
        /// Records of lines.
        lines: u64,
        /// Of text, with newlines.
        bytes: u64,
    },
}

impl Record<'_> {
    /// When it was made, in nanoseconds since 1970.
    #[must_use]
    pub fn at(&self) -> u64 {
        match self {
            Record::Line { at, .. } | Record::Attempt { at, .. } | Record::Lost { at, .. } => *at,
        }
    }

    /// Appends the record with its newline to `out`. The text of a line must not have a newline in it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        push_stamp(out, self.at());
        match self {
            Record::Line { stream, partial, text, .. } => {
                out.extend_from_slice(match (stream, partial) {
                    (Stream::Out, false) => b" out: ",
                    (Stream::Out, true) => b" out+ ",
                    (Stream::Err, false) => b" err: ",
                    (Stream::Err, true) => b" err+ ",
                });
                out.extend_from_slice(text);
            }
            Record::Attempt { attempt, .. } => {
                out.extend_from_slice(format!(" log# attempt {attempt}").as_bytes());
            }
            Record::Lost { lines, bytes, .. } => {
                out.extend_from_slice(format!(" log# lost {lines} lines {bytes} bytes").as_bytes());
            }
        }
        out.push(b'\n');
    }
}

/// Reads a record from a line without its newline; `None` when it is not one.
#[must_use]
pub fn decode(line: &[u8]) -> Option<Record<'_>> {
    let (head, text) = line.split_at_checked(HEAD)?;
    let at = parse_stamp(head)?;
    let (stream, partial) = match &head[STAMP..] {
        b" out: " => (Stream::Out, false),
        b" out+ " => (Stream::Out, true),
        b" err: " => (Stream::Err, false),
        b" err+ " => (Stream::Err, true),
        b" log# " => return decode_note(at, text),
        _ => return None,
    };
    Some(Record::Line { at, stream, partial, text })
}

fn decode_note(at: u64, text: &[u8]) -> Option<Record<'static>> {
    let words: Vec<&str> = std::str::from_utf8(text).ok()?.split(' ').collect();
    match words[..] {
        ["attempt", attempt] => Some(Record::Attempt { at, attempt: attempt.parse().ok()? }),
        ["lost", lines, "lines", bytes, "bytes"] => {
            Some(Record::Lost { at, lines: lines.parse().ok()?, bytes: bytes.parse().ok()? })
        }
        _ => None,
    }
}

/// The version that the first line of a file (without its newline) names; `None` when it is not such a line.
#[must_use]
pub fn version(first_line: &[u8]) -> Option<u32> {
    std::str::from_utf8(first_line.strip_prefix(NAME)?).ok()?.parse().ok()
}

/// Where the first newline is.
#[must_use]
pub fn line_end(bytes: &[u8]) -> Option<usize> {
    // The standard library searches with the C library's `memchr` here, many bytes at a time.
    let mut rest = bytes;
    let taken = rest.skip_until(b'\n').expect("reading from memory does not fail");
    (taken > 0 && bytes[taken - 1] == b'\n').then(|| taken - 1)
}

/// The time at the start of `bytes`; `None` when there is none.
#[must_use]
pub fn parse_stamp(bytes: &[u8]) -> Option<u64> {
    let stamp = bytes.get(..STAMP)?;
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

fn push_stamp(out: &mut Vec<u8>, at: u64) {
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

// Both ways count in eras of 400 years that begin on the first of March, so that the day that a leap year
// adds is the last one of its year.
const ERA: u64 = 146_097;
/// Days from the first of March of the year 0 to 1970.
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

/// `None` for what is no date, or one before 1970.
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

    fn encoded(record: Record<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    #[test]
    fn it_looks_as_documented() {
        let at = 1_795_205_665_123_456_789;
        let line = |stream, partial| encoded(Record::Line { at, stream, partial, text: b"some text" });
        assert_eq!(line(Stream::Out, false), b"2026-11-20T20:14:25.123456789Z out: some text\n");
        assert_eq!(line(Stream::Err, true), b"2026-11-20T20:14:25.123456789Z err+ some text\n");
        let attempt = encoded(Record::Attempt { at, attempt: 3 });
        assert_eq!(attempt, b"2026-11-20T20:14:25.123456789Z log# attempt 3\n");
        let lost = encoded(Record::Lost { at, lines: 12, bytes: 3456 });
        assert_eq!(lost, b"2026-11-20T20:14:25.123456789Z log# lost 12 lines 3456 bytes\n");
        assert_eq!(version(&HEADER[..HEADER.len() - 1]), Some(VERSION));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
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
            push_stamp(&mut out, second * SECOND + 7);
            assert_eq!(String::from_utf8(out.clone()).unwrap(), format!("{text}.000000007Z"));
            assert_eq!(parse_stamp(&out), Some(second * SECOND + 7));
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        let good = b"2026-11-20T20:14:25.123456789Z out: text";
        assert!(decode(good).is_some());
        for index in 0..HEAD {
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
        assert_eq!(version(b"warren-logger x"), None);
        assert_eq!(version(b"warren-logger 2"), Some(2));
        assert_eq!(version(b"something 1"), None);
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
        fn records_come_back(
            at: u64,
            is_out: bool,
            partial: bool,
            text in proptest::collection::vec(b'\n' + 1..=u8::MAX, 0..200),
            numbers: (u64, u64),
        ) {
            let stream = if is_out { Stream::Out } else { Stream::Err };
            for record in [
                Record::Line { at, stream, partial, text: &text },
                Record::Attempt { at, attempt: numbers.0 },
                Record::Lost { at, lines: numbers.0, bytes: numbers.1 },
            ] {
                let out = encoded(record);
                prop_assert_eq!(line_end(&out), Some(out.len() - 1));
                prop_assert_eq!(decode(&out[..out.len() - 1]), Some(record));
            }
        }
    }
}

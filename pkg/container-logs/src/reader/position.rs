//! Finds the start position of a reader: at a time, some lines before the end, or at the end itself.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::error::Error;
use crate::record::{self, FILE_HEADER, MAX_TEXT, OutputRecord, RECORD_HEAD_BYTES, VERSION, line_end};
use crate::segment;

/// A record boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPosition {
    /// File number.
    pub number: u64,
    /// Byte offset in the file.
    pub offset: u64,
}

/// The range that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadableRange {
    /// The number before that of the first file.
    pub before: u64,
    /// End of the last complete line.
    pub last: RecordPosition,
}

/// Determines the current range.
pub fn readable_range(dir: &Path) -> Result<ReadableRange, Error> {
    loop {
        let numbers = match segment::list(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NotFound { dir: dir.to_owned() });
            }
            found => found.map_err(|source| Error::Read { path: dir.to_owned(), source })?,
        };
        let (Some(first), Some(number)) = (numbers.first(), numbers.last().copied()) else {
            return Ok(ReadableRange { before: 0, last: RecordPosition { number: 0, offset: 0 } });
        };
        let end = with_file(dir, number, |file| segment::last_line_end(file, file.metadata()?.len()))?;
        if let Some(offset) = end {
            return Ok(ReadableRange {
                before: first.saturating_sub(1),
                last: RecordPosition { number, offset },
            });
        }
        // Rotated away since the files were listed: there is a newer one now, or the directory was removed.
    }
}

/// Position of the first record from `since` on, or slightly before; `None` is the first record.
pub fn position_of_time(dir: &Path, since: u64) -> Result<Option<RecordPosition>, Error> {
    let numbers = segment::list(dir).map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    for number in numbers.into_iter().rev() {
        check_version(dir, number)?;
        let offset = with_file(dir, number, |file| {
            let mut first = [0; RECORD_HEAD_BYTES];
            segment::read_at(file, &mut first, FILE_HEADER.len() as u64)?;
            match record::parse_time(&first) {
                Some(at) if at <= since => search_before(file, since).map(Some),
                // It begins later, or its start cannot be read: the position is in an earlier file.
                _ => Ok(None),
            }
        })?;
        match offset {
            Some(Some(offset)) => return Ok(Some(RecordPosition { number, offset })),
            Some(None) => {}
            // Rotated away, with everything before it.
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The offset of a record shortly before `since`, by binary search.
fn search_before(file: &File, since: u64) -> io::Result<u64> {
    // Enough for the rest of one record and the head of the next.
    let mut block = vec![0; MAX_TEXT + 2 * RECORD_HEAD_BYTES + 1];
    let (mut low, mut high) = (FILE_HEADER.len() as u64, file.metadata()?.len());
    while high - low > 2 * block.len() as u64 {
        let middle = low + (high - low) / 2;
        let read = segment::read_at(file, &mut block, middle)?;
        let Some(newline) = line_end(&block[..read]) else { break };
        match record::parse_time(&block[newline + 1..read]) {
            Some(at) if at < since => low = middle + newline as u64 + 1,
            Some(_) => high = middle,
            // Damage: reading from `low` on finds the position as well.
            None => break,
        }
    }
    Ok(low)
}

/// Position of the first of the last `lines` lines before `end`; `None` is the first record.
pub fn position_of_tail(
    dir: &Path,
    end: RecordPosition,
    lines: u64,
) -> Result<Option<RecordPosition>, Error> {
    let mut position = end;
    let mut left = lines;
    loop {
        if position.number == 0 {
            return Ok(None);
        }
        check_version(dir, position.number)?;
        let start =
            with_file(dir, position.number, |file| skip_lines_back(file, position.offset, &mut left))?;
        match start {
            Some(Some(offset)) => return Ok(Some(RecordPosition { number: position.number, offset })),
            Some(None) => {}
            None => return Ok(None),
        }
        // The length of an earlier file is the end of its last complete line.
        let number = position.number - 1;
        let length = with_file(dir, number, |file| segment::last_line_end(file, file.metadata()?.len()))?;
        let Some(offset) = length else { return Ok(None) };
        position = RecordPosition { number, offset };
    }
}

/// Moves back over `left` lines from `end` on, and over the pieces of the first of them; `None` when the
/// file has no more.
fn skip_lines_back(file: &File, mut end: u64, left: &mut u64) -> io::Result<Option<u64>> {
    while let Some((start, block)) = segment::records_before(file, end)? {
        let mut after = block.len();
        while after > 0 {
            let newline = block[..after - 1].iter().rposition(|byte| *byte == b'\n');
            let from = newline.map_or(0, |index| index + 1);
            if let Some(OutputRecord::Line { partial: false, .. }) = record::decode(&block[from..after - 1]) {
                if *left == 0 {
                    return Ok(Some(start + after as u64));
                }
                *left -= 1;
            }
            after = from;
        }
        end = start;
    }
    Ok(None)
}

/// Rejects files of newer versions.
fn check_version(dir: &Path, number: u64) -> Result<(), Error> {
    let mut start = [0; 2 * FILE_HEADER.len()];
    let read = with_file(dir, number, |file| segment::read_at(file, &mut start, 0))?;
    let first = &start[..read.unwrap_or(0)];
    match line_end(first) {
        Some(end) => check_header(&segment::segment_path(dir, number), &first[..end]).map(|_| ()),
        None => Ok(()),
    }
}

/// Rejects a newer version by the first line of a file; returns whether the line has a version at all. A
/// line without one was left by a power cut.
pub fn check_header(file: &Path, first_line: &[u8]) -> Result<bool, Error> {
    match record::header_version(first_line) {
        Some(found) if found > VERSION => {
            Err(Error::Version { file: file.to_owned(), found, known: VERSION })
        }
        found => Ok(found.is_some()),
    }
}

/// `None` when the file does not exist.
fn with_file<T>(
    dir: &Path,
    number: u64,
    act: impl FnOnce(&File) -> io::Result<T>,
) -> Result<Option<T>, Error> {
    let path = segment::segment_path(dir, number);
    match File::open(&path).and_then(|file| act(&file)) {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path, source }),
    }
}

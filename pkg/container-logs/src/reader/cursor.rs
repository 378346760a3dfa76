//! A position in the files that advances by bounded reads.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use super::position::{self, RecordPosition};
use super::{OutputEntry, OutputLine, ReadOptions};
use crate::error::Error;
use crate::record::{self, OutputRecord, line_end};
use crate::segment;

/// Bytes per read; larger than any record.
const CHUNK: usize = 256 * 1024;

/// Result of one read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// At least one entry.
    Found(Vec<OutputEntry>),
    /// No new data yet.
    Pending,
    /// The end of the output.
    End,
}

/// The current file. It can be read to its end even after it was removed.
#[derive(Debug)]
struct OpenSegment {
    number: u64,
    file: File,
    /// Start of the first record that was not returned.
    offset: u64,
    /// Whether a newer file existed before the last read of this one, which is then complete.
    is_complete: bool,
}

/// A cursor over the files of one directory.
#[derive(Debug)]
pub struct SegmentCursor {
    dir: PathBuf,
    since: u64,
    /// The end at opening, unless the cursor follows.
    until: Option<RecordPosition>,
    /// The number of the last opened file, or the one before the first.
    number: u64,
    open: Option<OpenSegment>,
    chunk: Vec<u8>,
}

/// Result of a read at the current position.
pub(super) enum ReadResult {
    Found(Vec<OutputEntry>),
    /// No complete record, but this many bytes of one.
    Partial(u64),
}

impl SegmentCursor {
    /// Opens the position given by `options`.
    pub fn open(dir: &Path, options: ReadOptions) -> Result<SegmentCursor, Error> {
        let since = options.since.unwrap_or(0);
        let ends = position::readable_range(dir)?;
        let until = if options.follow { None } else { Some(ends.last) };
        let mut cursor = SegmentCursor {
            dir: dir.to_owned(),
            since,
            until,
            number: ends.before,
            open: None,
            chunk: Vec::new(),
        };
        let start = [
            options.since.map(|since| position::position_of_time(dir, since)).transpose()?.flatten(),
            options
                .tail
                .map(|lines| position::position_of_tail(dir, ends.last, lines))
                .transpose()?
                .flatten(),
        ];
        if let Some(RecordPosition { number, offset }) = start.into_iter().flatten().max() {
            // Rotated away in the meantime: the next file is opened as for a slow reader.
            cursor.number = number.saturating_sub(1);
            cursor.enter(number, offset)?;
        }
        Ok(cursor)
    }

    /// Reads from the current position.
    pub fn read(&mut self) -> Result<ReadStep, Error> {
        loop {
            let step = match self.read_here()? {
                ReadResult::Found(entries) if entries.is_empty() => None,
                ReadResult::Found(entries) => Some(ReadStep::Found(entries)),
                ReadResult::Partial(rest) => self.after_partial(rest)?,
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Continues when there is no complete record here, but `rest` bytes of one. `None`: read here again.
    pub(super) fn after_partial(&mut self, rest: u64) -> Result<Option<ReadStep>, Error> {
        if self.until.is_some_and(|until| self.number >= until.number) {
            return Ok(Some(ReadStep::End));
        }
        let numbers = match segment::list(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(ReadStep::End)),
            found => found.map_err(|source| Error::Read { path: self.dir.clone(), source })?,
        };
        let Some(next) = numbers.into_iter().find(|number| *number > self.number) else {
            return Ok(Some(if self.until.is_some() { ReadStep::End } else { ReadStep::Pending }));
        };
        if let Some(open) = self.open.as_mut().filter(|open| !open.is_complete) {
            // The newer file follows the last write to this one, but that write may have followed the read.
            open.is_complete = true;
            return Ok(None);
        }
        Ok(self.advance_to(next, rest)?.map(ReadStep::Found))
    }

    /// Moves to the file `next`; returns entries for what was skipped.
    fn advance_to(&mut self, next: u64, rest: u64) -> Result<Option<Vec<OutputEntry>>, Error> {
        let before = self.number;
        let last = self.until.map_or(u64::MAX, |until| until.number);
        if next > last {
            // Everything to be read was removed.
            (self.number, self.open) = (last, None);
        } else if !self.enter(next, 0)? {
            // Removed just now: the next read finds another one.
            return Ok(None);
        }
        let mut entries = Vec::new();
        if rest > 0 {
            entries.push(OutputEntry::Damaged { bytes: rest });
        }
        let files = if next > last { last - before } else { next - before - 1 };
        if files > 0 {
            entries.push(OutputEntry::RotatedAway { files });
        }
        Ok((!entries.is_empty()).then_some(entries))
    }

    /// Opens a file; `false` when it does not exist.
    fn enter(&mut self, number: u64, offset: u64) -> Result<bool, Error> {
        let path = segment::segment_path(&self.dir, number);
        match File::open(&path) {
            Ok(file) => {
                self.open = Some(OpenSegment { number, file, offset, is_complete: false });
                self.number = number;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// Reads the complete records at the current position.
    pub(super) fn read_here(&mut self) -> Result<ReadResult, Error> {
        let Some(open) = &mut self.open else { return Ok(ReadResult::Partial(0)) };
        let limit = match self.until {
            Some(until) if until.number == open.number => until.offset.saturating_sub(open.offset),
            _ => u64::MAX,
        };
        let size = usize::try_from(limit).unwrap_or(CHUNK).min(CHUNK);
        let path = segment::segment_path(&self.dir, open.number);
        self.chunk.resize(size, 0);
        let read = segment::read_at(&open.file, &mut self.chunk, open.offset)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
        let chunk = &self.chunk[..read];
        let end = match chunk.iter().rposition(|byte| *byte == b'\n') {
            Some(index) => index + 1,
            None if read == CHUNK => {
                // No record is this long.
                open.offset += CHUNK as u64;
                return Ok(ReadResult::Found(vec![OutputEntry::Damaged { bytes: CHUNK as u64 }]));
            }
            None => return Ok(ReadResult::Partial(read as u64)),
        };
        let mut bytes = Bytes::copy_from_slice(&chunk[..end]);
        if open.offset == 0 {
            let first = line_end(&bytes).expect("the chunk ends with a newline");
            // Any other first line is reported as damage, like every invalid line.
            if position::check_header(&path, &bytes[..first])? {
                bytes.advance(first + 1);
            }
        }
        open.offset += end as u64;
        Ok(ReadResult::Found(entries(&bytes, self.since)))
    }
}

/// The records of complete lines, from a time on.
fn entries(bytes: &Bytes, since: u64) -> Vec<OutputEntry> {
    let mut entries = Vec::new();
    let mut start = 0;
    while let Some(length) = line_end(&bytes[start..]) {
        let line = &bytes[start..start + length];
        start += length + 1;
        match record::decode(line) {
            Some(record) if record.at() < since => {}
            Some(OutputRecord::Line { at, stream, partial, text }) => {
                entries.push(OutputEntry::Line(OutputLine {
                    at,
                    stream,
                    text: bytes.slice_ref(text),
                    partial,
                }));
            }
            Some(OutputRecord::Attempt { at, attempt }) => entries.push(OutputEntry::Attempt { at, attempt }),
            Some(OutputRecord::Lost { at, lines, bytes }) => {
                entries.push(OutputEntry::Lost { at, lines, bytes })
            }
            None => entries.push(OutputEntry::Damaged { bytes: line.len() as u64 + 1 }),
        }
    }
    entries
}

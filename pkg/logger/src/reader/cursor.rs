//! A place in the files that moves on, one bounded read at a time.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use super::place::{self, Place};
use super::{Entry, Line, Options};
use crate::error::Error;
use crate::record::{self, Record, line_end};
use crate::segment;

/// What is read at once; larger than any record.
const CHUNK: usize = 256 * 1024;

/// What came of one read.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// At least one entry.
    Found(Vec<Entry>),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    End,
}

/// The file that is read. It can be read to its end also after it was removed.
#[derive(Debug)]
struct Open {
    number: u64,
    file: File,
    /// Where the first record begins that was not handed out.
    offset: u64,
    /// Whether there was a newer file before the last look at this one, which then is complete.
    is_complete: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Cursor {
    dir: PathBuf,
    since: u64,
    /// The end as of the opening, unless the cursor follows.
    until: Option<Place>,
    /// The number of the last file that was opened or known to be before the first.
    number: u64,
    open: Option<Open>,
    chunk: Vec<u8>,
}

/// What was found at the current place.
pub(super) enum Read {
    Found(Vec<Entry>),
    /// No whole record, but so many bytes of one.
    Rest(u64),
}

impl Cursor {
    /// Finds the place that `options` choose.
    pub fn open(dir: &Path, options: Options) -> Result<Cursor, Error> {
        let since = options.since.unwrap_or(0);
        let ends = place::ends(dir)?;
        let until = if options.follow { None } else { Some(ends.last) };
        let mut cursor =
            Cursor { dir: dir.to_owned(), since, until, number: ends.before, open: None, chunk: Vec::new() };
        let start = [
            options.since.map(|since| place::of_time(dir, since)).transpose()?.flatten(),
            options.tail.map(|lines| place::of_tail(dir, ends.last, lines)).transpose()?.flatten(),
        ];
        if let Some(Place { number, offset }) = start.into_iter().flatten().max() {
            // Rotated away since it was found: then the next one is gone to by itself, as by a slow reader.
            cursor.number = number.saturating_sub(1);
            cursor.enter(number, offset)?;
        }
        Ok(cursor)
    }

    /// Reads on from where it is.
    pub fn read(&mut self) -> Result<Step, Error> {
        loop {
            let step = match self.read_here()? {
                Read::Found(entries) if entries.is_empty() => None,
                Read::Found(entries) => Some(Step::Found(entries)),
                Read::Rest(rest) => self.go_on(rest)?,
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// What follows when there is no whole record here, but `rest` bytes of one. `None`: look here again.
    pub(super) fn go_on(&mut self, rest: u64) -> Result<Option<Step>, Error> {
        if self.until.is_some_and(|until| self.number >= until.number) {
            return Ok(Some(Step::End));
        }
        let numbers = match segment::numbers(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Some(Step::End)),
            found => found.map_err(|source| Error::Read { path: self.dir.clone(), source })?,
        };
        let Some(next) = numbers.into_iter().find(|number| *number > self.number) else {
            return Ok(Some(if self.until.is_some() { Step::End } else { Step::Nothing }));
        };
        if let Some(open) = self.open.as_mut().filter(|open| !open.is_complete) {
            // The newer file came after the last write to this one, but that may have come after the read.
            open.is_complete = true;
            return Ok(None);
        }
        Ok(self.pass_on(next, rest)?.map(Step::Found))
    }

    /// Goes to the file `next`; says what is missing between here and there.
    fn pass_on(&mut self, next: u64, rest: u64) -> Result<Option<Vec<Entry>>, Error> {
        let before = self.number;
        let last = self.until.map_or(u64::MAX, |until| until.number);
        if next > last {
            // All that was to be read is gone.
            (self.number, self.open) = (last, None);
        } else if !self.enter(next, 0)? {
            // Removed just now: the next look finds another one.
            return Ok(None);
        }
        let mut entries = Vec::new();
        if rest > 0 {
            entries.push(Entry::Damaged { bytes: rest });
        }
        let files = if next > last { last - before } else { next - before - 1 };
        if files > 0 {
            entries.push(Entry::Missed { files });
        }
        Ok((!entries.is_empty()).then_some(entries))
    }

    /// Opens a file; `false` when it is gone.
    fn enter(&mut self, number: u64, offset: u64) -> Result<bool, Error> {
        let path = segment::path(&self.dir, number);
        match File::open(&path) {
            Ok(file) => {
                self.open = Some(Open { number, file, offset, is_complete: false });
                self.number = number;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// Takes the whole records that are here.
    pub(super) fn read_here(&mut self) -> Result<Read, Error> {
        let Some(open) = &mut self.open else { return Ok(Read::Rest(0)) };
        let limit = match self.until {
            Some(until) if until.number == open.number => until.offset.saturating_sub(open.offset),
            _ => u64::MAX,
        };
        let size = usize::try_from(limit).unwrap_or(CHUNK).min(CHUNK);
        let path = segment::path(&self.dir, open.number);
        self.chunk.resize(size, 0);
        let read = segment::read_at(&open.file, &mut self.chunk, open.offset)
            .map_err(|source| Error::Read { path: path.clone(), source })?;
        let chunk = &self.chunk[..read];
        let end = match chunk.iter().rposition(|byte| *byte == b'\n') {
            Some(index) => index + 1,
            None if read == CHUNK => {
                // No record is as long.
                open.offset += CHUNK as u64;
                return Ok(Read::Found(vec![Entry::Damaged { bytes: CHUNK as u64 }]));
            }
            None => return Ok(Read::Rest(read as u64)),
        };
        let mut bytes = Bytes::copy_from_slice(&chunk[..end]);
        if open.offset == 0 {
            let first = line_end(&bytes).expect("the chunk ends with a newline");
            // Another first line is told as damage, like any other line that means nothing.
            if place::ensure_known(&path, &bytes[..first])? {
                bytes.advance(first + 1);
            }
        }
        open.offset += end as u64;
        Ok(Read::Found(entries(&bytes, self.since)))
    }
}

/// The records of whole lines, from a time on.
fn entries(bytes: &Bytes, since: u64) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut start = 0;
    while let Some(length) = line_end(&bytes[start..]) {
        let line = &bytes[start..start + length];
        start += length + 1;
        match record::decode(line) {
            Some(record) if record.at() < since => {}
            Some(Record::Line { at, stream, partial, text }) => {
                entries.push(Entry::Line(Line { at, stream, text: bytes.slice_ref(text), partial }));
            }
            Some(Record::Attempt { at, attempt }) => entries.push(Entry::Attempt { at, attempt }),
            Some(Record::Lost { at, lines, bytes }) => entries.push(Entry::Lost { at, lines, bytes }),
            None => entries.push(Entry::Damaged { bytes: line.len() as u64 + 1 }),
        }
    }
    entries
}

//! The files of one directory, written: rotated by size, bounded by count, and going on when the disk does
//! not.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::record::{self, HEAD, HEADER, Record, Stream};
use crate::segment;

/// Records are written when so much has come together, and at the end of each round.
const BUFFER: usize = 128 * 1024;
/// How long no file is made after it failed.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the logger of the attempt before may take to end; the container's pipe holds its output
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(5);

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one file; a single record that is larger has a file of its own.
    pub max_size: u64,
    /// Files at any time.
    pub max_files: u64,
}

/// What could not be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Loss {
    lines: u64,
    bytes: u64,
}

impl Loss {
    fn is_none(self) -> bool {
        self == Loss::default()
    }

    fn add(&mut self, text: usize) {
        self.lines += 1;
        self.bytes += text as u64 + 1;
    }
}

/// The file that is written to, locked against the logger of another attempt.
#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
}

/// Takes lines and never fails: what cannot be written is counted, and told when writing works again.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    limits: Limits,
    /// The highest number there was, as far as known.
    number: u64,
    open: Option<Open>,
    /// Whether to look for files of an earlier logger first.
    is_first: bool,
    failed: Option<(Instant, io::Error)>,
    /// Whole records. Empty while there is no open file.
    buffer: Vec<u8>,
    /// How many bytes at the buffer's start tell `lost`.
    telling: usize,
    lost: Loss,
    /// The time of the last record.
    last: u64,
}

impl Journal {
    /// Touches nothing yet.
    pub fn new(dir: PathBuf, limits: Limits) -> Journal {
        let buffer = Vec::with_capacity(BUFFER);
        Journal {
            dir,
            limits,
            number: 0,
            open: None,
            is_first: true,
            failed: None,
            buffer,
            telling: 0,
            lost: Loss::default(),
            last: 0,
        }
    }

    /// Takes a line or a piece of one, without newlines and of at most [`record::LONGEST_TEXT`] bytes. It is
    /// in the file after the next [`Journal::flush`]. `now` is in nanoseconds since 1970.
    pub fn line(&mut self, now: u64, stream: Stream, partial: bool, text: &[u8]) {
        if self.make_room(now, HEAD + text.len() + 1) {
            let at = self.rise(now);
            Record::Line { at, stream, partial, text }.encode(&mut self.buffer);
        } else {
            self.lost.add(text.len());
        }
    }

    /// Says that a container begins to write.
    pub fn attempt(&mut self, now: u64, attempt: u64) {
        if self.make_room(now, HEAD + 32) {
            let at = self.rise(now);
            Record::Attempt { at, attempt }.encode(&mut self.buffer);
        }
    }

    /// Writes all that was taken, or counts it as lost.
    pub fn flush(&mut self, now: u64) {
        if self.buffer.is_empty() && self.has_loss_to_tell() {
            // The room that this makes begins with the words about the loss.
            self.make_room(now, 0);
        }
        self.write();
    }

    /// Whether something was lost that no record tells yet.
    pub fn has_loss_to_tell(&self) -> bool {
        !self.lost.is_none()
    }

    /// Why there is no file to write to.
    pub fn trouble(&self) -> Option<&io::Error> {
        self.failed.as_ref().map(|(_, error)| error)
    }

    /// The time of the next record: later than that of every record before, whatever the clock does.
    fn rise(&mut self, now: u64) -> u64 {
        self.last = now.max(self.last.saturating_add(1));
        self.last
    }

    /// Makes sure that a record of `length` bytes fits into the buffer and the open file. `false`: there is
    /// none.
    fn make_room(&mut self, now: u64, length: usize) -> bool {
        if self.buffer.len() + length > BUFFER {
            self.write();
        }
        if let Some(open) = &self.open {
            let used = open.length + self.buffer.len() as u64;
            if used + length as u64 > self.limits.max_size && used > HEADER.len() as u64 {
                self.write();
                self.open = None;
            }
        }
        if self.open.is_none() && !self.ensure_open() {
            return false;
        }
        if self.buffer.is_empty() && self.has_loss_to_tell() {
            let (at, Loss { lines, bytes }) = (self.rise(now), self.lost);
            Record::Lost { at, lines, bytes }.encode(&mut self.buffer);
            self.telling = self.buffer.len();
        }
        true
    }

    /// Writes the buffer in one call. What does not fit on the disk is cut off at the end of a record and
    /// counted.
    fn write(&mut self) {
        let Some(open) = self.open.as_mut().filter(|_| !self.buffer.is_empty()) else { return };
        let written = write_until_error(&mut open.file, &self.buffer);
        let whole =
            self.buffer[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        open.length += whole as u64;
        let is_torn = written > whole && open.file.set_len(open.length).is_err();
        if whole >= self.telling && self.telling > 0 {
            self.lost = Loss::default();
        }
        for line in self.buffer[whole.max(self.telling)..].split_inclusive(|byte| *byte == b'\n') {
            if let Some(Record::Line { text, .. }) = record::decode(&line[..line.len() - 1]) {
                self.lost.add(text.len());
            }
        }
        self.buffer.clear();
        self.telling = 0;
        if is_torn {
            // Nothing may follow half a record; a reader skips it when there is a newer file.
            self.open = None;
        }
    }

    fn ensure_open(&mut self) -> bool {
        if self.failed.as_ref().is_some_and(|(when, _)| when.elapsed() < PAUSE) {
            return false;
        }
        let continued = if self.is_first { self.resume() } else { Ok(None) };
        let opened = continued.and_then(|found| {
            self.is_first = false;
            found.map_or_else(|| self.create(), Ok)
        });
        match opened {
            Ok(open) => {
                self.open = Some(open);
                self.failed = None;
                true
            }
            Err(error) => {
                self.failed = Some((Instant::now(), error));
                false
            }
        }
    }

    /// The newest file that is there, when it can be written on: it is of this version, has room, and no
    /// other logger still writes it.
    fn resume(&mut self) -> io::Result<Option<Open>> {
        let deadline = Instant::now() + PATIENCE;
        let (file, numbers) = loop {
            let numbers = segment::numbers(&self.dir)?;
            let Some(newest) = numbers.last().copied() else { return Ok(None) };
            self.number = newest;
            let opened = OpenOptions::new().read(true).append(true).open(segment::path(&self.dir, newest));
            match opened {
                // The other logger goes from file to file: it has ended when the newest one is free.
                Ok(file) if lock(&file) => {
                    if segment::numbers(&self.dir)?.last() == Some(&newest) {
                        break (file, numbers);
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        };
        let length = repair(&file)?;
        self.last = self.last.max(last_time(&self.dir, &numbers)?);
        if length < HEADER.len() as u64 || length >= self.limits.max_size || !has_own_header(&file)? {
            return Ok(None);
        }
        self.remove_oldest(&numbers, self.limits.max_files)?;
        Ok(Some(Open { file, length }))
    }

    /// The file after the newest.
    fn create(&mut self) -> io::Result<Open> {
        let mut numbers = segment::numbers(&self.dir)?;
        let number = self.number.max(numbers.last().copied().unwrap_or(0)) + 1;
        // Before, since a disk that is full has room again after it; but the last one stays until there is
        // another, or a crash would let the numbers begin anew.
        self.remove_oldest(&numbers, (self.limits.max_files - 1).max(1))?;
        let path = segment::path(&self.dir, number);
        let mut file = OpenOptions::new().read(true).append(true).create_new(true).open(&path)?;
        lock(&file);
        if let Err(error) = file.write_all(HEADER) {
            // It has no room for its first line. When it cannot be removed either, a reader goes over it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        self.number = number;
        numbers.push(number);
        self.remove_oldest(&numbers, self.limits.max_files)?;
        Ok(Open { file, length: HEADER.len() as u64 })
    }

    /// Leaves at most the newest `keep` of `numbers`.
    fn remove_oldest(&self, numbers: &[u64], keep: u64) -> io::Result<()> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        for number in &numbers[..numbers.len().saturating_sub(keep)] {
            match std::fs::remove_file(segment::path(&self.dir, *number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Locks the file until it is closed; `false` when another process has. Where there are no locks, there is
/// one writer.
fn lock(file: &File) -> bool {
    !matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}

/// How much could be written before something went wrong.
fn write_until_error(file: &mut File, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => break,
            Ok(more) => written += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    written
}

/// Cuts off what a crash left of a record that was being written; returns the length.
fn repair(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let whole = segment::last_line_end(file, length)?;
    if whole < length {
        file.set_len(whole)?;
    }
    Ok(whole)
}

fn has_own_header(file: &File) -> io::Result<bool> {
    let mut start = [0; HEADER.len()];
    segment::read_at(file, &mut start, 0)?;
    Ok(start == HEADER)
}

/// The time of the last record in the files; 0 when there is none.
fn last_time(dir: &Path, numbers: &[u64]) -> io::Result<u64> {
    for number in numbers.iter().rev() {
        let file = match File::open(segment::path(dir, *number)) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let end = segment::last_line_end(&file, file.metadata()?.len())?;
        let Some((_, block)) = segment::records_before(&file, end)? else { continue };
        let newest = block.split(|byte| *byte == b'\n').rev().find_map(record::decode);
        if let Some(newest) = newest {
            return Ok(newest.at());
        }
    }
    Ok(0)
}

#[cfg(test)]
#[path = "journal/tests.rs"]
mod tests;

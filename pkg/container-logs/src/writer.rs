//! Writes the files of one directory: rotated by size, limited by count, and tolerant of a full or broken
//! disk.
//!
//! This module is compiled into the logger and the library: it must use only the standard library.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::record::{self, FILE_HEADER, OutputRecord, OutputStream, RECORD_HEAD_BYTES};
use crate::segment;

/// Buffered bytes that trigger a write; the rest is written at the end of each round.
const BUFFER_BYTES: usize = 128 * 1024;
/// Delay before a file is created again after a failure.
const REOPEN_DELAY: Duration = Duration::from_millis(100);
/// How long the logger of the previous attempt may take to exit; the container's pipe buffers its output
/// meanwhile.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Poll interval for that.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// Rotation limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RotationLimits {
    /// Bytes of one file; a larger single record gets its own file.
    pub max_size: u64,
    /// Maximum number of files.
    pub max_files: u64,
}

/// Lost output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LossCount {
    lines: u64,
    bytes: u64,
}

impl LossCount {
    fn is_empty(self) -> bool {
        self == LossCount::default()
    }

    fn add(&mut self, text: usize) {
        self.lines += 1;
        self.bytes += text as u64 + 1;
    }
}

/// The current file, locked against the logger of another attempt.
#[derive(Debug)]
struct OpenSegment {
    file: File,
    length: u64,
}

/// Writes lines and never fails: lost lines are counted, and recorded when writing succeeds again.
#[derive(Debug)]
pub struct SegmentWriter {
    dir: PathBuf,
    limits: RotationLimits,
    /// The highest known file number.
    number: u64,
    open: Option<OpenSegment>,
    /// Whether to search for files of an earlier logger first.
    is_first: bool,
    last_failure: Option<(Instant, io::Error)>,
    /// Complete records. Empty while no file is open.
    buffer: Vec<u8>,
    /// Length of the record of `lost` at the start of the buffer.
    loss_record_bytes: usize,
    lost: LossCount,
    /// The time of the last record.
    last_time: u64,
}

impl SegmentWriter {
    /// Creates a writer without accessing the disk.
    pub fn new(dir: PathBuf, limits: RotationLimits) -> SegmentWriter {
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        SegmentWriter {
            dir,
            limits,
            number: 0,
            open: None,
            is_first: true,
            last_failure: None,
            buffer,
            loss_record_bytes: 0,
            lost: LossCount::default(),
            last_time: 0,
        }
    }

    /// Adds a line or a piece of one, without newlines and of at most [`record::MAX_TEXT`] bytes. It is in
    /// the file after the next [`SegmentWriter::flush`]. `now` is in nanoseconds since 1970.
    pub fn write_line(&mut self, now: u64, stream: OutputStream, partial: bool, text: &[u8]) {
        if self.make_room(now, RECORD_HEAD_BYTES + text.len() + 1) {
            let at = self.next_time(now);
            OutputRecord::Line { at, stream, partial, text }.encode(&mut self.buffer);
        } else {
            self.lost.add(text.len());
        }
    }

    /// Adds the record of a container start.
    pub fn write_attempt(&mut self, now: u64, attempt: u64) {
        if self.make_room(now, RECORD_HEAD_BYTES + 32) {
            let at = self.next_time(now);
            OutputRecord::Attempt { at, attempt }.encode(&mut self.buffer);
        }
    }

    /// Writes all buffered records, or counts them as lost.
    pub fn flush(&mut self, now: u64) {
        if self.buffer.is_empty() && self.has_unrecorded_loss() {
            // The new buffer starts with the record of the loss.
            self.make_room(now, 0);
        }
        self.write_buffer();
    }

    /// Whether a loss was not recorded yet.
    pub fn has_unrecorded_loss(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Why no file is open.
    pub fn last_error(&self) -> Option<&io::Error> {
        self.last_failure.as_ref().map(|(_, error)| error)
    }

    /// The time of the next record: later than that of every earlier record, for any clock change.
    fn next_time(&mut self, now: u64) -> u64 {
        self.last_time = now.max(self.last_time.saturating_add(1));
        self.last_time
    }

    /// Ensures that a record of `length` bytes fits into the buffer and the open file. Returns `false`
    /// without an open file.
    fn make_room(&mut self, now: u64, length: usize) -> bool {
        if self.buffer.len() + length > BUFFER_BYTES {
            self.write_buffer();
        }
        if let Some(open) = &self.open {
            let used = open.length + self.buffer.len() as u64;
            if used + length as u64 > self.limits.max_size && used > FILE_HEADER.len() as u64 {
                self.write_buffer();
                self.open = None;
            }
        }
        if self.open.is_none() && !self.ensure_open() {
            return false;
        }
        if self.buffer.is_empty() && self.has_unrecorded_loss() {
            let (at, LossCount { lines, bytes }) = (self.next_time(now), self.lost);
            OutputRecord::Lost { at, lines, bytes }.encode(&mut self.buffer);
            self.loss_record_bytes = self.buffer.len();
        }
        true
    }

    /// Writes the buffer in one call. What does not fit on the disk is truncated at a record boundary and
    /// counted.
    fn write_buffer(&mut self) {
        let Some(open) = self.open.as_mut().filter(|_| !self.buffer.is_empty()) else { return };
        let written = write_until_error(&mut open.file, &self.buffer);
        let whole =
            self.buffer[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        open.length += whole as u64;
        let is_torn = written > whole && open.file.set_len(open.length).is_err();
        if whole >= self.loss_record_bytes && self.loss_record_bytes > 0 {
            self.lost = LossCount::default();
        }
        for line in self.buffer[whole.max(self.loss_record_bytes)..].split_inclusive(|byte| *byte == b'\n') {
            if let Some(OutputRecord::Line { text, .. }) = record::decode(&line[..line.len() - 1]) {
                self.lost.add(text.len());
            }
        }
        self.buffer.clear();
        self.loss_record_bytes = 0;
        if is_torn {
            // Nothing may follow a partial record; a reader skips it when there is a newer file.
            self.open = None;
        }
    }

    fn ensure_open(&mut self) -> bool {
        if self.last_failure.as_ref().is_some_and(|(when, _)| when.elapsed() < REOPEN_DELAY) {
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
                self.last_failure = None;
                true
            }
            Err(error) => {
                self.last_failure = Some((Instant::now(), error));
                false
            }
        }
    }

    /// Opens the newest file if it can be continued: it has this version and free space, and no other
    /// logger holds it.
    fn resume(&mut self) -> io::Result<Option<OpenSegment>> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let (file, numbers) = loop {
            let numbers = segment::list(&self.dir)?;
            let Some(newest) = numbers.last().copied() else { return Ok(None) };
            self.number = newest;
            let opened =
                OpenOptions::new().read(true).append(true).open(segment::segment_path(&self.dir, newest));
            match opened {
                // The other logger moves from file to file: it has ended when the newest one is unlocked.
                Ok(file) if lock(&file) => {
                    if segment::list(&self.dir)?.last() == Some(&newest) {
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
            std::thread::sleep(LOCK_POLL);
        };
        let length = repair(&file)?;
        self.last_time = self.last_time.max(last_time(&self.dir, &numbers)?);
        if length < FILE_HEADER.len() as u64 || length >= self.limits.max_size || !has_own_header(&file)? {
            return Ok(None);
        }
        self.remove_oldest(&numbers, self.limits.max_files)?;
        Ok(Some(OpenSegment { file, length }))
    }

    /// Creates the file after the newest.
    fn create(&mut self) -> io::Result<OpenSegment> {
        let mut numbers = segment::list(&self.dir)?;
        let number = self.number.max(numbers.last().copied().unwrap_or(0)) + 1;
        // Removed first, since that frees space on a full disk; but the last one is kept until a new one
        // exists, or a crash would restart the numbering.
        self.remove_oldest(&numbers, (self.limits.max_files - 1).max(1))?;
        let path = segment::segment_path(&self.dir, number);
        let mut file = OpenOptions::new().read(true).append(true).create_new(true).open(&path)?;
        lock(&file);
        if let Err(error) = file.write_all(FILE_HEADER) {
            // No space for its first line. If it cannot be removed either, readers skip it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        self.number = number;
        numbers.push(number);
        self.remove_oldest(&numbers, self.limits.max_files)?;
        Ok(OpenSegment { file, length: FILE_HEADER.len() as u64 })
    }

    /// Removes all but the newest `keep` of `numbers`.
    fn remove_oldest(&self, numbers: &[u64], keep: u64) -> io::Result<()> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        for number in &numbers[..numbers.len().saturating_sub(keep)] {
            match std::fs::remove_file(segment::segment_path(&self.dir, *number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Locks the file until it is closed; `false` when another process holds the lock. Without lock support
/// there is one writer.
fn lock(file: &File) -> bool {
    !matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}

/// Bytes written before an error.
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

/// Truncates a partial record left by a crash; returns the length.
fn repair(file: &File) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let whole = segment::last_line_end(file, length)?;
    if whole < length {
        file.set_len(whole)?;
    }
    Ok(whole)
}

fn has_own_header(file: &File) -> io::Result<bool> {
    let mut start = [0; FILE_HEADER.len()];
    segment::read_at(file, &mut start, 0)?;
    Ok(start == FILE_HEADER)
}

/// The time of the last record in the files; 0 when there is none.
fn last_time(dir: &Path, numbers: &[u64]) -> io::Result<u64> {
    for number in numbers.iter().rev() {
        let file = match File::open(segment::segment_path(dir, *number)) {
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
#[path = "writer/tests.rs"] // Without it rustfmt does not find the file from the logger.
mod tests;

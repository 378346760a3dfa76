//! Reads the logger's files in order, also while they are written and rotated.

mod cursor;
mod position;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::record::OutputStream;
use cursor::{ReadStep, SegmentCursor};

/// Poll interval of a following reader after new data...
const MIN_POLL: Duration = Duration::from_millis(5);
/// ... and, doubling, its maximum without new data. A poll costs a few system calls. inotify would need one
/// of the few instances per user (128 by default) for every reader, and polling anyway when none is left.
const MAX_POLL: Duration = Duration::from_millis(100);

/// What to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Only this many lines before the current end. A line in pieces counts once; if lines of the other
    /// stream are between its pieces, the first pieces may be missing.
    pub tail: Option<u64>,
    /// Only output from this time (nanoseconds since 1970) on. Times are unique, so the time of the last
    /// line plus one continues after that line.
    pub since: Option<u64>,
    /// Whether to wait for more at the end, instead of ending where the output ended at opening.
    pub follow: bool,
}

/// Output of a container: a line, or a piece of one that is longer than 16 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLine {
    /// Time in nanoseconds since 1970; unique within a directory.
    pub at: u64,
    /// Its stream.
    pub stream: OutputStream,
    /// Without the newline; any bytes. Shares memory with the other lines of its batch.
    pub text: Bytes,
    /// Whether the line continues in the next [`OutputLine`] of this stream.
    pub partial: bool,
}

/// An entry of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEntry {
    /// Output of a container.
    Line(OutputLine),
    /// What follows was written by the container of this attempt.
    Attempt {
        /// Start, in nanoseconds since 1970.
        at: u64,
        /// Attempt number.
        attempt: u64,
    },
    /// The logger could not write: the disk was full or broken.
    Lost {
        /// When writing succeeded again, in nanoseconds since 1970.
        at: u64,
        /// Lost lines and pieces.
        lines: u64,
        /// Lost text, with newlines.
        bytes: u64,
    },
    /// The reader was slower than rotation: these files were removed before it read them.
    RotatedAway {
        /// Number of files.
        files: u64,
    },
    /// Bytes that are not a record: a partial record after a power cut, or a modified file.
    Damaged {
        /// Length in bytes.
        bytes: u64,
    },
}

/// Reads the files of one directory on tokio's blocking threads, in bounded chunks. Needs a runtime with
/// the time driver.
#[derive(Debug)]
pub struct OutputReader {
    dir: PathBuf,
    state: State,
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Waiting(Box<SegmentCursor>),
    /// Continues when a [`OutputReader::next`] is cancelled.
    Reading(JoinHandle<(Box<SegmentCursor>, Result<ReadStep, Error>)>),
    Ended,
}

impl OutputReader {
    /// Opens the output in `dir` at the position given by `options`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Version`] and [`Error::Read`].
    pub async fn open(dir: &Path, options: ReadOptions) -> Result<OutputReader, Error> {
        let path = dir.to_owned();
        let opening = tokio::task::spawn_blocking(move || SegmentCursor::open(&path, options));
        let cursor = opening.await.map_err(|_| Error::ReaderEnded { dir: dir.to_owned() })??;
        Ok(OutputReader { dir: dir.to_owned(), state: State::Waiting(Box::new(cursor)), pause: MIN_POLL })
    }

    /// The next entries, at least one, in order; at most about 256 KiB of them. `None` at the end: the end
    /// at opening, or when following, the removal of the directory. Cancel safe: no entry is lost.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Read`]; after that [`Error::ReaderEnded`].
    pub async fn next(&mut self) -> Result<Option<Vec<OutputEntry>>, Error> {
        loop {
            match self.read_step().await? {
                ReadStep::Found(entries) => {
                    self.pause = MIN_POLL;
                    return Ok(Some(entries));
                }
                ReadStep::End => return Ok(None),
                ReadStep::Pending => {
                    tokio::time::sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(MAX_POLL);
                }
            }
        }
    }

    async fn read_step(&mut self) -> Result<ReadStep, Error> {
        if let State::Waiting(_) = self.state
            && let State::Waiting(mut cursor) = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Reading(tokio::task::spawn_blocking(move || {
                let step = cursor.read();
                (cursor, step)
            }));
        }
        let State::Reading(reading) = &mut self.state else {
            return Err(Error::ReaderEnded { dir: self.dir.clone() });
        };
        let read = reading.await;
        self.state = State::Ended;
        let (cursor, step) = read.map_err(|_| Error::ReaderEnded { dir: self.dir.clone() })?;
        if step.is_ok() {
            self.state = State::Waiting(cursor);
        }
        step
    }
}

#[cfg(test)]
mod tests;

//! Reading what the logger wrote, in order, also while it is written and rotated.

mod cursor;
mod place;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::record::Stream;
use cursor::{Cursor, Step};

/// How soon a reader that follows looks again after it found something...
const SOON: Duration = Duration::from_millis(5);
/// ... and, doubling, after it found nothing for a while. Looking costs a handful of
/// system calls. inotify would need one of the
/// few instances that a user may have (128 by default) for every reader, and this anyway when there is none.
const LATE: Duration = Duration::from_millis(100);

/// What to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Only so many lines before the end as of now. A line in pieces counts once; of one that another
    /// stream's lines stand between, the first pieces may be missing.
    pub tail: Option<u64>,
    /// Only what was written at this time (nanoseconds since 1970) or later. Times are unique, so the time of
    /// the last line plus one goes on after that line.
    pub since: Option<u64>,
    /// Whether to wait for more at the end, instead of ending where the end was when the reader was opened.
    pub follow: bool,
}

/// What a container wrote: a line, or a piece of one that is longer than 16 KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When, in nanoseconds since 1970; no two lines of a directory have the same.
    pub at: u64,
    /// Where to.
    pub stream: Stream,
    /// Without the newline; any bytes. It shares its memory with the other lines of its batch.
    pub text: Bytes,
    /// Whether the line goes on in the next [`Line`] of this stream.
    pub partial: bool,
}

/// What a reader comes across.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// What a container wrote.
    Line(Line),
    /// From here on it is the container of this attempt.
    Attempt {
        /// When it began, in nanoseconds since 1970.
        at: u64,
        /// Its number.
        attempt: u64,
    },
    /// The logger could not write here: the disk was full or broken.
    Lost {
        /// When writing worked again, in nanoseconds since 1970.
        at: u64,
        /// How many lines and pieces.
        lines: u64,
        /// How much text, with newlines.
        bytes: u64,
    },
    /// The reader was slower than rotation: these files were removed before it came to them.
    Missed {
        /// How many.
        files: u64,
    },
    /// Something that is no record: what a power cut left of one, or a file that was tampered with.
    Damaged {
        /// How long it is.
        bytes: u64,
    },
}

/// Reads the files of one directory on tokio's blocking threads, a piece of bounded size at a time. Needs a
/// runtime with the time driver.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    state: State,
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Waiting(Box<Cursor>),
    /// It outlives a [`Reader::next`] that is given up.
    Reading(JoinHandle<(Box<Cursor>, Result<Step, Error>)>),
    Ended,
}

impl Reader {
    /// Opens the output in `dir` at the place that `options` choose.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Version`] and [`Error::Read`].
    pub async fn open(dir: &Path, options: Options) -> Result<Reader, Error> {
        let path = dir.to_owned();
        let opening = tokio::task::spawn_blocking(move || Cursor::open(&path, options));
        let cursor = opening.await.map_err(|_| Error::Ended { dir: dir.to_owned() })??;
        Ok(Reader { dir: dir.to_owned(), state: State::Waiting(Box::new(cursor)), pause: SOON })
    }

    /// The next entries, at least one, in order; at most about 256 KiB of them. `None` at the end: of what
    /// there was when the reader was opened, or when it follows, when the directory is removed. May be given
    /// up at any time without losing anything.
    ///
    /// # Errors
    /// [`Error::Version`] and [`Error::Read`]; after that [`Error::Ended`].
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>, Error> {
        loop {
            match self.step().await? {
                Step::Found(entries) => {
                    self.pause = SOON;
                    return Ok(Some(entries));
                }
                Step::End => return Ok(None),
                Step::Nothing => {
                    tokio::time::sleep(self.pause).await;
                    self.pause = (self.pause * 2).min(LATE);
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Step, Error> {
        if let State::Waiting(_) = self.state
            && let State::Waiting(mut cursor) = std::mem::replace(&mut self.state, State::Ended)
        {
            self.state = State::Reading(tokio::task::spawn_blocking(move || {
                let step = cursor.read();
                (cursor, step)
            }));
        }
        let State::Reading(reading) = &mut self.state else {
            return Err(Error::Ended { dir: self.dir.clone() });
        };
        let read = reading.await;
        self.state = State::Ended;
        let (cursor, step) = read.map_err(|_| Error::Ended { dir: self.dir.clone() })?;
        if step.is_ok() {
            self.state = State::Waiting(cursor);
        }
        step
    }
}

#[cfg(test)]
mod tests;

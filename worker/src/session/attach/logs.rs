//! What a task wrote, for a manager that asks.
//!
//! A log that is followed ends when its task is over for good by this node's own word, the newest report of its
//! actor, so that an end between two attempts is none. The logger may still have something in its pipe then:
//! the end is where nothing more came for two whole [`QUIET`] after that.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use warren_logger::{Entry, Error, Line, Options, Reader, Stream};
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;
use warren_task::Wishes;
use warren_types::TaskId;

use super::{Outbound, StreamError};
use crate::handlers::files::Directories;
use crate::tasks::reporter::Reporter;

/// When nothing came for so long, it is asked whether anything can come.
const QUIET: Duration = Duration::from_millis(500);
/// What a frame of lines takes at most, but for one line that is larger alone.
const FRAME: usize = 64 << 10;
/// What a line takes beside its text: time, stream, and lengths.
const LINE_HEAD: usize = 20;

/// The logs of this node's tasks.
pub(crate) struct TaskLogs {
    pub directories: Directories,
    pub reporter: Arc<Reporter>,
    pub wishes: watch::Receiver<Wishes>,
}

impl TaskLogs {
    fn dir(&self, task: &TaskId) -> PathBuf {
        self.directories.log(task)
    }

    /// Whether nothing will be written any more: the task has ended for good, or is not the node's.
    fn is_over(&self, task: &TaskId) -> bool {
        match self.reporter.newest(task) {
            Some(report) => report.removed || report.state.is_terminal(),
            None => !self.wishes.borrow().tasks.contains_key(task),
        }
    }

    /// Opens the log; waits for a task that is to be followed and has not got as far as having one.
    async fn open(&self, task: &TaskId, options: Options) -> Result<Reader, Error> {
        loop {
            match Reader::open(&self.dir(task), options).await {
                Err(Error::NotFound { .. }) if options.follow && !self.is_over(task) => sleep(QUIET).await,
                opened => return opened,
            }
        }
    }
}

/// Sends what was asked for to its end.
pub(super) async fn read(
    logs: &TaskLogs,
    wish: &v1::ReadTaskLogs,
    out: &Outbound,
) -> Result<Result<(), String>, StreamError> {
    let v1::ReadTaskLogs { task_id, follow, tail, since_ns } = wish;
    let task: TaskId = match task_id.parse() {
        Ok(task) => task,
        Err(error) => return Ok(Err(format!("task {task_id:?} cannot be one: {error}"))),
    };
    let options = Options { tail: *tail, since: *since_ns, follow: *follow };
    let mut reader = match logs.open(&task, options).await {
        Ok(reader) => reader,
        Err(Error::NotFound { .. }) => {
            return Ok(Err(format!(
                "this node has nothing of task {task}: it was never started or is removed"
            )));
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut is_over = false;
    loop {
        match timeout(QUIET, reader.next()).await {
            Ok(Ok(Some(entries))) => tell(out, entries).await?,
            Ok(Ok(None)) => return Ok(Ok(())),
            Ok(Err(error)) => return Ok(Err(error.to_string())),
            Err(_) if is_over => return Ok(Ok(())),
            // A slow disk is no end.
            Err(_) => is_over = *follow && logs.is_over(&task),
        }
    }
}

/// Sends entries in their order, lines together as far as that goes. Waits for a manager that reads slowly.
async fn tell(out: &Outbound, entries: Vec<Entry>) -> Result<(), StreamError> {
    let mut batch = Batch::default();
    for entry in entries {
        let missed = match entry {
            Entry::Line(line) => {
                if let Some(full) = batch.add(line) {
                    out.send_patiently(Frame::Lines(full)).await?;
                }
                continue;
            }
            // Whose lines they are shows in their times.
            Entry::Attempt { .. } => continue,
            Entry::Lost { lines, bytes, .. } => {
                format!("{lines} lines ({bytes} bytes) were not kept: the node could not write to its disk")
            }
            Entry::Missed { files } => {
                format!("{files} files of lines were removed for newer ones before they could be read")
            }
            Entry::Damaged { bytes } => {
                format!("{bytes} bytes of the log are damaged, as a power cut leaves them")
            }
        };
        if let Some(lines) = batch.take() {
            out.send_patiently(Frame::Lines(lines)).await?;
        }
        out.send_patiently(Frame::Missed(missed)).await?;
    }
    match batch.take() {
        Some(lines) => out.send_patiently(Frame::Lines(lines)).await,
        None => Ok(()),
    }
}

/// Lines that become one frame.
#[derive(Default)]
struct Batch {
    lines: Vec<v1::LogLine>,
    bytes: usize,
}

impl Batch {
    /// Adds a line; gives the lines before it when they are enough.
    fn add(&mut self, line: Line) -> Option<v1::LogLines> {
        let Line { at, stream, text, partial } = line;
        let bytes = text.len() + LINE_HEAD;
        let full = if self.bytes + bytes > FRAME { self.take() } else { None };
        let stream = match stream {
            Stream::Out => v1::LogStream::Out,
            Stream::Err => v1::LogStream::Err,
        };
        self.bytes += bytes;
        self.lines.push(v1::LogLine { at_ns: at, stream: stream.into(), text, partial });
        full
    }

    fn take(&mut self) -> Option<v1::LogLines> {
        self.bytes = 0;
        let lines = std::mem::take(&mut self.lines);
        (!lines.is_empty()).then_some(v1::LogLines { lines })
    }
}

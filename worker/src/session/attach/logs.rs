//! Streams the logs of a task to a manager.
//!
//! A followed log ends when the newest report of the task's actor is final, so that an end between two
//! attempts does not count. The logger may still have output in its pipe then: the stream ends after two
//! intervals of [`IDLE_CHECK_INTERVAL`] without output.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use warren_container_logs::{Error, OutputEntry, OutputLine, OutputReader, OutputStream, ReadOptions};
use warren_proto::v1;
use warren_proto::v1::stream_frame::Frame;
use warren_task::DesiredState;
use warren_types::TaskId;

use super::{StreamError, StreamSender};
use crate::handlers::files::TaskDirs;
use crate::tasks::reporter::TaskReporter;

/// Without output for so long, the reader checks whether the log is complete.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum size of a frame of lines, except for a single larger line.
const MAX_FRAME_BYTES: usize = 64 << 10;
/// Bytes of a line in addition to its text: time, stream, and lengths.
const LINE_OVERHEAD: usize = 20;

/// The logs of this node's tasks.
pub(crate) struct TaskLogs {
    pub task_dirs: TaskDirs,
    pub reporter: Arc<TaskReporter>,
    pub desired_state: watch::Receiver<DesiredState>,
}

impl TaskLogs {
    fn dir(&self, task: &TaskId) -> PathBuf {
        self.task_dirs.log_dir(task)
    }

    /// Whether the log is complete: the task has ended, or is not on this node.
    fn is_complete(&self, task: &TaskId) -> bool {
        match self.reporter.latest(task) {
            Some(report) => report.removed || report.state.is_terminal(),
            None => !self.desired_state.borrow().tasks.contains_key(task),
        }
    }

    /// Opens the log; with `follow`, waits until a new task has one.
    async fn open(&self, task: &TaskId, options: ReadOptions) -> Result<OutputReader, Error> {
        loop {
            match OutputReader::open(&self.dir(task), options).await {
                Err(Error::NotFound { .. }) if options.follow && !self.is_complete(task) => {
                    sleep(IDLE_CHECK_INTERVAL).await
                }
                opened => return opened,
            }
        }
    }
}

/// Sends the requested lines.
pub(super) async fn read(
    logs: &TaskLogs,
    request: &v1::ReadTaskLogs,
    out: &StreamSender,
) -> Result<Result<(), String>, StreamError> {
    let v1::ReadTaskLogs { task_id, follow, tail, since_ns } = request;
    let task: TaskId = match task_id.parse() {
        Ok(task) => task,
        Err(error) => return Ok(Err(format!("invalid task id {task_id:?}: {error}"))),
    };
    let options = ReadOptions { tail: *tail, since: *since_ns, follow: *follow };
    let mut reader = match logs.open(&task, options).await {
        Ok(reader) => reader,
        Err(Error::NotFound { .. }) => {
            let message = format!(
                "this node has no output of task {task}: it was never started, or its output was removed: \
                 after 7 days, beyond the log limits of its slot, or because the disk was low"
            );
            out.send_without_deadline(Frame::NoOutput(message)).await?;
            return Ok(Ok(()));
        }
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut is_over = false;
    loop {
        match timeout(IDLE_CHECK_INTERVAL, reader.next()).await {
            Ok(Ok(Some(entries))) => send_entries(out, entries).await?,
            Ok(Ok(None)) => return Ok(Ok(())),
            Ok(Err(error)) => return Ok(Err(error.to_string())),
            Err(_) if is_over => return Ok(Ok(())),
            // A slow disk is not an end.
            Err(_) => is_over = *follow && logs.is_complete(&task),
        }
    }
}

/// Sends entries in order, with lines batched. Waits for a manager that reads slowly.
async fn send_entries(out: &StreamSender, entries: Vec<OutputEntry>) -> Result<(), StreamError> {
    let mut batch = LineBatch::default();
    for entry in entries {
        let missed = match entry {
            OutputEntry::Line(line) => {
                if let Some(full) = batch.add(line) {
                    out.send_without_deadline(Frame::Lines(full)).await?;
                }
                continue;
            }
            // The times of lines show their attempt.
            OutputEntry::Attempt { .. } => continue,
            OutputEntry::Lost { lines, bytes, .. } => {
                format!("{lines} lines ({bytes} bytes) were lost: the node could not write to its disk")
            }
            OutputEntry::RotatedAway { files } => {
                format!("{files} log files were rotated away before they could be read")
            }
            OutputEntry::Damaged { bytes } => {
                format!("{bytes} bytes of the log are damaged, as after a power failure")
            }
        };
        if let Some(lines) = batch.take() {
            out.send_without_deadline(Frame::Lines(lines)).await?;
        }
        out.send_without_deadline(Frame::DroppedLines(missed)).await?;
    }
    match batch.take() {
        Some(lines) => out.send_without_deadline(Frame::Lines(lines)).await,
        None => Ok(()),
    }
}

/// Lines for one frame.
#[derive(Default)]
struct LineBatch {
    lines: Vec<v1::LogLine>,
    bytes: usize,
}

impl LineBatch {
    /// Adds a line; returns the earlier lines if the batch is full.
    fn add(&mut self, line: OutputLine) -> Option<v1::LogLines> {
        let OutputLine { at, stream, text, partial } = line;
        let bytes = text.len() + LINE_OVERHEAD;
        let full = if self.bytes + bytes > MAX_FRAME_BYTES { self.take() } else { None };
        let stream = match stream {
            OutputStream::Stdout => v1::LogStream::Out,
            OutputStream::Stderr => v1::LogStream::Err,
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

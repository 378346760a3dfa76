//! warren-logger: started by containerd's shim for each container to store its output.
//!
//! ```text
//! warren-logger dir DIRECTORY max-size BYTES max-files COUNT [attempt NUMBER] [flush-after MILLISECONDS] [owner ID]
//! ```
//!
//! The pairs come in any order. With `flush-after`, the beginning of a line whose rest does not follow within that time
//! is written as a part of its own: somebody may have to read it to give the input that the container waits for. With
//! `owner`, the pipes of the output get this user and group: a container with other users than the node could not open
//! `/dev/stdout` otherwise.
//!
//! The shim passes the container's standard output as descriptor 3, its standard error as 4, and 5 to be
//! closed when the logger is ready: the container is not created before that. So 5 is closed before any
//! disk access. The shim also holds the other ends of 3 and 4, and sends SIGTERM right after it closed
//! them: the logger ignores it, writes what is still in the pipes, and exits at the end of both. After 12
//! seconds the shim kills it.
//!
//! It must never delay the container beyond the speed of the disk, and never exit while the container may
//! still write: that would be a broken pipe, which ends most programs. A full or broken disk, or a missing
//! directory, loses lines, and their number is recorded as soon as possible. Only invalid arguments end it,
//! with status 2. It is single-threaded without dependencies, since there is one per container. Start
//! reading at `run`.
#![allow(dead_code)] // The shared modules also have what only the reader needs.

use std::ffi::{OsString, c_int};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::os::unix::fs::fchown;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[path = "../../../container-logs/src/record.rs"]
mod record;
#[path = "../../../container-logs/src/segment.rs"]
mod segment;
#[path = "../../../container-logs/src/writer.rs"]
mod writer;

mod arguments;
mod splitter;
mod system;

use arguments::LoggerArgs;
use record::OutputStream;
use splitter::LineSplitter;
use writer::SegmentWriter;

/// The capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// Retry interval of writes while a loss is unrecorded and the container is silent.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words == ["--version"] {
        println!("warren-logger {}", record::VERSION);
        return ExitCode::SUCCESS;
    }
    let arguments = match LoggerArgs::parse(&words) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("warren-logger: {wrong}");
            return ExitCode::from(2);
        }
    };
    system::ignore_signals();
    let mut inputs = [Input::new(3, OutputStream::Stdout), Input::new(4, OutputStream::Stderr)];
    if let Some(owner) = arguments.owner {
        inputs.iter().for_each(|input| input.set_owner(owner));
    }
    system::close_inherited(5);
    close_inherited_fds();
    // The current directory is the container's, which will be removed.
    if let Err(error) = std::env::set_current_dir("/") {
        eprintln!("warren-logger: cannot leave the working directory: {error}");
    }
    let mut writer = SegmentWriter::new(arguments.dir, arguments.limits);
    if let Some(attempt) = arguments.attempt {
        writer.write_attempt(now(), attempt);
    }
    writer.flush(now());
    if let Some(error) = writer.last_error() {
        eprintln!("warren-logger: cannot write; lines are lost until it can: {error}");
    }
    run(&mut inputs, &mut writer, arguments.flush_after);
    ExitCode::SUCCESS
}

/// Closes descriptors inherited from the shim by accident; the writing end of a pipe among them would keep
/// the pipe open.
fn close_inherited_fds() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // The list is complete, and the directory closed, before the first descriptor is closed.
    let inherited: Vec<c_int> = numbers.filter(|number| *number > 5).collect();
    inherited.into_iter().for_each(system::close_inherited);
}

/// One output of the container.
struct Input {
    fd: c_int,
    file: ManuallyDrop<File>,
    stream: OutputStream,
    splitter: LineSplitter,
    has_ended: bool,
}

impl Input {
    fn new(fd: c_int, stream: OutputStream) -> Input {
        Input {
            fd,
            file: system::inherited_file(fd),
            stream,
            splitter: LineSplitter::default(),
            has_ended: false,
        }
    }

    /// Sets the owner of the pipe; both of its ends have the same.
    fn set_owner(&self, id: u32) {
        if let Err(error) = fchown(&*self.file, Some(id), Some(id)) {
            eprintln!("warren-logger: cannot set the owner of the output: {error}");
        }
    }

    /// Moves available data, at most a chunk, into the writer.
    fn forward(&mut self, chunk: &mut [u8], writer: &mut SegmentWriter) {
        let read = match self.file.read(chunk) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => return,
            // Reading a pipe does not fail: this descriptor was not passed.
            Err(_) => 0,
        };
        let (stream, at) = (self.stream, now());
        let emit = |text: &[u8], partial: bool| writer.write_line(at, stream, partial, text);
        if read == 0 {
            self.has_ended = true;
            self.splitter.finish(emit);
        } else {
            self.splitter.feed(&chunk[..read], emit);
        }
    }

    /// Moves the beginning of an incomplete line into the writer.
    fn flush(&mut self, writer: &mut SegmentWriter) {
        let (stream, at) = (self.stream, now());
        self.splitter.flush(|text, partial| writer.write_line(at, stream, partial, text));
    }
}

/// Moves all data from `inputs` into the writer until both have ended.
fn run(inputs: &mut [Input; 2], writer: &mut SegmentWriter, flush_after: Option<Duration>) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while inputs.iter().any(|input| !input.has_ended) {
        let is_incomplete = inputs.iter().any(|input| input.splitter.has_incomplete_line());
        let retry = writer.has_unrecorded_loss().then_some(RETRY_INTERVAL);
        let timeout = flush_after.filter(|_| is_incomplete).into_iter().chain(retry).min();
        let open = [&inputs[0], &inputs[1]].map(|input| (!input.has_ended).then_some(input.fd));
        let is_ready = system::poll_readable(open, timeout);
        for (input, _) in inputs.iter_mut().zip(is_ready).filter(|(_, is_ready)| *is_ready) {
            input.forward(&mut chunk, writer);
        }
        if flush_after.is_some() && !is_ready.contains(&true) {
            inputs.iter_mut().for_each(|input| input.flush(writer));
        }
        writer.flush(now());
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    // A clock before 1970 is treated as 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

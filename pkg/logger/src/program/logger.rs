//! warren-logger: what containerd's shim starts beside each container to keep what it writes.
//!
//! ```text
//! warren-logger dir DIRECTORY max-size BYTES max-files COUNT [attempt NUMBER]     (pairs in any order)
//! ```
//!
//! The shim hands over the container's standard output as file 3, its standard error as 4, and 5 to be closed
//! when the logger is ready: until then the container is not created, however long it takes. So 5 is closed
//! before anything is asked of the disk. The shim also holds the other ends of 3 and 4, and sends SIGTERM
//! right after it closed them: the logger ignores it, writes what is still in the pipes, and ends at the end
//! of both. After 12 seconds the shim kills.
//!
//! It must never make the container wait for anything but the disk's own pace, and never end while the
//! container may still write: that would be a broken pipe, and the end of most programs. A disk that is full
//! or broken, or a directory that is not there, loses lines, and says how many as soon as it can. Only
//! arguments that make no sense end it, with status 2. It is one thread without dependencies, since there is
//! one per container. Start reading at `run`.
#![allow(dead_code)] // The shared modules also have what only the reader needs.

use std::ffi::{OsString, c_int};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[path = "../record.rs"]
mod record;
#[path = "../segment.rs"]
mod segment;

mod arguments;
mod journal;
mod splitter;
mod system;

use arguments::Arguments;
use journal::Journal;
use record::Stream;
use splitter::Splitter;

/// As much as a pipe holds.
const CHUNK: usize = 64 * 1024;
/// How often writing is tried again while there is a loss to tell and the container is silent.
const RETRY: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words == ["--version"] {
        println!("warren-logger {}", record::VERSION);
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(&words) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("warren-logger: {wrong}");
            return ExitCode::from(2);
        }
    };
    system::ignore_signals();
    let mut inputs = [Input::new(3, Stream::Out), Input::new(4, Stream::Err)];
    system::close_inherited(5);
    close_strays();
    // The directory it was started in is the container's, which is to be removed some day.
    if let Err(error) = std::env::set_current_dir("/") {
        eprintln!("warren-logger: cannot leave the working directory: {error}");
    }
    let mut journal = Journal::new(arguments.dir, arguments.limits);
    if let Some(attempt) = arguments.attempt {
        journal.attempt(now(), attempt);
    }
    journal.flush(now());
    if let Some(error) = journal.trouble() {
        eprintln!("warren-logger: cannot write, and drops lines until it can: {error}");
    }
    run(&mut inputs, &mut journal);
    ExitCode::SUCCESS
}

/// Closes what the shim had open by accident; the writing end of a pipe among it would keep the pipe from
/// ending.
fn close_strays() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // The list is complete, and the directory closed, before the first file is.
    let strays: Vec<c_int> = numbers.filter(|number| *number > 5).collect();
    strays.into_iter().for_each(system::close_inherited);
}

/// One of the container's outputs.
struct Input {
    fd: c_int,
    file: ManuallyDrop<File>,
    stream: Stream,
    splitter: Splitter,
    has_ended: bool,
}

impl Input {
    fn new(fd: c_int, stream: Stream) -> Input {
        Input { fd, file: system::inherited(fd), stream, splitter: Splitter::default(), has_ended: false }
    }

    /// Moves what there is, at most a chunk, into the journal.
    fn pass(&mut self, chunk: &mut [u8], journal: &mut Journal) {
        let read = match self.file.read(chunk) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => return,
            // A pipe does not break for its reader: this is a file that was not handed over.
            Err(_) => 0,
        };
        let (stream, at) = (self.stream, now());
        let emit = |text: &[u8], partial: bool| journal.line(at, stream, partial, text);
        if read == 0 {
            self.has_ended = true;
            self.splitter.finish(emit);
        } else {
            self.splitter.feed(&chunk[..read], emit);
        }
    }
}

/// Moves all that comes from `inputs` into the journal until both have ended.
fn run(inputs: &mut [Input; 2], journal: &mut Journal) {
    let mut chunk = vec![0; CHUNK];
    while inputs.iter().any(|input| !input.has_ended) {
        let timeout = journal.has_loss_to_tell().then_some(RETRY);
        let open = [&inputs[0], &inputs[1]].map(|input| (!input.has_ended).then_some(input.fd));
        let is_ready = system::wait(open, timeout);
        for (input, _) in inputs.iter_mut().zip(is_ready).filter(|(_, is_ready)| *is_ready) {
            input.pass(&mut chunk, journal);
        }
        journal.flush(now());
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    // A clock before 1970 is as good as none.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

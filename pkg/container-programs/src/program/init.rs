//! warren-init: the optional first process of a container.
//!
//! ```text
//! warren-init [--input PIPE] -- PROGRAM [ARGUMENT...]
//! ```
//!
//! It starts the program (searched in PATH like `execvp`) in its own process group, which gets the terminal
//! if there is one, forwards every signal to it, reaps all processes that end in the container, and exits
//! like the program: with its status, or 128 plus the number of the signal that ended it. Status 127 means
//! the program does not exist, 126 that it cannot be run, 125 a failure or invalid call of warren-init.
//!
//! With `--input`, what comes from a named pipe is the program's input, which ends when the pipe has no writer any
//! more. It is copied, since a named pipe without a writer cannot be opened again: `/dev/stdin` would wait for ever.
//!
//! It must never print anything but its errors, and never need a file of the image. Start reading at
//! `main`; `process.rs` has what the standard library lacks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

mod process;

/// Exit code of a failure of warren-init itself.
const INTERNAL_ERROR: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (input, words) = match &words[..] {
        [flag, pipe, words @ ..] if flag == "--input" => (Some(pipe.clone()), words),
        words => (None, words),
    };
    let code = match words {
        [word] if word == "--version" => {
            println!("warren-init 1");
            0
        }
        [dashes, program, arguments @ ..] if dashes == "--" => {
            let mut command = Command::new(program);
            command.args(arguments);
            run(command, input).unwrap_or_else(|(code, why)| {
                eprintln!("warren-init: {why}");
                code
            })
        }
        _ => {
            let form = "warren-init [--input PIPE] -- PROGRAM [ARGUMENT...]";
            eprintln!("warren-init: must be called as: {form}");
            INTERNAL_ERROR
        }
    };
    ExitCode::from(code)
}

/// Runs the program until it exits, with its input from a named pipe if there is one.
fn run(mut command: Command, input: Option<OsString>) -> Result<u8, (u8, String)> {
    // Signals stay blocked until `next_signal` takes them: none is lost before the program exists, and none
    // has its default effect on this process. The program starts with none blocked.
    process::block_signals().map_err(|error| (INTERNAL_ERROR, format!("cannot block signals: {error}")))?;
    process::prepare_child(&mut command);
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        (code, format!("cannot run {:?}: {error}", command.get_program()))
    })?;
    let program = child.id().cast_signed();
    if let (Some(pipe), Some(to_program)) = (input, child.stdin.take()) {
        let copying = thread::Builder::new().spawn(move || copy_input(pipe, to_program));
        copying.map_err(|error| (INTERNAL_ERROR, format!("cannot start a thread: {error}")))?;
    }
    loop {
        let signal = process::next_signal();
        if signal != process::SIGCHLD {
            process::send_signal(program, signal);
            continue;
        }
        // One signal may stand for several exits, including that of the program.
        let mut ended = None;
        while let Some((pid, status)) = process::reap() {
            if pid == program {
                ended = Some(status);
            }
        }
        if let Some(status) = ended {
            return Ok(exit_code(status));
        }
    }
}

/// Copies the input until the pipe has no writer any more, or the program has closed its end.
fn copy_input(pipe: OsString, mut to_program: ChildStdin) {
    // Opening waits for the first writer.
    let copied = File::open(&pipe).and_then(|mut from| io::copy(&mut from, &mut to_program));
    if let Err(error) = copied
        && error.kind() != ErrorKind::BrokenPipe
    {
        eprintln!("warren-init: cannot pass on the input from {}: {error}", pipe.display());
    }
}

/// The exit code, following the shell convention.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(INTERNAL_ERROR)
}

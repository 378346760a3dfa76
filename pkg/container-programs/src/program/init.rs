//! warren-init: the optional first process of a container.
//!
//! ```text
//! warren-init -- PROGRAM [ARGUMENT...]
//! ```
//!
//! It starts the program (searched in PATH like `execvp`) in its own process group, which gets the terminal
//! if there is one, forwards every signal to it, reaps all processes that end in the container, and exits
//! like the program: with its status, or 128 plus the number of the signal that ended it. Status 127 means
//! the program does not exist, 126 that it cannot be run, 125 a failure or invalid call of warren-init.
//!
//! It must never print anything but its errors, and never need a file of the image. Start reading at
//! `main`; `process.rs` has what the standard library lacks.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

mod process;

/// Exit code of a failure of warren-init itself.
const INTERNAL_ERROR: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let code = match &words[..] {
        [word] if word == "--version" => {
            println!("warren-init 1");
            0
        }
        [dashes, program, arguments @ ..] if dashes == "--" => {
            let mut command = Command::new(program);
            command.args(arguments);
            run(command).unwrap_or_else(|(code, why)| {
                eprintln!("warren-init: {why}");
                code
            })
        }
        _ => {
            eprintln!("warren-init: must be called as: warren-init -- PROGRAM [ARGUMENT...]");
            INTERNAL_ERROR
        }
    };
    ExitCode::from(code)
}

/// Runs the program until it exits.
fn run(mut command: Command) -> Result<u8, (u8, String)> {
    // Signals stay blocked until `next_signal` takes them: none is lost before the program exists, and none
    // has its default effect on this process. The program starts with none blocked.
    process::block_signals().map_err(|error| (INTERNAL_ERROR, format!("cannot block signals: {error}")))?;
    process::prepare_child(&mut command);
    let child = command.spawn().map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        (code, format!("cannot run {:?}: {error}", command.get_program()))
    })?;
    let program = child.id().cast_signed();
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

/// The exit code, following the shell convention.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(INTERNAL_ERROR)
}

//! warren-init: the first process of a container that asks for one.
//!
//! ```text
//! warren-init -- PROGRAM [ARGUMENT...]
//! ```
//!
//! It starts the program (searched in PATH as `execvp` does) in a process group of its own, which has the
//! terminal when there is one, sends it every signal that it gets itself, reaps whatever ends in the
//! container, and ends as the program did: with its status, or 128 plus the number of the signal that ended
//! it. Status 127 is a program that is not there, 126 one that cannot be run, 125 a fault of warren-init or
//! of how it was called.
//!
//! It must never write anything but why it cannot do its work, and never need a file of the image. Start
//! reading at `main`; `process.rs` has what the standard library does not offer.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

mod process;

/// Of a fault that is not the program's.
const OWN_FAULT: u8 = 125;
const CANNOT_RUN: u8 = 126;
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
            OWN_FAULT
        }
    };
    ExitCode::from(code)
}

/// Runs the program to its end.
fn run(mut command: Command) -> Result<u8, (u8, String)> {
    // Signals wait from here on until `next_signal` takes them: none can come before there is somebody to
    // send it to, and none has the effect on this process that it usually has. The program starts with none
    // held back.
    process::hold_signals().map_err(|error| (OWN_FAULT, format!("cannot hold signals: {error}")))?;
    process::prepare(&mut command);
    let child = command.spawn().map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
        (code, format!("cannot run {:?}: {error}", command.get_program()))
    })?;
    let program = child.id().cast_signed();
    loop {
        let signal = process::next_signal();
        if signal != process::SIGCHLD {
            process::send(program, signal);
            continue;
        }
        // One signal may stand for many ends, in which that of the program may be anywhere.
        let mut ended = None;
        while let Some((pid, status)) = process::reap() {
            if pid == program {
                ended = Some(status);
            }
        }
        if let Some(status) = ended {
            return Ok(code(status));
        }
    }
}

/// As a shell tells how a program ended.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAULT)
}

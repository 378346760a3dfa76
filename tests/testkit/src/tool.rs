//! Runs a system program to its end, with a deadline and with its output in the error.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Long enough for any of the small programs that tests run, on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be started.
    #[error("cannot start `{command}`: {source}; is the package that contains it installed?")]
    Start {
        /// The command line.
        command: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It did not end in time and was killed.
    #[error("`{command}` did not end within {deadline:?} and was killed")]
    Deadline {
        /// The command line.
        command: String,
        /// The deadline.
        deadline: Duration,
    },
    /// It ended with another status than 0.
    #[error("`{command}` ended with {status}: {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// The exit status as text.
        status: String,
        /// Its standard error, or its standard output when that is empty.
        stderr: String,
    },
}

/// Runs `command` to its end with nothing on its standard input, with any exit status; kills it at the
/// deadline.
pub fn output(mut command: Command, deadline: Duration) -> Result<Output, Error> {
    let line = describe(&command);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Start { command: line.clone(), source })?;
    let pid = Pid::from_raw(child.id().cast_signed());
    let (sender, receiver) = channel();
    let waiter = std::thread::spawn(move || {
        // The receiver is dropped only after the deadline: then the output is not used.
        let _ = sender.send(child.wait_with_output());
    });
    match receiver.recv_timeout(deadline) {
        Ok(ended) => {
            waiter.join().expect("the waiting thread does not panic");
            ended.map_err(|source| Error::Start { command: line, source })
        }
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            // The waiting thread has not reaped it (it would have sent), so the id is still this child's.
            let _ = kill(pid, Signal::SIGKILL);
            Err(Error::Deadline { command: line, deadline })
        }
    }
}

/// Runs `command` and returns its standard output; anything but exit status 0 is an error.
pub fn stdout(command: Command, deadline: Duration) -> Result<String, Error> {
    let line = describe(&command);
    let output = output(command, deadline)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let stderr = String::from_utf8_lossy(words).trim().to_owned();
    Err(Error::Failed { command: line, status: output.status.to_string(), stderr })
}

/// Runs `program` with `arguments`, which must succeed, and returns its standard output.
#[track_caller]
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    match stdout(command, DEADLINE) {
        Ok(text) => text,
        Err(error) => panic!("{error}"),
    }
}

/// The command line as a user would type it.
#[must_use]
pub fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|keyword| keyword.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn stdout_is_returned() {
        assert_eq!(run("echo", ["a", "b"]), "a b\n");
    }

    #[test]
    fn failure_has_stderr() {
        let error = stdout(shell("echo no such thing >&2; exit 3"), DEADLINE).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no such thing"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let error = output(shell("exec tail -f /dev/null"), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(Command::new("no-such-program"), DEADLINE).unwrap_err().to_string();
        assert!(error.contains("cannot start `no-such-program`"), "{error}");
    }

    #[test]
    fn output_larger_than_a_pipe_does_not_block() {
        assert_eq!(run("head", ["-c", "1000000", "/dev/zero"]).len(), 1_000_000);
    }
}

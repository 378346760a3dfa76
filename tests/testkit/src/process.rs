//! A program in the background that cannot outlive its test.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::tool::describe;
use crate::wait::{WaitTimeout, try_eventually};

/// How many lines of the log a failure shows.
const TAIL: usize = 40;
/// How long a killed process takes to exit.
const KILL_DEADLINE: Duration = Duration::from_secs(60);

/// A running program: leader of its own process group, with its output in a file. Dropping it kills the
/// remaining processes of that group, and no others.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl ChildProcess {
    /// Starts `command` with nothing on its standard input; both outputs are appended to `log`.
    #[track_caller]
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> ChildProcess {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap_or_else(|error| panic!("cannot write the log {}: {error}", log.display()));
        let errors = file.try_clone().expect("a file that was just opened can be opened twice");
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} by `{}`: {error}", describe(&command)));
        ChildProcess { name: name.to_owned(), child, log: log.to_owned(), ended: None }
    }

    /// The process id, which is also that of its group.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Sends `signal` to the process alone, which must not have ended.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "{} has ended: cannot send {signal}", self.name);
        if let Err(error) = kill(Pid::from_raw(self.pid()), signal) {
            panic!("cannot send {signal} to {} ({}): {error}", self.name, self.pid());
        }
    }

    /// Stops the process with SIGSTOP until [`ChildProcess::resume`].
    #[track_caller]
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes a paused process.
    #[track_caller]
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Whether the process has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("a child can be waited for");
        }
        self.ended
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        match self.ended_within(deadline) {
            Ok(status) => status,
            Err(error) => panic!("{error}; the end of its log:\n{}", self.log_tail(TAIL)),
        }
    }

    fn ended_within(&mut self, deadline: Duration) -> Result<ExitStatus, WaitTimeout> {
        let what = format!("the end of {}", self.name);
        try_eventually(deadline, &what, || {
            self.try_wait().ok_or_else(|| format!("process {} still runs", self.pid()))
        })
    }

    /// Stops the process with SIGTERM and waits for its end. Harmless when it has ended.
    #[track_caller]
    pub fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        if self.is_running() {
            self.signal(Signal::SIGTERM);
        }
        self.wait(deadline)
    }

    /// Kills the process (not its group: its children keep running, as after a crash). Harmless when it has
    /// ended.
    #[track_caller]
    pub fn kill(&mut self) -> ExitStatus {
        if self.is_running() {
            self.signal(Signal::SIGKILL);
        }
        self.wait(KILL_DEADLINE)
    }

    /// The whole output so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(
            |error| format!("(no log: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// The last lines of the output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // While a member of the group runs, or the leader is not reaped, the group id is not reused.
        match killpg(Pid::from_raw(self.pid()), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => eprintln!("cannot kill the process group of {}: {error}", self.name),
        }
        if let Err(error) = self.ended_within(KILL_DEADLINE) {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;
    use crate::wait::eventually;
    use std::os::unix::process::ExitStatusExt;

    const SOON: Duration = Duration::from_secs(60);

    fn shell(scratch: &ScratchDir, script: &str) -> ChildProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        ChildProcess::spawn("a shell", command, &scratch.path().join("log"))
    }

    fn state(pid: i32) -> Result<char, String> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| error.to_string())?;
        let (_, rest) = stat.rsplit_once(')').ok_or("no name in stat")?;
        rest.trim_start().chars().next().ok_or_else(|| "no state in stat".to_owned())
    }

    #[test]
    fn output_and_status_are_kept() {
        let scratch = ScratchDir::new();
        let mut process = shell(&scratch, "echo one; echo two >&2; exit 3");
        assert_eq!(process.wait(SOON).code(), Some(3));
        assert_eq!(process.log(), "one\ntwo\n");
        assert_eq!(process.log_tail(1), "two");
        // Twice is harmless.
        assert_eq!(process.terminate(SOON).code(), Some(3));
        assert_eq!(process.kill().code(), Some(3));
    }

    #[test]
    fn process_ends_by_signal() {
        let scratch = ScratchDir::new();
        let mut process =
            shell(&scratch, "trap 'exit 5' TERM; echo ready; while :; do read -r x < /dev/zero; done");
        eventually(SOON, "the trap", || {
            if process.log().contains("ready") { Ok(()) } else { Err(process.log()) }
        });
        process.kill();
        assert_eq!(process.ended.and_then(|status| status.signal()), Some(9));

        let mut process = shell(&scratch, "trap 'exit 5' TERM; echo again; while :; do :; done");
        eventually(SOON, "the trap", || {
            if process.log().contains("again") { Ok(()) } else { Err(process.log()) }
        });
        assert_eq!(process.terminate(SOON).code(), Some(5));
    }

    #[test]
    fn a_paused_process_goes_on_when_resumed() {
        let scratch = ScratchDir::new();
        let mut process = shell(&scratch, "while :; do :; done");
        let is =
            |expected: char, found: char| if expected == found { Ok(()) } else { Err(found.to_string()) };
        process.pause();
        eventually(SOON, "the pause", || state(process.pid()).and_then(|found| is('T', found)));
        process.resume();
        eventually(SOON, "the run", || state(process.pid()).and_then(|found| is('R', found)));
        assert!(process.is_running());
    }

    #[test]
    fn drop_kills_children() {
        let scratch = ScratchDir::new();
        let process = shell(&scratch, "tail -f /dev/null & echo $!; wait");
        let child: i32 =
            eventually(SOON, "the child's id", || process.log().trim().parse().map_err(|_| process.log()));
        drop(process);
        eventually(SOON, "the child's end", || match state(child) {
            Err(_) | Ok('Z') => Ok(()),
            Ok(other) => Err(format!("state {other}")),
        });
    }

    #[test]
    #[should_panic(expected = "the end of its log:\nworking")]
    fn stuck_process_panics_with_its_log() {
        let scratch = ScratchDir::new();
        let mut process = shell(&scratch, "echo working; exec tail -f /dev/null");
        eventually(SOON, "the output", || {
            if process.log().is_empty() { Err("none") } else { Ok(()) }.map_err(str::to_owned)
        });
        process.wait(Duration::from_millis(20));
    }
}

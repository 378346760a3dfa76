//! Starts a logger like containerd's shim: 3 and 4 are the container's outputs, 5 is closed when it is
//! ready, and other descriptors of the shim are open too.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_container_logs::{OutputEntry, OutputReader, ReadOptions};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;

/// Far longer than any operation here on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The shell only puts descriptors in place; their copies are the inherited ones.
const SHIM_SCRIPT: &str =
    "exec 3<&0 4<&1 5>&2 6<&0 7>&2 8<&1 9>&2 </dev/null >/dev/null 2>\"$0\" && exec \"$@\"";

/// A running logger. Dropping it closes its input and kills it.
pub struct RunningLogger {
    child: Child,
    /// Standard output of the container, until it is dropped.
    pub out: Option<PipeWriter>,
    /// Standard error of the container, until it is dropped.
    pub err: Option<PipeWriter>,
    start_and_wait: Option<PipeReader>,
    /// Standard error of the logger.
    stderr: std::path::PathBuf,
}

impl RunningLogger {
    /// Starts a logger with these arguments.
    pub fn start(scratch: &ScratchDir, arguments: &[&str]) -> RunningLogger {
        let programs = warren_container_programs::ensure_installed(scratch.path()).unwrap();
        let (from_out, out) = std::io::pipe().unwrap();
        let (from_err, err) = std::io::pipe().unwrap();
        let (ready, to_ready) = std::io::pipe().unwrap();
        let words = scratch.path().join("words");
        let mut command = Command::new("sh");
        command.args(["-c", SHIM_SCRIPT]).arg(&words).arg(programs.logger).args(arguments);
        command.env_clear().current_dir(scratch.path());
        let child = command.stdin(from_out).stdout(from_err).stderr(to_ready).spawn().unwrap();
        RunningLogger { child, out: Some(out), err: Some(err), start_and_wait: Some(ready), stderr: words }
    }

    /// Starts a logger with generous limits in `dir`, and waits until it is ready.
    pub fn start_and_wait(scratch: &ScratchDir, dir: &Path, max_size: u64, max_files: u64) -> RunningLogger {
        let (size, files) = (max_size.to_string(), max_files.to_string());
        let mut logger = RunningLogger::start(
            scratch,
            &["max-files", &files, "dir", dir.to_str().unwrap(), "max-size", &size, "attempt", "1"],
        );
        logger.wait_ready();
        logger
    }

    /// Waits until 5 is closed, in every copy.
    pub fn wait_ready(&mut self) {
        let mut ready = self.start_and_wait.take().expect("it is ready once");
        let (sender, receiver) = std::sync::mpsc::channel();
        // It ends with the logger at the latest; then the receiver may be dropped.
        std::thread::spawn(move || sender.send(ready.read(&mut [0])));
        match receiver.recv_timeout(TIMEOUT) {
            Ok(read) => assert_eq!(read.unwrap(), 0, "the logger closes, it does not write"),
            Err(_) => panic!("the logger is not ready in {TIMEOUT:?}"),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the exit, which requires that both outputs are closed.
    pub fn wait(&mut self) -> ExitStatus {
        eventually(TIMEOUT, "the end of the logger", || {
            self.child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        })
    }

    /// Its standard error output.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// A line of `/proc/PID/status` in KiB.
    pub fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time used so far.
    pub fn processor_time(&self) -> Duration {
        let mut stat = String::new();
        File::open(format!("/proc/{}/stat", self.pid())).unwrap().read_to_string(&mut stat).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let ticks: u64 =
            rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        // The kernel counts in hundredths of a second.
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for RunningLogger {
    fn drop(&mut self) {
        // It fails only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of the files in `dir`, while the logger may remove some.
pub fn disk_usage(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.filter_map(|entry| entry.unwrap().metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// All entries of `dir`.
pub fn read_all(dir: &Path) -> Vec<OutputEntry> {
    read(dir, ReadOptions::default())
}

pub fn read(dir: &Path, options: ReadOptions) -> Vec<OutputEntry> {
    runtime().block_on(async {
        let mut reader = OutputReader::open(dir, options).await.unwrap();
        let mut found = Vec::new();
        while let Some(entries) = reader.next().await.unwrap() {
            found.extend(entries);
        }
        found
    })
}

/// A single-threaded runtime.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The texts of the lines, and other entries in angle brackets.
pub fn texts(entries: &[OutputEntry]) -> Vec<String> {
    let text = |entry: &OutputEntry| match entry {
        OutputEntry::Line(line) => String::from_utf8_lossy(&line.text).into_owned(),
        OutputEntry::Attempt { attempt, .. } => format!("<attempt {attempt}>"),
        OutputEntry::Lost { lines, .. } => format!("<lost {lines}>"),
        other => format!("<{other:?}>"),
    };
    entries.iter().map(text).collect()
}

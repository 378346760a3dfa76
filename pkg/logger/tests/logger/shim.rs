//! A logger started as containerd's shim starts it: 3 and 4 are the container's outputs, 5 is closed when it
//! is ready, and whatever else the shim had open is open too.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_logger::{Entry, Options, Reader};
use warren_testkit::scratch::Scratch;
use warren_testkit::wait::eventually;

/// Far more than anything here takes on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// The shell only puts files in place; the copies of them are the strays.
const PLACE: &str = "exec 3<&0 4<&1 5>&2 6<&0 7>&2 8<&1 9>&2 </dev/null >/dev/null 2>\"$0\" && exec \"$@\"";

/// A logger that runs. Dropping it closes its input and kills it.
pub struct Logger {
    child: Child,
    /// The container's standard output, until it is dropped.
    pub out: Option<PipeWriter>,
    /// The container's standard error, until it is dropped.
    pub err: Option<PipeWriter>,
    ready: Option<PipeReader>,
    /// Its own standard error.
    words: std::path::PathBuf,
}

impl Logger {
    /// Starts one with these arguments, given as words.
    pub fn start(scratch: &Scratch, arguments: &[&str]) -> Logger {
        let programs = warren_logger::ensure_installed(scratch.path()).unwrap();
        let (from_out, out) = std::io::pipe().unwrap();
        let (from_err, err) = std::io::pipe().unwrap();
        let (ready, to_ready) = std::io::pipe().unwrap();
        let words = scratch.path().join("words");
        let mut command = Command::new("sh");
        command.args(["-c", PLACE]).arg(&words).arg(programs.logger).args(arguments);
        command.env_clear().current_dir(scratch.path());
        let child = command.stdin(from_out).stdout(from_err).stderr(to_ready).spawn().unwrap();
        Logger { child, out: Some(out), err: Some(err), ready: Some(ready), words }
    }

    /// Starts one that keeps plenty in `dir`, and waits until it is ready.
    pub fn ready(scratch: &Scratch, dir: &Path, max_size: u64, max_files: u64) -> Logger {
        let (size, files) = (max_size.to_string(), max_files.to_string());
        let mut logger = Logger::start(
            scratch,
            &["max-files", &files, "dir", dir.to_str().unwrap(), "max-size", &size, "attempt", "1"],
        );
        logger.wait_ready();
        logger
    }

    /// Waits until 5 is closed, in every copy.
    pub fn wait_ready(&mut self) {
        let mut ready = self.ready.take().expect("it is ready once");
        let (told, is_told) = std::sync::mpsc::channel();
        // It ends when the logger does, at the latest; nobody listens any more then.
        std::thread::spawn(move || told.send(ready.read(&mut [0])));
        match is_told.recv_timeout(SOON) {
            Ok(read) => assert_eq!(read.unwrap(), 0, "the logger closes, it does not write"),
            Err(_) => panic!("the logger is not ready in {SOON:?}"),
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

    /// Waits for the end, which does not come before both outputs are closed.
    pub fn ended(&mut self) -> ExitStatus {
        eventually(SOON, "the end of the logger", || {
            self.child.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        })
    }

    /// What it wrote to its standard error.
    pub fn words(&self) -> String {
        std::fs::read_to_string(&self.words).unwrap()
    }

    /// A line of `/proc/PID/status` in KiB.
    pub fn kibibytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// How much of a processor it took so far.
    pub fn processor_time(&self) -> Duration {
        let mut stat = String::new();
        File::open(format!("/proc/{}/stat", self.pid())).unwrap().read_to_string(&mut stat).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let ticks: u64 =
            rest.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        // The kernel counts in hundredths of a second for everybody.
        Duration::from_millis(ticks * 10)
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        // It fails only when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All that is in `dir`.
pub fn everything(dir: &Path) -> Vec<Entry> {
    read(dir, Options::default())
}

pub fn read(dir: &Path, options: Options) -> Vec<Entry> {
    runtime().block_on(async {
        let mut reader = Reader::open(dir, options).await.unwrap();
        let mut found = Vec::new();
        while let Some(entries) = reader.next().await.unwrap() {
            found.extend(entries);
        }
        found
    })
}

/// A runtime of one thread.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The texts of the lines, and in angle brackets what else there is.
pub fn texts(entries: &[Entry]) -> Vec<String> {
    let text = |entry: &Entry| match entry {
        Entry::Line(line) => String::from_utf8_lossy(&line.text).into_owned(),
        Entry::Attempt { attempt, .. } => format!("<attempt {attempt}>"),
        Entry::Lost { lines, .. } => format!("<lost {lines}>"),
        other => format!("<{other:?}>"),
    };
    entries.iter().map(text).collect()
}

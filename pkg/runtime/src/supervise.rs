//! A containerd for this node: the one the machine runs, or one of our own.
//!
//! Our own runs in a session of its own, so that it and its containers outlive the agent that started it;
//! the next agent adopts it. It is recognised by its command line, which names a configuration file only we
//! write, so that there is no second record that could be stale. While an agent runs, a containerd of ours
//! that dies is started again; containers do not notice.

mod configuration;
mod detach;
mod program;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use warren_image::Connection;

use crate::pidfd::{self, Pidfd};
use configuration::Files;
use warren_types::Signal;

/// Where a containerd installed by the distribution listens.
pub const SYSTEM_SOCKET: &str = "/run/containerd/containerd.sock";

const PROBE: Duration = Duration::from_secs(3);
const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// One that ran this long was healthy: the next failure is a new one.
const HEALTHY: Duration = Duration::from_secs(60);

/// What to use, and where our own containerd keeps its things if we need one.
#[derive(Clone, Debug)]
pub struct Options {
    /// Use the containerd at this socket and no other. The socket of our own asks for one of our own,
    /// whether the machine's answers or not.
    pub socket: Option<PathBuf>,
    /// Where the machine's containerd would be; [`SYSTEM_SOCKET`] outside of tests.
    pub system_socket: PathBuf,
    /// Images and containers of our own containerd; on disk.
    pub root: PathBuf,
    /// Its socket, configuration and run-time state; lost with a reboot. A short path: sockets have at most
    /// 107 bytes.
    pub state: PathBuf,
    /// The program; searched for in `PATH` and the usual directories if `None`.
    pub binary: Option<PathBuf>,
}

impl Options {
    /// The usual search: the machine's containerd if it answers, else one of our own below the two
    /// directories.
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        let (root, state) = (root.into(), state.into());
        Self { socket: None, system_socket: SYSTEM_SOCKET.into(), root, state, binary: None }
    }
}

/// The containerd to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its socket.
    pub socket: PathBuf,
    /// We started it, now or earlier, and keep it running.
    pub ours: bool,
}

/// How the containerd that we keep is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is not ours to keep.
    Foreign,
    /// It runs.
    Running {
        /// Its process id.
        pid: u32,
    },
    /// It died and is about to be started again.
    Down {
        /// Why the last attempt failed, or how it ended.
        reason: String,
    },
}

/// Why there is no containerd.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Starting one takes root.
    #[error("no containerd answers and starting one needs root; run as root or start containerd yourself")]
    NotRoot,
    /// A program is not installed.
    #[error("{program} is not installed; install it, on Debian by `apt-get install containerd runc`")]
    Missing {
        /// Its name or path.
        program: String,
    },
    /// The socket that was asked for does not answer.
    #[error("no containerd answers at {}: {reason}", socket.display())]
    NotAnswering {
        /// The socket.
        socket: PathBuf,
        /// What connecting said.
        reason: String,
    },
    /// A directory cannot be used.
    #[error("{} cannot be used for containerd: {reason}", path.display())]
    Path {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It was started and did not come up.
    #[error("containerd did not start: {reason}; its log is {}", log.display())]
    Start {
        /// What happened, with the end of its log.
        reason: String,
        /// The whole log.
        log: PathBuf,
    },
}

/// Keeps a containerd of ours running as long as it lives; dropping it leaves containerd as it is.
#[derive(Debug)]
pub struct Supervisor {
    endpoint: Endpoint,
    files: Files,
    status: watch::Receiver<Status>,
    keeper: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Finds a containerd that answers, or starts one. In this order: the socket given; our own, if it runs
    /// or has run (its images and containers are there); the machine's; a new one of our own. A given socket
    /// that is where our own has its socket asks for our own, whatever the machine has.
    ///
    /// # Errors
    /// [`Error`] says what to install or to change.
    pub async fn ensure(options: Options) -> Result<Self, Error> {
        let files = Files::new(&options.root, &options.state)?;
        let own_wanted = options.socket.as_ref() == Some(&files.socket);
        if let Some(socket) = options.socket.as_ref().filter(|_| !own_wanted) {
            let reason = |status: tonic::Status| Error::NotAnswering {
                socket: socket.clone(),
                reason: status.message().to_owned(),
            };
            probe(socket).await.map_err(reason)?;
            return Ok(Self::foreign(socket.clone(), files));
        }
        let running = program::find(&files.configuration);
        if !own_wanted
            && running.is_none()
            && !files.was_used()
            && probe(&options.system_socket).await.is_ok()
        {
            return Ok(Self::foreign(options.system_socket, files));
        }
        let process = match running {
            Some(process) => adopt(process, &files, options.binary.as_deref()).await?,
            None => start(&files, options.binary.as_deref()).await?,
        };
        let (report, status) = watch::channel(Status::Running { pid: process.pid });
        let endpoint = Endpoint { socket: files.socket.clone(), ours: true };
        let keeper = tokio::spawn(keep(process, files.clone(), options.binary, report));
        Ok(Self { endpoint, files, status, keeper: Some(keeper) })
    }

    fn foreign(socket: PathBuf, files: Files) -> Self {
        let (_, status) = watch::channel(Status::Foreign);
        Self { endpoint: Endpoint { socket, ours: false }, files, status, keeper: None }
    }

    /// The containerd to talk to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How it is doing, and every change of that.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Ends our containerd; somebody else's is left alone. Containers live on: remove them first if they
    /// should not.
    ///
    /// # Errors
    /// When it survives being killed.
    pub async fn stop(mut self) -> Result<(), Error> {
        let Some(keeper) = self.keeper.take() else { return Ok(()) };
        keeper.abort();
        // Only once the keeper is gone can it no longer start another.
        let _ = keeper.await;
        if let Some(process) = program::find(&self.files.configuration) {
            end(process.pidfd, &self.files).await?;
        }
        self.files.remove_volatile();
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
    }
}

/// A containerd of ours. The child is there to be reaped; one adopted from an earlier agent is nobody's
/// child of ours.
#[derive(Debug)]
struct Process {
    pid: u32,
    pidfd: Pidfd,
    child: Option<Child>,
}

impl Process {
    async fn ended(self) -> String {
        if let Some(mut child) = self.child {
            return match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
        }
        match pidfd::ended(&self.pidfd).await {
            Ok(()) => "it ended".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

async fn keep(process: Process, files: Files, binary: Option<PathBuf>, report: watch::Sender<Status>) {
    let mut process = process;
    let mut pause = BACK_OFF.0;
    loop {
        let since = Instant::now();
        let mut reason = process.ended().await;
        if since.elapsed() > HEALTHY {
            pause = BACK_OFF.0;
        }
        process = loop {
            tracing::warn!(reason, "containerd is down and will be started again");
            report.send_replace(Status::Down { reason });
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF.1);
            match start(&files, binary.as_deref()).await {
                Ok(process) => break process,
                Err(error) => reason = error.to_string(),
            }
        };
        report.send_replace(Status::Running { pid: process.pid });
    }
}

/// Takes over one that an earlier agent started. One that does not answer in time is replaced.
async fn adopt(process: Process, files: &Files, binary: Option<&Path>) -> Result<Process, Error> {
    match answers(files, || process.pidfd.is_alive()).await {
        Ok(()) => Ok(process),
        Err(reason) => {
            tracing::warn!(reason, pid = process.pid, "our containerd does not answer; replacing it");
            end(process.pidfd, files).await?;
            start(files, binary).await
        }
    }
}

async fn start(files: &Files, binary: Option<&Path>) -> Result<Process, Error> {
    let failed = |reason: String| Error::Start { reason, log: files.log.clone() };
    let command = program::command(files, binary)?;
    let mut child =
        tokio::process::Command::from(command).spawn().map_err(|error| failed(error.to_string()))?;
    let pid = child.id().ok_or_else(|| failed("it ended at once".to_owned()))?;
    let pidfd = Pidfd::open(pid).map_err(|error| failed(error.to_string()))?;
    let alive = || child.try_wait().is_ok_and(|ended| ended.is_none());
    match answers(files, alive).await {
        Ok(()) => Ok(Process { pid, pidfd, child: Some(child) }),
        Err(reason) => {
            end(pidfd, files).await?;
            Err(failed(format!("{reason}; it said: {}", files.last_words())))
        }
    }
}

/// Waits until containerd answers.
async fn answers(files: &Files, mut alive: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + START;
    loop {
        let status = match probe(&files.socket).await {
            Ok(()) => return Ok(()),
            Err(status) => status,
        };
        if !alive() {
            return Err("it ended".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("no answer within {START:?}: {}", status.message()));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn end(pidfd: Pidfd, files: &Files) -> Result<(), Error> {
    let failed = |reason: String| Error::Start { reason, log: files.log.clone() };
    for signal in [Signal::TERM, Signal::KILL] {
        pidfd.send(signal).map_err(|error| failed(error.to_string()))?;
        let deadline = Instant::now() + STOP;
        while pidfd.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
        if !pidfd.is_alive() {
            return Ok(());
        }
    }
    Err(failed("an earlier one cannot be killed".to_owned()))
}

/// The process id of the containerd that was started with this configuration file.
#[cfg(feature = "testing")]
pub(crate) fn running_pid(configuration: &Path) -> Option<u32> {
    program::find(configuration).map(|process| process.pid)
}

async fn probe(socket: &Path) -> Result<(), tonic::Status> {
    Connection::new(socket, "warren")?.version(PROBE).await.map(|_| ())
}

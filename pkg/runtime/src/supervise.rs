//! The containerd of this node: the machine's, or a private one.
//!
//! A private containerd runs in its own session, so that it and its containers outlive the agent that started
//! it; the next agent adopts it. It is recognized by its command line with the path of a configuration file
//! that only this crate writes, so there is no second record that could be stale. While an agent runs, a
//! private containerd that ends is restarted; containers are not affected.

mod configuration;
mod detach;
mod program;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use warren_image::ContainerdConnection;

use crate::pidfd::{self, Pidfd};
use configuration::ContainerdPaths;
use warren_types::Signal;

/// Socket of a containerd that the distribution installed.
pub const SYSTEM_SOCKET: &str = "/run/containerd/containerd.sock";

const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A containerd that ran this long was healthy: its exit starts a new series of failures.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// Choice of containerd, and directories of a private one.
#[derive(Clone, Debug)]
pub struct SupervisorOptions {
    /// Use only the containerd at this socket. The socket of the private containerd selects that one, whether
    /// the machine's answers or not.
    pub socket: Option<PathBuf>,
    /// Socket of the machine's containerd; [`SYSTEM_SOCKET`] outside of tests.
    pub system_socket: PathBuf,
    /// Images and containers of the private containerd; persistent.
    pub root: PathBuf,
    /// Socket, configuration and run-time state of the private containerd; volatile. Use a short path: socket
    /// paths have at most 107 bytes.
    pub state: PathBuf,
    /// Path of containerd; `None`: searched in `PATH` and the usual directories.
    pub binary: Option<PathBuf>,
}

impl SupervisorOptions {
    /// Defaults: the machine's containerd if it answers, else a private one below the two directories.
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        let (root, state) = (root.into(), state.into());
        Self { socket: None, system_socket: SYSTEM_SOCKET.into(), root, state, binary: None }
    }
}

/// The containerd to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerdEndpoint {
    /// Its socket.
    pub socket: PathBuf,
    /// This process supervises it: started by this agent or an earlier one.
    pub is_managed: bool,
}

/// State of the supervised containerd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerdStatus {
    /// Not supervised by this process.
    External,
    /// It runs.
    Running {
        /// Process id.
        pid: u32,
    },
    /// It exited and is about to be restarted.
    Down {
        /// The last start error, or how it ended.
        reason: String,
    },
}

/// No containerd can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Starting containerd needs root.
    #[error("no containerd answers, and starting one needs root; run as root or start containerd")]
    NotRoot,
    /// A program is not installed.
    #[error("{program} is not installed; install it, on Debian by `apt-get install containerd runc`")]
    Missing {
        /// Name or path.
        program: String,
    },
    /// The configured socket does not answer.
    #[error("no containerd answers at {}: {reason}", socket.display())]
    NotAnswering {
        /// The socket.
        socket: PathBuf,
        /// The connection error.
        reason: String,
    },
    /// A directory cannot be used.
    #[error("{} cannot be used for containerd: {reason}", path.display())]
    Path {
        /// The directory or file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// It was started and did not become ready.
    #[error("containerd did not start: {reason}; its log is {}", log.display())]
    Start {
        /// The cause, with the end of its log.
        reason: String,
        /// Path of the log.
        log: PathBuf,
    },
}

/// A containerd that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerdPreview {
    /// Its version.
    pub version: String,
    /// Its socket; `None` if it would be started.
    pub socket: Option<PathBuf>,
}

/// What [`ContainerdSupervisor::ensure`] would use. Starts nothing and changes nothing.
///
/// # Errors
/// [`Error`] says what to install or to change.
pub async fn preview(options: &SupervisorOptions) -> Result<ContainerdPreview, Error> {
    let files = ContainerdPaths::new(&options.root, &options.state)?;
    match select(options, &files).await? {
        Selection::External { socket, version } => Ok(ContainerdPreview { version, socket: Some(socket) }),
        Selection::Running(_) => {
            let socket = files.socket;
            let version = probe(&socket).await.map_err(|status| not_answering(&socket, &status))?;
            Ok(ContainerdPreview { version, socket: Some(socket) })
        }
        Selection::New => {
            let version = program::version(options.binary.as_deref()).await?;
            Ok(ContainerdPreview { version, socket: None })
        }
    }
}

/// The containerd to use.
enum Selection {
    External {
        socket: PathBuf,
        version: String,
    },
    /// The private one, which runs.
    Running(ContainerdProcess),
    /// The private one, which must be started.
    New,
}

/// Selects the containerd, in the order of [`ContainerdSupervisor::ensure`].
async fn select(options: &SupervisorOptions, files: &ContainerdPaths) -> Result<Selection, Error> {
    let own_wanted = options.socket.as_ref() == Some(&files.socket);
    if let Some(socket) = options.socket.clone().filter(|_| !own_wanted) {
        let version = probe(&socket).await.map_err(|status| not_answering(&socket, &status))?;
        return Ok(Selection::External { socket, version });
    }
    if let Some(process) = program::find(&files.configuration) {
        return Ok(Selection::Running(process));
    }
    if !own_wanted
        && !files.was_used()
        && let Ok(version) = probe(&options.system_socket).await
    {
        return Ok(Selection::External { socket: options.system_socket.clone(), version });
    }
    Ok(Selection::New)
}

fn not_answering(socket: &Path, status: &tonic::Status) -> Error {
    Error::NotAnswering { socket: socket.to_owned(), reason: status.message().to_owned() }
}

/// Supervises a private containerd while it exists; dropping it leaves containerd running.
#[derive(Debug)]
pub struct ContainerdSupervisor {
    endpoint: ContainerdEndpoint,
    paths: ContainerdPaths,
    status: watch::Receiver<ContainerdStatus>,
    task: Option<JoinHandle<()>>,
}

impl ContainerdSupervisor {
    /// Finds a containerd that answers, or starts one. In this order: the configured socket; the private
    /// containerd, if it runs or has run (it has images and containers); the machine's; a new private one. A
    /// configured socket that is the private containerd's selects that one, whatever the machine has.
    ///
    /// # Errors
    /// [`Error`] says what to install or to change.
    pub async fn ensure(options: SupervisorOptions) -> Result<Self, Error> {
        let files = ContainerdPaths::new(&options.root, &options.state)?;
        let process = match select(&options, &files).await? {
            Selection::External { socket, .. } => return Ok(Self::external(socket, files)),
            Selection::Running(process) => adopt(process, &files, options.binary.as_deref()).await?,
            Selection::New => start(&files, options.binary.as_deref()).await?,
        };
        let (report, status) = watch::channel(ContainerdStatus::Running { pid: process.pid });
        let endpoint = ContainerdEndpoint { socket: files.socket.clone(), is_managed: true };
        let supervisor_task = tokio::spawn(supervise(process, files.clone(), options.binary, report));
        Ok(Self { endpoint, paths: files, status, task: Some(supervisor_task) })
    }

    fn external(socket: PathBuf, files: ContainerdPaths) -> Self {
        let (_, status) = watch::channel(ContainerdStatus::External);
        Self { endpoint: ContainerdEndpoint { socket, is_managed: false }, paths: files, status, task: None }
    }

    /// Where containerd is reached.
    pub fn endpoint(&self) -> &ContainerdEndpoint {
        &self.endpoint
    }

    /// The state of containerd, with every change.
    pub fn status(&self) -> watch::Receiver<ContainerdStatus> {
        self.status.clone()
    }

    /// Stops the private containerd; an external one is not touched. Containers keep running: remove them
    /// first if they should stop.
    ///
    /// # Errors
    /// It survives SIGKILL.
    pub async fn stop(mut self) -> Result<(), Error> {
        let Some(supervisor_task) = self.task.take() else { return Ok(()) };
        supervisor_task.abort();
        // After the supervisor task ended, no other containerd can be started.
        let _ = supervisor_task.await;
        if let Some(process) = program::find(&self.paths.configuration) {
            stop_process(process.pidfd, &self.paths).await?;
        }
        self.paths.remove_volatile();
        Ok(())
    }
}

impl Drop for ContainerdSupervisor {
    fn drop(&mut self) {
        if let Some(supervisor_task) = &self.task {
            supervisor_task.abort();
        }
    }
}

/// A private containerd. The child must be reaped; one adopted from an earlier agent is not a child of this
/// process.
#[derive(Debug)]
struct ContainerdProcess {
    pid: u32,
    pidfd: Pidfd,
    child: Option<Child>,
}

impl ContainerdProcess {
    async fn wait(self) -> String {
        if let Some(mut child) = self.child {
            return match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
        }
        match pidfd::wait_for_exit(&self.pidfd).await {
            Ok(()) => "it exited".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

async fn supervise(
    process: ContainerdProcess,
    files: ContainerdPaths,
    binary: Option<PathBuf>,
    report: watch::Sender<ContainerdStatus>,
) {
    let mut process = process;
    let mut pause = BACK_OFF.0;
    loop {
        let since = Instant::now();
        let mut reason = process.wait().await;
        if since.elapsed() > HEALTHY_AFTER {
            pause = BACK_OFF.0;
        }
        process = loop {
            tracing::warn!(reason, "containerd is down; restarting it");
            report.send_replace(ContainerdStatus::Down { reason });
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF.1);
            match start(&files, binary.as_deref()).await {
                Ok(process) => break process,
                Err(error) => reason = error.to_string(),
            }
        };
        report.send_replace(ContainerdStatus::Running { pid: process.pid });
    }
}

/// Adopts a containerd that an earlier agent started. One that does not answer in time is replaced.
async fn adopt(
    process: ContainerdProcess,
    files: &ContainerdPaths,
    binary: Option<&Path>,
) -> Result<ContainerdProcess, Error> {
    match wait_until_ready(files, || process.pidfd.is_alive()).await {
        Ok(()) => Ok(process),
        Err(reason) => {
            tracing::warn!(reason, pid = process.pid, "private containerd does not answer; replacing it");
            stop_process(process.pidfd, files).await?;
            start(files, binary).await
        }
    }
}

async fn start(files: &ContainerdPaths, binary: Option<&Path>) -> Result<ContainerdProcess, Error> {
    let failed = |reason: String| Error::Start { reason, log: files.log.clone() };
    let command = program::command(files, binary)?;
    let mut child =
        tokio::process::Command::from(command).spawn().map_err(|error| failed(error.to_string()))?;
    let pid = child.id().ok_or_else(|| failed("it exited at once".to_owned()))?;
    let pidfd = Pidfd::open(pid).map_err(|error| failed(error.to_string()))?;
    let alive = || child.try_wait().is_ok_and(|ended| ended.is_none());
    match wait_until_ready(files, alive).await {
        Ok(()) => Ok(ContainerdProcess { pid, pidfd, child: Some(child) }),
        Err(reason) => {
            stop_process(pidfd, files).await?;
            Err(failed(format!("{reason}; end of its log: {}", files.log_tail())))
        }
    }
}

/// Waits until containerd answers.
async fn wait_until_ready(files: &ContainerdPaths, mut alive: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let status = match probe(&files.socket).await {
            Ok(_) => return Ok(()),
            Err(status) => status,
        };
        if !alive() {
            return Err("it exited".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("no answer within {START_TIMEOUT:?}: {}", status.message()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn stop_process(pidfd: Pidfd, files: &ContainerdPaths) -> Result<(), Error> {
    let failed = |reason: String| Error::Start { reason, log: files.log.clone() };
    for signal in [Signal::TERM, Signal::KILL] {
        pidfd.send(signal).map_err(|error| failed(error.to_string()))?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while pidfd.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        if !pidfd.is_alive() {
            return Ok(());
        }
    }
    Err(failed("cannot kill an earlier private containerd".to_owned()))
}

/// Process id of the containerd that was started with this configuration file.
#[cfg(feature = "testing")]
pub(crate) fn running_pid(configuration: &Path) -> Option<u32> {
    program::find(configuration).map(|process| process.pid)
}

/// The version of the containerd at this socket.
async fn probe(socket: &Path) -> Result<String, tonic::Status> {
    ContainerdConnection::new(socket, "warren")?.version(PROBE_TIMEOUT).await
}

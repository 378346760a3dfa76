//! Attaches to the first process of a container: to its input and its terminal.
//!
//! The supervisor holds the writing end of the input's pipe from the creation of the process until it is asked to close
//! it. So the input stays open when a client, this process or containerd ends.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};
use warren_types::Signal;

use super::exec::ExecRef;
use super::process_watcher::open_pidfd;
use super::{Inner, record};
use crate::Result;
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::exec::{AttachedProcess, ExecHandle, ExecInput, TerminalSize};
use crate::pidfd::Pidfd;

/// How long a started process may take to open its end of the pipe.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
const READER_POLL: Duration = Duration::from_millis(10);
/// Owner only.
const PIPE_MODE: u32 = 0o600;

/// The first process of a container, for one client.
struct FirstProcess {
    shared: Arc<Inner>,
    process: ExecRef,
    /// `None` after an early end.
    pidfd: Option<Pidfd>,
    /// `None` without an input that can end: a terminal has no end of input.
    pipe: Option<PathBuf>,
}

impl Inner {
    pub(super) async fn attach(
        self: &Arc<Self>,
        id: &ContainerId,
        with_input: bool,
    ) -> Result<AttachedProcess> {
        let missing = |what| Error::NotFound { id: id.to_string(), what };
        let found = self.get_record(id).await?.ok_or_else(|| missing("record"))?;
        let ProcessState::Running { pid } = self.process(id).await? else {
            return Err(missing("running process"));
        };
        let first = record::first_process(&found).ok_or_else(|| missing("process"))?;
        let pipe = found.labels.get(record::STDIN).map(PathBuf::from);
        let input = match (with_input, &pipe) {
            (false, _) => None,
            (true, None) => return Err(Error::invalid_field("stdin", "its standard input is not open")),
            (true, Some(pipe)) => Some(open_pipe(id, pipe).await?),
        };
        let handle = FirstProcess {
            shared: Arc::clone(self),
            process: ExecRef { id: id.clone(), exec_id: String::new() },
            pidfd: open_pidfd(id, pid),
            pipe: pipe.filter(|_| first.terminal() != Some(true)),
        };
        Ok(AttachedProcess { input, handle: Box::new(handle) })
    }
}

#[async_trait]
impl ExecHandle for FirstProcess {
    async fn wait(&self) -> Result<u32> {
        self.shared.wait_exec(&self.process).await
    }

    async fn close_input(&self) -> Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        self.shared.close_input(&self.process).await?;
        // No later client opens an input that has ended.
        match fs::remove_file(pipe) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(pipe_failed("remove", pipe, &error)),
            _ => Ok(()),
        }
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.shared.resize(&self.process, size).await
    }

    fn signal(&self, signal: Signal) {
        if let Some(pidfd) = &self.pidfd {
            // One that has ended meanwhile is fine.
            let _ = pidfd.send(signal);
        }
    }
}

/// Creates the pipe of a container's input unless it exists, for this user of the container.
pub(super) fn ensure_pipe(path: &Path, uid: u32) -> Result<()> {
    let failed = |error: io::Error| pipe_failed("create", path, &error);
    match mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(failed(error.into())),
    }
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_fifo() {
        return Err(failed(io::Error::other("another file has its name")));
    }
    // It was created with the umask of this process.
    fs::set_permissions(path, Permissions::from_mode(PIPE_MODE)).map_err(failed)?;
    chown(path, Some(uid), None).map_err(failed)
}

/// Opens the pipe once it has a reader, which is right after the start: data that nobody can read would be lost.
async fn open_pipe(id: &ContainerId, path: &Path) -> Result<ExecInput> {
    let deadline = Instant::now() + READER_TIMEOUT;
    loop {
        let error = match pipe::OpenOptions::new().open_sender(path) {
            Ok(input) => return Ok(Box::new(input)),
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENXIO) if Instant::now() < deadline => sleep(READER_POLL).await,
            Some(Errno::ENXIO) => {
                return Err(Error::invalid_field("stdin", "its program has closed its standard input"));
            }
            Some(Errno::ENOENT) => {
                return Err(Error::invalid_field("stdin", "its standard input has ended"));
            }
            _ => {
                tracing::warn!(%id, %error, "the input of a container cannot be opened");
                return Err(pipe_failed("open", path, &error));
            }
        }
    }
}

fn pipe_failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::Failed {
        action: format!("{verb} the pipe of a standard input, {}", path.display()),
        reason: error.to_string(),
    }
}

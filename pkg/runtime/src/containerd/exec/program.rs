//! Runs programs without a terminal in containers with `warren-exec`, at a tenth of the cost of the OCI runtime's exec.
//!
//! Its socket controls the program, which ends when the socket is closed: also when this process is killed. If
//! `warren-exec` is killed, the kernel and this process end the program.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::time::timeout;
use warren_container_programs::plan::{ExecFailure, ExecPlan, ExecReply};
use warren_types::{AppArmor, IdRange, Signal};

use super::super::{Inner, START_TIMEOUT, record};
use super::HANGUP_GRACE;
use crate::Result;
use crate::apparmor::DEFAULT_APPARMOR_PROFILE;
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::exec::{ExecHandle, ExecInput, ExecOutput, ExecProcess, ExecSpec, TerminalSize};
use crate::exec_plan::exec_plan;

/// A program that was started.
struct Program {
    shared: Arc<Inner>,
    id: ContainerId,
    /// On the host.
    pid: u32,
    /// `None` after the drop.
    control: Option<OwnedWriteHalf>,
    /// The exit code; `None` if `warren-exec` was killed, as by the end of the container.
    exit: Shared<BoxFuture<'static, Option<u32>>>,
}

/// This process's ends of a program's files, and those of `warren-exec`.
struct Files {
    control: StdUnixStream,
    input: Option<(PipeReader, PipeWriter)>,
    stdout: PipeReader,
    stderr: Option<PipeReader>,
}

impl Inner {
    pub(super) async fn exec_program(
        self: &Arc<Self>,
        id: &ContainerId,
        spec: &ExecSpec,
    ) -> Result<ExecProcess> {
        let (pid, setup) = self.exec_target(id).await?;
        let ids = setup.first_id.map(|first| IdRange { first });
        let user = self.exec_user(id, spec, ids).await?;
        let action = || format!("run a program in container {id}");
        let unavailable =
            |error: std::io::Error| Error::Unavailable { action: action(), reason: error.to_string() };
        let is_default = setup.apparmor_profile == DEFAULT_APPARMOR_PROFILE.as_bytes();
        if is_default && self.apparmor.profile(&AppArmor::Default, false).await?.is_none() {
            let missing = format!("the AppArmor profile {DEFAULT_APPARMOR_PROFILE} is not loaded");
            return Err(unavailable(std::io::Error::other(missing)));
        }
        let Files { control, input, stdout, stderr } = self.spawn_warren_exec(spec).map_err(unavailable)?;
        // `warren-exec` opens it by this path before it replies.
        let path = input
            .as_ref()
            .map(|(reader, _)| format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd()));
        let plan = ExecPlan {
            pid,
            input: path.unwrap_or_default().into_bytes(),
            ..spec.plan(&setup, user.as_ref())
        };
        let exchange = async {
            let (replies, mut control) = UnixStream::from_std(control)?.into_split();
            let mut replies = BufReader::new(replies).lines();
            let sent = control.write_all(&plan.encode()).await;
            let reply = replies.next_line().await?;
            // If it ended without reading, its reply has the reason.
            if reply.is_none() {
                sent?;
            }
            std::io::Result::Ok((reply, replies, control))
        };
        let exchanged = timeout(START_TIMEOUT, exchange).await;
        let late = |_| Error::Timeout { action: action(), reason: format!("no answer in {START_TIMEOUT:?}") };
        let (reply, replies, control) = exchanged.map_err(late)?.map_err(unavailable)?;
        let pid = match reply.as_deref().and_then(ExecReply::parse) {
            Some(ExecReply::Started(pid)) => pid,
            Some(ExecReply::Failed(failure, reason)) => return Err(refused(id, spec, failure, reason)),
            Some(ExecReply::Exited(_)) | None => {
                let reason = "warren-exec ended without an answer".to_owned();
                return Err(Error::Failed { action: action(), reason });
            }
        };
        let files = || -> std::io::Result<(Option<ExecInput>, ExecOutput, Option<ExecOutput>)> {
            let output = |reader: PipeReader| -> std::io::Result<ExecOutput> {
                Ok(Box::new(Receiver::from_owned_fd(reader.into())?))
            };
            let input = input.map(|(_, writer)| -> std::io::Result<ExecInput> {
                Ok(Box::new(Sender::from_owned_fd(writer.into())?))
            });
            Ok((input.transpose()?, output(stdout)?, stderr.map(output).transpose()?))
        };
        let exit = exit(replies).boxed().shared();
        // From here on it ends with the handle.
        let handle = Program { shared: Arc::clone(self), id: id.clone(), pid, control: Some(control), exit };
        let (input, stdout, stderr) = files().map_err(unavailable)?;
        Ok(ExecProcess { input, stdout, stderr, handle: Box::new(handle) })
    }

    /// The first process of a container, and the plan for programs beside it.
    async fn exec_target(&self, id: &ContainerId) -> Result<(u32, Arc<ExecPlan>)> {
        if let Some(known) = self.watcher.exec_target(id) {
            return Ok(known);
        }
        let missing = |what| Error::NotFound { id: id.to_string(), what };
        let record = self.get_record(id).await?.ok_or_else(|| missing("record"))?;
        let failed = |reason: String| Error::Failed { action: format!("read the setup of {id}"), reason };
        let document = record::document(&record).map_err(|error| failed(error.to_string()))?;
        let planning = tokio::task::spawn_blocking(move || exec_plan(&document));
        let plan = planning.await.expect("compiling a filter does not panic");
        let plan = Arc::new(plan.map_err(failed)?);
        let pid = match self.process(id).await? {
            ProcessState::Running { pid } => pid,
            ProcessState::Unknown { reason } => {
                return Err(Error::Timeout { action: format!("get the process of container {id}"), reason });
            }
            _ => return Err(missing("running process")),
        };
        self.watcher.keep_exec_plan(id, pid, &plan);
        Ok((pid, plan))
    }

    fn spawn_warren_exec(&self, spec: &ExecSpec) -> std::io::Result<Files> {
        let (control, theirs) = StdUnixStream::pair()?;
        control.set_nonblocking(true)?;
        let (stdout, stdout_writer) = pipe()?;
        let (stderr, stderr_writer) = match spec.combined {
            true => (None, stdout_writer.try_clone()?),
            false => {
                let (reader, writer) = pipe()?;
                (Some(reader), writer)
            }
        };
        let input = spec.input.then(pipe).transpose()?;
        let theirs = OwnedFd::from(theirs);
        let spawn = |path: &Path| {
            // The environment of this process is not inherited. The copies are closed with the command.
            let mut command = Command::new(path);
            command.arg0("warren-exec").env_clear().current_dir("/");
            // Signals to the group of this process, as by a terminal, would end it before it could end its program.
            command.process_group(0);
            command.stdin(Stdio::from(theirs.try_clone()?));
            command.stdout(stdout_writer.try_clone()?).stderr(stderr_writer.try_clone()?);
            command.spawn()
        };
        // tokio reaps it.
        drop(self.sealed_program.start(spawn)?);
        Ok(Files { control, input, stdout, stderr })
    }
}

async fn exit(mut replies: Lines<BufReader<OwnedReadHalf>>) -> Option<u32> {
    let line = replies.next_line().await.ok().flatten()?;
    match ExecReply::parse(&line) {
        Some(ExecReply::Exited(code)) => Some(code),
        _ => None,
    }
}

fn refused(id: &ContainerId, spec: &ExecSpec, failure: ExecFailure, reason: String) -> Error {
    match failure {
        ExecFailure::Ended => Error::NotFound { id: id.to_string(), what: "running process" },
        ExecFailure::Command => {
            Error::CommandNotFound { command: spec.command.first().cloned().unwrap_or_default(), reason }
        }
        ExecFailure::Directory => {
            let directory = spec.directory.as_ref().map(|directory| format!("{directory:?}"));
            let directory = directory.as_deref().unwrap_or("the directory of the container");
            let reason = format!("{directory} is not a directory that its user may enter: {reason}");
            Error::invalid_field("directory", reason)
        }
        ExecFailure::Other => Error::Failed { action: format!("run a program in container {id}"), reason },
    }
}

#[async_trait]
impl ExecHandle for Program {
    async fn wait(&self) -> Result<u32> {
        if let Some(code) = self.exit.clone().await {
            return Ok(code);
        }
        self.shared.signal_session(&self.id, self.pid, Signal::KILL);
        Err(Error::NotFound { id: self.id.to_string(), what: "process" })
    }

    /// It ended with its pipe.
    async fn close_input(&self) -> Result<()> {
        Ok(())
    }

    /// There is no terminal.
    async fn resize(&self, _size: TerminalSize) -> Result<()> {
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let number = u8::try_from(signal.number()).expect("signals have small numbers");
        let _ = self.control.as_ref().map(|control| control.try_write(&[number]));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(code) = self.exit.peek() {
            // What a killed `warren-exec` leaves.
            if code.is_none() {
                self.shared.signal_session(&self.id, self.pid, Signal::KILL);
            }
            return;
        }
        self.shared.signal_session(&self.id, self.pid, Signal::HUP);
        // Without a runtime, or if it ends first, it is killed when the socket is closed.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (shared, id, pid) = (Arc::clone(&self.shared), self.id.clone(), self.pid);
        let (control, exit) = (self.control.take(), self.exit.clone());
        runtime.spawn(async move {
            let _ = timeout(HANGUP_GRACE, exit).await;
            shared.signal_session(&id, pid, Signal::KILL);
            drop(control);
        });
    }
}

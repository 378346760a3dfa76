//! Further programs in fake containers: a few built-in ones.

use std::fs::File;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{FakeRuntime, State};
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::exec::{ContainerHandles, ExecHandle, ExecProcess, ExecSpec, TerminalSize};
use crate::{Reference, Result};
use warren_types::Signal;

/// Capacity of a pipe.
const PIPE: usize = 64 << 10;

/// What a program has.
struct FakeProgram {
    input: DuplexStream,
    stdout: DuplexStream,
    /// `None`: the standard output.
    stderr: Option<DuplexStream>,
    size: watch::Receiver<TerminalSize>,
}

struct FakeExec {
    exit: watch::Receiver<Option<u32>>,
    end: watch::Sender<Option<u32>>,
    size: watch::Sender<TerminalSize>,
    program: AbortHandle,
    runtime: FakeRuntime,
}

impl FakeRuntime {
    /// Number of further programs whose handles were not dropped.
    pub fn exec_count(&self) -> usize {
        self.state().execs
    }

    /// The files of its image, and the network of this process.
    pub(super) fn open_container(&self, id: &ContainerId) -> Result<ContainerHandles> {
        let state = self.state();
        check(&state, id)?;
        let image = state.containers[id].status.image.clone();
        let failed = |reason: String| Error::Failed { action: format!("open container {id}"), reason };
        let image = Reference::parse(&image).map_err(|error| failed(error.to_string()))?;
        let root = state.image_files(&image)?.root().try_clone_to_owned();
        let network = File::open("/proc/self/ns/net");
        Ok(ContainerHandles {
            ids: None,
            root: root.map_err(|error| failed(error.to_string()))?,
            network: network.map_err(|error| failed(error.to_string()))?.into(),
        })
    }

    /// Runs `cat`, `exit CODE`, `flood` (endless output), `sleep` (until a signal), `size` (its terminal's, after
    /// every change) or `words` (on both outputs, with its environment, user and directory).
    pub(super) fn start_exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess> {
        let is_known = ["cat", "exit", "flood", "sleep", "size", "words"].contains(&spec.command[0].as_str());
        check(&self.state(), id)?;
        if !is_known {
            let (command, reason) =
                (spec.command[0].clone(), "executable file not found in $PATH".to_owned());
            return Err(Error::CommandNotFound { command, reason });
        }
        let (input, far_input) = duplex(PIPE);
        let (stdout, far_stdout) = duplex(PIPE);
        let (stderr, far_stderr) = duplex(PIPE);
        let (size, far_size) = watch::channel(spec.terminal.unwrap_or_default());
        let (end, exit) = watch::channel(None);
        let is_separate = spec.terminal.is_none() && !spec.combined;
        let program = FakeProgram {
            input: far_input,
            stdout: far_stdout,
            stderr: is_separate.then_some(far_stderr),
            size: far_size,
        };
        let (asked, ended) = (spec.clone(), end.clone());
        let task = tokio::spawn(async move {
            let code = program.run(&asked).await;
            ended.send_if_modified(|end| end.is_none() && end.insert(code) == &code);
        });
        self.state().execs += 1;
        let handle = FakeExec { exit, end, size, program: task.abort_handle(), runtime: self.clone() };
        Ok(ExecProcess {
            input: spec.input.then(|| Box::new(input) as _),
            stdout: Box::new(stdout),
            stderr: is_separate.then(|| Box::new(stderr) as _),
            handle: Box::new(handle),
        })
    }
}

pub(super) fn check(state: &State, id: &ContainerId) -> Result<()> {
    let missing = |what| Err(Error::NotFound { id: id.to_string(), what });
    match state.containers.get(id).map(|container| &container.status.process) {
        None => missing("record"),
        Some(ProcessState::Running { .. }) => Ok(()),
        Some(_) => missing("running process"),
    }
}

impl FakeProgram {
    async fn run(mut self, spec: &ExecSpec) -> u32 {
        let word = |place: usize| spec.command.get(place).map_or("", String::as_str);
        // A pipe without a reader ends a program, as SIGPIPE does.
        let ended = match word(0) {
            "cat" => tokio::io::copy(&mut self.input, &mut self.stdout).await.map(|_| 0),
            "exit" => Ok(word(1).parse().unwrap_or(2)),
            "flood" => self.flood().await,
            "size" => self.sizes().await,
            "words" => {
                let about = format!("{:?} {:?} {:?}", spec.environment, spec.user, spec.directory);
                let out = self.stdout.write_all(about.as_bytes()).await;
                let stderr = self.stderr.as_mut().unwrap_or(&mut self.stdout);
                out.and(stderr.write_all(b"error").await).map(|()| 0)
            }
            _ => std::future::pending().await,
        };
        ended.unwrap_or(141)
    }

    async fn flood(&mut self) -> std::io::Result<u32> {
        loop {
            self.stdout.write_all(&[b'x'; 32 << 10]).await?;
        }
    }

    async fn sizes(&mut self) -> std::io::Result<u32> {
        let mut input = [0];
        loop {
            let TerminalSize { columns, rows } = *self.size.borrow_and_update();
            self.stdout.write_all(format!("{columns}x{rows}\n").as_bytes()).await?;
            tokio::select! {
                changed = self.size.changed() => if changed.is_err() { return Ok(0) },
                read = self.input.read(&mut input) => if read? == 0 { return Ok(0) },
            }
        }
    }
}

#[async_trait]
impl ExecHandle for FakeExec {
    async fn wait(&self) -> Result<u32> {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.expect("this handle has a sender");
        Ok(ended.unwrap_or_default())
    }

    async fn close_input(&self) -> Result<()> {
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.size.send_replace(size);
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        self.program.abort();
        let code = 128 + signal.number().unsigned_abs();
        self.end.send_if_modified(|end| end.is_none() && end.insert(code) == &code);
    }
}

impl Drop for FakeExec {
    fn drop(&mut self) {
        self.program.abort();
        self.runtime.state().execs -= 1;
    }
}

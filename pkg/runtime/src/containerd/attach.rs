//! Attaches to the first process of a container: to its input and its terminal.
//!
//! The supervisor holds the writing end of the input's pipe from the creation of the process until it is asked to close
//! it. So the input stays open when a client, this process or containerd ends.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use warren_types::Signal;

use super::exec::ExecRef;
use super::process_watcher::open_pidfd;
use super::{Inner, input_pipe, record};
use crate::Result;
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::exec::{AttachedProcess, ExecHandle, TerminalSize};
use crate::pidfd::Pidfd;

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
            (true, Some(pipe)) => Some(input_pipe::open(pipe).await?),
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
        input_pipe::remove(pipe)
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

//! Clients of the first process of fake containers. It reads all of its input and prints nothing.

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, duplex};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::FakeRuntime;
use super::exec::check;
use crate::Result;
use crate::container::{ContainerId, ProcessState, RuntimeEvent};
use crate::error::Error;
use crate::exec::{AttachedProcess, ExecHandle, ExecInput, TerminalSize};
use warren_types::Signal;

/// Capacity of a pipe.
const PIPE: usize = 64 << 10;

/// The input of a container so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FakeInput {
    /// What clients wrote.
    pub bytes: Vec<u8>,
    /// A client has ended it.
    pub has_ended: bool,
    /// The last size of its terminal.
    pub size: TerminalSize,
}

struct FakeFirstProcess {
    runtime: FakeRuntime,
    id: ContainerId,
}

impl FakeRuntime {
    /// The input of a container.
    pub fn input(&self, id: &ContainerId) -> FakeInput {
        self.state().inputs.get(id).cloned().unwrap_or_default()
    }

    pub(super) fn attach_process(&self, id: &ContainerId, with_input: bool) -> Result<AttachedProcess> {
        let state = self.state();
        check(&state, id)?;
        let has_input = state.specs.get(id).is_some_and(|spec| spec.stdin.is_some());
        let has_ended = state.inputs.get(id).is_some_and(|input| input.has_ended);
        drop(state);
        let refused = |reason: &str| Err(Error::invalid_field("stdin", reason));
        let input = match (with_input, has_input, has_ended) {
            (true, false, _) => return refused("its standard input is not open"),
            (true, true, true) => return refused("its standard input has ended"),
            (true, true, false) => Some(self.record_input(id)),
            (false, ..) => None,
        };
        let handle = FakeFirstProcess { runtime: self.clone(), id: id.clone() };
        Ok(AttachedProcess { input, handle: Box::new(handle) })
    }

    fn record_input(&self, id: &ContainerId) -> ExecInput {
        let (near, mut far) = duplex(PIPE);
        let (runtime, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = far.read(&mut buffer).await {
                let mut state = runtime.state();
                state.inputs.entry(id.clone()).or_default().bytes.extend_from_slice(&buffer[..count]);
            }
        });
        Box::new(near)
    }

    async fn wait_for_end(&self, id: &ContainerId, mut events: Receiver<RuntimeEvent>) -> Result<u32> {
        loop {
            let process = self.state().containers.get(id).map(|container| container.status.process.clone());
            match process {
                None | Some(ProcessState::Absent) => {
                    return Err(Error::NotFound { id: id.to_string(), what: "process" });
                }
                Some(ProcessState::Stopped(exit)) => return Ok(exit.code),
                Some(_) => {}
            }
            if let Err(RecvError::Closed) = events.recv().await {
                return Err(Error::NotFound { id: id.to_string(), what: "process" });
            }
        }
    }
}

#[async_trait]
impl ExecHandle for FakeFirstProcess {
    async fn wait(&self) -> Result<u32> {
        self.runtime.wait_for_end(&self.id, self.runtime.events.subscribe()).await
    }

    async fn close_input(&self) -> Result<()> {
        self.runtime.state().inputs.entry(self.id.clone()).or_default().has_ended = true;
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.runtime.state().inputs.entry(self.id.clone()).or_default().size = size;
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let code = 128 + signal.number().unsigned_abs();
        self.runtime.end_process(&self.id, code, false);
    }
}

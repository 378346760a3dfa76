//! Starts, signals and deletes processes.

use containerd_client::services::v1::{DeleteTaskRequest, KillRequest, StartRequest};
use tonic::Status;
use warren_image::{CallError, with_deadline};

use super::inspect::system_time;
use super::{DELETE_TIMEOUT, Inner, RECORD_TIMEOUT, START_TIMEOUT};
use crate::Result;
use crate::container::{ContainerId, ProcessExit, ProcessState};
use crate::error::Error;
use warren_types::Signal;

impl Inner {
    pub(super) async fn start(&self, id: &ContainerId) -> Result<u32> {
        let turn = self.locks.lock_shared(id).await;
        let permit = self.start_permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let connection = self.connection.clone();
        let message = StartRequest { container_id: id.to_string(), exec_id: String::new() };
        let call = async move {
            let _at_work = (turn, permit);
            let request = connection.request(message);
            with_deadline(START_TIMEOUT, connection.tasks().start(request)).await
        };
        let ended = tokio::spawn(call).await;
        match ended.unwrap_or_else(|error| Err(Status::internal(error.to_string()))) {
            Ok(reply) => {
                self.watcher.watch(id, reply.pid);
                Ok(reply.pid)
            }
            // A supervisor that was in creation when containerd was killed may hang in its first start.
            // Without it the process can be created again.
            Err(status) if CallError::from_status(&status) == CallError::Timeout => {
                self.kill_supervisor(id);
                Err(Error::from_status(format!("start container {id}"), &status))
            }
            // Starting twice is an error without its own code, so the state decides.
            Err(status) => match (self.process(id).await?, CallError::from_status(&status)) {
                (ProcessState::Running { pid }, _) => Ok(pid),
                (ProcessState::Absent, CallError::NotFound | CallError::Other) => {
                    Err(Error::NotFound { id: id.to_string(), what: "process" })
                }
                (ProcessState::Stopped(exit), _) => Err(Error::Conflict {
                    action: "start",
                    id: id.to_string(),
                    found: format!(
                        "its process ended with code {}; delete it and create a new one",
                        exit.code
                    ),
                }),
                _ => Err(Error::from_status(format!("start container {id}"), &status)),
            },
        }
    }

    pub(super) async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        if let Some(sent) = self.watcher.signal(id, signal) {
            return Ok(sent);
        }
        match self.process(id).await? {
            ProcessState::Absent | ProcessState::Stopped(_) => Ok(false),
            ProcessState::Unknown { reason } => {
                Err(Error::Timeout { action: format!("get the process of container {id}"), reason })
            }
            // The query has opened a handle where possible.
            ProcessState::Created { .. } | ProcessState::Running { .. } => {
                match self.watcher.signal(id, signal) {
                    Some(sent) => Ok(sent),
                    None => self.kill(id, signal).await,
                }
            }
        }
    }

    /// Lets containerd send the signal, which executes another program.
    pub(super) async fn kill(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        let message = KillRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
            signal: signal.number().unsigned_abs(),
            all: false,
        };
        match with_deadline(RECORD_TIMEOUT, self.connection.tasks().kill(self.connection.request(message)))
            .await
        {
            Ok(()) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("signal container {id}"), &status)),
        }
    }

    pub(super) async fn delete_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        let _permit = self.stop_permits.acquire().await.expect("the semaphore is never closed");
        self.end_process(id).await
    }

    /// As [`Shared::delete_process`], without locks. containerd releases a partly created process on this
    /// request, even though it answers "not found".
    pub(super) async fn end_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        // The record of an OOM kill is removed with the cgroup.
        let out_of_memory = self.watcher.had_oom_kill(id);
        let request = self.connection.request(DeleteTaskRequest { container_id: id.to_string() });
        match with_deadline(DELETE_TIMEOUT, self.connection.tasks().delete(request)).await {
            Ok(reply) => {
                self.watcher.forget(id);
                Ok(Some(ProcessExit {
                    code: reply.exit_status,
                    at: system_time(reply.exited_at),
                    out_of_memory,
                }))
            }
            Err(status) if CallError::from_status(&status) == CallError::NotFound => {
                self.watcher.forget(id);
                Ok(None)
            }
            // Refusing to delete a running process is an error without its own code, so the state decides.
            Err(status) => match self.process(id).await? {
                ProcessState::Running { pid } => Err(Error::Conflict {
                    action: "delete the process of",
                    id: id.to_string(),
                    found: format!("it runs as pid {pid}; signal it and wait until it ends"),
                }),
                _ => Err(Error::from_status(format!("delete the process of container {id}"), &status)),
            },
        }
    }
}

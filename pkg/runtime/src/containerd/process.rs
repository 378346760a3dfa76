//! Starting, signalling and deleting processes.

use containerd_client::services::v1::{DeleteTaskRequest, KillRequest, StartRequest};
use tonic::Status;
use warren_image::{Fault, within};

use super::look::time;
use super::{RECORD, START, Shared, TURN};
use crate::Result;
use crate::container::{ContainerId, Exit, Process};
use crate::error::Error;
use warren_types::Signal;

impl Shared {
    pub(super) async fn start(&self, id: &ContainerId) -> Result<u32> {
        let turn = self.turns.work(id).await;
        let permit = self.starts.clone().acquire_owned().await.expect("the semaphore is never closed");
        let connection = self.connection.clone();
        let message = StartRequest { container_id: id.to_string(), exec_id: String::new() };
        let call = async move {
            let _at_work = (turn, permit);
            let request = connection.request(message);
            within(START, connection.tasks().start(request)).await
        };
        let ended = tokio::spawn(call).await;
        match ended.unwrap_or_else(|error| Err(Status::internal(error.to_string()))) {
            Ok(reply) => {
                self.watch.ensure(id, reply.pid);
                Ok(reply.pid)
            }
            // A supervisor that was being made when containerd was killed may hang in its first start for ever. Without
            // it the process can be made anew.
            Err(status) if Fault::of(&status) == Fault::Timeout => {
                self.end_supervisor(id);
                Err(Error::of(format!("start container {id}"), &status))
            }
            // Starting twice is an error without a kind of its own, so the state decides.
            Err(status) => match (self.process(id).await?, Fault::of(&status)) {
                (Process::Running { pid }, _) => Ok(pid),
                (Process::None, Fault::NotFound | Fault::Other) => {
                    Err(Error::NotFound { id: id.to_string(), what: "process" })
                }
                (Process::Stopped(exit), _) => Err(Error::Conflict {
                    action: "start",
                    id: id.to_string(),
                    found: format!(
                        "its process ended with code {}; delete it and create a new one",
                        exit.code
                    ),
                }),
                _ => Err(Error::of(format!("start container {id}"), &status)),
            },
        }
    }

    pub(super) async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        if let Some(sent) = self.watch.signal(id, signal) {
            return Ok(sent);
        }
        match self.process(id).await? {
            Process::None | Process::Stopped(_) => Ok(false),
            Process::Unknown { reason } => {
                Err(Error::Timeout { action: format!("find the process of container {id}"), reason })
            }
            // Asking has made a handle where that is possible.
            Process::Created { .. } | Process::Running { .. } => match self.watch.signal(id, signal) {
                Some(sent) => Ok(sent),
                None => self.kill(id, signal).await,
            },
        }
    }

    /// Lets containerd send the signal, which runs another program to do it.
    pub(super) async fn kill(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        let message = KillRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
            signal: signal.number().unsigned_abs(),
            all: false,
        };
        match within(RECORD, self.connection.tasks().kill(self.connection.request(message))).await {
            Ok(()) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("signal container {id}"), &status)),
        }
    }

    pub(super) async fn delete_process(&self, id: &ContainerId) -> Result<Option<Exit>> {
        let _permit = self.stops.acquire().await.expect("the semaphore is never closed");
        self.end_process(id).await
    }

    /// As [`Shared::delete_process`], whatever else is at work. containerd lets go of a half-made process when it is
    /// asked, even though it answers that there is none.
    pub(super) async fn end_process(&self, id: &ContainerId) -> Result<Option<Exit>> {
        // The trace of a memory kill goes with the cgroup.
        let out_of_memory = self.watch.out_of_memory(id);
        let request = self.connection.request(DeleteTaskRequest { container_id: id.to_string() });
        match within(TURN, self.connection.tasks().delete(request)).await {
            Ok(reply) => {
                self.watch.forget(id);
                Ok(Some(Exit { code: reply.exit_status, at: time(reply.exited_at), out_of_memory }))
            }
            Err(status) if Fault::of(&status) == Fault::NotFound => {
                self.watch.forget(id);
                Ok(None)
            }
            // Refusing to delete a running process is an error without a kind of its own, so the state
            // decides.
            Err(status) => match self.process(id).await? {
                Process::Running { pid } => Err(Error::Conflict {
                    action: "delete the process of",
                    id: id.to_string(),
                    found: format!("it runs as pid {pid}; signal it and wait for its end first"),
                }),
                _ => Err(Error::of(format!("delete the process of container {id}"), &status)),
            },
        }
    }
}

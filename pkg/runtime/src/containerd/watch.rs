//! Handles to running processes: signals that cannot hit a stranger, and ends that the kernel tells us
//! itself.
//!
//! An end is noticed here even when containerd's event is lost; containerd is then asked how it ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use containerd_client::services::v1::WaitRequest;
use tokio::task::AbortHandle;
use warren_image::{Connection, within};

use super::RECORD;
use super::events::{Announcer, Memory};
use super::look::time;
use crate::cgroup;
use crate::container::{ContainerId, Exit};
use crate::pidfd::{self, Pidfd};
use warren_types::Signal;

/// A background task that ends with its owner.
pub(super) struct Running(AbortHandle);

impl Running {
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The processes we hold handles to, at most one for each container.
pub(super) struct Watch {
    connection: Connection,
    announcer: Arc<Announcer>,
    memory: Memory,
    held: Mutex<HashMap<ContainerId, Held>>,
}

struct Held {
    pid: u32,
    pidfd: Arc<Pidfd>,
    _waiting: Running,
}

impl Watch {
    pub fn new(connection: Connection, announcer: Arc<Announcer>, memory: Memory) -> Self {
        Self { connection, announcer, memory, held: Mutex::default() }
    }

    /// Takes a handle to a container's process, unless there is one already or the process is not the
    /// container's.
    pub fn ensure(&self, id: &ContainerId, pid: u32) {
        let mut held = self.held.lock().expect("no holder panics");
        if held.get(id).is_some_and(|held| held.pid == pid) {
            return;
        }
        let Some(pidfd) = open(id, pid).map(Arc::new) else { return };
        let (connection, announcer) = (self.connection.clone(), self.announcer.clone());
        let (memory, handle, name) = (self.memory.clone(), pidfd.clone(), id.clone());
        let waiting = Running::spawn(async move {
            if pidfd::ended(&handle).await.is_err() {
                return;
            }
            // Without an answer the next listing tells, as after any loss.
            if let Some(exit) = how(&connection, &memory, &name).await {
                announcer.exited(name, pid, exit);
            }
        });
        held.insert(id.clone(), Held { pid, pidfd, _waiting: waiting });
    }

    /// Sends a signal if we hold a handle; says whether the process was there to get it. `None`: no handle,
    /// or the kernel refused.
    pub fn signal(&self, id: &ContainerId, signal: Signal) -> Option<bool> {
        let pidfd = self.held.lock().expect("no holder panics").get(id)?.pidfd.clone();
        pidfd.send(signal).ok()
    }

    pub fn forget(&self, id: &ContainerId) {
        self.held.lock().expect("no holder panics").remove(id);
    }

    /// Lets go of containers that are not there any more.
    pub fn keep(&self, is_there: impl Fn(&ContainerId) -> bool) {
        self.held.lock().expect("no holder panics").retain(|id, _| is_there(id));
    }

    pub fn out_of_memory(&self, id: &ContainerId) -> bool {
        self.memory.ran_out(id)
    }
}

/// A handle to process `pid` if it lives in the container's cgroup. The order matters: once the handle is
/// open, what `/proc` says about the number is about our process as long as that is alive afterwards.
pub(super) fn open(id: &ContainerId, pid: u32) -> Option<Pidfd> {
    let pidfd = Pidfd::open(pid).ok()?;
    let membership = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    (cgroup::names(&membership, id.as_str()) && pidfd.is_alive()).then_some(pidfd)
}

async fn how(connection: &Connection, memory: &Memory, id: &ContainerId) -> Option<Exit> {
    let message = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
    let reply = within(RECORD, connection.tasks().wait(connection.request(message))).await.ok()?;
    Some(Exit { code: reply.exit_status, at: time(reply.exited_at), out_of_memory: memory.ran_out(id) })
}

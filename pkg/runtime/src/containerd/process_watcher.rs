//! Handles to running processes: signals that cannot reach another process, and exits reported by the kernel.
//!
//! An exit is detected here even if containerd's event is lost; containerd is then asked for its status.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use containerd_client::services::v1::WaitRequest;
use tokio::task::AbortHandle;
use warren_container_programs::plan::ExecPlan;
use warren_image::{ContainerdConnection, with_deadline};

use super::RECORD_TIMEOUT;
use super::events::{EventBroadcaster, OomDetector};
use super::inspect::system_time;
use crate::cgroup;
use crate::container::{ContainerId, ProcessExit};
use crate::pidfd::{self, Pidfd};
use warren_types::Signal;

/// A background task that ends with its owner.
pub(super) struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work).abort_handle())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Process handles, at most one per container.
pub(super) struct ProcessWatcher {
    connection: ContainerdConnection,
    broadcaster: Arc<EventBroadcaster>,
    oom_detector: OomDetector,
    processes: Mutex<HashMap<ContainerId, WatchedProcess>>,
}

struct WatchedProcess {
    pid: u32,
    pidfd: Arc<Pidfd>,
    /// For further programs in the container; `None` before the first one.
    exec_plan: Option<Arc<ExecPlan>>,
    _waiter: AbortOnDrop,
}

impl ProcessWatcher {
    pub fn new(
        connection: ContainerdConnection,
        announcer: Arc<EventBroadcaster>,
        memory: OomDetector,
    ) -> Self {
        Self { connection, broadcaster: announcer, oom_detector: memory, processes: Mutex::default() }
    }

    /// Opens a handle to a container's process, unless there is one already or the process is not the
    /// container's.
    pub fn watch(&self, id: &ContainerId, pid: u32) {
        let mut held = self.processes.lock().expect("no holder panics");
        if held.get(id).is_some_and(|held| held.pid == pid) {
            return;
        }
        let Some(pidfd) = open_pidfd(id, pid).map(Arc::new) else { return };
        let (connection, announcer) = (self.connection.clone(), self.broadcaster.clone());
        let (memory, handle, name) = (self.oom_detector.clone(), pidfd.clone(), id.clone());
        let waiting = AbortOnDrop::spawn(async move {
            if pidfd::wait_for_exit(&handle).await.is_err() {
                return;
            }
            // Without an answer the next listing reports it, as after any loss.
            if let Some(exit) = exit_of(&connection, &memory, &name).await {
                announcer.broadcast_exit(name, pid, exit);
            }
        });
        held.insert(id.clone(), WatchedProcess { pid, pidfd, exec_plan: None, _waiter: waiting });
    }

    /// Sends a signal through a handle; returns whether the process existed. `None`: no handle, or the kernel
    /// refused.
    pub fn signal(&self, id: &ContainerId, signal: Signal) -> Option<bool> {
        let pidfd = self.processes.lock().expect("no holder panics").get(id)?.pidfd.clone();
        pidfd.send(signal).ok()
    }

    /// Pid and plan of a container that [`ProcessWatcher::keep_exec_plan`] was called for. The process may have ended.
    pub fn exec_target(&self, id: &ContainerId) -> Option<(u32, Arc<ExecPlan>)> {
        let held = self.processes.lock().expect("no holder panics");
        let process = held.get(id)?;
        Some((process.pid, Arc::clone(process.exec_plan.as_ref()?)))
    }

    /// Keeps the plan until the container's process is forgotten.
    pub fn keep_exec_plan(&self, id: &ContainerId, pid: u32, plan: &Arc<ExecPlan>) {
        if let Some(process) = self.processes.lock().expect("no holder panics").get_mut(id)
            && process.pid == pid
        {
            process.exec_plan = Some(Arc::clone(plan));
        }
    }

    pub fn forget(&self, id: &ContainerId) {
        self.processes.lock().expect("no holder panics").remove(id);
    }

    /// Drops the handles of containers that do not exist any more.
    pub fn retain(&self, is_there: impl Fn(&ContainerId) -> bool) {
        self.processes.lock().expect("no holder panics").retain(|id, _| is_there(id));
    }

    pub fn had_oom_kill(&self, id: &ContainerId) -> bool {
        self.oom_detector.had_oom_kill(id)
    }
}

/// A handle to process `pid` if it is in the container's cgroup. The order matters: once the handle is open,
/// what `/proc` says about the pid is about this process if it is alive afterwards.
pub(super) fn open_pidfd(id: &ContainerId, pid: u32) -> Option<Pidfd> {
    let pidfd = Pidfd::open(pid).ok()?;
    let membership = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    (cgroup::is_in_cgroup(&membership, id.as_str()) && pidfd.is_alive()).then_some(pidfd)
}

async fn exit_of(
    connection: &ContainerdConnection,
    memory: &OomDetector,
    id: &ContainerId,
) -> Option<ProcessExit> {
    let message = WaitRequest { container_id: id.to_string(), exec_id: String::new() };
    let reply =
        with_deadline(RECORD_TIMEOUT, connection.tasks().wait(connection.request(message))).await.ok()?;
    Some(ProcessExit {
        code: reply.exit_status,
        at: system_time(reply.exited_at),
        out_of_memory: memory.had_oom_kill(id),
    })
}

//! Containers in memory, for tests: the behaviour of the real runtime, scripted programs, injected faults.
//!
//! Clones share the containers, so that a restarted agent finds those of its predecessor.

mod attach;
mod exec;
mod files;
mod script;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

pub use attach::FakeInput;
pub use script::{ContainerScript, FakeFailure, FaultPoint, RuntimeOperation};

use crate::apparmor::AppArmorState;
use crate::container::{
    ContainerId, ContainerSpec, ContainerStatus, ProcessExit, ProcessState, RuntimeEvent, RuntimeInfo,
    SweepReport,
};
use crate::error::Error;
use crate::exec::{AttachedProcess, ContainerHandles, ExecProcess, ExecSpec};
use crate::image_files::{ContainerUser, ImageFiles};
use crate::process_list::ContainerProcess;
use crate::usage::{ContainerUsage, LayerUsage};
use crate::{Reference, Result, Runtime};
use warren_types::Signal;

/// Small, because a cluster test has a thousand of these; a slow reader gets `Lost`.
const BUFFER: usize = 128;
const FIRST_PID: u32 = 10_000;

/// A runtime without real containers: everything happens in memory, and only by script.
#[derive(Clone)]
pub struct FakeRuntime {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<RuntimeEvent>,
}

#[derive(Default)]
struct State {
    is_unreachable: bool,
    images: BTreeSet<String>,
    image_files: HashMap<String, PathBuf>,
    image_scripts: HashMap<String, ContainerScript>,
    container_scripts: HashMap<ContainerId, ContainerScript>,
    faults: HashMap<RuntimeOperation, Vec<FaultPoint>>,
    calls: HashMap<RuntimeOperation, u64>,
    containers: BTreeMap<ContainerId, FakeContainer>,
    orphans: BTreeSet<ContainerId>,
    next_pid_offset: u32,
    usage: HashMap<ContainerId, ContainerUsage>,
    layers: HashMap<ContainerId, LayerUsage>,
    specs: HashMap<ContainerId, ContainerSpec>,
    execs: usize,
    inputs: HashMap<ContainerId, FakeInput>,
}

struct FakeContainer {
    status: ContainerStatus,
    script: ContainerScript,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self { state: Arc::default(), events: broadcast::Sender::new(BUFFER) }
    }
}

impl FakeRuntime {
    /// A runtime without images and containers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an image.
    pub fn add_image(&self, image: &Reference) {
        self.state().images.insert(image.to_string());
    }

    /// Removes an image.
    pub fn remove_image(&self, image: &Reference) {
        self.state().images.remove(&image.to_string());
    }

    /// Sets the script of containers of this image that are created from now on. Without a script they run
    /// until signalled.
    pub fn script_image(&self, image: &Reference, script: ContainerScript) {
        self.state().image_scripts.insert(image.to_string(), script);
    }

    /// Sets the script of this container for its next creation, whatever its image.
    pub fn script_container(&self, id: &ContainerId, script: ContainerScript) {
        self.state().container_scripts.insert(id.clone(), script);
    }

    /// Makes the next call of this kind fail; several queue up.
    pub fn fail_next(&self, operation: RuntimeOperation, fault: FaultPoint) {
        self.state().faults.entry(operation).or_default().push(fault);
    }

    /// Sets the reported usage of a container; `None` as without a process.
    pub fn set_usage(&self, id: &ContainerId, usage: Option<ContainerUsage>) {
        let mut state = self.state();
        match usage {
            Some(usage) => drop(state.usage.insert(id.clone(), usage)),
            None => drop(state.usage.remove(id)),
        }
    }

    /// Sets what the writable layer of a container uses.
    pub fn set_layer_usage(&self, id: &ContainerId, usage: LayerUsage) {
        self.state().layers.insert(id.clone(), usage);
    }

    /// Makes the runtime unavailable or available again. Its containers keep running.
    pub fn set_reachable(&self, reachable: bool) {
        let was = std::mem::replace(&mut self.state().is_unreachable, !reachable);
        if was == reachable {
            self.emit(if reachable { RuntimeEvent::Resumed } else { RuntimeEvent::Lost });
        }
    }

    /// Ends a running process as if it had exited itself; `false` without one.
    pub fn end_process(&self, id: &ContainerId, code: u32, out_of_memory: bool) -> bool {
        self.end(id, None, ProcessExit { code, at: SystemTime::now(), out_of_memory })
    }

    /// Removes a process without a trace, as a reboot does; `false` without one.
    pub fn lose_process(&self, id: &ContainerId) -> bool {
        let mut state = self.state();
        let process = state.containers.get_mut(id).map(|container| &mut container.status.process);
        process
            .is_some_and(|process| std::mem::replace(process, ProcessState::Absent) != ProcessState::Absent)
    }

    /// Deletes a container's record but not its process, as an interrupted removal could.
    pub fn make_orphan(&self, id: &ContainerId) -> bool {
        let mut state = self.state();
        state.containers.remove(id).is_some() && state.orphans.insert(id.clone())
    }

    /// The processes without a record.
    pub fn orphans(&self) -> BTreeSet<ContainerId> {
        self.state().orphans.clone()
    }

    /// The last spec of a container.
    pub fn last_spec(&self, id: &ContainerId) -> Option<ContainerSpec> {
        self.state().specs.get(id).cloned()
    }

    /// Number of calls of an operation.
    pub fn call_count(&self, operation: RuntimeOperation) -> u64 {
        self.state().calls.get(&operation).copied().unwrap_or_default()
    }

    /// Counts the call, then injects a queued fault before or after `work`.
    fn call<T>(&self, operation: RuntimeOperation, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        *state.calls.entry(operation).or_default() += 1;
        if state.is_unreachable {
            return Err(FakeFailure::Unavailable.into_error(operation));
        }
        let queue = state.faults.entry(operation).or_default();
        let fault = (!queue.is_empty()).then(|| queue.remove(0));
        match fault {
            Some(FaultPoint::Before(failure)) => Err(failure.into_error(operation)),
            Some(FaultPoint::After(failure)) => {
                work(&mut state)?;
                Err(failure.into_error(operation))
            }
            None => work(&mut state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn emit(&self, event: RuntimeEvent) {
        // No subscriber is fine: later ones list first.
        let _ = self.events.send(event);
    }

    /// Ends a process; with `only`, only if it still is that one.
    fn end(&self, id: &ContainerId, only: Option<u32>, exit: ProcessExit) -> bool {
        let mut state = self.state();
        let Some(container) = state.containers.get_mut(id) else { return false };
        let (ProcessState::Running { pid } | ProcessState::Created { pid }) = container.status.process else {
            return false;
        };
        if only.is_some_and(|only| only != pid) {
            return false;
        }
        container.status.process = ProcessState::Stopped(exit);
        drop(state);
        if exit.out_of_memory {
            self.emit(RuntimeEvent::OutOfMemory { id: id.clone() });
        }
        self.emit(RuntimeEvent::Exited { id: id.clone(), exit });
        true
    }

    /// Ends a started process by its script.
    fn schedule_end(&self, id: &ContainerId, pid: u32, script: &ContainerScript) {
        let Some((after, code)) = script.exit_after else { return };
        let (fake, id, out_of_memory) = (self.clone(), id.clone(), script.out_of_memory);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            fake.end(&id, Some(pid), ProcessExit { code, at: SystemTime::now(), out_of_memory });
        });
    }
}

impl State {
    fn script(&self, spec: &ContainerSpec) -> ContainerScript {
        let by_image = || self.image_scripts.get(&spec.image.to_string());
        self.container_scripts.get(&spec.id).or_else(by_image).cloned().unwrap_or_default()
    }

    fn create(&mut self, spec: &ContainerSpec) -> Result<()> {
        spec.validate()?;
        let image = spec.image.to_string();
        if !self.images.contains(&image) {
            return Err(Error::ImageMissing { reference: image });
        }
        let script = self.script(spec);
        let conflict = |found| Err(Error::Conflict { action: "create", id: spec.id.to_string(), found });
        if let Some(existing) = self.containers.get(&spec.id) {
            let owner = existing.status.owner.as_ref();
            if owner.map(|owner| (&owner.task, &owner.spec_hash))
                != Some((&spec.owner.task, &spec.owner.spec_hash))
            {
                return conflict("the id is taken by another container; remove it first".to_owned());
            }
            match &existing.status.process {
                ProcessState::Created { .. } | ProcessState::Running { .. } => return Ok(()),
                ProcessState::Stopped(exit) => {
                    let code = exit.code;
                    return conflict(format!("its process ended with code {code}; delete the process first"));
                }
                ProcessState::Absent | ProcessState::Unknown { .. } => {}
            }
        }
        let history =
            self.containers.get(&spec.id).map(|old| old.status.attempt_history.clone()).unwrap_or_default();
        let mut found = ContainerStatus {
            id: spec.id.clone(),
            owner: Some(spec.owner.clone()),
            image,
            assignment: spec.assignment.clone(),
            attempt_history: history,
            labels: spec.labels.clone(),
            stop_signal: spec.stop_signal.unwrap_or(Signal::TERM),
            process: ProcessState::Absent,
            has_snapshot: true,
            ids: spec.user_namespace.as_ref().map(|namespace| namespace.ids),
        };
        // Like the real one, a failed creation of a process leaves record and file system.
        let made = match &script.create_error {
            None => {
                self.next_pid_offset += 1;
                self.inputs.entry(spec.id.clone()).or_default().has_ended = false;
                found.process = ProcessState::Created { pid: FIRST_PID + self.next_pid_offset };
                Ok(())
            }
            Some(failure) => Err(failure.clone().into_error(RuntimeOperation::EnsureCreated)),
        };
        self.containers.insert(spec.id.clone(), FakeContainer { status: found, script });
        made
    }

    fn start(&mut self, id: &ContainerId) -> Result<(u32, bool, ContainerScript)> {
        let missing = || Error::NotFound { id: id.to_string(), what: "process" };
        let container = self.containers.get_mut(id).ok_or_else(missing)?;
        match container.status.process {
            ProcessState::Created { pid } => {
                container.status.process = ProcessState::Running { pid };
                Ok((pid, true, container.script.clone()))
            }
            ProcessState::Running { pid } => Ok((pid, false, container.script.clone())),
            ProcessState::Stopped(exit) => Err(Error::Conflict {
                action: "start",
                id: id.to_string(),
                found: format!("its process ended with code {}; delete it and create a new one", exit.code),
            }),
            ProcessState::Absent | ProcessState::Unknown { .. } => Err(missing()),
        }
    }

    fn delete_process(&mut self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        let Some(container) = self.containers.get_mut(id) else { return Ok(None) };
        match std::mem::replace(&mut container.status.process, ProcessState::Absent) {
            ProcessState::Stopped(exit) => Ok(Some(exit)),
            ProcessState::Created { .. } => {
                Ok(Some(ProcessExit { code: 137, at: SystemTime::now(), out_of_memory: false }))
            }
            ProcessState::Absent | ProcessState::Unknown { .. } => Ok(None),
            ProcessState::Running { pid } => {
                container.status.process = ProcessState::Running { pid };
                Err(Error::Conflict {
                    action: "delete the process of",
                    id: id.to_string(),
                    found: format!("it runs as pid {pid}; signal it and wait for its end first"),
                })
            }
        }
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn info(&self) -> Result<RuntimeInfo> {
        self.call(RuntimeOperation::Info, |_| {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            Ok(RuntimeInfo { name: "fake", version, apparmor: AppArmorState::Absent })
        })
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        self.call(RuntimeOperation::List, |state| {
            Ok(state.containers.values().map(|c| c.status.clone()).collect())
        })
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.call(RuntimeOperation::Inspect, |state| Ok(state.containers.get(id).map(|c| c.status.clone())))
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        let delay = self.state().script(spec).create_latency;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.call(RuntimeOperation::EnsureCreated, |state| {
            state.specs.insert(spec.id.clone(), spec.clone());
            state.create(spec)
        })
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        let delay = self.state().containers.get(id).map(|container| container.script.start_latency);
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            tokio::time::sleep(delay).await;
        }
        self.call(RuntimeOperation::Start, |state| {
            let (pid, fresh, script) = state.start(id)?;
            if fresh {
                self.schedule_end(id, pid, &script);
            }
            Ok(pid)
        })
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        let target = self.call(RuntimeOperation::Signal, |state| {
            let alive = |c: &&FakeContainer| {
                matches!(c.status.process, ProcessState::Running { .. } | ProcessState::Created { .. })
            };
            Ok(state.containers.get(id).filter(alive).map(|c| c.script.ignores_signals))
        })?;
        let Some(ignores) = target else { return Ok(false) };
        if signal == Signal::KILL || !ignores {
            let code = 128 + signal.number().unsigned_abs();
            self.end(id, None, ProcessExit { code, at: SystemTime::now(), out_of_memory: false });
        }
        Ok(true)
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        self.call(RuntimeOperation::DeleteProcess, |state| state.delete_process(id))
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.call(RuntimeOperation::Remove, |state| {
            state.delete_process(id)?;
            state.containers.remove(id);
            state.orphans.remove(id);
            Ok(())
        })
    }

    async fn set_attempt_history(&self, id: &ContainerId, history: &str) -> Result<()> {
        self.call(RuntimeOperation::SetAttemptHistory, |state| {
            let missing = || Error::NotFound { id: id.to_string(), what: "record" };
            state.containers.get_mut(id).ok_or_else(missing)?.status.attempt_history = history.to_owned();
            Ok(())
        })
    }

    fn usage(&self, id: &ContainerId) -> Option<ContainerUsage> {
        self.state().usage.get(id).copied()
    }

    async fn layer_usage(&self, id: &ContainerId) -> Result<Option<LayerUsage>> {
        let state = self.state();
        let has_layer = state.containers.get(id).is_some_and(|container| container.status.has_snapshot);
        Ok(has_layer.then(|| state.layers.get(id).copied().unwrap_or_default()))
    }

    /// In memory.
    async fn layer_root(&self) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    async fn remove_layer(&self, id: &ContainerId) -> Result<()> {
        self.call(RuntimeOperation::RemoveLayer, |state| {
            let Some(container) = state.containers.get_mut(id) else { return Ok(()) };
            match container.status.process {
                ProcessState::Absent => container.status.has_snapshot = false,
                ProcessState::Stopped(_) => {}
                _ => {
                    let found = "it has a process; signal it and wait for its end first".to_owned();
                    return Err(Error::Conflict { action: "remove the layer of", id: id.to_string(), found });
                }
            }
            state.layers.remove(id);
            Ok(())
        })
    }

    /// The first process alone.
    fn processes(&self, id: &ContainerId) -> Vec<ContainerProcess> {
        let state = self.state();
        let Some(container) = state.containers.get(id) else { return Vec::new() };
        let ProcessState::Running { pid } = container.status.process else { return Vec::new() };
        vec![ContainerProcess {
            pid,
            parent_pid: 1,
            uid: 0,
            started_at: UNIX_EPOCH,
            cpu: Duration::ZERO,
            resident_bytes: 0,
            command: container.status.image.clone(),
        }]
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        let received = BroadcastStream::new(self.events.subscribe());
        received.map(|event| event.unwrap_or(RuntimeEvent::Lost)).boxed()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.call(RuntimeOperation::ImageFiles, |state| state.image_files(image))
    }

    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess> {
        spec.validate()?;
        self.call(RuntimeOperation::Exec, |_| Ok(()))?;
        self.start_exec(id, spec)
    }

    async fn attach(&self, id: &ContainerId, with_input: bool) -> Result<AttachedProcess> {
        self.attach_process(id, with_input)
    }

    async fn open(&self, id: &ContainerId) -> Result<ContainerHandles> {
        self.open_container(id)
    }

    async fn resolve_user(&self, image: &Reference, user: Option<&str>) -> Result<ContainerUser> {
        self.call(RuntimeOperation::ResolveUser, |state| state.resolve_user(image, user))
    }

    async fn sweep_orphans(&self) -> Result<SweepReport> {
        self.call(RuntimeOperation::SweepOrphans, |state| {
            let tasks = std::mem::take(&mut state.orphans).into_iter().map(|id| id.to_string()).collect();
            Ok(SweepReport { tasks, ..SweepReport::default() })
        })
    }

    async fn remove_node(&self) -> Result<()> {
        Ok(())
    }
}

//! Containers in memory, for tests: the same behaviour as the real runtime, scripted programs, faults on
//! demand.
//!
//! Clones are the same runtime, so that a restarted agent finds what its predecessor left.

mod files;
mod script;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

pub use script::{Failure, Fault, Operation, Script};

use crate::container::{ContainerId, ContainerSpec, Exit, Found, Info, Process, RuntimeEvent, Swept};
use crate::error::Error;
use crate::image_files::{ImageFiles, RunsAs};
use crate::setup::ProcessSetup;
use crate::usage::Usage;
use crate::{Reference, Result, Runtime};
use warren_types::Signal;

/// Few, because a cluster test has a thousand of these; a slow reader learns that it lost some.
const BUFFER: usize = 128;
const FIRST_PID: u32 = 10_000;

/// A runtime without containers: everything happens in memory, and only when a script says so.
#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<RuntimeEvent>,
}

#[derive(Default)]
struct State {
    unreachable: bool,
    images: BTreeSet<String>,
    image_files: HashMap<String, PathBuf>,
    by_image: HashMap<String, Script>,
    by_container: HashMap<ContainerId, Script>,
    faults: HashMap<Operation, Vec<Fault>>,
    calls: HashMap<Operation, u64>,
    containers: BTreeMap<ContainerId, Container>,
    orphans: BTreeSet<ContainerId>,
    processes_made: u32,
    usage: HashMap<ContainerId, Usage>,
    asked: HashMap<ContainerId, ContainerSpec>,
}

struct Container {
    found: Found,
    script: Script,
}

impl Default for Fake {
    fn default() -> Self {
        Self { state: Arc::default(), events: broadcast::Sender::new(BUFFER) }
    }
}

impl Fake {
    /// A runtime without images and containers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes an image exist.
    pub fn add_image(&self, image: &Reference) {
        self.state().images.insert(image.to_string());
    }

    /// Makes an image not exist.
    pub fn remove_image(&self, image: &Reference) {
        self.state().images.remove(&image.to_string());
    }

    /// How containers of this image behave that are created from now on. Without a script they run until
    /// signalled.
    pub fn script_image(&self, image: &Reference, script: Script) {
        self.state().by_image.insert(image.to_string(), script);
    }

    /// How this container behaves when created from now on, whatever its image.
    pub fn script_container(&self, id: &ContainerId, script: Script) {
        self.state().by_container.insert(id.clone(), script);
    }

    /// Makes the next call of this kind fail; several queue up.
    pub fn fail_next(&self, operation: Operation, fault: Fault) {
        self.state().faults.entry(operation).or_default().push(fault);
    }

    /// What a container is told to use from now on; `None` is a container without a process.
    pub fn set_usage(&self, id: &ContainerId, usage: Option<Usage>) {
        let mut state = self.state();
        match usage {
            Some(usage) => drop(state.usage.insert(id.clone(), usage)),
            None => drop(state.usage.remove(id)),
        }
    }

    /// Takes the runtime away or brings it back. Its containers run on meanwhile.
    pub fn set_reachable(&self, reachable: bool) {
        let was = std::mem::replace(&mut self.state().unreachable, !reachable);
        if was == reachable {
            self.tell(if reachable { RuntimeEvent::Resumed } else { RuntimeEvent::Lost });
        }
    }

    /// Ends a running process as if it had ended itself; `false` when there is none.
    pub fn end_process(&self, id: &ContainerId, code: u32, out_of_memory: bool) -> bool {
        self.end(id, None, Exit { code, at: SystemTime::now(), out_of_memory })
    }

    /// Makes a process disappear without a trace, as a reboot does; `false` when there is none.
    pub fn lose_process(&self, id: &ContainerId) -> bool {
        let mut state = self.state();
        let process = state.containers.get_mut(id).map(|container| &mut container.found.process);
        process.is_some_and(|process| std::mem::replace(process, Process::None) != Process::None)
    }

    /// Deletes a container's record under its process, as a killed removal could.
    pub fn orphan(&self, id: &ContainerId) -> bool {
        let mut state = self.state();
        state.containers.remove(id).is_some() && state.orphans.insert(id.clone())
    }

    /// The processes without a record.
    pub fn orphans(&self) -> BTreeSet<ContainerId> {
        self.state().orphans.clone()
    }

    /// What a container was last asked to be made from.
    pub fn asked(&self, id: &ContainerId) -> Option<ContainerSpec> {
        self.state().asked.get(id).cloned()
    }

    /// How often an operation was called.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.state().calls.get(&operation).copied().unwrap_or_default()
    }

    /// Counts the call, then lets it fail if it shall, before or after `work`.
    fn run<T>(&self, operation: Operation, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        *state.calls.entry(operation).or_default() += 1;
        if state.unreachable {
            return Err(Failure::Unavailable.into_error(operation));
        }
        let queue = state.faults.entry(operation).or_default();
        let fault = (!queue.is_empty()).then(|| queue.remove(0));
        match fault {
            Some(Fault::Before(failure)) => Err(failure.into_error(operation)),
            Some(Fault::After(failure)) => {
                work(&mut state)?;
                Err(failure.into_error(operation))
            }
            None => work(&mut state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn tell(&self, event: RuntimeEvent) {
        // Nobody listening is fine: whoever comes later lists first.
        let _ = self.events.send(event);
    }

    /// Ends a process, unless it is another one than `only` by now.
    fn end(&self, id: &ContainerId, only: Option<u32>, exit: Exit) -> bool {
        let mut state = self.state();
        let Some(container) = state.containers.get_mut(id) else { return false };
        let (Process::Running { pid } | Process::Created { pid }) = container.found.process else {
            return false;
        };
        if only.is_some_and(|only| only != pid) {
            return false;
        }
        container.found.process = Process::Stopped(exit);
        drop(state);
        if exit.out_of_memory {
            self.tell(RuntimeEvent::OutOfMemory { id: id.clone() });
        }
        self.tell(RuntimeEvent::Exited { id: id.clone(), exit });
        true
    }

    /// Lets a started process end by its script.
    fn schedule_end(&self, id: &ContainerId, pid: u32, script: &Script) {
        let Some((after, code)) = script.exit_after else { return };
        let (fake, id, out_of_memory) = (self.clone(), id.clone(), script.out_of_memory);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            fake.end(&id, Some(pid), Exit { code, at: SystemTime::now(), out_of_memory });
        });
    }
}

impl State {
    fn script(&self, spec: &ContainerSpec) -> Script {
        let by_image = || self.by_image.get(&spec.image.to_string());
        self.by_container.get(&spec.id).or_else(by_image).cloned().unwrap_or_default()
    }

    fn create(&mut self, spec: &ContainerSpec) -> Result<()> {
        spec.check()?;
        let image = spec.image.to_string();
        if !self.images.contains(&image) {
            return Err(Error::ImageMissing { reference: image });
        }
        let script = self.script(spec);
        let conflict = |found| Err(Error::Conflict { action: "create", id: spec.id.to_string(), found });
        if let Some(existing) = self.containers.get(&spec.id) {
            let owner = existing.found.owner.as_ref();
            if owner.map(|owner| (&owner.task, &owner.spec_hash))
                != Some((&spec.owner.task, &spec.owner.spec_hash))
            {
                return conflict("the id is taken by another container; remove it first".to_owned());
            }
            match &existing.found.process {
                Process::Created { .. } | Process::Running { .. } => return Ok(()),
                Process::Stopped(exit) => {
                    let code = exit.code;
                    return conflict(format!("its process ended with code {code}; delete the process first"));
                }
                Process::None | Process::Unknown { .. } => {}
            }
        }
        let ledger = self.containers.get(&spec.id).map(|old| old.found.ledger.clone()).unwrap_or_default();
        let mut found = Found {
            id: spec.id.clone(),
            owner: Some(spec.owner.clone()),
            image,
            assignment: spec.assignment.clone(),
            ledger,
            labels: spec.labels.clone(),
            stop_signal: spec.stop_signal.unwrap_or(Signal::TERM),
            process: Process::None,
            snapshot: true,
        };
        // Like the real one, a process that cannot be made leaves record and file system behind.
        let made = match &script.create_error {
            None => {
                self.processes_made += 1;
                found.process = Process::Created { pid: FIRST_PID + self.processes_made };
                Ok(())
            }
            Some(failure) => Err(failure.clone().into_error(Operation::EnsureCreated)),
        };
        self.containers.insert(spec.id.clone(), Container { found, script });
        made
    }

    fn start(&mut self, id: &ContainerId) -> Result<(u32, bool, Script)> {
        let missing = || Error::NotFound { id: id.to_string(), what: "process" };
        let container = self.containers.get_mut(id).ok_or_else(missing)?;
        match container.found.process {
            Process::Created { pid } => {
                container.found.process = Process::Running { pid };
                Ok((pid, true, container.script.clone()))
            }
            Process::Running { pid } => Ok((pid, false, container.script.clone())),
            Process::Stopped(exit) => Err(Error::Conflict {
                action: "start",
                id: id.to_string(),
                found: format!("its process ended with code {}; delete it and create a new one", exit.code),
            }),
            Process::None | Process::Unknown { .. } => Err(missing()),
        }
    }

    fn delete_process(&mut self, id: &ContainerId) -> Result<Option<Exit>> {
        let Some(container) = self.containers.get_mut(id) else { return Ok(None) };
        match std::mem::replace(&mut container.found.process, Process::None) {
            Process::Stopped(exit) => Ok(Some(exit)),
            Process::Created { .. } => {
                Ok(Some(Exit { code: 137, at: SystemTime::now(), out_of_memory: false }))
            }
            Process::None | Process::Unknown { .. } => Ok(None),
            Process::Running { pid } => {
                container.found.process = Process::Running { pid };
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
impl Runtime for Fake {
    async fn info(&self) -> Result<Info> {
        self.run(Operation::Info, |_| {
            Ok(Info { name: "fake", version: env!("CARGO_PKG_VERSION").to_owned() })
        })
    }

    async fn list(&self) -> Result<Vec<Found>> {
        self.run(Operation::List, |state| Ok(state.containers.values().map(|c| c.found.clone()).collect()))
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Found>> {
        self.run(Operation::Inspect, |state| Ok(state.containers.get(id).map(|c| c.found.clone())))
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        let delay = self.state().script(spec).create_latency;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.run(Operation::EnsureCreated, |state| {
            state.asked.insert(spec.id.clone(), spec.clone());
            state.create(spec)
        })
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        let delay = self.state().containers.get(id).map(|container| container.script.start_latency);
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            tokio::time::sleep(delay).await;
        }
        self.run(Operation::Start, |state| {
            let (pid, fresh, script) = state.start(id)?;
            if fresh {
                self.schedule_end(id, pid, &script);
            }
            Ok(pid)
        })
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        let target = self.run(Operation::Signal, |state| {
            let alive =
                |c: &&Container| matches!(c.found.process, Process::Running { .. } | Process::Created { .. });
            Ok(state.containers.get(id).filter(alive).map(|c| c.script.ignores_signals))
        })?;
        let Some(ignores) = target else { return Ok(false) };
        if signal == Signal::KILL || !ignores {
            let code = 128 + signal.number().unsigned_abs();
            self.end(id, None, Exit { code, at: SystemTime::now(), out_of_memory: false });
        }
        Ok(true)
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<Exit>> {
        self.run(Operation::DeleteProcess, |state| state.delete_process(id))
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        self.run(Operation::Remove, |state| {
            state.delete_process(id)?;
            state.containers.remove(id);
            state.orphans.remove(id);
            Ok(())
        })
    }

    async fn set_ledger(&self, id: &ContainerId, ledger: &str) -> Result<()> {
        self.run(Operation::SetLedger, |state| {
            let missing = || Error::NotFound { id: id.to_string(), what: "record" };
            state.containers.get_mut(id).ok_or_else(missing)?.found.ledger = ledger.to_owned();
            Ok(())
        })
    }

    fn usage(&self, id: &ContainerId) -> Option<Usage> {
        self.state().usage.get(id).copied()
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        let received = BroadcastStream::new(self.events.subscribe());
        received.map(|event| event.unwrap_or(RuntimeEvent::Lost)).boxed()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.run(Operation::ImageFiles, |state| state.image_files(image))
    }

    async fn process_setup(&self, id: &ContainerId) -> Result<ProcessSetup> {
        let missing = || Error::NotFound { id: id.to_string(), what: "record" };
        self.inspect(id).await?.map(|_| ProcessSetup::default()).ok_or_else(missing)
    }

    async fn runs_as(&self, image: &Reference, user: Option<&str>) -> Result<RunsAs> {
        self.run(Operation::RunsAs, |state| state.runs_as(image, user))
    }

    async fn sweep_strays(&self) -> Result<Swept> {
        self.run(Operation::SweepStrays, |state| {
            let tasks = std::mem::take(&mut state.orphans).into_iter().map(|id| id.to_string()).collect();
            Ok(Swept { tasks, ..Swept::default() })
        })
    }

    async fn remove_node(&self) -> Result<()> {
        Ok(())
    }
}

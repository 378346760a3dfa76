//! Fakes of secrets and check programs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warren_health::{Exec, ExecResult, ExecStatus, ProbeTarget};
use warren_runtime::{ContainerMount, ContainerMountSource, MountPropagation};
use warren_types::{SeccompProfile, TaskAssignment, TaskId, TemplateValues};

use crate::handlers::images::{FindImageHolders, ImageHolders};
use crate::handlers::secret_objects::{HasTask, SecretObjects, SecretObjectsError};

/// Nodes that have every image.
#[derive(Debug, Clone)]
pub struct FixedHolders(pub ImageHolders);

#[tonic::async_trait]
impl FindImageHolders for FixedHolders {
    async fn find(&self, _: TaskId) -> ImageHolders {
        self.0.clone()
    }
}

/// The files of secrets on a machine. Clones share them.
#[derive(Clone, Default)]
pub struct FakeSecretObjects {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    present: BTreeSet<TaskId>,
    /// A manager would have to be asked, and cannot.
    is_disconnected: bool,
    fetched: usize,
}

impl FakeSecretObjects {
    /// Tasks that have files.
    pub fn tasks(&self) -> BTreeSet<TaskId> {
        self.state.lock().unwrap().present.clone()
    }

    /// Whether a manager can be asked.
    pub fn set_disconnected(&self, alone: bool) {
        self.state.lock().unwrap().is_disconnected = alone;
    }

    /// As a reboot does.
    pub fn lose_all(&self) {
        self.state.lock().unwrap().present.clear();
    }

    /// Orphaned files.
    pub fn add_orphan(&self, task: TaskId) {
        self.state.lock().unwrap().present.insert(task);
    }

    /// Number of requests to a manager.
    pub fn fetch_count(&self) -> usize {
        self.state.lock().unwrap().fetched
    }
}

#[tonic::async_trait]
impl SecretObjects for FakeSecretObjects {
    async fn ensure(
        &self,
        task: &TaskAssignment,
        _: &TemplateValues<'_>,
    ) -> Result<Vec<ContainerMount>, SecretObjectsError> {
        let mut state = self.state.lock().unwrap();
        if !state.present.contains(&task.id) {
            if state.is_disconnected {
                return Err(SecretObjectsError::WaitingForManager("not connected".into()));
            }
            state.fetched += 1;
            state.present.insert(task.id);
        }
        let mount = |target: String| ContainerMount {
            source: ContainerMountSource::Bind {
                path: format!("/run/secrets/{}{target}", task.id).into(),
                recursive: false,
                propagation: MountPropagation::Private,
            },
            target: target.into(),
            read_only: true,
        };
        Ok(task.spec.secrets.iter().map(|secret| mount(secret.secret_target())).collect())
    }

    async fn seccomp_profile(
        &self,
        _: &TaskAssignment,
    ) -> Result<Option<SeccompProfile>, SecretObjectsError> {
        Ok(None)
    }

    async fn remove(&self, task: &TaskId) -> Result<(), SecretObjectsError> {
        self.state.lock().unwrap().present.remove(task);
        Ok(())
    }

    async fn sweep(&self, has: HasTask<'_>) -> Result<usize, SecretObjectsError> {
        let mut state = self.state.lock().unwrap();
        let before = state.present.len();
        state.present.retain(has);
        Ok(before - state.present.len())
    }
}

/// Programs in containers: each container has a result, success by default.
#[derive(Default)]
pub struct FakeContainerExec {
    set_answer: Mutex<BTreeMap<String, ExecResult>>,
    executed: Mutex<Vec<(ProbeTarget, Vec<String>)>>,
}

impl FakeContainerExec {
    /// Sets the result of the programs of a task.
    pub fn set_answer(&self, task: TaskId, code: i32, output: &str) {
        let ran = ExecResult { status: ExecStatus::Exited(code), output: output.into() };
        self.set_answer.lock().unwrap().insert(task.to_string(), ran);
    }

    /// Programs that ran, with their containers.
    pub fn executed(&self) -> Vec<(ProbeTarget, Vec<String>)> {
        self.executed.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl Exec for FakeContainerExec {
    async fn run(&self, target: &ProbeTarget, command: &[String], _: Duration) -> ExecResult {
        self.executed.lock().unwrap().push((target.clone(), command.to_vec()));
        let answer = self.set_answer.lock().unwrap().get(&target.container).cloned();
        answer.unwrap_or(ExecResult { status: ExecStatus::Exited(0), output: String::new() })
    }
}

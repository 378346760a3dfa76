//! What tasks have around them, as tests say: secrets and programs of checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warren_health::{Ending, Exec, Ran, Target};
use warren_runtime::{Mount, MountSource, Propagation};
use warren_types::{NodeSettings, TaskAssignment, TaskId};

use crate::tasks::contents::{Contents, Has};
use crate::tasks::failure::Failure;

/// The files of secrets on a machine. Clones are the same.
#[derive(Clone, Default)]
pub struct FakeContents {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    here: BTreeSet<TaskId>,
    /// A manager would have to be asked, and cannot.
    alone: bool,
    fetched: usize,
}

impl FakeContents {
    /// Tasks that have files.
    pub fn tasks(&self) -> BTreeSet<TaskId> {
        self.state.lock().unwrap().here.clone()
    }

    /// Whether a manager can be asked.
    pub fn set_alone(&self, alone: bool) {
        self.state.lock().unwrap().alone = alone;
    }

    /// As a reboot does.
    pub fn lose_all(&self) {
        self.state.lock().unwrap().here.clear();
    }

    /// Files that no task owns.
    pub fn leave(&self, task: TaskId) {
        self.state.lock().unwrap().here.insert(task);
    }

    /// How often a manager was asked.
    pub fn fetched(&self) -> usize {
        self.state.lock().unwrap().fetched
    }
}

#[tonic::async_trait]
impl Contents for FakeContents {
    async fn ensure(&self, task: &TaskAssignment, _: &NodeSettings) -> Result<Vec<Mount>, Failure> {
        let mut state = self.state.lock().unwrap();
        if !state.here.contains(&task.id) {
            if state.alone {
                return Err(Failure::transient("waiting for a manager: its secrets are not on this node"));
            }
            state.fetched += 1;
            state.here.insert(task.id);
        }
        let mount = |target: String| Mount {
            source: MountSource::Bind {
                path: format!("/run/secrets/{}{target}", task.id).into(),
                recursive: false,
                propagation: Propagation::Private,
            },
            target: target.into(),
            read_only: true,
        };
        Ok(task.spec.secrets.iter().map(|secret| mount(secret.secret_target())).collect())
    }

    async fn remove(&self, task: &TaskId) -> Result<(), Failure> {
        self.state.lock().unwrap().here.remove(task);
        Ok(())
    }

    async fn sweep(&self, has: Has<'_>) -> Result<usize, Failure> {
        let mut state = self.state.lock().unwrap();
        let before = state.here.len();
        state.here.retain(has);
        Ok(before - state.here.len())
    }
}

/// Programs in containers: each container has an answer, which is good unless it was said.
#[derive(Default)]
pub struct FakeExec {
    answers: Mutex<BTreeMap<String, Ran>>,
    ran: Mutex<Vec<(Target, Vec<String>)>>,
}

impl FakeExec {
    /// What the programs of a task end with from now on.
    pub fn answers(&self, task: TaskId, code: i32, output: &str) {
        let ran = Ran { ending: Ending::Exited(code), output: output.into() };
        self.answers.lock().unwrap().insert(task.to_string(), ran);
    }

    /// What was run, and where.
    pub fn ran(&self) -> Vec<(Target, Vec<String>)> {
        self.ran.lock().unwrap().clone()
    }
}

#[tonic::async_trait]
impl Exec for FakeExec {
    async fn run(&self, target: &Target, command: &[String], _: Duration) -> Ran {
        self.ran.lock().unwrap().push((target.clone(), command.to_vec()));
        let answer = self.answers.lock().unwrap().get(&target.container).cloned();
        answer.unwrap_or(Ran { ending: Ending::Exited(0), output: String::new() })
    }
}

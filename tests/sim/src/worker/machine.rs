//! The actual state of a task on a worker's machine, and the effects of actions.

use std::sync::Arc;

use super::health::ProcessHealth;
use warren_task::{Action, AttemptHistory, ContainerState, resolved_digest};
use warren_types::{ImageDigest, TaskAssignment, TaskExit, TaskId, Timestamp};

use crate::client::UNHEALTHY_IMAGE;
use crate::event::SimEvent;
use crate::simulation::ClusterSimulation;

/// The actual state of one task.
#[derive(Debug, Clone)]
pub struct TaskOnMachine {
    /// In the container's record.
    pub assignment: Arc<TaskAssignment>,
    /// The incarnation in which its container was created.
    pub incarnation: u64,
    pub container: ContainerState,
    /// The image of the container.
    pub image: Option<ImageDigest>,
    pub attempts: Option<AttemptHistory>,
    pub has_network: bool,
    pub has_files: bool,
    /// In memory.
    pub has_secrets: bool,
    /// The volumes that it mounts exist.
    pub has_volumes: bool,
    /// The health of its process.
    pub(super) health: ProcessHealth,
    pub is_serving: bool,
    /// The node's published ports are reserved for the task's service.
    pub holds_ports: bool,
}

impl TaskOnMachine {
    fn empty(assignment: Arc<TaskAssignment>, incarnation: u64) -> Self {
        let container = ContainerState::Absent;
        Self {
            assignment,
            incarnation,
            container,
            image: None,
            attempts: None,
            has_network: false,
            has_files: false,
            has_secrets: false,
            has_volumes: false,
            health: ProcessHealth::Healthy,
            is_serving: false,
            holds_ports: false,
        }
    }

    /// A restarted agent finds the task.
    pub fn has_record(&self) -> bool {
        self.container != ContainerState::Absent
    }

    pub fn is_empty(&self) -> bool {
        let beside = self.has_network || self.has_files || self.has_secrets || self.holds_ports;
        self.container == ContainerState::Absent && !beside
    }

    /// The agent's own process held the ports.
    pub fn lose_agent(&mut self) {
        (self.is_serving, self.holds_ports) = (false, false);
    }

    /// Processes, networks and memory are lost with the power.
    pub fn lose_power(&mut self) {
        (self.has_network, self.has_secrets) = (false, false);
        self.lose_agent();
        if self.container != ContainerState::Absent {
            self.container = ContainerState::Recorded;
        }
    }

    /// Only a manager can provide them.
    pub fn lacks_secrets(&self) -> bool {
        !self.has_secrets && !self.assignment.spec.secrets.is_empty()
    }

    /// Returns whether the process ended because of the action.
    ///
    /// # Errors
    /// An action that must never be requested on a node.
    fn change(&mut self, action: &Action, now: Timestamp) -> Result<bool, &'static str> {
        match action {
            Action::Inspect | Action::EnsureImage => {}
            Action::EnsureNetwork => self.has_network = true,
            Action::EnsureFiles => self.has_files = true,
            Action::EnsureVolumes => self.has_volumes = true,
            Action::EnsureSecretObjects => self.has_secrets = true,
            Action::ReservePorts => (self.is_serving, self.holds_ports) = (false, true),
            Action::ReleasePorts => (self.is_serving, self.holds_ports) = (false, false),
            Action::RouteTraffic if !self.has_network => return Err("gets traffic without a network"),
            Action::RouteTraffic => (self.is_serving, self.holds_ports) = (true, true),
            Action::EnsureContainer => {
                if self.container.is_running() {
                    return Err("was made while it runs");
                }
                if self.container == ContainerState::Absent {
                    self.image = resolved_digest(&self.assignment);
                }
                if self.lacks_secrets() {
                    return Err("was made without its secrets");
                }
                if !self.has_volumes && !self.assignment.volumes.is_empty() {
                    return Err("was made without its volumes");
                }
                if self.image.is_none() {
                    return Err("was made before its image was settled");
                }
                self.attempts.get_or_insert_with(AttemptHistory::default);
                self.container = ContainerState::Created;
            }
            Action::Start => {
                if self.container != ContainerState::Created {
                    return Err("was started twice or before it was made");
                }
                if self.lacks_secrets() {
                    return Err("was started without its secrets");
                }
                self.container = ContainerState::Running { since: now };
            }
            Action::RecordHistory(history) => {
                // As the record's label holds it.
                let stored = history
                    .to_string()
                    .parse()
                    .map_err(|_| "has an attempt history that cannot be parsed")?;
                self.attempts = self.attempts.take().map(|_| stored);
            }
            Action::RunHooks(_) => return Err("has hooks, which no service here has"),
            Action::SignalStop | Action::Kill => {
                if self.container.is_running() {
                    let exit = TaskExit { code: 143, out_of_memory: false };
                    self.container = ContainerState::Stopped { exit, at: now };
                    return Ok(true);
                }
            }
            Action::DeleteProcess if self.container.is_running() => return Err("was cleared while it runs"),
            Action::DeleteProcess => {
                if self.container != ContainerState::Absent {
                    self.container = ContainerState::Recorded;
                }
            }
            Action::RemoveLayer if self.container.is_running() => return Err("lost its layer while it runs"),
            Action::RemoveLayer => {}
            Action::RemoveContainer => {
                (self.container, self.attempts, self.image) = (ContainerState::Absent, None, None);
            }
            Action::RemoveNetwork if self.container.is_running() => {
                return Err("lost its network while it runs");
            }
            Action::RemoveNetwork => self.has_network = false,
            Action::RemoveSecretObjects if self.container.is_running() => {
                return Err("lost its secrets while it runs");
            }
            Action::RemoveSecretObjects => self.has_secrets = false,
            Action::RemoveFiles => self.has_files = false,
        }
        Ok(false)
    }
}

impl ClusterSimulation {
    /// An action takes effect on the machine. Returns whether the task's process ended because of it.
    pub(super) fn take_effect(
        &mut self,
        worker: usize,
        task: TaskId,
        desired: Option<Arc<TaskAssignment>>,
        action: &Action,
    ) -> bool {
        let now = self.wall_clock(self.workers[worker].clock_off);
        self.oracle_action_started(worker, task, action);
        let incarnation = self.workers[worker].incarnation();
        let shape = (*action == Action::Start).then(|| self.new_process_health());
        let machine = &mut self.workers[worker].machine;
        let desired = desired.or_else(|| machine.get(&task).map(|remains| remains.assignment.clone()));
        // Its assignment is unknown, and nothing of it exists.
        let Some(assignment) = desired else { return false };
        let lives_shortly = *action == Action::Start
            && self.has_faults
            && assignment.spec.image.to_string().contains(UNHEALTHY_IMAGE);
        let remains =
            machine.entry(task).or_insert_with(|| TaskOnMachine::empty(assignment.clone(), incarnation));
        if let Some(shape) = shape {
            remains.health = shape;
        }
        if *action == Action::EnsureContainer {
            remains.assignment = assignment;
            if remains.container == ContainerState::Absent {
                remains.incarnation = incarnation;
            }
        }
        let changed = remains.change(action, now);
        if remains.is_empty() {
            machine.remove(&task);
        }
        let ended = match changed {
            Ok(ended) => ended,
            Err(wrong) => {
                self.check(Err(format!("task {task} {wrong}")));
                false
            }
        };
        if lives_shortly {
            let delay = self.rng.between(20, 600);
            self.after(delay, SimEvent::ProcessExits { worker, task });
        }
        self.oracle_machine(worker, task);
        if *action == Action::Start {
            self.oracle_started(worker, task);
        }
        ended
    }
}

//! What is really on a worker's machine for a task, and what actions do to it.

use std::sync::Arc;

use super::health::Shape;
use warren_task::{Action, Container, Ledger, pin};
use warren_types::{Exit, ImageDigest, TaskAssignment, TaskId, Timestamp};

use crate::client::CANNOT_LIVE;
use crate::event::Event;
use crate::world::World;

/// What is there for one task.
#[derive(Debug, Clone)]
pub struct Remains {
    /// In the container's record.
    pub assignment: Arc<TaskAssignment>,
    /// The cluster's life in which its container was made.
    pub life: u64,
    pub container: Container,
    /// What the container was made from.
    pub image: Option<ImageDigest>,
    pub ledger: Option<Ledger>,
    pub network: bool,
    pub files: bool,
    /// In memory.
    pub contents: bool,
    /// Those that it mounts were made.
    pub volumes: bool,
    /// How its process does.
    pub(super) shape: Shape,
    pub serving: bool,
    /// The node's published ports are taken for the task's service.
    pub holds_ports: bool,
}

impl Remains {
    fn nothing(assignment: Arc<TaskAssignment>, life: u64) -> Self {
        let container = Container::Absent;
        Self {
            assignment,
            life,
            container,
            image: None,
            ledger: None,
            network: false,
            files: false,
            contents: false,
            volumes: false,
            shape: Shape::Well,
            serving: false,
            holds_ports: false,
        }
    }

    /// A restarted agent finds the task.
    pub fn has_record(&self) -> bool {
        self.container != Container::Absent
    }

    pub fn is_nothing(&self) -> bool {
        let beside = self.network || self.files || self.contents || self.holds_ports;
        self.container == Container::Absent && !beside
    }

    /// The agent's own process held the ports.
    pub fn lose_agent(&mut self) {
        (self.serving, self.holds_ports) = (false, false);
    }

    /// No process, no network and nothing in memory outlives the power.
    pub fn lose_power(&mut self) {
        (self.network, self.contents) = (false, false);
        self.lose_agent();
        if self.container != Container::Absent {
            self.container = Container::Recorded;
        }
    }

    /// Only a manager can give them.
    pub fn lacks_contents(&self) -> bool {
        !self.contents && !self.assignment.spec.secrets.is_empty()
    }

    /// Answers whether the process ended because of the action.
    ///
    /// # Errors
    /// What must never be asked of a node.
    fn change(&mut self, action: &Action, now: Timestamp) -> Result<bool, &'static str> {
        match action {
            Action::Inspect | Action::EnsureImage => {}
            Action::EnsureNetwork => self.network = true,
            Action::EnsureFiles => self.files = true,
            Action::EnsureVolumes => self.volumes = true,
            Action::EnsureContents => self.contents = true,
            Action::HoldPorts => (self.serving, self.holds_ports) = (false, true),
            Action::ReleasePorts => (self.serving, self.holds_ports) = (false, false),
            Action::Serve if !self.network => return Err("gets traffic without a network"),
            Action::Serve => (self.serving, self.holds_ports) = (true, true),
            Action::EnsureContainer => {
                if self.container.is_running() {
                    return Err("was made while it runs");
                }
                if self.container == Container::Absent {
                    self.image = pin(&self.assignment);
                }
                if self.lacks_contents() {
                    return Err("was made without its secrets");
                }
                if !self.volumes && !self.assignment.volumes.is_empty() {
                    return Err("was made without its volumes");
                }
                if self.image.is_none() {
                    return Err("was made before its image was settled");
                }
                self.ledger.get_or_insert_with(Ledger::first);
                self.container = Container::Created;
            }
            Action::Start => {
                if self.container != Container::Created {
                    return Err("was started twice or before it was made");
                }
                if self.lacks_contents() {
                    return Err("was started without its secrets");
                }
                self.container = Container::Running { since: now };
            }
            Action::RecordLedger(ledger) => {
                // As the record's label holds it.
                let stored = ledger.to_string().parse().map_err(|_| "has a ledger that cannot be read")?;
                self.ledger = self.ledger.take().map(|_| stored);
            }
            Action::SignalStop | Action::Kill => {
                if self.container.is_running() {
                    let exit = Exit { code: 143, out_of_memory: false };
                    self.container = Container::Stopped { exit, at: now };
                    return Ok(true);
                }
            }
            Action::DeleteProcess if self.container.is_running() => return Err("was cleared while it runs"),
            Action::DeleteProcess => {
                if self.container != Container::Absent {
                    self.container = Container::Recorded;
                }
            }
            Action::RemoveContainer => {
                (self.container, self.ledger, self.image) = (Container::Absent, None, None);
            }
            Action::RemoveNetwork if self.container.is_running() => {
                return Err("lost its network while it runs");
            }
            Action::RemoveNetwork => self.network = false,
            Action::RemoveContents if self.container.is_running() => {
                return Err("lost its secrets while it runs");
            }
            Action::RemoveContents => self.contents = false,
            Action::RemoveFiles => self.files = false,
        }
        Ok(false)
    }
}

impl World {
    /// An action takes effect on the machine. Answers whether the task's process ended because of it.
    pub(super) fn take_effect(
        &mut self,
        worker: usize,
        task: TaskId,
        wanted: Option<Arc<TaskAssignment>>,
        action: &Action,
    ) -> bool {
        let now = self.wall(self.workers[worker].clock_off);
        self.oracle_acts(worker, task, action);
        let life = self.workers[worker].life();
        let shape = (*action == Action::Start).then(|| self.shape_of_a_new_process());
        let machine = &mut self.workers[worker].machine;
        let wanted = wanted.or_else(|| machine.get(&task).map(|remains| remains.assignment.clone()));
        // Nobody knows what it was, and nothing of it is there.
        let Some(assignment) = wanted else { return false };
        let lives_shortly = *action == Action::Start
            && self.faulty
            && assignment.spec.image.to_string().contains(CANNOT_LIVE);
        let remains = machine.entry(task).or_insert_with(|| Remains::nothing(assignment.clone(), life));
        if let Some(shape) = shape {
            remains.shape = shape;
        }
        if *action == Action::EnsureContainer {
            remains.assignment = assignment;
            if remains.container == Container::Absent {
                remains.life = life;
            }
        }
        let changed = remains.change(action, now);
        if remains.is_nothing() {
            machine.remove(&task);
        }
        let ended = match changed {
            Ok(ended) => ended,
            Err(wrong) => {
                self.demand(Err(format!("task {task} {wrong}")));
                false
            }
        };
        if lives_shortly {
            let delay = self.chance.between(20, 600);
            self.after(delay, Event::Exits { worker, task });
        }
        self.oracle_machine(worker, task);
        ended
    }
}

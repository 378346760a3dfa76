//! The worker: an agent that can be killed, and a machine with containers that outlive it.

use std::collections::BTreeMap;

use warren_task::{Action, Container, Found, Ledger, Severity, Sight, Step, report, step, supersedes};
use warren_types::{
    AssignmentVersion, Bytes, Exit, MilliCpu, NodeDescription, NodeId, NodeName, Resources, TaskAssignment,
    TaskId, TaskReport,
};

use crate::world::{Defect, Event, ToManager, ToWorker, World};

/// How an action ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Succeeds,
    /// It did not take effect.
    FailsBefore,
    /// It took effect, but the agent is told that it failed.
    FailsAfter,
}

/// What is really on the machine for a task.
#[derive(Debug, Clone)]
pub struct Remains {
    /// In the container's record.
    pub assignment: TaskAssignment,
    pub container: Container,
    pub ledger: Option<Ledger>,
    pub network: bool,
    pub files: bool,
    pub serving: bool,
}

/// A node.
pub struct Worker {
    pub id: NodeId,
    /// What outlives the agent.
    pub machine: BTreeMap<TaskId, Remains>,
    boots: u64,
    pub agent: Option<Agent>,
}

/// One life of the agent.
pub struct Agent {
    boot: u64,
    actors: BTreeMap<TaskId, Actor>,
    version: AssignmentVersion,
    /// This life has had a full assignment: only now may it remove what nobody wants.
    informed: bool,
    /// The session on the connection that stands is open: only now does the manager listen.
    welcomed: bool,
    /// Newest word on each task that the manager has not acknowledged.
    unsent: BTreeMap<TaskId, TaskReport>,
    frames: u64,
    /// Under way, by frame.
    in_flight: BTreeMap<u64, Vec<TaskReport>>,
}

struct Actor {
    wanted: Option<TaskAssignment>,
    found: Found,
    busy: bool,
    said: Option<TaskReport>,
}

impl Worker {
    pub fn new(id: NodeId) -> Self {
        Self { id, machine: BTreeMap::new(), boots: 0, agent: None }
    }

    pub fn boot(&self) -> Option<u64> {
        self.agent.as_ref().map(|agent| agent.boot)
    }

    pub fn registration(&self) -> (NodeId, NodeName, NodeDescription) {
        let description = NodeDescription {
            resources: Resources { cpu: MilliCpu(4_000), memory: Bytes(8 << 30) },
            architecture: "amd64".into(),
            kernel: "6.1".into(),
            runtime: "simulated".into(),
            version: "0.1.0".into(),
            address: "10.0.0.1:8080".into(),
        };
        (self.id, "node-1".parse().expect("a valid name"), description)
    }

    /// What was on its way is lost, and will be said again.
    pub fn disconnected(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.welcomed = false;
            for report in std::mem::take(&mut agent.in_flight).into_values().flatten() {
                let newer = agent.unsent.get(&report.task).is_some_and(|newer| supersedes(newer, &report));
                if !newer {
                    agent.unsent.insert(report.task, report);
                }
            }
        }
    }
}

impl World {
    pub(crate) fn agent_starts(&mut self) {
        if self.worker.agent.is_some() {
            return;
        }
        self.worker.boots += 1;
        let (boot, now) = (self.worker.boots, self.time());
        let recorded = self.worker.machine.values().filter(|found| found.container != Container::Absent);
        let actor = |remains: &Remains| Actor {
            wanted: Some(remains.assignment.clone()),
            found: Found::new(now),
            busy: false,
            said: None,
        };
        let actors: BTreeMap<_, _> = recorded.map(|found| (found.assignment.id, actor(found))).collect();
        // The agent's own process held the ports.
        self.worker.machine.values_mut().for_each(|remains| remains.serving = false);
        let tasks: Vec<TaskId> = actors.keys().copied().collect();
        self.worker.agent = Some(Agent {
            boot,
            actors,
            version: AssignmentVersion::default(),
            informed: false,
            welcomed: false,
            unsent: BTreeMap::new(),
            frames: 0,
            in_flight: BTreeMap::new(),
        });
        tasks.into_iter().for_each(|task| self.soon(Event::Steps { boot, task }));
        self.after(3_000, Event::Syncs { boot });
        self.dial_again();
    }

    pub(crate) fn agent_dies(&mut self) {
        if self.worker.agent.take().is_some() {
            self.faults += u64::from(self.faulty);
            self.breaks();
            let pause = self.chance.between(100, 15_000);
            self.after(pause, Event::AgentStarts);
        }
    }

    pub(crate) fn dials(&mut self, boot: u64) {
        if self.worker.boot() != Some(boot) || self.connected {
            return;
        }
        if self.manager.run.is_none() {
            return self.dial_again();
        }
        self.connection += 1;
        self.connected = true;
        self.send_manager(ToManager::Hello);
    }

    pub(crate) fn syncs(&mut self, boot: u64) {
        if self.worker.boot() != Some(boot) {
            return;
        }
        self.after(3_000, Event::Syncs { boot });
        if let Some(agent) = &self.worker.agent {
            self.send_manager(ToManager::Sync(agent.version));
        }
        self.send_reports();
    }

    fn send_manager(&mut self, message: ToManager) {
        let session = self.connection;
        if self.connected {
            self.after(2, Event::ToManager { session, message });
        }
    }

    pub(crate) fn agent_hears(&mut self, message: ToWorker) {
        let now = self.time();
        let Some(agent) = &mut self.worker.agent else { return };
        match message {
            ToWorker::Stored(number) => {
                agent.in_flight.remove(&number);
            }
            ToWorker::Assignment(version, tasks) => {
                agent.welcomed = true;
                if version < agent.version {
                    return;
                }
                agent.version = version;
                (agent.informed, agent.welcomed) = (true, true);
                let mut wanted: BTreeMap<_, _> = tasks.into_iter().map(|task| (task.id, task)).collect();
                for (id, actor) in &mut agent.actors {
                    actor.wanted = wanted.remove(id);
                }
                for (id, task) in wanted {
                    let found = Found::new(now);
                    agent.actors.insert(id, Actor { wanted: Some(task), found, busy: false, said: None });
                }
                let (boot, all): (u64, Vec<TaskId>) = (agent.boot, agent.actors.keys().copied().collect());
                all.into_iter().for_each(|task| self.soon(Event::Steps { boot, task }));
            }
        }
        self.send_reports();
    }

    /// Asks what to do for a task, and begins it.
    pub(crate) fn steps(&mut self, boot: u64, task: TaskId) {
        let now = self.time();
        let Some(agent) = self.worker.agent.as_mut().filter(|agent| agent.boot == boot) else { return };
        let Some(actor) = agent.actors.get_mut(&task).filter(|actor| !actor.busy) else { return };
        match step(actor.wanted.as_ref(), &actor.found, now) {
            Step::Do(action) => {
                actor.busy = true;
                let fate = match self.chance.between(0, 59) {
                    0 if self.faulty => Fate::FailsBefore,
                    1 if self.faulty => Fate::FailsAfter,
                    _ => Fate::Succeeds,
                };
                self.faults += u64::from(fate != Fate::Succeeds);
                let lasts = self.chance.between(1, 40);
                self.after(lasts, Event::Acts { boot, task, action, fate });
            }
            Step::WaitUntil(moment) => {
                let wait = moment.0.saturating_sub(self.now).max(1);
                self.after(wait, Event::Steps { boot, task });
            }
            Step::Settled => {}
        }
        self.tell(task);
    }

    /// The end of an action: its effect on the machine, and what the agent is told of it.
    pub(crate) fn acts(&mut self, boot: u64, task: TaskId, action: &Action, fate: Fate) {
        let now = self.time();
        let Some(agent) = self.worker.agent.as_mut().filter(|agent| agent.boot == boot) else { return };
        let Some(actor) = agent.actors.get_mut(&task) else { return };
        actor.busy = false;
        let remains = self.worker.machine.get(&task);
        if let (Action::Inspect, Fate::Succeeds) = (action, fate) {
            let container = remains.map_or(Container::Absent, |remains| remains.container);
            actor.found.inspected(container, remains.and_then(|remains| remains.ledger.clone()));
        } else if fate == Fate::FailsBefore {
            actor.found.failed(action, Severity::Transient, "simulated".into(), now);
        } else {
            let wanted = actor.wanted.clone().or_else(|| remains.map(|remains| remains.assignment.clone()));
            let before = remains.map_or(Container::Absent, |remains| remains.container);
            let overtaken = self.worker.effect(task, wanted, action, now);
            let Some(agent) = &mut self.worker.agent else { return };
            let Some(actor) = agent.actors.get_mut(&task) else { return };
            if fate == Fate::FailsAfter {
                actor.found.failed(action, Severity::Transient, "simulated".into(), now);
            } else {
                let stale = actor.found.sight != Sight::Fresh;
                actor.found.succeeded(action, now);
                if stale || overtaken || before != actor.found.container {
                    actor.found.overtaken();
                }
            }
        }
        self.soon(Event::Steps { boot, task });
        self.tell(task);
    }

    pub(crate) fn some_process_exits(&mut self) {
        let running: Vec<TaskId> =
            self.worker.machine.iter().filter(|(_, r)| r.container.is_running()).map(|r| *r.0).collect();
        let Some(task) = self.chance.pick(&running).filter(|_| self.faulty) else { return };
        let code = i32::try_from(self.chance.between(0, 2)).unwrap_or(0);
        let at = self.time();
        self.faults += 1;
        if let Some(remains) = self.worker.machine.get_mut(&task) {
            remains.container = Container::Stopped { exit: Exit { code, out_of_memory: false }, at };
        }
        self.event_of(task);
    }

    /// The runtime's event about a task's process; one in eight is lost and found by the next re-list.
    fn event_of(&mut self, task: TaskId) {
        let late = if self.faulty && self.chance.one_in(8) { 20_000 } else { 1 };
        let Some(agent) = &mut self.worker.agent else { return };
        let boot = agent.boot;
        if let Some(actor) = agent.actors.get_mut(&task) {
            actor.found.overtaken();
        }
        self.after(late, Event::Steps { boot, task });
    }

    /// Notes what is to be said of a task, and says it.
    fn tell(&mut self, task: TaskId) {
        let lies = self.defect == Some(Defect::SaysRemovedEarly);
        let Some(agent) = &mut self.worker.agent else { return };
        let Some(actor) = agent.actors.get_mut(&task) else { return };
        let mut said = report(task, actor.wanted.as_ref(), &actor.found);
        said.removed |=
            lies && actor.wanted.as_ref().is_some_and(|t| t.desired == warren_types::Desired::Remove);
        let gone = said.removed && actor.wanted.is_none() && agent.informed;
        if actor.said.as_ref() != Some(&said) {
            actor.said = Some(said.clone());
            agent.unsent.insert(task, said);
        }
        if gone {
            agent.actors.remove(&task);
        }
        self.send_reports();
    }

    fn send_reports(&mut self) {
        let connected = self.connected;
        let Some(agent) = self.worker.agent.as_mut().filter(|agent| connected && agent.welcomed) else {
            return;
        };
        // One frame at a time keeps the order.
        if agent.unsent.is_empty() || !agent.in_flight.is_empty() {
            return;
        }
        agent.frames += 1;
        let (number, reports) = (agent.frames, std::mem::take(&mut agent.unsent));
        let reports: Vec<TaskReport> = reports.into_values().collect();
        agent.in_flight.insert(number, reports.clone());
        self.send_manager(ToManager::Reports(number, reports));
    }
}

impl Worker {
    /// What an action does to the machine. Answers whether the process ended because of it. The panics are what must
    /// never be asked of a node.
    fn effect(
        &mut self,
        task: TaskId,
        wanted: Option<TaskAssignment>,
        action: &Action,
        now: warren_types::Timestamp,
    ) -> bool {
        let Some(assignment) = wanted else { return false };
        let nothing = Remains {
            assignment,
            container: Container::Absent,
            ledger: None,
            network: false,
            files: false,
            serving: false,
        };
        let remains = self.machine.entry(task).or_insert(nothing);
        let mut ended = false;
        match action {
            Action::Inspect => {}
            Action::EnsureNetwork => remains.network = true,
            Action::EnsureFiles => remains.files = true,
            Action::HoldPorts | Action::ReleasePorts => remains.serving = false,
            Action::Serve => remains.serving = true,
            Action::EnsureContainer => {
                assert!(!remains.container.is_running(), "{task} was made while it runs");
                remains.ledger.get_or_insert_with(Ledger::first);
                remains.container = Container::Created;
            }
            Action::Start => {
                assert_eq!(
                    remains.container,
                    Container::Created,
                    "{task} was started twice or before it was made"
                );
                remains.container = Container::Running { since: now };
            }
            Action::RecordLedger(ledger) => {
                if remains.ledger.is_some() {
                    remains.ledger = Some(ledger.clone());
                }
            }
            Action::SignalStop | Action::Kill => {
                if remains.container.is_running() {
                    let exit = Exit { code: 143, out_of_memory: false };
                    remains.container = Container::Stopped { exit, at: now };
                    ended = true;
                }
            }
            Action::DeleteProcess => {
                assert!(!remains.container.is_running(), "{task} was cleared while it runs");
                remains.container = Container::Recorded;
            }
            Action::RemoveContainer => (remains.container, remains.ledger) = (Container::Absent, None),
            Action::RemoveNetwork => remains.network = false,
            Action::RemoveFiles => remains.files = false,
        }
        if remains.is_nothing() {
            self.machine.remove(&task);
        }
        ended
    }
}

impl Remains {
    fn is_nothing(&self) -> bool {
        self.container == Container::Absent && !self.network && !self.files && !self.serving
    }
}

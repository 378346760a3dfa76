//! What happens when: the queue of events, the faults, and the end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use warren_consensus::Proposal;
use warren_core::{Command, State};
use warren_task::Action;
use warren_types::{AssignmentVersion, NodeId, TaskAssignment, TaskId, TaskReport, Timestamp};

use crate::chance::Chance;
use crate::client::Client;
use crate::invariants::{self, Violation};
use crate::manager::Manager;
use crate::planner::Key;
use crate::worker::{Fate, Worker};

/// Faults happen until here, in milliseconds.
const CHAOS: u64 = 60_000;
/// By then the cluster must be at rest: the longest back-off of a slot is five minutes.
const END: u64 = CHAOS + 30 * 60_000;
/// Virtual time at which histories begin; anything but 0, so that a missing time shows.
const EPOCH: u64 = 1_700_000_000_000;

/// One thing that happens. `boot` says in which life of its process; what is of an earlier life is void.
#[derive(Debug, Clone)]
pub enum Event {
    /// Raft's clock.
    Tick {
        boot: u64,
    },
    /// The disk has done the oldest write.
    Written {
        boot: u64,
    },
    /// A planner looks at a key.
    Plan {
        boot: u64,
        key: Key,
    },
    /// The manager's power goes, or comes back.
    ManagerDies,
    ManagerStarts,
    /// The disk will lose power at one of its next writes.
    DiskFails,
    /// The agent is killed, or starts.
    AgentDies,
    AgentStarts,
    /// The agent dials.
    Dials {
        boot: u64,
    },
    /// The session's connection breaks.
    Breaks,
    /// The agent asks whether its assignment is current, and repeats what was not acknowledged.
    Syncs {
        boot: u64,
    },
    /// Something arrives at the other end of a session.
    ToManager {
        session: u64,
        message: ToManager,
    },
    ToWorker {
        session: u64,
        message: ToWorker,
    },
    /// The agent's actor for a task looks what to do.
    Steps {
        boot: u64,
        task: TaskId,
    },
    /// What an actor did is done.
    Acts {
        boot: u64,
        task: TaskId,
        action: Action,
        fate: Fate,
    },
    /// Some process exits by itself.
    Exits,
    /// The client does something, or repeats it.
    Client,
    /// Faults are over.
    Peace,
    /// Is everything at rest?
    Look,
}

/// From an agent.
#[derive(Debug, Clone)]
pub enum ToManager {
    Hello,
    Sync(AssignmentVersion),
    Reports(u64, Vec<TaskReport>),
}

/// To an agent.
#[derive(Debug, Clone)]
pub enum ToWorker {
    Assignment(AssignmentVersion, Vec<TaskAssignment>),
    Stored(u64),
}

/// A mistake put in on purpose, to show that the invariants find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// The manager answers before its write is durable.
    AnswersEarly,
    /// The agent says that a task is removed when its container still is there.
    SaysRemovedEarly,
    /// The manager says that reports are stored before they are.
    StoresLater,
}

/// What a history was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Hash of every event, in order.
    pub trace: u64,
    /// How many events.
    pub events: u64,
    /// How many faults.
    pub faults: u64,
    /// How many writes were acknowledged to the client.
    pub acknowledged: u64,
}

/// A cluster and everything around it.
pub struct World {
    pub(crate) seed: u64,
    pub(crate) now: u64,
    pub(crate) chance: Chance,
    queue: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub(crate) manager: Manager,
    pub(crate) worker: Worker,
    pub(crate) client: Client,
    /// Every command that was ever encoded; the log holds its place here.
    pub(crate) commands: Vec<Command>,
    pub(crate) faulty: bool,
    pub(crate) faults: u64,
    /// Number of the newest connection, and whether it stands.
    pub(crate) connection: u64,
    pub(crate) connected: bool,
    pub(crate) defect: Option<Defect>,
    trace: DefaultHasher,
    events: u64,
}

impl World {
    /// A cluster before its first start.
    pub fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut world = Self {
            seed,
            now: EPOCH,
            chance: Chance::new(seed),
            queue: BTreeMap::new(),
            sequence: 0,
            manager: Manager::default(),
            worker: Worker::new(NodeId(warren_types::Id(77))),
            client: Client::default(),
            commands: Vec::new(),
            faulty: true,
            faults: 0,
            connection: 0,
            connected: false,
            defect,
            trace: DefaultHasher::new(),
            events: 0,
        };
        for event in [Event::ManagerStarts, Event::AgentStarts, Event::Client] {
            world.after(1, event);
        }
        world.after(CHAOS, Event::Peace);
        world.plan_faults();
        world
    }

    fn plan_faults(&mut self) {
        let kinds = [Event::ManagerDies, Event::DiskFails, Event::AgentDies, Event::Breaks, Event::Exits];
        for kind in kinds {
            for _ in 0..self.chance.between(1, 4) {
                let at = self.chance.between(500, CHAOS - 1);
                self.after(at, kind.clone());
            }
        }
    }

    /// The time, as commands and reports carry it.
    pub(crate) fn time(&self) -> Timestamp {
        Timestamp(self.now)
    }

    /// Makes `event` happen in so many milliseconds.
    pub(crate) fn after(&mut self, millis: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((self.now + millis, self.sequence), event);
    }

    /// Makes `event` happen soon, after a delay that chance gives.
    pub(crate) fn soon(&mut self, event: Event) {
        let delay = if self.faulty && self.chance.one_in(50) { 2_000 } else { 20 };
        let delay = self.chance.between(0, delay);
        self.after(delay, event);
    }

    /// Encodes a command for the log.
    pub(crate) fn encode(&mut self, id: u64, command: Command) -> Proposal {
        self.commands.push(command);
        let place = self.commands.len() as u64 - 1;
        Proposal { id, data: place.to_be_bytes().to_vec().into() }
    }

    /// The manager's state, while it runs.
    pub(crate) fn state(&self) -> Option<&State> {
        self.manager.run.as_ref().map(|run| &run.state)
    }

    /// Runs until everything is at rest.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(mut self) -> Result<History, Violation> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.events += 1;
            (at, format!("{event:?}")).hash(&mut self.trace);
            if matches!(event, Event::Look) && invariants::rest::holds(&self).is_ok() {
                return Ok(History {
                    trace: self.trace.finish(),
                    events: self.events,
                    faults: self.faults,
                    acknowledged: self.client.acknowledged,
                });
            }
            if at > EPOCH + END {
                return Err(self.violation(invariants::rest::holds(&self).err().unwrap_or_default()));
            }
            let shown = format!("{event:?}");
            if std::env::var_os("WARREN_SIM_TRACE").is_some() && !matches!(event, Event::Tick { .. }) {
                eprintln!("{} {shown}", self.now - EPOCH);
            }
            self.happen(event);
            if let Err(what) = invariants::check(&self) {
                return Err(self.violation(format!("{what}, after {shown}")));
            }
        }
        Err(self.violation("nothing happens any more".into()))
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at: self.now - EPOCH, events: self.events, what }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick { boot } => self.tick(boot),
            Event::Written { boot } => self.written(boot),
            Event::Plan { boot, key } => self.plan(boot, key),
            Event::ManagerDies => self.manager_dies(),
            Event::ManagerStarts => self.manager_starts(),
            Event::DiskFails => self.disk_fails(),
            Event::AgentDies => self.agent_dies(),
            Event::AgentStarts => self.agent_starts(),
            Event::Dials { boot } => self.dials(boot),
            Event::Breaks => self.breaks(),
            Event::Syncs { boot } => self.syncs(boot),
            Event::ToManager { session, message } if self.stands(session) => self.manager_hears(message),
            Event::ToWorker { session, message } if self.stands(session) => self.agent_hears(message),
            Event::ToManager { .. } | Event::ToWorker { .. } => {}
            Event::Steps { boot, task } => self.steps(boot, task),
            Event::Acts { boot, task, action, fate } => self.acts(boot, task, &action, fate),
            Event::Exits => self.some_process_exits(),
            Event::Client => self.client_acts(),
            Event::Peace => {
                self.faulty = false;
                self.after(1_000, Event::Look);
            }
            Event::Look => self.after(1_000, Event::Look),
        }
    }

    fn stands(&self, session: u64) -> bool {
        self.connected && self.connection == session
    }

    /// The connection is gone for both ends; the agent dials again after a while.
    pub(crate) fn breaks(&mut self) {
        if std::mem::take(&mut self.connected) {
            self.faults += u64::from(self.faulty);
            if let Some(run) = &mut self.manager.run {
                run.session = None;
            }
            self.worker.disconnected();
            self.dial_again();
        }
    }

    /// The agent, if it runs, dials after a while.
    pub(crate) fn dial_again(&mut self) {
        if let Some(boot) = self.worker.boot() {
            let pause = self.chance.between(50, 1_000);
            self.after(pause, Event::Dials { boot });
        }
    }
}

//! A worker: a machine with containers, and an agent on it that can be killed.
//!
//! `worker/session.rs` speaks to managers, `worker/actors.rs` asks `step` and does what it says, and
//! `worker/machine.rs` is what is really there.

mod actors;
mod health;
mod machine;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use warren_core::Command;
use warren_task::{Action, Contact, Found, Outbox, Wishes};
use warren_types::{
    AssignmentVersion, Bytes, Id, ImageDigest, ImageReference, ManagerAddress, MilliCpu, NodeCondition,
    NodeDescription, NodeId, NodeName, NodeRole, Resources, TaskAssignment, TaskId, Timestamp,
};

use crate::event::{Event, OnWorker};
use crate::world::World;
pub use machine::Remains;

/// How an action ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Succeeds,
    /// It did not take effect.
    FailsBefore,
    /// It took effect, but the agent is told that it failed.
    FailsAfter,
    /// It did not take effect, and never will on this node.
    FailsForGood,
}

/// A node.
pub struct Worker {
    pub id: NodeId,
    /// What outlives the agent.
    pub machine: BTreeMap<TaskId, Remains>,
    /// The agent's file with what it was told last.
    cache: Option<Wishes>,
    /// Where managers are reached, as it was told last; kept apart from the cache, since without it the node is lost.
    pub managers: Vec<ManagerAddress>,
    /// The agent's file with the moment at which a manager was last heard, of this boot of the machine.
    noted: Option<u64>,
    /// It was removed from the cluster, and is to join again.
    was_removed: bool,
    boots: u64,
    /// How far the wall clock is off, in milliseconds.
    pub clock_off: i64,
    /// What is wrong with it.
    conditions: BTreeSet<NodeCondition>,
    /// It reaches nobody before this.
    pub away_until: u64,
    pub agent: Option<Agent>,
}

/// One life of the agent.
pub struct Agent {
    pub boot: u64,
    pub since: u64,
    actors: BTreeMap<TaskId, Actor>,
    wishes: Wishes,
    pub contact: Contact<Duration>,
    /// A manager did not know the node, and none has welcomed it since.
    outcast: bool,
    /// The connection in use, and how many words came over it.
    pub connection: Option<u64>,
    heard: u64,
    welcomed: bool,
    /// The manager has said what it wants.
    told: bool,
    /// When.
    pub welcomed_at: u64,
    outbox: Outbox<Duration>,
}

struct Actor {
    wanted: Option<Arc<TaskAssignment>>,
    found: Found,
    /// Nobody wants the task: the actor ends when nothing is left of it.
    dismissed: bool,
    /// What it does now.
    doing: Option<(Action, Fate)>,
    /// A check is to come.
    is_checked: bool,
}

impl Agent {
    /// What it knows of a task.
    pub fn found(&self, task: &TaskId) -> Option<&Found> {
        self.actors.get(task).map(|actor| &actor.found)
    }

    /// A manager has its session.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }
}

impl Actor {
    fn new(wanted: Option<Arc<TaskAssignment>>, now: warren_types::Timestamp) -> Self {
        Self { wanted, found: Found::new(now), dismissed: false, doing: None, is_checked: false }
    }
}

impl Worker {
    pub fn new(number: usize) -> Self {
        let id = NodeId(Id(100 + number as u128));
        let (machine, conditions, managers) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let (cache, noted, boots, clock_off, was_removed, agent) = (None, None, 0, 0, false, None);
        let away_until = 0;
        Self {
            id,
            machine,
            cache,
            managers,
            noted,
            was_removed,
            boots,
            clock_off,
            conditions,
            away_until,
            agent,
        }
    }

    /// How it becomes a node.
    pub fn registers(&self, at: Timestamp) -> Command {
        let (id, name, description) = (self.id, self.name(), self.description());
        Command::RegisterNode { id, name, role: NodeRole::Worker, description, at }
    }

    pub fn boot(&self) -> Option<u64> {
        self.agent.as_ref().map(|agent| agent.boot)
    }

    /// The number of the cluster's newest life that it has heard of; 0 before the first.
    pub fn life(&self) -> u64 {
        let wishes = self.agent.as_ref().map(|agent| &agent.wishes).or(self.cache.as_ref());
        wishes.map_or(0, |wishes| wishes.version.incarnation)
    }

    /// What the agent was told by a manager, this life of it or an earlier one.
    pub fn told(&self) -> Option<AssignmentVersion> {
        self.agent.as_ref().map(|agent| agent.wishes.version)
    }

    /// For how long no manager was heard, as far as is noted.
    pub fn silent_for(&self, now: u64) -> Option<u64> {
        self.noted.map(|noted| now - noted)
    }

    /// What it remembers, should its agent be killed now.
    fn remembers(&self) -> AssignmentVersion {
        self.cache.as_ref().map(|wishes| wishes.version).unwrap_or_default()
    }

    pub fn name(&self) -> NodeName {
        format!("node-{}", self.id.0.0 - 100).parse().expect("a valid name")
    }

    /// Where its machine stands. A registry that it asks may mean another image by a tag than that of the other zone.
    pub fn zone(&self) -> &'static str {
        if self.id.0.0.is_multiple_of(2) { "a" } else { "b" }
    }

    /// What its registry means by a reference.
    pub fn resolve(&self, image: &ImageReference) -> ImageDigest {
        let text = format!("{}{}", image.as_str(), self.zone());
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("sha256:{}", format!("{hash:016x}").repeat(4)).parse().expect("64 digits")
    }

    pub fn description(&self) -> NodeDescription {
        NodeDescription {
            resources: Resources { cpu: MilliCpu(4_000), memory: Bytes(8 << 30) },
            disk: Bytes(100 << 30),
            os: "linux".into(),
            labels: [("zone".to_string(), self.zone().to_string())].into(),
            architecture: "amd64".into(),
            kernel: "6.1".into(),
            runtime: "simulated".into(),
            version: "0.1.0".into(),
            address: format!("10.0.0.{}:8080", { self.id.0.0 }),
        }
    }
}

impl World {
    pub(crate) fn worker_of(&self, node: NodeId) -> Option<usize> {
        self.workers.iter().position(|worker| worker.id == node)
    }

    pub(crate) fn agent_starts(&mut self, number: usize) {
        let (now, elapsed, since) = (self.wall(self.workers[number].clock_off), self.elapsed(), self.now);
        let cache_is_lost = self.faulty && self.chance.one_in(4);
        let worker = &mut self.workers[number];
        if worker.agent.is_some() {
            return;
        }
        worker.boots += 1;
        let boot = worker.boots;
        worker.cache.take_if(|_| cache_is_lost);
        let mut wishes = worker.cache.clone().unwrap_or_default();
        wishes.confirmed = false;
        let mut actors: BTreeMap<TaskId, Actor> = BTreeMap::new();
        // What has no record is not found: nothing of it is there but what `step` makes or removes again.
        for (id, found) in worker.machine.iter().filter(|(_, found)| found.has_record()) {
            actors.insert(*id, Actor::new(Some(found.assignment.clone()), now));
        }
        for (id, wanted) in &wishes.tasks {
            let actor = actors.entry(*id).or_insert_with(|| Actor::new(None, now));
            actor.wanted = Some(wanted.clone());
        }
        let tasks: Vec<TaskId> = actors.keys().copied().collect();
        let silent = worker.noted.map(|noted| Duration::from_millis(since - noted));
        worker.agent = Some(Agent {
            boot,
            since,
            actors,
            wishes,
            contact: Contact::resume(elapsed, silent),
            outcast: false,
            connection: None,
            heard: 0,
            welcomed: false,
            told: false,
            welcomed_at: 0,
            outbox: Outbox::default(),
        });
        self.at_worker(number, 1, OnWorker::Notes);
        for task in tasks {
            self.soon_at_worker(number, OnWorker::Steps(task));
        }
        self.dial_again(number);
    }

    /// The agent is killed. What it was doing may have taken effect or not.
    pub(crate) fn agent_dies(&mut self, number: usize) {
        let Some(agent) = self.workers[number].agent.take() else { return };
        for (task, actor) in agent.actors {
            if let Some((action, _)) = actor.doing
                && self.chance.one_in(2)
            {
                self.take_effect(number, task, actor.wanted, &action);
            }
        }
        let machine = &mut self.workers[number].machine;
        machine.values_mut().for_each(Remains::lose_agent);
        machine.retain(|_, remains| !remains.is_nothing());
        self.break_connections_of_worker(number);
        let longest = if self.faulty { 9_000 } else { 500 };
        let pause = self.chance.between(50, longest);
        self.after(pause, Event::AgentStarts { worker: number });
    }

    /// The machine loses its power: no process and no network is left, records and files are.
    pub(crate) fn machine_reboots(&mut self, number: usize) {
        self.agent_dies(number);
        let worker = &mut self.workers[number];
        worker.noted = None;
        worker.machine.values_mut().for_each(Remains::lose_power);
        worker.machine.retain(|_, remains| !remains.is_nothing());
    }

    /// The node is no part of the cluster any more: nothing of it is left, and it joins again.
    fn leaves_the_cluster(&mut self, number: usize) {
        self.agent_dies(number);
        let worker = &mut self.workers[number];
        worker.machine.clear();
        (worker.cache, worker.noted, worker.was_removed) = (None, None, true);
    }

    pub(crate) fn at_worker(&mut self, worker: usize, delay: u64, what: OnWorker) {
        if let Some(boot) = self.workers[worker].boot() {
            self.after(delay, Event::Worker { worker, boot, what });
        }
    }

    fn soon_at_worker(&mut self, worker: usize, what: OnWorker) {
        let delay = self.chance.between(0, 20);
        self.at_worker(worker, delay, what);
    }

    pub(crate) fn worker_event(&mut self, worker: usize, boot: u64, what: OnWorker) {
        if self.workers[worker].boot() != Some(boot) {
            return;
        }
        match what {
            OnWorker::Dials => self.dials(worker),
            OnWorker::Heartbeat { connection } => self.heartbeat(worker, connection),
            OnWorker::Syncs { connection } => self.syncs(worker, connection),
            OnWorker::Listens { connection, heard } => self.listens(worker, connection, heard),
            OnWorker::Notes => self.notes(worker),
            OnWorker::Steps(task) => self.steps(worker, task),
            OnWorker::Looks(task) => self.looks(worker, task),
            OnWorker::Checks(task) => self.checks(worker, task),
            OnWorker::Acts(task, action, fate) => self.acts(worker, task, &action, fate),
        }
    }
}

//! What happens when: the queue of events, and the end.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use warren_consensus::ConfState;
use warren_core::Command;
use warren_types::{Id, ManagerId, Timestamp};

use crate::chance::Chance;
use crate::client::Client;
use crate::event::{Event, OnClient};
use crate::faults::Climate;
use crate::invariants::{self, Oracle, Violation};
use crate::manager::{Backup, Ghost, Image, Manager};
use crate::network::{Connections, Ways};
use crate::trace::Trace;
use crate::worker::Worker;
use crate::writers::{WRITERS, Writer};

/// Faults happen until here, in milliseconds.
const CHAOS: u64 = 25_000;
/// By then the cluster must be at rest: the longest back-off of a slot is five minutes.
const END: u64 = CHAOS + 15 * 60_000;
/// How often it is looked whether everything is at rest.
const LOOK: u64 = 500;
/// Virtual time at which histories begin; anything but 0, so that a missing time shows.
const EPOCH: u64 = 1_700_000_000_000;
const MANAGERS: usize = 3;
/// Of so many histories one has two managers more.
const MORE_MANAGERS_ONE_IN: u64 = 8;
const WORKERS: usize = 5;
const CLIENTS: usize = 2;

/// A mistake put in on purpose, to show that the invariants find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A manager answers before its write is durable.
    AnswersEarly,
    /// An agent says that a task is removed when its container still is there.
    SaysRemovedEarly,
    /// A leader stamps with its own wall clock, however far that is behind the cluster's.
    TrustsItsClock,
    /// A leader takes every learner for one that has caught up.
    PromotesWhoIsBehind,
    /// A leader promotes every learner by itself, so that the voters are sometimes even.
    EvenVoters,
    /// A cluster that begins its next life does not count it.
    KeepsItsIncarnation,
    /// A worker forgets what it has seen whenever it is told something.
    ObeysAnybody,
    /// A worker never notices that it has no manager.
    NeverAlone,
    /// A manager answers a write with the object as of all that it has applied by then.
    AnswersFromNewestState,
    /// The same with the version and the number alone.
    AnswersWithNewestVersion,
    /// A compare-and-set is carried out whatever the version.
    ForgetsExpectedVersions,
    /// A worker takes the time without a manager for twice as long as it is.
    SoonAlone,
}

/// What a history was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Hash of every event, in order.
    pub trace: u64,
    /// How many events.
    pub events: u64,
    /// How many faults.
    pub faults: u64,
    /// How many writes were acknowledged to clients.
    pub acknowledged: u64,
    /// How many writes of shared objects were acknowledged; how many compare-and-sets among them, and how many others
    /// were refused.
    pub shared: [u64; 3],
    /// How many entries were applied.
    pub entries: u64,
    /// How many terms had a leader.
    pub leaders: u64,
    /// How often the members changed.
    pub changes: u64,
    /// How often a member took over a snapshot from the leader.
    pub installed: u64,
    /// How many reads through raft were answered.
    pub reads: u64,
    /// How many revisions were made because a secret has a new version.
    pub followed: u64,
    /// How many volumes got their place with a task.
    pub settled: u64,
    /// How many times an unhealthy task got a replacement.
    pub replaced: u64,
    /// How often a member got its vote.
    pub promoted: u64,
    /// How many managers heard that they were removed.
    pub removed: u64,
    /// How often a manager moved to another address.
    pub moves: u64,
    /// How often one manager went on without the others.
    pub forced: u64,
    /// How often a backup was restored.
    pub restored: u64,
    /// How many nodes heard that they were removed.
    pub nodes_removed: u64,
    /// How many containers ran on through the end of a cluster's life.
    pub kept: u64,
    /// How many sessions of workers were opened.
    pub sessions: u64,
    /// How many writes a follower sent to the leader.
    pub forwarded: u64,
    /// How many differences of assignments workers took over.
    pub differences: u64,
    /// How often a worker found a manager of a life that was given up, and how often it obeyed.
    pub ghosts: [u64; 2],
    /// How many tasks their nodes stopped, as they had been without a manager for so long.
    pub left_off: u64,
    /// How many tasks got another one in their place when their node was lost.
    pub given_up: u64,
    /// How many tasks of lost nodes ran beside those in their place, until a manager was heard again.
    pub beside: u64,
    /// How often a member's disk went back to an earlier image of it.
    pub went_back: u64,
    /// How many members found that they lack what they acknowledged.
    pub regressed: u64,
    /// 1 if that lost something nobody could know, with which the history ended.
    pub excused: u64,
    /// 1 if that lost something and people had accepted it, with which the history ended.
    pub accepted: u64,
    /// Virtual milliseconds until everything was at rest.
    pub lasted: u64,
}

struct Scheduled {
    at: u64,
    sequence: u64,
    event: Event,
}

/// A cluster and everything around it.
pub struct World {
    pub(crate) seed: u64,
    /// What no clock on any machine can disturb.
    pub(crate) now: u64,
    pub(crate) chance: Chance,
    queue: BinaryHeap<Scheduled>,
    sequence: u64,
    pub(crate) managers: Vec<Manager>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) clients: Vec<Client>,
    pub(crate) writers: Vec<Writer>,
    pub(crate) ways: Ways,
    pub(crate) connections: Connections,
    pub(crate) climate: Climate,
    /// Every command that was ever proposed; the log holds its place here.
    pub(crate) commands: Vec<Command>,
    pub(crate) faulty: bool,
    pub(crate) faults: u64,
    pub(crate) installed_snapshots: u64,
    pub(crate) reads_answered: u64,
    /// When the members were last to change.
    pub(crate) change_begun: u64,
    /// When somebody last asked for that.
    pub(crate) members_asked: u64,
    pub(crate) promoted: u64,
    pub(crate) removed_managers: u64,
    pub(crate) moves: u64,
    pub(crate) backup: Option<Backup>,
    pub(crate) ghost: Option<Ghost>,
    pub(crate) image: Option<Image>,
    /// How often a worker found one, and obeyed it.
    pub(crate) ghosts_dialled: u64,
    pub(crate) ghosts_obeyed: u64,
    pub(crate) forced: u64,
    pub(crate) restored: u64,
    pub(crate) went_back: u64,
    pub(crate) regressed: u64,
    /// Something is lost that nobody could know to be acknowledged: nothing can be demanded any more.
    pub(crate) excused: bool,
    /// Or people accept it.
    pub(crate) accepted: bool,
    pub(crate) sessions_opened: u64,
    /// Writes that a manager sent to the leader.
    pub(crate) forwarded: u64,
    /// Differences of assignments that workers took over.
    pub(crate) differences: u64,
    pub(crate) defect: Option<Defect>,
    pub(crate) oracle: Oracle,
    broken: Option<String>,
    trace: Trace,
    events: u64,
    /// Every event is printed.
    shown: bool,
}

impl World {
    /// A cluster before its first start.
    pub fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut chance = Chance::new(seed);
        let climate = Climate::draw(&mut chance);
        let key = |host: usize| ManagerId(Id(u128::from(seed) << 64 | host as u128));
        let more = if seed % MORE_MANAGERS_ONE_IN == MORE_MANAGERS_ONE_IN - 1 { 2 } else { 0 };
        let hosts = 0..MANAGERS + more;
        let mut managers: Vec<Manager> = hosts.clone().map(|host| Manager::new(host, key(host))).collect();
        managers[0].becomes(1);
        let mut world = Self {
            seed,
            now: EPOCH,
            chance,
            queue: BinaryHeap::new(),
            sequence: 0,
            managers,
            workers: (0..WORKERS).map(Worker::new).collect(),
            clients: (0..CLIENTS).map(Client::new).collect(),
            writers: (0..WRITERS).map(Writer::new).collect(),
            ways: Ways::default(),
            connections: Connections::default(),
            climate,
            commands: Vec::new(),
            faulty: true,
            faults: 0,
            installed_snapshots: 0,
            reads_answered: 0,
            change_begun: 0,
            members_asked: 0,
            promoted: 0,
            removed_managers: 0,
            moves: 0,
            backup: None,
            ghost: None,
            image: None,
            ghosts_dialled: 0,
            ghosts_obeyed: 0,
            forced: 0,
            restored: 0,
            went_back: 0,
            regressed: 0,
            excused: false,
            accepted: false,
            sessions_opened: 0,
            forwarded: 0,
            differences: 0,
            defect,
            oracle: Oracle::new(ConfState::of_voters([1])),
            broken: None,
            trace: Trace::default(),
            events: 0,
            shown: std::env::var_os("WARREN_SIM_TRACE").is_some(),
        };
        for host in hosts {
            world.after(1, Event::ManagerStarts { host });
        }
        for worker in 0..WORKERS {
            world.after(1, Event::AgentStarts { worker });
        }
        for client in 0..CLIENTS {
            world.after(500, Event::Client { client, what: OnClient::Acts });
        }
        world.after(500, Event::WritersAct);
        world.after(CHAOS, Event::Peace);
        world.plan_faults(CHAOS);
        world
    }

    /// The time on a wall clock that is off by so many milliseconds.
    pub(crate) fn wall(&self, off: i64) -> Timestamp {
        Timestamp(self.now.saturating_add_signed(off))
    }

    /// The time on a clock that never jumps.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now - EPOCH)
    }

    /// Makes `event` happen in so many milliseconds.
    pub(crate) fn after(&mut self, millis: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Scheduled { at: self.now + millis, sequence: self.sequence, event });
    }

    /// Words between managers are lost with the processes at both ends.
    pub(crate) fn nothing_is_under_way(&mut self) {
        self.queue.retain(|it| !matches!(it.event, Event::Raft(..) | Event::Snapshot(..)));
    }

    /// Takes note of a violation; the first one ends the history.
    pub(crate) fn demand(&mut self, holds: Result<(), String>) {
        if let (Err(what), None) = (holds, &self.broken) {
            self.broken = Some(what);
        }
    }

    /// One more word into the trace.
    pub(crate) fn trace(&mut self, word: u64) {
        self.trace.add(word);
    }

    /// Runs until everything is at rest.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&mut self) -> Result<History, Violation> {
        while let Some(Scheduled { at, event, .. }) = self.queue.pop() {
            self.now = at;
            self.events += 1;
            self.trace.add(at);
            event.mark().into_iter().for_each(|word| self.trace.add(word));
            if self.shown {
                eprintln!("{:>6} {event:?}", self.now - EPOCH);
            }
            if matches!(event, Event::Look) {
                match invariants::rest::holds(self) {
                    Ok(()) => return self.finish(),
                    Err(what) if at > EPOCH + END => {
                        return Err(self.violation(&format!("converges: {what}")));
                    }
                    Err(_) => {}
                }
            }
            self.happen(event);
            if let Some(what) = self.broken.take() {
                return Err(self.violation(&what));
            }
            if self.excused || self.accepted {
                return Ok(self.history());
            }
        }
        Err(self.violation("converges: nothing happens any more"))
    }

    fn finish(&mut self) -> Result<History, Violation> {
        let checked = invariants::state::at_the_end(self);
        checked.map_err(|what| self.violation(&what))?;
        Ok(self.history())
    }

    fn history(&self) -> History {
        History {
            trace: self.trace.hash(),
            events: self.events,
            faults: self.faults,
            acknowledged: self.clients.iter().map(|client| client.acknowledged).sum(),
            shared: std::array::from_fn(|at| self.writers.iter().map(|writer| writer.counts[at]).sum()),
            entries: self.oracle.entries(),
            leaders: self.oracle.terms_led(),
            changes: self.oracle.membership_changes(),
            installed: self.installed_snapshots,
            reads: self.reads_answered,
            followed: self.oracle.followed,
            settled: self.oracle.settled,
            replaced: self.oracle.replaced,
            promoted: self.promoted,
            removed: self.removed_managers,
            moves: self.moves,
            forced: self.forced,
            restored: self.restored,
            nodes_removed: self.oracle.nodes_removed,
            kept: self.oracle.kept,
            sessions: self.sessions_opened,
            forwarded: self.forwarded,
            differences: self.differences,
            ghosts: [self.ghosts_dialled, self.ghosts_obeyed],
            left_off: self.oracle.left_off,
            given_up: self.oracle.given_up,
            beside: self.oracle.beside,
            went_back: self.went_back,
            regressed: self.regressed,
            excused: u64::from(self.excused),
            accepted: u64::from(self.accepted),
            lasted: self.now - EPOCH,
        }
    }

    /// What was found now.
    pub(crate) fn violation(&self, what: &str) -> Violation {
        Violation { seed: self.seed, at: self.now - EPOCH, events: self.events, what: what.to_string() }
    }

    fn happen(&mut self, event: Event) {
        let stalled = event.needs_manager(|id| self.host_of(id));
        let until = stalled.map_or(0, |host| self.managers[host].stalled_until);
        if until > self.now {
            return self.after(until - self.now, event);
        }
        match event {
            Event::Manager { host, boot, what } => self.manager_event(host, boot, what),
            Event::Raft(message, told) => self.raft_arrives(*message, told),
            Event::Snapshot(message, parts, told) => self.snapshot_arrives(*message, parts, told),
            Event::Worker { worker, boot, what } => self.worker_event(worker, boot, what),
            Event::Up { connection, said } => self.up_arrives(connection, said),
            Event::Down { connection, said } => self.down_arrives(connection, said),
            Event::Client { client, what } => self.client_event(client, what),
            Event::WritersAct => self.writers_act(),
            Event::Writer { writer, sending, reply } => self.writer_answered(writer, sending, &reply),
            Event::ManagerStarts { host } => self.manager_starts(host),
            Event::Joined { host, wiped, member, managers } => self.joined(host, wiped, member, managers),
            Event::AgentStarts { worker } => self.agent_starts(worker),
            Event::Exits { worker, task } => {
                if self.faulty {
                    self.faults += u64::from(self.process_exits(worker, task));
                }
            }
            Event::Returns { worker } => self.returns(worker),
            Event::Fault(fault) => self.fault(fault),
            Event::Peace => {
                self.peace();
                self.after(LOOK, Event::Look);
            }
            Event::Look => self.after(LOOK, Event::Look),
        }
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest: the heap gives that first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

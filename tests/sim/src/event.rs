//! What can happen, and what members, workers and clients say to each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_consensus::Message;
use warren_core::session::Word as Told;
use warren_core::state::Parts;
use warren_core::{Command, Outcome};
use warren_task::Action;
use warren_types::{AssignmentVersion, ManagerAddress, NodeCondition, TaskId, TaskReport};

use crate::faults::Fault;
use crate::manager::{Key, Who, Word};
use crate::worker::Fate;
use crate::writers::Reply;

/// One thing that happens. `boot` says in which life of a process; what is of another life is void.
#[derive(Debug, Clone)]
pub enum Event {
    /// At a manager.
    Manager { host: usize, boot: u64, what: OnManager },
    /// A raft message arrives at whoever has the id of its receiver then.
    /// With it comes up to which index it tells what is acknowledged.
    Raft(Box<Message>, u64),
    /// The bytes of a snapshot arrive, with the message that announces them, and what that tells.
    Snapshot(Box<Message>, Arc<Parts>, u64),
    /// At an agent.
    Worker { worker: usize, boot: u64, what: OnWorker },
    /// Something arrives at the manager's end of a connection.
    Up { connection: u64, said: ToManager },
    /// Something arrives at the worker's end of a connection.
    Down { connection: u64, said: ToWorker },
    /// At a client.
    Client { client: usize, what: OnClient },
    /// All writers write the same object.
    WritersAct,
    /// At one of them: a sending is answered.
    Writer { writer: usize, sending: u64, reply: Arc<Reply> },
    /// A manager's machine starts its manager, or asks to become one.
    ManagerStarts { host: usize },
    /// A machine is told that it is a manager: its member's id, and where managers are. Void when it was wiped since.
    Joined { host: usize, wiped: u64, member: u64, managers: Vec<ManagerAddress> },
    /// A worker's machine starts its agent.
    AgentStarts { worker: usize },
    /// A process that cannot live exits.
    Exits { worker: usize, task: TaskId },
    /// A worker that reached nobody may be back.
    Returns { worker: usize },
    /// Something breaks.
    Fault(Fault),
    /// Faults are over.
    Peace,
    /// Is everything at rest?
    Look,
}

/// What happens at a manager.
#[derive(Debug, Clone)]
pub enum OnManager {
    /// Raft's clock.
    Tick,
    /// The driver takes what waits for it.
    Turn,
    /// Once a second: contacts are relayed, and what was waited for too long is given up.
    Second,
    /// The disk has done, or tried, the oldest write.
    Disk,
    /// A snapshot of the state as of this index was written to a file.
    SnapshotWritten { index: u64, parts: Arc<Parts> },
    /// A snapshot from the leader is durable; now the message that announced it counts, and what that tells.
    SnapshotReceived(Box<Message>, u64),
    /// What became of a snapshot that was sent.
    SnapshotSent { to: u64, delivered: bool },
    /// A member cannot be reached.
    Unreachable { to: u64 },
    /// A planner looks at a key.
    Plan(Key),
    /// A planner comes to propose a command of the plan that it made in that term.
    Propose { key: Key, term: u64, command: Box<Command> },
    /// A client or a writer asks.
    Request { who: Who, command: Box<Command>, deadline: u64 },
    /// A machine asks to become a manager.
    Join { from: usize, wiped: u64, word: Box<Word> },
    /// Another manager speaks.
    Peer { from: usize, from_boot: u64, said: ToPeer },
}

/// Between managers, besides raft.
#[derive(Debug, Clone)]
pub enum ToPeer {
    /// To the leader: propose this.
    Forward { request: u64, command: Box<Command>, deadline: u64 },
    /// The answer.
    Answer { request: u64, answer: Answered },
    /// To all that it knows where to find: this is who I am, and where.
    Hello { id: u64, address: ManagerAddress },
    /// The answer to one that was removed.
    Removed,
    /// To all, from the leader: which workers are connected to you?
    WhoIsThere { term: u64 },
    /// The answer: workers, and how long ago each was heard, in milliseconds.
    Contacts { term: u64, heard: Vec<(usize, u64)> },
}

/// What became of a write: the index at which it was applied and what came of it.
pub type Answered = Result<(u64, Box<Outcome>), Unanswered>;

/// Why a write has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It was not and will not be proposed.
    NotProposed,
    /// It may happen yet.
    Unknown,
}

/// What happens at an agent.
#[derive(Debug, Clone)]
pub enum OnWorker {
    /// It dials a manager.
    Dials,
    /// It tells how the node is.
    Heartbeat { connection: u64 },
    /// It asks whether its assignment is current.
    Syncs { connection: u64 },
    /// Has the manager said anything since `heard`?
    Listens { connection: u64, heard: u64 },
    /// It notes when a manager was last heard.
    Notes,
    /// Its actor for a task looks what to do.
    Steps(TaskId),
    /// It is told that something happened to a task's container.
    Looks(TaskId),
    /// A check of the task's process is over.
    Checks(TaskId),
    /// What an actor did is done.
    Acts(TaskId, Box<Action>, Fate),
}

/// What happens at a client.
#[derive(Debug, Clone)]
pub enum OnClient {
    /// It does something, or repeats it.
    Acts,
    /// It is answered.
    Answer { sending: u64, answer: Answered },
}

/// From an agent.
#[derive(Debug, Clone)]
pub enum ToManager {
    /// Before the first word, of a node that was removed: it joins again.
    Join,
    /// The first word, with the version of the assignment that the node has.
    Hello(AssignmentVersion),
    /// With what is wrong with the node.
    Heartbeat(BTreeSet<NodeCondition>),
    Sync(AssignmentVersion),
    Reports(u64, Vec<TaskReport>),
    /// The other end is gone.
    Closed,
}

/// To an agent.
#[derive(Debug, Clone)]
pub enum ToWorker {
    Welcome,
    /// What it should have.
    Told(Arc<Told>),
    /// Where managers are reached.
    Managers(Arc<Vec<ManagerAddress>>),
    Stored(u64),
    /// This manager does not hear a leader, or knows less than the node; another one may.
    Elsewhere,
    /// The node was removed from the cluster.
    Removed,
    /// Nobody here knows the node.
    Unknown,
    /// The other end is gone.
    Closed,
}

impl Event {
    /// The manager's process that must run for it to happen, given who has which member's id.
    pub fn needs_manager(&self, host_of: impl Fn(u64) -> Option<usize>) -> Option<usize> {
        match self {
            Self::Manager { host, .. } => Some(*host),
            Self::Raft(message, _) | Self::Snapshot(message, ..) => host_of(message.to),
            _ => None,
        }
    }

    /// What goes into the trace: enough to tell two histories apart at their first difference.
    pub fn mark(&self) -> [u64; 3] {
        let of = |kind: u64, place: usize, more: u64| [kind, place as u64, more];
        match self {
            Self::Manager { host, boot, what } => of(1, *host, *boot << 8 | what.mark()),
            Self::Raft(message, _) => raft_mark(2, message),
            Self::Snapshot(message, ..) => raft_mark(3, message),
            Self::Worker { worker, boot, what } => of(4, *worker, *boot << 32 | what.mark()),
            Self::Up { connection, said } => of(5, 0, *connection << 16 | said.mark()),
            Self::Down { connection, said } => of(6, 0, *connection << 16 | said.mark()),
            Self::Client { client, what: OnClient::Acts } => of(7, *client, 0),
            Self::Client { client, what: OnClient::Answer { sending, .. } } => of(8, *client, *sending),
            Self::ManagerStarts { host } => of(9, *host, 0),
            Self::AgentStarts { worker } => of(10, *worker, 0),
            Self::Fault(fault) => of(11, 0, *fault as u64),
            Self::Exits { worker, task } => of(14, *worker, task.number),
            Self::Returns { worker } => of(16, *worker, 0),
            Self::Joined { host, wiped, member, .. } => of(15, *host, *wiped << 32 | *member),
            Self::WritersAct => of(17, 0, 0),
            Self::Writer { writer, sending, .. } => of(18, *writer, *sending),
            Self::Peace => of(12, 0, 0),
            Self::Look => of(13, 0, 0),
        }
    }
}

fn raft_mark(kind: u64, message: &Message) -> [u64; 3] {
    let what = message.kind as u64 | message.from << 8 | message.to << 16 | message.term << 24;
    [kind, what, message.index << 16 | message.entries.len() as u64 | u64::from(message.reject) << 15]
}

impl OnManager {
    fn mark(&self) -> u64 {
        match self {
            Self::Tick => 0,
            Self::Turn => 15,
            Self::Second => 1,
            Self::Disk => 2,
            Self::SnapshotWritten { .. } => 3,
            Self::SnapshotReceived(..) => 4,
            Self::SnapshotSent { delivered, .. } => 5 + u64::from(*delivered),
            Self::Unreachable { .. } => 7,
            Self::Plan(_) => 8,
            Self::Propose { term, .. } => 16 | *term << 8,
            Self::Request { .. } => 9,
            Self::Join { from, .. } => 17 | (*from as u64) << 8,
            Self::Peer { said, .. } => match said {
                ToPeer::Forward { .. } => 10,
                ToPeer::Answer { .. } => 11,
                ToPeer::WhoIsThere { .. } => 12,
                ToPeer::Contacts { .. } => 13,
                ToPeer::Hello { id, .. } => 14 | *id << 8,
                ToPeer::Removed => 18,
            },
        }
    }
}

impl OnWorker {
    fn mark(&self) -> u64 {
        match self {
            Self::Dials => 0,
            Self::Heartbeat { .. } => 1,
            Self::Syncs { .. } => 2,
            Self::Listens { .. } => 3,
            Self::Steps(task) => 4 | task.number << 8,
            Self::Looks(task) => 5 | task.number << 8,
            Self::Checks(task) => 7 | task.number << 8,
            Self::Notes => 8,
            Self::Acts(task, action, fate) => {
                6 | task.number << 8 | (action.verb() as u64) << 24 | (*fate as u64) << 29
            }
        }
    }
}

impl ToManager {
    fn mark(&self) -> u64 {
        match self {
            Self::Hello(_) => 0,
            Self::Heartbeat(conditions) => 1 | (conditions.len() as u64) << 4,
            Self::Sync(_) => 2,
            Self::Reports(number, reports) => 3 | (*number & 0xff) << 4 | (reports.len() as u64) << 12,
            Self::Closed => 4,
            Self::Join => 5,
        }
    }
}

impl ToWorker {
    fn mark(&self) -> u64 {
        match self {
            Self::Welcome => 0,
            Self::Told(word) => match &**word {
                Told::Full(assignment) => 1 | (assignment.version.index & 0xfff) << 4,
                Told::Diff(diff) => 9 | (diff.version.index & 0xfff) << 4,
                Told::Current => 2,
            },
            Self::Stored(number) => 3 | (*number & 0xfff) << 4,
            Self::Elsewhere => 4,
            Self::Closed => 5,
            Self::Managers(all) => 6 | (all.len() as u64) << 4,
            Self::Removed => 7,
            Self::Unknown => 8,
        }
    }
}

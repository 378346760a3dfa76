//! The events, and the messages between members, workers and clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_consensus::Message;
use warren_core::session::AssignmentUpdate;
use warren_core::state::StateParts;
use warren_core::{AppliedIndex, Command, CommandResponse, StateDigest};
use warren_replica::{KnownManager, NodeContact, ProposeError, ReconcileKey};
use warren_task::Action;
use warren_types::{
    AssignmentVersion, ManagerAddress, NetworkId, NetworkUpdate, NodeCondition, TaskId, TaskReport,
};

use crate::faults::SimFault;
use crate::manager::{ManagerHello, WriteOrigin};
use crate::worker::ActionEnd;
use crate::writers::WriterReply;

/// One event. `boot` is the run of the process that it is meant for; it has no effect on another run.
#[derive(Debug, Clone)]
pub enum SimEvent {
    /// At a manager.
    Manager { host: usize, boot: u64, what: ManagerEvent },
    /// A raft message arrives at the process that has its receiver's id at that time.
    /// The index up to which the message reports entries as acknowledged.
    Raft(Box<Message>, u64),
    /// The bytes of a snapshot arrive, with the message that announces them and the acknowledged index of
    /// that message.
    Snapshot(Box<Message>, Arc<StateParts>, u64),
    /// At an agent.
    Worker { worker: usize, boot: u64, what: WorkerEvent },
    /// A message arrives at the manager's end of a connection.
    ToManager { connection: u64, message: WorkerMessage },
    /// A message arrives at the worker's end of a connection.
    ToWorker { connection: u64, message: ManagerMessage },
    /// At a client.
    Client { client: usize, what: ClientEvent },
    /// All writers write the same object.
    RunWriters,
    /// An attempt of a writer is answered.
    WriterReply { writer: usize, sending: u64, reply: Arc<WriterReply> },
    /// A manager's machine starts its manager, or asks to become one.
    ManagerStarts { host: usize },
    /// A machine learns that it is a manager: its member id, and the other managers. Without effect if
    /// it was wiped since.
    Joined { host: usize, wiped: u64, member: u64, managers: BTreeMap<u64, KnownManager> },
    /// A worker's machine starts its agent.
    AgentStarts { worker: usize },
    /// The process of a broken image exits.
    ProcessExits { worker: usize, task: TaskId },
    /// A disconnected worker may be connected again.
    WorkerReconnects { worker: usize },
    /// A fault is injected.
    InjectFault(SimFault),
    /// Faults stop.
    EndFaults,
    /// Checks whether the cluster has converged.
    CheckInvariants,
}

/// An event at a manager.
#[derive(Debug, Clone)]
pub enum ManagerEvent {
    /// Raft's clock.
    Tick,
    /// The driver takes its queued inputs.
    DriverTurn,
    /// Once a second: contacts are relayed, and expired waits end.
    EverySecond,
    /// The disk completed, or failed, the oldest write.
    Disk,
    /// A snapshot of the state at this index was written to a file.
    SnapshotWritten { index: u64, parts: Arc<StateParts> },
    /// A snapshot from the leader is durable; now its announcing message and the acknowledged index in it
    /// take effect.
    SnapshotReceived(Box<Message>, u64),
    /// The result of sending a snapshot.
    SnapshotSent { to: u64, delivered: bool },
    /// A member is unreachable.
    Unreachable { to: u64 },
    /// The network history is compared with the applied state.
    PublishNetwork,
    /// The planner processes the due keys.
    Plan,
    /// The planner proposes the next command of the plan of that key.
    Propose { key: ReconcileKey, command: Box<Command> },
    /// A round of contacts ends.
    ContactsTimeout,
    /// An unproposed write is attempted again; `reason` is the error of the last attempt.
    RetryWrite { id: u64, reason: Box<ProposeError> },
    /// A client or a writer sends a request.
    Request { who: WriteOrigin, command: Box<Command>, deadline: u64 },
    /// A machine asks to become a manager.
    Join { from: usize, wiped: u64, hello: Box<ManagerHello> },
    /// A message of another manager arrives.
    Peer { from: usize, from_boot: u64, message: PeerMessage },
}

/// Messages between managers, other than raft messages.
#[derive(Debug, Clone)]
pub enum PeerMessage {
    /// To the leader: propose this.
    Forward { request: u64, command: Box<Command>, deadline: u64 },
    /// The leader's answer: where it applied the write.
    Answer { request: u64, position: Box<Result<AppliedIndex, ProposeError>> },
    /// To all known members: the sender's member id.
    Hello { id: u64 },
    /// The answer to a manager that was removed, with its former member id.
    Removed { member: u64 },
    /// From the leader to all: which workers are connected to you?
    ContactsRequest { term: u64 },
    /// The answer: the workers that are connected, and the digest of the state.
    Contacts { term: u64, heard: Vec<NodeContact>, digest: StateDigest },
}

/// The answer to a write.
#[derive(Debug, Clone)]
pub struct WriteAnswer {
    /// The applied index of the manager when it answered; the write is not later.
    pub index: u64,
    pub result: Result<CommandResponse, ProposeError>,
}

/// An event at an agent.
#[derive(Debug, Clone)]
pub enum WorkerEvent {
    /// It dials a manager.
    Dial,
    /// It sends a status report of the node.
    Heartbeat { connection: u64 },
    /// It checks that its assignment is current.
    Sync { connection: u64 },
    /// Checks whether the manager sent anything since `heard`.
    CheckSilence { connection: u64, heard: u64 },
    /// It records the last contact with a manager.
    PersistContact,
    /// The kernel has the network view, or an error.
    NetworkWritten,
    /// It writes the network view into the kernel again.
    NetworkRetry,
    /// The network view is in its cache.
    NetworkCached,
    /// Its actor for a task chooses the next action.
    StepTask(TaskId),
    /// The runtime reports an event of a task's container.
    InspectTask(TaskId),
    /// A health check of the task's process is complete.
    CheckEnded(TaskId),
    /// An action of an actor is complete.
    ActionEnded(TaskId, Box<Action>, ActionEnd),
}

/// An event at a client.
#[derive(Debug, Clone)]
pub enum ClientEvent {
    /// It sends a request, or repeats one.
    Run,
    /// It gets an answer.
    Answer { sending: u64, answer: Box<WriteAnswer> },
}

/// A message from an agent.
#[derive(Debug, Clone)]
pub enum WorkerMessage {
    /// The first message of a node that was removed: it joins again.
    Join,
    /// The first message otherwise.
    Hello(Box<WorkerVersions>),
    /// A status report with the conditions of the node.
    Heartbeat(BTreeSet<NodeCondition>),
    /// The versions of the node's assignments and of its network view; zero if it needs all of that.
    Sync(AssignmentVersion, AssignmentVersion),
    /// The kernel has the network view of this version.
    NetworkAck(AssignmentVersion),
    Reports(u64, Vec<TaskReport>),
    /// The connection was closed by the other end.
    Closed,
}

/// What a node has, as its first message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerVersions {
    pub assignment: AssignmentVersion,
    /// The version of its network view, and the networks in that.
    pub network: AssignmentVersion,
    pub networks: Vec<NetworkId>,
}

/// A message to an agent.
#[derive(Debug, Clone)]
pub enum ManagerMessage {
    Welcome,
    /// The assignments of the node.
    Assignment(Arc<AssignmentUpdate>),
    /// What changed in the cluster's network.
    Network(Arc<NetworkUpdate>),
    /// The addresses of managers.
    Managers(Arc<Vec<ManagerAddress>>),
    ReportsStored(u64),
    /// This manager has no contact with a leader, or is behind the node; another one may be better.
    TryOtherManager,
    /// The node was removed from the cluster.
    Removed,
    /// This manager does not know the node.
    Unknown,
    /// The connection was closed by the other end.
    Closed,
}

impl SimEvent {
    /// The manager process that must run for the event to take effect, given the machine of each member id.
    pub fn needs_manager(&self, host_of: impl Fn(u64) -> Option<usize>) -> Option<usize> {
        match self {
            Self::Manager { host, .. } => Some(*host),
            Self::Raft(message, _) | Self::Snapshot(message, ..) => host_of(message.to),
            _ => None,
        }
    }

    /// The contribution to the trace: enough to find the first difference of two histories.
    pub fn mark(&self) -> [u64; 3] {
        let of = |kind: u64, place: usize, more: u64| [kind, place as u64, more];
        match self {
            Self::Manager { host, boot, what } => of(1, *host, *boot << 8 | what.mark()),
            Self::Raft(message, _) => raft_mark(2, message),
            Self::Snapshot(message, ..) => raft_mark(3, message),
            Self::Worker { worker, boot, what } => of(4, *worker, *boot << 32 | what.mark()),
            Self::ToManager { connection, message } => of(5, 0, *connection << 16 | message.mark()),
            Self::ToWorker { connection, message } => of(6, 0, *connection << 16 | message.mark()),
            Self::Client { client, what: ClientEvent::Run } => of(7, *client, 0),
            Self::Client { client, what: ClientEvent::Answer { sending, .. } } => of(8, *client, *sending),
            Self::ManagerStarts { host } => of(9, *host, 0),
            Self::AgentStarts { worker } => of(10, *worker, 0),
            Self::InjectFault(fault) => of(11, 0, *fault as u64),
            Self::ProcessExits { worker, task } => of(14, *worker, task.number),
            Self::WorkerReconnects { worker } => of(16, *worker, 0),
            Self::Joined { host, wiped, member, .. } => of(15, *host, *wiped << 32 | *member),
            Self::RunWriters => of(17, 0, 0),
            Self::WriterReply { writer, sending, .. } => of(18, *writer, *sending),
            Self::EndFaults => of(12, 0, 0),
            Self::CheckInvariants => of(13, 0, 0),
        }
    }
}

fn raft_mark(kind: u64, message: &Message) -> [u64; 3] {
    let what = message.kind as u64 | message.from << 8 | message.to << 16 | message.term << 24;
    [kind, what, message.index << 16 | message.entries.len() as u64 | u64::from(message.reject) << 15]
}

impl ManagerEvent {
    fn mark(&self) -> u64 {
        match self {
            Self::Tick => 0,
            Self::DriverTurn => 15,
            Self::EverySecond => 1,
            Self::Disk => 2,
            Self::SnapshotWritten { .. } => 3,
            Self::SnapshotReceived(..) => 4,
            Self::SnapshotSent { delivered, .. } => 5 + u64::from(*delivered),
            Self::Unreachable { .. } => 7,
            Self::Plan => 8,
            Self::Propose { .. } => 16,
            Self::PublishNetwork => 21,
            Self::ContactsTimeout => 20,
            Self::Request { .. } => 9,
            Self::RetryWrite { id, .. } => 19 | *id << 8,
            Self::Join { from, .. } => 17 | (*from as u64) << 8,
            Self::Peer { message, .. } => match message {
                PeerMessage::Forward { .. } => 10,
                PeerMessage::Answer { .. } => 11,
                PeerMessage::ContactsRequest { .. } => 12,
                PeerMessage::Contacts { .. } => 13,
                PeerMessage::Hello { id, .. } => 14 | *id << 8,
                PeerMessage::Removed { .. } => 18,
            },
        }
    }
}

impl WorkerEvent {
    fn mark(&self) -> u64 {
        match self {
            Self::Dial => 0,
            Self::Heartbeat { .. } => 1,
            Self::Sync { .. } => 2,
            Self::CheckSilence { .. } => 3,
            Self::StepTask(task) => 4 | task.number << 8,
            Self::InspectTask(task) => 5 | task.number << 8,
            Self::CheckEnded(task) => 7 | task.number << 8,
            Self::PersistContact => 8,
            Self::NetworkWritten => 9,
            Self::NetworkCached => 10,
            Self::NetworkRetry => 11,
            Self::ActionEnded(task, action, end) => {
                6 | task.number << 8 | (action.kind() as u64) << 24 | (*end as u64) << 29
            }
        }
    }
}

impl WorkerMessage {
    fn mark(&self) -> u64 {
        match self {
            Self::Hello(_) => 0,
            Self::Heartbeat(conditions) => 1 | (conditions.len() as u64) << 4,
            Self::Sync(..) => 2,
            Self::Reports(number, reports) => 3 | (*number & 0xff) << 4 | (reports.len() as u64) << 12,
            Self::Closed => 4,
            Self::Join => 5,
            Self::NetworkAck(version) => 6 | (version.index & 0xfff) << 4,
        }
    }
}

impl ManagerMessage {
    fn mark(&self) -> u64 {
        match self {
            Self::Welcome => 0,
            Self::Assignment(update) => match &**update {
                AssignmentUpdate::Full(assignment) => 1 | (assignment.version.index & 0xfff) << 4,
                AssignmentUpdate::Diff(diff) => 9 | (diff.version.index & 0xfff) << 4,
                AssignmentUpdate::Current => 2,
            },
            Self::ReportsStored(number) => 3 | (*number & 0xfff) << 4,
            Self::TryOtherManager => 4,
            Self::Closed => 5,
            Self::Managers(all) => 6 | (all.len() as u64) << 4,
            Self::Removed => 7,
            Self::Unknown => 8,
            Self::Network(update) => 10 | (update.version.index & 0xfff) << 4,
        }
    }
}

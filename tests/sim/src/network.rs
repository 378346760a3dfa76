//! The network between machines: partitions, delays, and the connections of workers.

use std::collections::BTreeMap;

use warren_consensus::{Message, MessageKind};

use crate::event::{ManagerEvent, ManagerMessage, PeerMessage, SimEvent, WorkerMessage};
use crate::simulation::ClusterSimulation;

/// Every machine, as one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimHost {
    Manager(usize),
    Worker(usize),
}

impl SimHost {
    fn bit(self) -> usize {
        match self {
            Self::Manager(host) => host,
            Self::Worker(worker) => 8 + worker,
        }
    }
}

/// The partitions, each in one direction.
#[derive(Debug, Default)]
pub struct NetworkLinks {
    cut: [u32; 32],
    /// Isolated machines, which stay isolated when partitions end.
    away: u32,
}

impl NetworkLinks {
    /// Whether messages of `from` arrive at `to`.
    pub fn is_open(&self, from: SimHost, to: SimHost) -> bool {
        let either = 1 << from.bit() | 1 << to.bit();
        self.cut[from.bit()] & 1 << to.bit() == 0 && self.away & either == 0
    }

    /// Messages of `from` no longer arrive at `to`.
    pub fn cut(&mut self, from: SimHost, to: SimHost) {
        self.cut[from.bit()] |= 1 << to.bit();
    }

    /// All machines are connected, except isolated ones.
    pub fn restore(&mut self) {
        self.cut = Default::default();
    }

    /// Isolates a machine, or ends that.
    pub fn set_isolated(&mut self, end: SimHost, away: bool) {
        let others = self.away & !(1 << end.bit());
        self.away = others | u32::from(away) << end.bit();
    }
}

/// A worker's stream to a manager. It keeps its order; a lost message drops all messages behind it.
#[derive(Debug)]
pub struct SimConnection {
    pub worker: usize,
    pub agent_boot: u64,
    pub host: usize,
    pub manager_boot: u64,
    to_manager: DirectedStream,
    to_worker: DirectedStream,
}

#[derive(Debug, Default)]
struct DirectedStream {
    /// When the last message arrives.
    last: u64,
    stuck: bool,
}

/// The connections that at least one end considers open, by number.
#[derive(Debug, Default)]
pub struct SimConnections {
    all: BTreeMap<u64, SimConnection>,
    newest: u64,
}

impl SimConnections {
    pub fn get(&self, number: u64) -> Option<&SimConnection> {
        self.all.get(&number)
    }
}

impl ClusterSimulation {
    /// The delay of a message.
    fn draw_latency(&mut self) -> u64 {
        let slow = self.has_faults && self.rng.one_in(self.fault_rates.slow_one_in);
        let longest = if slow { 700 } else { 6 };
        self.rng.between(1, longest)
    }

    pub(crate) fn send_raft(&mut self, host: usize, messages: Vec<Message>) {
        self.record_votes(host, &messages);
        for message in messages {
            let Some(to) = self.reachable_host(host, message.to) else {
                self.undelivered(host, &message);
                continue;
            };
            if message.kind == MessageKind::Snapshot {
                self.send_snapshot(host, to, message);
                continue;
            }
            let lost = self.has_faults && self.rng.one_in(self.fault_rates.lost_one_in);
            if lost || !self.links.is_open(SimHost::Manager(host), SimHost::Manager(to)) {
                self.undelivered(host, &message);
                continue;
            }
            let acknowledged = self.informed_by_message(host, &message);
            let message = Box::new(message);
            if self.has_faults && self.rng.one_in(self.fault_rates.duplicated_one_in) {
                let delay = self.draw_latency() + 5;
                self.after(delay, SimEvent::Raft(message.clone(), acknowledged));
            }
            let delay = self.draw_latency();
            self.after(delay, SimEvent::Raft(message, acknowledged));
        }
    }

    /// The sender sometimes detects that a message was lost; for a snapshot it always must.
    fn undelivered(&mut self, host: usize, message: &Message) {
        let to = message.to;
        let what = match message.kind {
            MessageKind::Snapshot => ManagerEvent::SnapshotSent { to, delivered: false },
            _ if self.rng.one_in(4) => ManagerEvent::Unreachable { to },
            _ => return,
        };
        let delay = self.rng.between(5, 300);
        self.at_manager(host, delay, what);
    }

    /// Sends the snapshot's bytes on their own stream. All of them arrive, or none.
    fn send_snapshot(&mut self, host: usize, to: usize, message: Message) {
        let index = message.snapshot.as_ref().map_or(0, |meta| meta.index);
        let parts = self.managers[host].files.get(&index).cloned();
        let broken = self.has_faults && self.rng.one_in(6);
        let open = self.links.is_open(SimHost::Manager(host), SimHost::Manager(to));
        let Some(parts) = parts.filter(|_| open && !broken) else {
            return self.undelivered(host, &message);
        };
        let (delay, acknowledged) = (self.rng.between(20, 400), self.informed_by_message(host, &message));
        self.after(delay, SimEvent::Snapshot(Box::new(message), parts, acknowledged));
    }

    /// Schedules an event at a manager in that many milliseconds, for this run of its process.
    pub(crate) fn at_manager(&mut self, host: usize, delay: u64, what: ManagerEvent) {
        if let Some(boot) = self.managers[host].boot() {
            self.after(delay, SimEvent::Manager { host, boot, what });
        }
    }

    /// Sends a message to the present run of another manager's process.
    pub(crate) fn send_peer(&mut self, from: usize, to: usize, message: PeerMessage) {
        let lost = self.has_faults && self.rng.one_in(self.fault_rates.lost_one_in);
        let open = self.links.is_open(SimHost::Manager(from), SimHost::Manager(to));
        if let (Some(from_boot), true) = (self.managers[from].boot(), open && !lost) {
            let delay = self.draw_latency();
            self.at_manager(to, delay, ManagerEvent::Peer { from, from_boot, message });
        }
    }

    /// A worker's agent dials a manager: it gets a connection if the manager runs and both directions are
    /// open.
    pub(crate) fn connect(&mut self, worker: usize, host: usize) -> Option<u64> {
        let agent_boot = self.workers[worker].boot()?;
        let manager_boot = self.managers[host].boot()?;
        let (here, there) = (SimHost::Worker(worker), SimHost::Manager(host));
        if !self.links.is_open(here, there) || !self.links.is_open(there, here) {
            return None;
        }
        self.connections.newest += 1;
        let (up, down) = (DirectedStream::default(), DirectedStream::default());
        let connection =
            SimConnection { worker, agent_boot, host, manager_boot, to_manager: up, to_worker: down };
        self.connections.all.insert(self.connections.newest, connection);
        Some(self.connections.newest)
    }

    pub(crate) fn send_to_manager(&mut self, connection: u64, message: WorkerMessage) {
        let delay = self.draw_latency();
        let Some(line) = self.connections.all.get_mut(&connection) else { return };
        line.to_manager.stuck |=
            !self.links.is_open(SimHost::Worker(line.worker), SimHost::Manager(line.host));
        if !line.to_manager.stuck {
            line.to_manager.last = line.to_manager.last.max(self.now + delay);
            let delay = line.to_manager.last - self.now;
            self.after(delay, SimEvent::ToManager { connection, message });
        }
    }

    pub(crate) fn send_to_worker(&mut self, connection: u64, message: ManagerMessage) {
        let delay = self.draw_latency();
        let Some(line) = self.connections.all.get_mut(&connection) else { return };
        line.to_worker.stuck |=
            !self.links.is_open(SimHost::Manager(line.host), SimHost::Worker(line.worker));
        if !line.to_worker.stuck {
            line.to_worker.last = line.to_worker.last.max(self.now + delay);
            let delay = line.to_worker.last - self.now;
            self.after(delay, SimEvent::ToWorker { connection, message });
        }
    }

    pub(crate) fn deliver_to_manager(&mut self, connection: u64, message: WorkerMessage) {
        let Some(line) = self.connections.all.get(&connection) else { return };
        let (host, worker, boot) = (line.host, line.worker, line.manager_boot);
        let until = self.managers[host].stalled_until;
        if until > self.now {
            return self.after(until - self.now, SimEvent::ToManager { connection, message });
        }
        if self.managers[host].boot() == Some(boot) {
            self.receive_from_worker(host, worker, connection, message);
        }
    }

    pub(crate) fn deliver_to_worker(&mut self, connection: u64, message: ManagerMessage) {
        let Some(line) = self.connections.all.get(&connection) else { return };
        let (worker, boot) = (line.worker, line.agent_boot);
        if self.workers[worker].boot() == Some(boot) {
            self.receive_from_manager(worker, connection, message);
        }
    }

    /// A manager's process has ended; connected peers are told by the kernel where the network is open.
    pub(crate) fn break_connections_of_manager(&mut self, host: usize) {
        for connection in self.connections_where(|line| line.host == host) {
            self.send_to_worker(connection, ManagerMessage::Closed);
        }
    }

    /// An agent's process has ended.
    pub(crate) fn break_connections_of_worker(&mut self, worker: usize) {
        for connection in self.connections_where(|line| line.worker == worker) {
            self.send_to_manager(connection, WorkerMessage::Closed);
        }
    }

    /// A connection is reset: both ends notice.
    pub(crate) fn break_connection(&mut self, connection: u64) {
        self.send_to_worker(connection, ManagerMessage::Closed);
        self.send_to_manager(connection, WorkerMessage::Closed);
    }

    fn connections_where(&self, is_meant: impl Fn(&SimConnection) -> bool) -> Vec<u64> {
        let lines = self.connections.all.iter().filter(|(_, line)| is_meant(line));
        lines.map(|(number, _)| *number).collect()
    }

    /// Removes the connections that neither end considers open.
    pub(crate) fn forget_connections(&mut self) {
        let (managers, workers) = (&self.managers, &self.workers);
        self.connections.all.retain(|number, line| {
            let agent = workers[line.worker].agent.as_ref();
            let run = managers[line.host].run.as_ref().filter(|run| run.boot == line.manager_boot);
            agent.is_some_and(|agent| agent.connection == Some(*number))
                || run.is_some_and(|run| run.sessions.holds(line.worker, *number))
        });
    }
}

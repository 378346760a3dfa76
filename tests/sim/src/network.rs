//! What lies between machines: who reaches whom, how long it takes, and the connections of workers.

use std::collections::BTreeMap;

use warren_consensus::{Message, MessageKind};

use crate::event::{Event, OnManager, ToManager, ToPeer, ToWorker};
use crate::world::World;

/// Every machine, by the bit that stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Manager(usize),
    Worker(usize),
}

impl End {
    fn bit(self) -> usize {
        match self {
            Self::Manager(host) => host,
            Self::Worker(worker) => 8 + worker,
        }
    }
}

/// Which ways are cut, each in one direction.
#[derive(Debug, Default)]
pub struct Ways {
    cut: [u32; 32],
    /// Machines that reach nobody and that nobody reaches, whatever heals.
    away: u32,
}

impl Ways {
    /// Whether what `from` says reaches `to`.
    pub fn is_open(&self, from: End, to: End) -> bool {
        let either = 1 << from.bit() | 1 << to.bit();
        self.cut[from.bit()] & 1 << to.bit() == 0 && self.away & either == 0
    }

    /// Nothing that `from` says reaches `to` any more.
    pub fn cut(&mut self, from: End, to: End) {
        self.cut[from.bit()] |= 1 << to.bit();
    }

    /// Everything reaches everyone that is not away.
    pub fn heal(&mut self) {
        self.cut = Default::default();
    }

    /// A machine reaches nobody, or is back.
    pub fn set_away(&mut self, end: End, away: bool) {
        let others = self.away & !(1 << end.bit());
        self.away = others | u32::from(away) << end.bit();
    }
}

/// A worker's stream to a manager. It keeps its order; what is lost on the way takes all behind it along.
#[derive(Debug)]
pub struct Connection {
    pub worker: usize,
    pub agent_boot: u64,
    pub host: usize,
    pub manager_boot: u64,
    up: Pipe,
    down: Pipe,
}

#[derive(Debug, Default)]
struct Pipe {
    /// When the last word arrives.
    last: u64,
    stuck: bool,
}

/// The connections that at least one end believes in, by number.
#[derive(Debug, Default)]
pub struct Connections {
    all: BTreeMap<u64, Connection>,
    newest: u64,
}

impl Connections {
    pub fn get(&self, number: u64) -> Option<&Connection> {
        self.all.get(&number)
    }
}

impl World {
    /// How long a word takes on its way.
    fn travel(&mut self) -> u64 {
        let slow = self.faulty && self.chance.one_in(self.climate.slow_one_in);
        let longest = if slow { 700 } else { 6 };
        self.chance.between(1, longest)
    }

    pub(crate) fn send_raft(&mut self, host: usize, messages: Vec<Message>) {
        self.note_votes(host, &messages);
        for message in messages {
            let Some(to) = self.reach(host, message.to) else {
                self.undelivered(host, &message);
                continue;
            };
            if message.kind == MessageKind::Snapshot {
                self.send_snapshot(host, to, message);
                continue;
            }
            let lost = self.faulty && self.chance.one_in(self.climate.lost_one_in);
            if lost || !self.ways.is_open(End::Manager(host), End::Manager(to)) {
                self.undelivered(host, &message);
                continue;
            }
            let told = self.tells(host, &message);
            let message = Box::new(message);
            if self.faulty && self.chance.one_in(self.climate.repeated_one_in) {
                let delay = self.travel() + 5;
                self.after(delay, Event::Raft(message.clone(), told));
            }
            let delay = self.travel();
            self.after(delay, Event::Raft(message, told));
        }
    }

    /// The sender sometimes notices that a message did not arrive; of a snapshot it always must.
    fn undelivered(&mut self, host: usize, message: &Message) {
        let to = message.to;
        let what = match message.kind {
            MessageKind::Snapshot => OnManager::SnapshotSent { to, delivered: false },
            _ if self.chance.one_in(4) => OnManager::Unreachable { to },
            _ => return,
        };
        let delay = self.chance.between(5, 300);
        self.at_manager(host, delay, what);
    }

    /// Sends the snapshot's bytes on a stream of their own. They arrive whole or not at all.
    fn send_snapshot(&mut self, host: usize, to: usize, message: Message) {
        let index = message.snapshot.as_ref().map_or(0, |meta| meta.index);
        let parts = self.managers[host].files.get(&index).cloned();
        let broken = self.faulty && self.chance.one_in(6);
        let open = self.ways.is_open(End::Manager(host), End::Manager(to));
        let Some(parts) = parts.filter(|_| open && !broken) else {
            return self.undelivered(host, &message);
        };
        let (delay, told) = (self.chance.between(20, 400), self.tells(host, &message));
        self.after(delay, Event::Snapshot(Box::new(message), parts, told));
    }

    /// Something happens at a manager in so many milliseconds, if it still lives then.
    pub(crate) fn at_manager(&mut self, host: usize, delay: u64, what: OnManager) {
        if let Some(boot) = self.managers[host].boot() {
            self.after(delay, Event::Manager { host, boot, what });
        }
    }

    /// Says something to another manager's process that lives now.
    pub(crate) fn send_peer(&mut self, from: usize, to: usize, said: ToPeer) {
        let lost = self.faulty && self.chance.one_in(self.climate.lost_one_in);
        let open = self.ways.is_open(End::Manager(from), End::Manager(to));
        if let (Some(from_boot), true) = (self.managers[from].boot(), open && !lost) {
            let delay = self.travel();
            self.at_manager(to, delay, OnManager::Peer { from, from_boot, said });
        }
    }

    /// A worker's agent dials a manager: a connection, if the manager is there and both ways are open.
    pub(crate) fn connect(&mut self, worker: usize, host: usize) -> Option<u64> {
        let agent_boot = self.workers[worker].boot()?;
        let manager_boot = self.managers[host].boot()?;
        let (here, there) = (End::Worker(worker), End::Manager(host));
        if !self.ways.is_open(here, there) || !self.ways.is_open(there, here) {
            return None;
        }
        self.connections.newest += 1;
        let (up, down) = (Pipe::default(), Pipe::default());
        let connection = Connection { worker, agent_boot, host, manager_boot, up, down };
        self.connections.all.insert(self.connections.newest, connection);
        Some(self.connections.newest)
    }

    pub(crate) fn say_up(&mut self, connection: u64, said: ToManager) {
        let delay = self.travel();
        let Some(line) = self.connections.all.get_mut(&connection) else { return };
        line.up.stuck |= !self.ways.is_open(End::Worker(line.worker), End::Manager(line.host));
        if !line.up.stuck {
            line.up.last = line.up.last.max(self.now + delay);
            let delay = line.up.last - self.now;
            self.after(delay, Event::Up { connection, said });
        }
    }

    pub(crate) fn say_down(&mut self, connection: u64, said: ToWorker) {
        let delay = self.travel();
        let Some(line) = self.connections.all.get_mut(&connection) else { return };
        line.down.stuck |= !self.ways.is_open(End::Manager(line.host), End::Worker(line.worker));
        if !line.down.stuck {
            line.down.last = line.down.last.max(self.now + delay);
            let delay = line.down.last - self.now;
            self.after(delay, Event::Down { connection, said });
        }
    }

    pub(crate) fn up_arrives(&mut self, connection: u64, said: ToManager) {
        let Some(line) = self.connections.all.get(&connection) else { return };
        let (host, worker, boot) = (line.host, line.worker, line.manager_boot);
        let until = self.managers[host].stalled_until;
        if until > self.now {
            return self.after(until - self.now, Event::Up { connection, said });
        }
        if self.managers[host].boot() == Some(boot) {
            self.manager_hears(host, worker, connection, said);
        }
    }

    pub(crate) fn down_arrives(&mut self, connection: u64, said: ToWorker) {
        let Some(line) = self.connections.all.get(&connection) else { return };
        let (worker, boot) = (line.worker, line.agent_boot);
        if self.workers[worker].boot() == Some(boot) {
            self.agent_hears(worker, connection, said);
        }
    }

    /// A manager's process is gone; the kernels of those it was connected to learn it, where ways are open.
    pub(crate) fn break_connections_of_manager(&mut self, host: usize) {
        for connection in self.connections_where(|line| line.host == host) {
            self.say_down(connection, ToWorker::Closed);
        }
    }

    /// An agent's process is gone.
    pub(crate) fn break_connections_of_worker(&mut self, worker: usize) {
        for connection in self.connections_where(|line| line.worker == worker) {
            self.say_up(connection, ToManager::Closed);
        }
    }

    /// A connection is reset in the middle: both ends learn it.
    pub(crate) fn break_connection(&mut self, connection: u64) {
        self.say_down(connection, ToWorker::Closed);
        self.say_up(connection, ToManager::Closed);
    }

    fn connections_where(&self, is_meant: impl Fn(&Connection) -> bool) -> Vec<u64> {
        let lines = self.connections.all.iter().filter(|(_, line)| is_meant(line));
        lines.map(|(number, _)| *number).collect()
    }

    /// Forgets the connections that neither end believes in any more.
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

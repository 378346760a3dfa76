//! What breaks, how often, and how.

use warren_log::CrashPoint;

use crate::chance::Chance;
use crate::event::Event;
use crate::network::End;
use crate::world::World;

/// One thing that breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A manager's power goes.
    ManagerDies,
    /// The leader's power goes.
    LeaderDies,
    /// A manager's power will go at one of its next writes, before or after it is durable.
    DiskFails,
    /// A manager's writes take long for a while.
    DiskSlow,
    /// A manager's disk has no room for a while.
    DiskFull,
    /// Some machines do not reach others for a while, in both directions or in one.
    Partition,
    /// Every way is open again.
    Heals,
    /// A wall clock goes back or forward.
    ClockJumps,
    /// An agent is killed.
    AgentDies,
    /// A worker's machine is rebooted.
    Reboots,
    /// A worker's connection is reset.
    Breaks,
    /// A process exits by itself.
    Exits,
    /// A manager loses its disk, and comes back under a new id at the same address.
    DiskIsLost,
    /// A manager's machine is gone for good, and another one takes over at another address.
    MachineIsLost,
    /// A manager stops, and starts at another address.
    Moves,
    /// Somebody takes a manager's vote, or gives it back.
    Suffrage,
    /// Somebody removes a manager, dead or alive, or the leader.
    MemberIsRemoved,
    /// Somebody removes a node with all that runs there. It joins again.
    NodeIsRemoved,
    /// Somebody takes a backup.
    BackupIsTaken,
    /// All managers but one lose their disks for good, and that one goes on alone.
    MostAreLost,
    /// All managers lose their disks for good, and a backup is restored.
    AllAreLost,
    /// Somebody makes an image of a follower's disk, and restores it when others have gone on; then the leader dies.
    DiskIsRestored,
    /// The leader stands still for long.
    LeaderIsAway,
    /// The image is restored.
    DiskGoesBack,
    /// The leader hands over to another member.
    HandsOver,
    /// A manager's process stands still for a while, and goes on as if nothing had been.
    Stalls,
    /// All managers stand still for longer than some tasks stay without any.
    AllStall,
    /// A worker's machine reaches nobody, for a moment or for longer than some tasks stay without a manager.
    IsAway,
}

/// All of them that are planned often; [`Fault::Heals`] follows each partition by itself.
const KINDS: [Fault; 22] = [
    Fault::ManagerDies,
    Fault::LeaderDies,
    Fault::DiskFails,
    Fault::DiskSlow,
    Fault::DiskFull,
    Fault::Partition,
    Fault::ClockJumps,
    Fault::AgentDies,
    Fault::Reboots,
    Fault::Breaks,
    Fault::Exits,
    Fault::DiskIsLost,
    Fault::MachineIsLost,
    Fault::Moves,
    Fault::Suffrage,
    Fault::MemberIsRemoved,
    Fault::NodeIsRemoved,
    Fault::BackupIsTaken,
    Fault::DiskIsRestored,
    Fault::HandsOver,
    Fault::Stalls,
    Fault::IsAway,
];

/// How bad the small troubles are in one history, each once in so many times.
#[derive(Debug, Clone, Copy)]
pub struct Climate {
    /// Something takes long on its way.
    pub slow_one_in: u64,
    /// A raft message is lost.
    pub lost_one_in: u64,
    /// A raft message arrives twice.
    pub repeated_one_in: u64,
    /// An action on a worker fails, before it took effect or after.
    pub action_fails_one_in: u64,
}

impl Climate {
    /// Histories differ in what troubles them most.
    pub fn draw(chance: &mut Chance) -> Self {
        let mut rate = |rates: [u64; 3]| chance.pick(&rates).unwrap_or(1_000_000);
        Self {
            slow_one_in: rate([20, 100, 1_000]),
            lost_one_in: rate([15, 60, 1_000]),
            repeated_one_in: rate([15, 60, 1_000]),
            action_fails_one_in: rate([15, 40, 200]),
        }
    }
}

impl World {
    /// Plans the faults of a history. Each kind is rare, frequent or absent, as chance gives.
    pub(crate) fn plan_faults(&mut self, chaos: u64) {
        for kind in KINDS {
            for _ in 0..self.chance.between(0, 3) {
                let at = self.chance.between(1_000, chaos - 1);
                self.after(at, Event::Fault(kind));
            }
        }
        // Cluster's lives are long, so that what is wrong in one shows.
        for kind in [Fault::MostAreLost, Fault::AllAreLost, Fault::AllStall] {
            if self.chance.one_in(4) {
                let at = self.chance.between(chaos / 4, chaos - 1);
                self.after(at, Event::Fault(kind));
            }
        }
        // Whatever else is absent: these always happen.
        for kind in [Fault::LeaderDies, Fault::AgentDies, Fault::Breaks, Fault::ManagerDies] {
            let at = self.chance.between(chaos / 4, chaos - 1);
            self.after(at, Event::Fault(kind));
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        if !self.faulty {
            return;
        }
        let until = self.now + self.chance.between(300, 4_000);
        let host = self.chance.between(0, self.managers.len() as u64 - 1) as usize;
        let worker = self.chance.between(0, self.workers.len() as u64 - 1) as usize;
        let happened = match fault {
            Fault::ManagerDies => self.power_goes(Some(host)),
            Fault::LeaderDies => self.power_goes(self.leader()),
            Fault::DiskFails => {
                let after = self.chance.one_in(2);
                let point = if after { CrashPoint::After } else { CrashPoint::Before };
                let nth = self.chance.between(1, 6);
                self.managers[host].disk.crash_at(nth, point);
                // Counted when it happens.
                false
            }
            Fault::DiskSlow => std::mem::replace(&mut self.managers[host].slow_until, until) < until,
            Fault::DiskFull => std::mem::replace(&mut self.managers[host].full_until, until) < until,
            Fault::Partition => self.partition(),
            Fault::Heals => {
                self.ways.heal();
                false
            }
            Fault::ClockJumps => self.clock_jumps(host, worker),
            Fault::AgentDies => {
                let ran = self.workers[worker].agent.is_some();
                self.agent_dies(worker);
                ran
            }
            Fault::Reboots => {
                self.machine_reboots(worker);
                true
            }
            Fault::Breaks => {
                let connection = self.workers[worker].agent.as_ref().and_then(|agent| agent.connection);
                connection.into_iter().for_each(|connection| self.break_connection(connection));
                connection.is_some()
            }
            Fault::Exits => self.some_process_exits(),
            Fault::DiskIsLost => self.disk_is_lost(host),
            Fault::MachineIsLost => self.machine_is_lost(host),
            Fault::Moves => self.address_changes(host),
            Fault::Suffrage => self.suffrage_changes(),
            Fault::MemberIsRemoved => self.member_is_removed(),
            Fault::NodeIsRemoved => self.node_is_removed(worker),
            Fault::BackupIsTaken => self.backup_is_taken(host),
            Fault::MostAreLost => self.most_are_lost(host),
            Fault::AllAreLost => self.all_are_lost(host),
            Fault::DiskIsRestored => self.image_is_made(host),
            Fault::LeaderIsAway => {
                let until = self.now + self.chance.between(8_000, 30_000);
                let leader = self.leader();
                leader.into_iter().for_each(|host| self.managers[host].stalled_until = until);
                leader.is_some()
            }
            Fault::DiskGoesBack => self.disk_goes_back(),
            Fault::HandsOver => self.leader_hands_over(),
            Fault::Stalls => {
                let stalled = &mut self.managers[host].stalled_until;
                std::mem::replace(stalled, until.max(*stalled)) < until
            }
            Fault::AllStall => {
                let until = self.now + self.chance.between(2_000, 30_000);
                for manager in &mut self.managers {
                    manager.stalled_until = manager.stalled_until.max(until);
                }
                true
            }
            Fault::IsAway => self.goes_away(worker),
        };
        self.faults += u64::from(happened);
    }

    fn power_goes(&mut self, host: Option<usize>) -> bool {
        let Some(host) = host.filter(|host| self.managers[*host].run.is_some()) else { return false };
        self.manager_dies(host);
        true
    }

    /// Cuts one machine, or a pair, off; both ways or one.
    fn partition(&mut self) -> bool {
        let managers = (0..self.managers.len()).map(End::Manager);
        let all: Vec<End> = managers.chain((0..self.workers.len()).map(End::Worker)).collect();
        let Some(one) = self.cut_off(&all) else { return false };
        let (hears, speaks) = match self.chance.between(0, 3) {
            0 => (false, true),
            1 => (true, false),
            _ => (false, false),
        };
        let only = if self.chance.one_in(3) { self.chance.pick(&all) } else { None };
        for other in all.iter().copied().filter(|other| *other != one && only.is_none_or(|o| o == *other)) {
            if !hears {
                self.ways.cut(other, one);
            }
            if !speaks {
                self.ways.cut(one, other);
            }
        }
        // From a short stutter to longer than a node may be silent.
        let lasts = if self.chance.one_in(3) { 11_000 } else { 3_000 };
        let lasts = self.chance.between(200, lasts);
        self.after(lasts, Event::Fault(Fault::Heals));
        true
    }

    /// The leader and other managers more often than a worker.
    fn cut_off(&mut self, all: &[End]) -> Option<End> {
        match self.chance.between(0, 3) {
            0 => self.leader().map(End::Manager),
            1 => Some(End::Manager(self.chance.between(0, self.managers.len() as u64 - 1) as usize)),
            _ => self.chance.pick(all),
        }
    }

    /// Lasts on when all other faults are over.
    fn goes_away(&mut self, worker: usize) -> bool {
        let longest = if self.chance.one_in(2) { 70_000 } else { 15_000 };
        let lasts = self.chance.between(2_000, longest);
        let until = self.workers[worker].away_until.max(self.now + lasts);
        self.workers[worker].away_until = until;
        self.ways.set_away(End::Worker(worker), true);
        self.after(until - self.now, Event::Returns { worker });
        true
    }

    pub(crate) fn returns(&mut self, worker: usize) {
        if self.workers[worker].away_until <= self.now {
            self.ways.set_away(End::Worker(worker), false);
        }
    }

    fn clock_jumps(&mut self, host: usize, worker: usize) -> bool {
        let far = self.chance.pick(&[2_000, 30_000, 3_600_000]).unwrap_or(0);
        let jump = if self.chance.one_in(2) { -far } else { far };
        if self.chance.one_in(2) {
            self.managers[host].clock_off += jump;
        } else {
            self.workers[worker].clock_off += jump;
        }
        true
    }

    /// The end of all faults.
    pub(crate) fn peace(&mut self) {
        self.faulty = false;
        self.ways.heal();
        for manager in &mut self.managers {
            // One that stands still goes on when its time has come: its streams keep their order.
            (manager.full_until, manager.slow_until) = (0, 0);
            manager.disk.crash_at(0, CrashPoint::Before);
        }
    }
}

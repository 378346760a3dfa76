//! The faults: which, how often, and how.

use warren_log::CrashPoint;

use crate::event::SimEvent;
use crate::network::SimHost;
use crate::random::SimRng;
use crate::simulation::ClusterSimulation;

/// More than the time for which a withdrawn address is not assigned again.
const REST_TIME: u64 = 121_000;

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimFault {
    /// A manager loses power.
    KillManager,
    /// The leader loses power.
    KillLeader,
    /// A manager loses power at one of its next writes, before or after it is durable.
    CutPowerAtWrite,
    /// A manager's writes are slow for a while.
    DiskSlow,
    /// A manager's disk is full for a while.
    DiskFull,
    /// Some machines are partitioned from others for a while, in both directions or in one.
    Partition,
    /// All partitions end.
    EndPartition,
    /// A wall clock jumps back or forward.
    JumpClock,
    /// An agent is killed.
    KillAgent,
    /// A worker's machine is rebooted.
    RebootWorker,
    /// A worker's connection is reset.
    ResetConnection,
    /// A process exits by itself.
    ExitProcess,
    /// A manager loses its disk, and returns with a new id at the same address.
    LoseDisk,
    /// A manager's machine is lost for good, and another one replaces it at another address.
    LoseMachine,
    /// A manager stops, and starts at another address.
    ChangeAddress,
    /// An operator demotes or promotes a manager.
    ChangeSuffrage,
    /// An operator removes a manager, running or not, or the leader.
    RemoveMember,
    /// An operator removes a node with all its tasks. It joins again.
    RemoveNode,
    /// An operator takes a backup.
    TakeBackup,
    /// All managers but one lose their disks for good, and the last one forces a new cluster.
    LoseMajority,
    /// All managers lose their disks for good, and a backup is restored.
    LoseAll,
    /// An operator makes an image of a follower's disk, and restores it when others have advanced; then the
    /// leader fails.
    TakeDiskImage,
    /// The leader is paused for long.
    LeaderIsAway,
    /// The image is restored.
    RestoreDiskImage,
    /// The leader transfers leadership to another member.
    TransferLeadership,
    /// A manager's process is paused for a while, and continues without noticing.
    StallManager,
    /// All managers are paused for longer than the disconnect timeout of some tasks.
    StallAll,
    /// The wall clocks of all managers jump past the time for which withdrawn addresses rest.
    JumpAllClocks,
    /// A worker's machine is isolated, for a moment or for longer than the disconnect timeout of some tasks.
    IsolateWorker,
}

/// The faults that [`ClusterSimulation::plan_faults`] plans at random; each partition plans its own
/// [`SimFault::EndPartition`].
const FAULT_KINDS: [SimFault; 22] = [
    SimFault::KillManager,
    SimFault::KillLeader,
    SimFault::CutPowerAtWrite,
    SimFault::DiskSlow,
    SimFault::DiskFull,
    SimFault::Partition,
    SimFault::JumpClock,
    SimFault::KillAgent,
    SimFault::RebootWorker,
    SimFault::ResetConnection,
    SimFault::ExitProcess,
    SimFault::LoseDisk,
    SimFault::LoseMachine,
    SimFault::ChangeAddress,
    SimFault::ChangeSuffrage,
    SimFault::RemoveMember,
    SimFault::RemoveNode,
    SimFault::TakeBackup,
    SimFault::TakeDiskImage,
    SimFault::TransferLeadership,
    SimFault::StallManager,
    SimFault::IsolateWorker,
];

/// The rates of minor faults in one history, each one in this many.
#[derive(Debug, Clone, Copy)]
pub struct FaultRates {
    /// A message is delayed.
    pub slow_one_in: u64,
    /// A raft message is lost.
    pub lost_one_in: u64,
    /// A raft message arrives twice.
    pub duplicated_one_in: u64,
    /// An action on a worker fails, before it took effect or after.
    pub action_fails_one_in: u64,
}

impl FaultRates {
    /// The rates differ between histories.
    pub fn draw(chance: &mut SimRng) -> Self {
        let mut rate = |rates: [u64; 3]| chance.pick(&rates).unwrap_or(1_000_000);
        Self {
            slow_one_in: rate([20, 100, 1_000]),
            lost_one_in: rate([15, 60, 1_000]),
            duplicated_one_in: rate([15, 60, 1_000]),
            action_fails_one_in: rate([15, 40, 200]),
        }
    }
}

impl ClusterSimulation {
    /// Plans the faults of a history. Each kind is rare, frequent or absent at random.
    pub(crate) fn plan_faults(&mut self, chaos: u64) {
        for kind in FAULT_KINDS {
            for _ in 0..self.rng.between(0, 3) {
                let at = self.rng.between(1_000, chaos - 1);
                self.after(at, SimEvent::InjectFault(kind));
            }
        }
        // Incarnations are long, so that a defect of one becomes visible.
        for kind in [SimFault::LoseMajority, SimFault::LoseAll, SimFault::StallAll] {
            // A new incarnation skips addresses that may be in use, of which there must be enough.
            let is_allowed = !self.has_small_ranges || kind == SimFault::StallAll;
            if self.rng.one_in(4) && is_allowed {
                let at = self.rng.between(chaos / 4, chaos - 1);
                self.after(at, SimEvent::InjectFault(kind));
            }
        }
        if self.has_small_ranges {
            for _ in 0..self.rng.between(6, 18) {
                let at = self.rng.between(chaos / 8, chaos - 1);
                self.after(at, SimEvent::InjectFault(SimFault::JumpAllClocks));
            }
        }
        // These faults always happen, whatever the random rates are.
        for kind in
            [SimFault::KillLeader, SimFault::KillAgent, SimFault::ResetConnection, SimFault::KillManager]
        {
            let at = self.rng.between(chaos / 4, chaos - 1);
            self.after(at, SimEvent::InjectFault(kind));
        }
    }

    pub(crate) fn inject(&mut self, fault: SimFault) {
        if !self.has_faults {
            return;
        }
        let until = self.now + self.rng.between(300, 4_000);
        let host = self.rng.between(0, self.managers.len() as u64 - 1) as usize;
        let worker = self.rng.between(0, self.workers.len() as u64 - 1) as usize;
        let happened = match fault {
            SimFault::KillManager => self.cut_power(Some(host)),
            SimFault::KillLeader => self.cut_power(self.leader()),
            SimFault::CutPowerAtWrite => {
                let after = self.rng.one_in(2);
                let point = if after { CrashPoint::After } else { CrashPoint::Before };
                let nth = self.rng.between(1, 6);
                self.managers[host].disk.crash_at(nth, point);
                // Counted when the fault happens.
                false
            }
            SimFault::DiskSlow => std::mem::replace(&mut self.managers[host].slow_until, until) < until,
            SimFault::DiskFull => std::mem::replace(&mut self.managers[host].full_until, until) < until,
            SimFault::Partition => self.partition(),
            SimFault::EndPartition => {
                self.links.restore();
                false
            }
            SimFault::JumpClock => self.jump_clock(host, worker),
            SimFault::KillAgent => {
                let ran = self.workers[worker].agent.is_some();
                self.agent_dies(worker);
                ran
            }
            SimFault::RebootWorker => {
                self.machine_reboots(worker);
                true
            }
            SimFault::ResetConnection => {
                let connection = self.workers[worker].agent.as_ref().and_then(|agent| agent.connection);
                connection.into_iter().for_each(|connection| self.break_connection(connection));
                connection.is_some()
            }
            SimFault::ExitProcess => self.exit_some_process(),
            SimFault::LoseDisk => self.lose_disk(host),
            SimFault::LoseMachine => self.lose_machine(host),
            SimFault::ChangeAddress => self.change_address(host),
            SimFault::ChangeSuffrage => self.change_suffrage(),
            SimFault::RemoveMember => self.remove_some_member(),
            SimFault::RemoveNode => self.remove_node(worker),
            SimFault::TakeBackup => self.take_backup(host),
            SimFault::LoseMajority => self.lose_majority(host),
            SimFault::LoseAll => self.lose_all(host),
            SimFault::TakeDiskImage => self.take_disk_image(host),
            SimFault::LeaderIsAway => {
                let until = self.now + self.rng.between(8_000, 30_000);
                let leader = self.leader();
                leader.into_iter().for_each(|host| self.managers[host].stalled_until = until);
                leader.is_some()
            }
            SimFault::RestoreDiskImage => self.restore_disk_image(),
            SimFault::TransferLeadership => self.transfer_leadership(),
            SimFault::StallManager => {
                let stalled = &mut self.managers[host].stalled_until;
                std::mem::replace(stalled, until.max(*stalled)) < until
            }
            SimFault::StallAll => {
                let until = self.now + self.rng.between(2_000, 30_000);
                for manager in &mut self.managers {
                    manager.stalled_until = manager.stalled_until.max(until);
                }
                true
            }
            SimFault::JumpAllClocks => self.jump_all_clocks(),
            SimFault::IsolateWorker => self.isolate_worker(worker),
        };
        self.faults += u64::from(happened);
    }

    fn cut_power(&mut self, host: Option<usize>) -> bool {
        let Some(host) = host.filter(|host| self.managers[*host].run.is_some()) else { return false };
        self.manager_dies(host);
        true
    }

    /// Cuts off one machine or a pair, in both directions or one.
    fn partition(&mut self) -> bool {
        let managers = (0..self.managers.len()).map(SimHost::Manager);
        let all: Vec<SimHost> = managers.chain((0..self.workers.len()).map(SimHost::Worker)).collect();
        let Some(one) = self.cut_off(&all) else { return false };
        let (hears, speaks) = match self.rng.between(0, 3) {
            0 => (false, true),
            1 => (true, false),
            _ => (false, false),
        };
        let only = if self.rng.one_in(3) { self.rng.pick(&all) } else { None };
        for other in all.iter().copied().filter(|other| *other != one && only.is_none_or(|o| o == *other)) {
            if !hears {
                self.links.cut(other, one);
            }
            if !speaks {
                self.links.cut(one, other);
            }
        }
        // From a short interruption to longer than a node's heartbeat timeout.
        let lasts = if self.rng.one_in(3) { 11_000 } else { 3_000 };
        let lasts = self.rng.between(200, lasts);
        self.after(lasts, SimEvent::InjectFault(SimFault::EndPartition));
        true
    }

    /// The leader and other managers are chosen more often than a worker.
    fn cut_off(&mut self, all: &[SimHost]) -> Option<SimHost> {
        match self.rng.between(0, 3) {
            0 => self.leader().map(SimHost::Manager),
            1 => Some(SimHost::Manager(self.rng.between(0, self.managers.len() as u64 - 1) as usize)),
            _ => self.rng.pick(all),
        }
    }

    /// Continues after all other faults have stopped.
    fn isolate_worker(&mut self, worker: usize) -> bool {
        let longest = if self.rng.one_in(2) { 70_000 } else { 15_000 };
        let lasts = self.rng.between(2_000, longest);
        let until = self.workers[worker].away_until.max(self.now + lasts);
        self.workers[worker].away_until = until;
        self.links.set_isolated(SimHost::Worker(worker), true);
        self.after(until - self.now, SimEvent::WorkerReconnects { worker });
        true
    }

    pub(crate) fn reconnect_worker(&mut self, worker: usize) {
        if self.workers[worker].away_until <= self.now {
            self.links.set_isolated(SimHost::Worker(worker), false);
        }
    }

    fn jump_clock(&mut self, host: usize, worker: usize) -> bool {
        let far = self.rng.pick(&[2_000, 30_000, 3_600_000]).unwrap_or(0);
        let jump = if self.rng.one_in(2) { -far } else { far };
        if self.rng.one_in(2) {
            self.managers[host].clock_off += jump;
        } else {
            self.workers[worker].clock_off += jump;
        }
        true
    }

    fn jump_all_clocks(&mut self) -> bool {
        let clock = self.oracle.newest.clock().0.max(self.now);
        let jump = i64::try_from(clock - self.now + REST_TIME).unwrap_or(0);
        for manager in &mut self.managers {
            manager.clock_off = manager.clock_off.max(jump);
        }
        true
    }

    /// Ends all faults.
    pub(crate) fn end_faults(&mut self) {
        self.has_faults = false;
        self.links.restore();
        for manager in &mut self.managers {
            // A paused process continues at its own time: its streams keep their order.
            (manager.full_until, manager.slow_until) = (0, 0);
            manager.disk.crash_at(0, CrashPoint::Before);
        }
    }
}

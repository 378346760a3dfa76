//! The event queue, the virtual clock, and the end of a history.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use warren_consensus::ConfState;
use warren_core::Command;
use warren_types::{Id, ManagerId, Timestamp};

use crate::client::SimClient;
use crate::event::{ClientEvent, SimEvent};
use crate::faults::FaultRates;
use crate::invariants::{self, InvariantOracle, SimViolation};
use crate::manager::{DiskImage, FOUNDERS, SimBackup, SimManager, StaleManager, with_small_ranges};
use crate::network::{NetworkLinks, SimConnections};
use crate::random::SimRng;
use crate::trace::Trace;
use crate::worker::SimWorker;
use crate::writers::{SimWriter, WRITERS};

/// Faults are injected until this time, in milliseconds.
const FAULT_TIME: u64 = 25_000;
/// By then the cluster must have converged: the longest back-off of a slot is five minutes.
const END: u64 = FAULT_TIME + 15 * 60_000;
/// The interval of convergence checks.
const CHECK_EVERY: u64 = 500;
/// Virtual time at which histories begin; not 0, so that a missing time is visible.
const EPOCH: u64 = 1_700_000_000_000;
const MANAGERS: usize = 3;
/// One in this many histories has two more managers.
const MORE_MANAGERS_ONE_IN: u64 = 8;
/// One in this many histories has a service with far more replicas than there is room for.
const CROWDED_ONE_IN: u64 = 50;
/// The first such history.
const CROWDED_FIRST: u64 = 41;
/// One in this many histories has so few addresses that they are used again.
const SMALL_RANGES_ONE_IN: u64 = 5;
/// The first such history; none is crowded.
const SMALL_RANGES_FIRST: u64 = 3;
const WORKERS: usize = 5;
const CLIENTS: usize = 2;

/// A defect planted on purpose, to show that the invariants find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedDefect {
    /// A manager answers before its write is durable.
    AnswerBeforeDurable,
    /// An agent reports a task as removed while its container still exists.
    ReportRemovedEarly,
    /// A leader stamps proposals with its own wall clock, even if that is behind the cluster clock.
    TrustLocalClock,
    /// A leader takes every learner for caught up.
    PromoteLaggingMember,
    /// A leader promotes every learner on its own, so the number of voters is sometimes even.
    AllowEvenVoters,
    /// A new incarnation of the cluster keeps the old number.
    KeepIncarnation,
    /// A worker resets its recorded assignment version before each update.
    IgnoreAssignmentVersion,
    /// A worker never detects that it has no manager.
    IgnoreDisconnect,
    /// A manager answers a write with the object from its newest state.
    AnswerFromNewestState,
    /// The same for the version and the number only.
    AnswerWithNewestVersion,
    /// A compare-and-set is applied whatever the version.
    DropExpectedVersion,
    /// A worker counts twice the time without a manager.
    DisconnectTooEarly,
    /// A leader takes every withdrawn address for forgotten by all nodes.
    IgnoreNetworkAcks,
    /// An agent acknowledges an update of the network before the kernel has it.
    AckBeforeKernel,
}

/// Statistics of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulationReport {
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
    /// How often a member installed a snapshot from the leader.
    pub installed: u64,
    /// How many linearizable reads were answered.
    pub reads: u64,
    /// How many revisions were made because a secret has a new version.
    pub secret_revisions: u64,
    /// How many failed updates were rolled back.
    pub updates_rolled_back: u64,
    /// How many volumes were bound to a node with a task.
    pub volumes_bound: u64,
    /// The most tasks without a node that a service had.
    pub most_unplaced: u64,
    /// How many unhealthy tasks were replaced.
    pub replaced: u64,
    /// How many members were promoted.
    pub promoted: u64,
    /// How many managers received their removal.
    pub removed: u64,
    /// How often a manager moved to another address.
    pub moves: u64,
    /// How often one manager forced a new cluster.
    pub new_clusters_forced: u64,
    /// How often a backup was restored.
    pub restored: u64,
    /// How many nodes received their removal.
    pub nodes_removed: u64,
    /// How many containers kept running into a new incarnation.
    pub surviving_containers: u64,
    /// How many sessions of workers were opened.
    pub sessions: u64,
    /// How many writes a follower forwarded to the leader.
    pub forwarded: u64,
    /// How many incremental assignment updates workers applied.
    pub differences: u64,
    /// How often a worker reached a manager of a superseded incarnation, and how often it accepted its
    /// session.
    pub stale_managers: [u64; 2],
    /// How many tasks were stopped by their nodes after the disconnect timeout.
    pub stopped_disconnected: u64,
    /// How many lost tasks were replaced.
    pub tasks_replaced: u64,
    /// How many tasks of lost nodes ran beside their replacements until a manager was reachable again.
    pub duplicate_tasks: u64,
    /// How often a member's disk was restored from an older image.
    pub disks_restored: u64,
    /// How many members found that they lack acknowledged entries.
    pub regressed: u64,
    /// 1 if the history ended with a loss that no member could know of.
    pub excused: u64,
    /// 1 if the history ended with a loss that an operator had accepted.
    pub accepted: u64,
    /// How many updates of the network workers applied.
    pub network_updates: u64,
    /// How many task addresses, virtual addresses, subnets and node numbers had another owner before.
    pub reassigned: [u64; 4],
    /// Virtual milliseconds until convergence.
    pub duration_millis: u64,
}

struct ScheduledEvent {
    at: u64,
    sequence: u64,
    event: SimEvent,
}

/// A cluster and its environment.
pub struct ClusterSimulation {
    pub(crate) seed: u64,
    /// Monotonic time, independent of every machine's clock.
    pub(crate) now: u64,
    pub(crate) rng: SimRng,
    queue: BinaryHeap<ScheduledEvent>,
    sequence: u64,
    pub(crate) managers: Vec<SimManager>,
    pub(crate) workers: Vec<SimWorker>,
    pub(crate) clients: Vec<SimClient>,
    pub(crate) writers: Vec<SimWriter>,
    pub(crate) links: NetworkLinks,
    pub(crate) connections: SimConnections,
    pub(crate) fault_rates: FaultRates,
    /// Every command that was proposed; the log holds its position here.
    pub(crate) commands: Vec<Command>,
    /// The cluster has so few addresses that they are used again.
    pub(crate) has_small_ranges: bool,
    pub(crate) has_faults: bool,
    pub(crate) faults: u64,
    pub(crate) installed_snapshots: u64,
    pub(crate) reads_answered: u64,
    /// When the membership last changed.
    pub(crate) member_change_at: u64,
    /// When an operator last requested a membership change.
    pub(crate) member_request_at: u64,
    pub(crate) promoted: u64,
    pub(crate) removed_managers: u64,
    pub(crate) moves: u64,
    pub(crate) backup: Option<SimBackup>,
    pub(crate) stale_manager: Option<StaleManager>,
    pub(crate) disk_image: Option<DiskImage>,
    /// How often a worker found a superseded manager, and accepted it.
    pub(crate) stale_managers_dialled: u64,
    pub(crate) stale_managers_obeyed: u64,
    pub(crate) new_clusters_forced: u64,
    pub(crate) restored: u64,
    pub(crate) disks_restored: u64,
    pub(crate) regressed: u64,
    /// An entry is lost that no member could know to be acknowledged: the invariants no longer apply.
    pub(crate) excused: bool,
    /// An operator accepted that loss.
    pub(crate) accepted: bool,
    pub(crate) sessions_opened: u64,
    /// Writes that a manager forwarded to the leader.
    pub(crate) forwarded: u64,
    /// Incremental assignment updates that workers applied.
    pub(crate) differences: u64,
    /// Updates of the network that workers applied.
    pub(crate) network_updates: u64,
    pub(crate) defect: Option<PlantedDefect>,
    pub(crate) oracle: InvariantOracle,
    first_violation: Option<String>,
    trace: Trace,
    events: u64,
    /// Prints every event.
    is_trace_printed: bool,
}

impl ClusterSimulation {
    /// A cluster before its first start.
    pub fn new(seed: u64, defect: Option<PlantedDefect>) -> Self {
        let mut chance = SimRng::new(seed);
        let fault_rates = FaultRates::draw(&mut chance);
        let key = |host: usize| ManagerId(Id(u128::from(seed) << 64 | host as u128));
        let more = if seed % MORE_MANAGERS_ONE_IN == MORE_MANAGERS_ONE_IN - 1 { 2 } else { 0 };
        let hosts = 0..MANAGERS + more;
        let mut managers: Vec<SimManager> =
            hosts.clone().map(|host| SimManager::new(host, key(host))).collect();
        managers[0].become_member(1);
        let has_small_ranges = seed % SMALL_RANGES_ONE_IN == SMALL_RANGES_FIRST;
        let mut oracle = InvariantOracle::new(ConfState::of_voters(FOUNDERS));
        if has_small_ranges {
            let state = with_small_ranges(Timestamp(EPOCH));
            managers[0].found_with(&state);
            oracle = InvariantOracle::founded(state, ConfState::of_voters(FOUNDERS));
        }
        let mut clients: Vec<SimClient> = (0..CLIENTS).map(SimClient::new).collect();
        clients[0].is_crowding = seed % CROWDED_ONE_IN == CROWDED_FIRST;
        let mut world = Self {
            seed,
            now: EPOCH,
            rng: chance,
            queue: BinaryHeap::new(),
            sequence: 0,
            managers,
            workers: (0..WORKERS).map(SimWorker::new).collect(),
            clients,
            writers: (0..WRITERS).map(SimWriter::new).collect(),
            links: NetworkLinks::default(),
            connections: SimConnections::default(),
            fault_rates,
            commands: Vec::new(),
            has_small_ranges,
            has_faults: true,
            faults: 0,
            installed_snapshots: 0,
            reads_answered: 0,
            member_change_at: 0,
            member_request_at: 0,
            promoted: 0,
            removed_managers: 0,
            moves: 0,
            backup: None,
            stale_manager: None,
            disk_image: None,
            stale_managers_dialled: 0,
            stale_managers_obeyed: 0,
            new_clusters_forced: 0,
            restored: 0,
            disks_restored: 0,
            regressed: 0,
            excused: false,
            accepted: false,
            sessions_opened: 0,
            forwarded: 0,
            differences: 0,
            network_updates: 0,
            defect,
            oracle,
            first_violation: None,
            trace: Trace::default(),
            events: 0,
            is_trace_printed: std::env::var_os("WARREN_SIM_TRACE").is_some(),
        };
        for host in hosts {
            world.after(1, SimEvent::ManagerStarts { host });
        }
        for worker in 0..WORKERS {
            world.after(1, SimEvent::AgentStarts { worker });
        }
        for client in 0..CLIENTS {
            world.after(500, SimEvent::Client { client, what: ClientEvent::Run });
        }
        world.after(500, SimEvent::RunWriters);
        world.after(FAULT_TIME, SimEvent::EndFaults);
        world.plan_faults(FAULT_TIME);
        world
    }

    /// The time on a wall clock with that offset in milliseconds.
    pub(crate) fn wall_clock(&self, off: i64) -> Timestamp {
        Timestamp(self.now.saturating_add_signed(off))
    }

    /// The time on a clock that never jumps.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now - EPOCH)
    }

    /// Schedules `event` in that many milliseconds.
    pub(crate) fn after(&mut self, millis: u64, event: SimEvent) {
        self.sequence += 1;
        self.queue.push(ScheduledEvent { at: self.now + millis, sequence: self.sequence, event });
    }

    /// Messages between managers are lost with the processes at both ends.
    pub(crate) fn drop_peer_messages(&mut self) {
        self.queue.retain(|it| !matches!(it.event, SimEvent::Raft(..) | SimEvent::Snapshot(..)));
    }

    /// Records a violation; the first one ends the history.
    pub(crate) fn check(&mut self, holds: Result<(), String>) {
        if let (Err(what), None) = (holds, &self.first_violation) {
            self.first_violation = Some(what);
        }
    }

    /// Adds a value to the trace.
    pub(crate) fn trace(&mut self, word: u64) {
        self.trace.add(word);
    }

    /// Runs until the cluster has converged.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&mut self) -> Result<SimulationReport, SimViolation> {
        while let Some(ScheduledEvent { at, event, .. }) = self.queue.pop() {
            self.now = at;
            self.events += 1;
            self.trace.add(at);
            event.mark().into_iter().for_each(|word| self.trace.add(word));
            if self.is_trace_printed {
                eprintln!("{:>6} {event:?}", self.now - EPOCH);
            }
            if matches!(event, SimEvent::CheckInvariants) {
                match invariants::convergence::holds(self) {
                    Ok(()) => return self.finish(),
                    Err(what) if at > EPOCH + END => {
                        return Err(self.violation(&format!("converges: {what}")));
                    }
                    Err(_) => {}
                }
            }
            self.dispatch(event);
            if let Some(what) = self.first_violation.take() {
                return Err(self.violation(&what));
            }
            if self.excused || self.accepted {
                return Ok(self.history());
            }
        }
        Err(self.violation("converges: nothing happens any more"))
    }

    fn finish(&mut self) -> Result<SimulationReport, SimViolation> {
        let checked = invariants::state_consistency::at_the_end(self);
        checked.map_err(|what| self.violation(&what))?;
        Ok(self.history())
    }

    fn history(&self) -> SimulationReport {
        SimulationReport {
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
            secret_revisions: self.oracle.secret_revisions,
            updates_rolled_back: self.oracle.updates_rolled_back,
            volumes_bound: self.oracle.volumes_bound,
            most_unplaced: self.oracle.most_unplaced,
            replaced: self.oracle.replaced,
            promoted: self.promoted,
            removed: self.removed_managers,
            moves: self.moves,
            new_clusters_forced: self.new_clusters_forced,
            restored: self.restored,
            nodes_removed: self.oracle.nodes_removed,
            surviving_containers: self.oracle.surviving_containers,
            sessions: self.sessions_opened,
            forwarded: self.forwarded,
            differences: self.differences,
            network_updates: self.network_updates,
            reassigned: self.oracle.owners.reassigned,
            stale_managers: [self.stale_managers_dialled, self.stale_managers_obeyed],
            stopped_disconnected: self.oracle.stopped_disconnected,
            tasks_replaced: self.oracle.tasks_replaced,
            duplicate_tasks: self.oracle.duplicate_tasks,
            disks_restored: self.disks_restored,
            regressed: self.regressed,
            excused: u64::from(self.excused),
            accepted: u64::from(self.accepted),
            duration_millis: self.now - EPOCH,
        }
    }

    /// The violation at the present time.
    pub(crate) fn violation(&self, what: &str) -> SimViolation {
        SimViolation { seed: self.seed, at: self.now - EPOCH, events: self.events, what: what.to_string() }
    }

    fn dispatch(&mut self, event: SimEvent) {
        let stalled = event.needs_manager(|id| self.host_of(id));
        let until = stalled.map_or(0, |host| self.managers[host].stalled_until);
        if until > self.now {
            return self.after(until - self.now, event);
        }
        match event {
            SimEvent::Manager { host, boot, what } => self.manager_event(host, boot, what),
            SimEvent::Raft(message, received) => self.deliver_raft(*message, received),
            SimEvent::Snapshot(message, parts, received) => self.snapshot_arrives(*message, parts, received),
            SimEvent::Worker { worker, boot, what } => self.worker_event(worker, boot, what),
            SimEvent::ToManager { connection, message } => self.deliver_to_manager(connection, message),
            SimEvent::ToWorker { connection, message } => self.deliver_to_worker(connection, message),
            SimEvent::Client { client, what } => self.client_event(client, what),
            SimEvent::RunWriters => self.run_writers(),
            SimEvent::WriterReply { writer, sending, reply } => self.handle_reply(writer, sending, &reply),
            SimEvent::ManagerStarts { host } => self.manager_starts(host),
            SimEvent::Joined { host, wiped, member, managers } => self.joined(host, wiped, member, managers),
            SimEvent::AgentStarts { worker } => self.agent_starts(worker),
            SimEvent::ProcessExits { worker, task } => {
                if self.has_faults {
                    self.faults += u64::from(self.exit_process(worker, task));
                }
            }
            SimEvent::WorkerReconnects { worker } => self.reconnect_worker(worker),
            SimEvent::InjectFault(fault) => self.inject(fault),
            SimEvent::EndFaults => {
                self.end_faults();
                self.after(CHECK_EVERY, SimEvent::CheckInvariants);
            }
            SimEvent::CheckInvariants => self.after(CHECK_EVERY, SimEvent::CheckInvariants),
        }
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    /// Reversed, because the heap yields the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

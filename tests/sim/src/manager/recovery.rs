//! Most managers are lost for good, and the last one forces a new cluster; or all are, and a backup is
//! restored. Only then may acknowledged writes be lost. Workers follow, and containers of desired tasks keep
//! running.

use std::sync::Arc;

use warren_consensus::EntryKind;
use warren_core::state::StateParts;
use warren_core::{AppliedIndex, FEATURE_LEVEL, State};
use warren_log::{ConfState, HardState, LogStore, MemoryDisk, SnapshotMeta, WriteBatch};
use warren_types::{Member, Suffrage};

use super::SimManager;
use crate::simulation::{ClusterSimulation, PlantedDefect};
use crate::writers::SimWriter;

/// A manager of a superseded incarnation that does not know of it.
#[derive(Debug, Clone)]
pub struct StaleManager {
    pub host: usize,
    pub state: Arc<State>,
    /// When it is stopped.
    pub until: u64,
}

/// A backup.
#[derive(Debug, Clone)]
pub struct SimBackup(Arc<StateParts>);

impl ClusterSimulation {
    /// Takes a backup of a manager's state.
    pub(crate) fn take_backup(&mut self, host: usize) -> bool {
        let state = self.process(host).map(|run| run.replica.state());
        let Some(state) = state.filter(|state| state.cluster().is_some()) else { return false };
        self.backup = Some(SimBackup(Arc::new(state.export())));
        true
    }

    /// All managers but one lose their data. That one forces a new cluster from all entries of its log, as
    /// the only voter.
    pub(crate) fn lose_majority(&mut self, host: usize) -> bool {
        let ran = self.managers[host].run.is_some();
        self.manager_dies(host);
        let Some((state, term)) = self.state_on_disk(host) else { return ran };
        self.start_stale_manager(host);
        for other in (0..self.managers.len()).filter(|other| *other != host) {
            self.wipe(other);
        }
        self.begin_incarnation(host, state, term);
        self.new_clusters_forced += 1;
        true
    }

    /// All managers lose their data, and one of the machines restores the backup.
    pub(crate) fn lose_all(&mut self, host: usize) -> bool {
        let Some(SimBackup(parts)) = self.backup.clone() else { return false };
        let state = State::restore(StateParts::clone(&parts)).expect("a backup is complete");
        self.start_stale_manager(host);
        (0..self.managers.len()).for_each(|host| self.wipe(host));
        self.managers[host].id = state.first_member_id_at(self.wall_clock(0));
        let term = state.applied().term;
        self.begin_incarnation(host, state, term);
        self.restored += 1;
        true
    }

    /// The superseded managers may keep running for a while, where workers can reach one of them.
    fn start_stale_manager(&mut self, host: usize) {
        let other = (host + 1) % self.managers.len();
        let state = self.process(other).map(|run| Arc::new(run.replica.state().clone()));
        let until = self.now + self.rng.between(1_000, 15_000);
        self.stale_manager = state.map(|state| StaleManager { host: other, state, until });
    }

    /// The state after all entries of the log, committed or not, and the term. `None` without a cluster, or
    /// if that member is not in it.
    fn state_on_disk(&self, host: usize) -> Option<(State, u64)> {
        let SimManager { id, disk, files, .. } = &self.managers[host];
        let loaded = disk.open().load().expect("a memory log loads");
        let snapshot = loaded.snapshot.as_ref().map_or(0, |meta| meta.index);
        let mut state = match files.get(&snapshot) {
            Some(parts) => State::restore(StateParts::clone(parts)).expect("a snapshot is complete"),
            None => State::new(),
        };
        for entry in loaded.entries.iter().filter(|entry| entry.index > snapshot) {
            let (term, index) = (entry.term, entry.index);
            match entry.kind {
                EntryKind::Command => {
                    let place = entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes);
                    state.apply(term, index, &self.commands[usize::try_from(place).unwrap_or(0)]);
                }
                EntryKind::Noop | EntryKind::Membership => state.advance_to(AppliedIndex { term, index }),
            }
        }
        let whole = state.cluster().is_some() && state.member(*id).is_some();
        whole.then_some((state, loaded.hard_state.term))
    }

    /// A machine starts with this state in the next incarnation, as the only member of the group.
    fn begin_incarnation(&mut self, host: usize, mut state: State, term: u64) {
        let SimManager { id, key, name, address, .. } = &self.managers[host];
        // An index and a term that the log never had.
        let AppliedIndex { index, term: last } = state.applied();
        let applied = AppliedIndex { index: index + 1, term: term.max(last) + 1 };
        state.advance_to(applied);
        // The operator uses the correct time.
        let (id, now) = (*id, self.wall_clock(0));
        let member = Member {
            member_id: id,
            manager_id: *key,
            name: name.clone(),
            address: address.clone(),
            desired_suffrage: Suffrage::Voter,
            replaces: None,
            removing: false,
            level: FEATURE_LEVEL,
            version: applied.index,
            created_at: state.clock(),
            administrator_key: None,
        };
        let before = state.cluster().map_or(0, |cluster| cluster.incarnation);
        state.begin_incarnation(member, now);
        if self.defect == Some(PlantedDefect::KeepIncarnation) {
            state = with_incarnation(&state, before);
        }
        let members = ConfState::of_voters([id]);
        let snapshot = SnapshotMeta { index: applied.index, term: applied.term, conf_state: members.clone() };
        let hard_state = HardState { term: applied.term, vote: 0, commit: applied.index };
        let batch =
            WriteBatch { snapshot: Some(snapshot), hard_state: Some(hard_state), ..WriteBatch::default() };
        let disk = MemoryDisk::new();
        disk.open().append(&batch).expect("no crash is scheduled before the first start");
        let manager = &mut self.managers[host];
        (manager.disk, manager.stalled_until) = (disk, 0);
        manager.files = [(applied.index, Arc::new(state.export()))].into();
        self.drop_peer_messages();
        self.clients.iter_mut().for_each(|client| client.resync(&state));
        self.writers.iter_mut().for_each(SimWriter::forget);
        self.oracle.begin_incarnation(&self.workers, before, state, members);
    }
}

/// The defect: workers take new assignments for older than the previous ones.
fn with_incarnation(state: &State, incarnation: u64) -> State {
    let mut parts = state.export();
    if let Some(cluster) = &mut parts.cluster {
        Arc::make_mut(cluster).incarnation = incarnation;
    }
    parts.digest = None;
    State::restore(parts).expect("it is complete")
}

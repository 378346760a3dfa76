//! Most managers are lost for good, and the one that is left goes on alone; or all are, and a backup is restored. What
//! was acknowledged may be lost then, and only then. Workers follow, and their containers go on where they are wanted.

use std::sync::Arc;

use warren_consensus::EntryKind;
use warren_core::state::Parts;
use warren_core::{Applied, LEVEL, State};
use warren_log::{Batch, ConfState, Disk, HardState, LogStore, SnapshotMeta};
use warren_types::{Member, Suffrage};

use super::Manager;
use crate::world::{Defect, World};
use crate::writers::Writer;

/// A manager of a life that was given up, which does not know.
#[derive(Debug, Clone)]
pub struct Ghost {
    pub host: usize,
    pub state: Arc<State>,
    /// Somebody ends it then.
    pub until: u64,
}

/// A state that somebody keeps.
#[derive(Debug, Clone)]
pub struct Backup(Arc<Parts>);

impl World {
    /// Somebody takes a backup of what a manager has.
    pub(crate) fn backup_is_taken(&mut self, host: usize) -> bool {
        let state = self.life(host).map(|run| &run.state);
        let Some(state) = state.filter(|state| state.cluster().is_some()) else { return false };
        self.backup = Some(Backup(Arc::new(state.export())));
        true
    }

    /// All managers but one lose what they have. Somebody makes that one go on with all that is in its log, as the
    /// only voter.
    pub(crate) fn most_are_lost(&mut self, host: usize) -> bool {
        let ran = self.managers[host].run.is_some();
        self.manager_dies(host);
        let Some((state, term)) = self.state_on_disk(host) else { return ran };
        self.haunts(host);
        for other in (0..self.managers.len()).filter(|other| *other != host) {
            self.wipe(other);
        }
        self.begins_new_life(host, state, term);
        self.forced += 1;
        true
    }

    /// All managers lose what they have, and one of the machines gets the backup.
    pub(crate) fn all_are_lost(&mut self, host: usize) -> bool {
        let Some(Backup(parts)) = self.backup.clone() else { return false };
        let state = State::restore(Parts::clone(&parts)).expect("a backup is whole");
        self.haunts(host);
        (0..self.managers.len()).for_each(|host| self.wipe(host));
        self.managers[host].id = state.founder_at(self.wall(0));
        let term = state.applied().term;
        self.begins_new_life(host, state, term);
        self.restored += 1;
        true
    }

    /// Those that are given up may go on for a while, where workers find one of them.
    fn haunts(&mut self, host: usize) {
        let other = (host + 1) % self.managers.len();
        let state = self.life(other).map(|run| Arc::new(run.state.clone()));
        let until = self.now + self.chance.between(1_000, 15_000);
        self.ghost = state.map(|state| Ghost { host: other, state, until });
    }

    /// The state with everything that is in the log, known to be committed or not, and the term. `None` where there is
    /// no cluster, or none with that member.
    fn state_on_disk(&self, host: usize) -> Option<(State, u64)> {
        let Manager { id, disk, files, .. } = &self.managers[host];
        let loaded = disk.open().load().expect("a memory log loads");
        let snapshot = loaded.snapshot.as_ref().map_or(0, |meta| meta.index);
        let mut state = match files.get(&snapshot) {
            Some(parts) => State::restore(Parts::clone(parts)).expect("a snapshot is whole"),
            None => State::new(),
        };
        for entry in loaded.entries.iter().filter(|entry| entry.index > snapshot) {
            let (term, index) = (entry.term, entry.index);
            match entry.kind {
                EntryKind::Command => {
                    let place = entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes);
                    state.apply(term, index, &self.commands[usize::try_from(place).unwrap_or(0)]);
                }
                EntryKind::Noop | EntryKind::Membership => state.advance(Applied { term, index }),
            }
        }
        let whole = state.cluster().is_some() && state.member(*id).is_some();
        whole.then_some((state, loaded.hard_state.term))
    }

    /// A machine has this state, in the cluster's next life, and nobody else is in the group.
    fn begins_new_life(&mut self, host: usize, mut state: State, term: u64) {
        let Manager { id, key, name, address, .. } = &self.managers[host];
        // A place that the log never had, and a term.
        let Applied { index, term: last } = state.applied();
        let applied = Applied { index: index + 1, term: term.max(last) + 1 };
        state.advance(applied);
        // Somebody sits there and looks at the clock.
        let (id, now) = (*id, self.wall(0));
        let member = Member {
            member: id,
            id: *key,
            name: name.clone(),
            address: address.clone(),
            wanted: Suffrage::Voter,
            replaces: None,
            removing: false,
            level: LEVEL,
            version: applied.index,
            created_at: state.clock(),
        };
        let before = state.cluster().map_or(0, |cluster| cluster.incarnation);
        state.begin_new_life(member, now);
        if self.defect == Some(Defect::KeepsItsIncarnation) {
            state = with_incarnation(&state, before);
        }
        let members = ConfState::of_voters([id]);
        let snapshot = SnapshotMeta { index: applied.index, term: applied.term, conf_state: members.clone() };
        let hard_state = HardState { term: applied.term, vote: 0, commit: applied.index };
        let batch = Batch { snapshot: Some(snapshot), hard_state: Some(hard_state), ..Batch::default() };
        let disk = Disk::new();
        disk.open().append(&batch).expect("no crash is planned before the first start");
        let manager = &mut self.managers[host];
        (manager.disk, manager.stalled_until) = (disk, 0);
        manager.files = [(applied.index, Arc::new(state.export()))].into();
        self.nothing_is_under_way();
        self.clients.iter_mut().for_each(|client| client.looks_again(&state));
        self.writers.iter_mut().for_each(Writer::forget);
        self.oracle.begins_new_life(&self.workers, before, state, members);
    }
}

/// The defect: workers take what they are told now for older than what they were told before.
fn with_incarnation(state: &State, incarnation: u64) -> State {
    let mut parts = state.export();
    if let Some(cluster) = &mut parts.cluster {
        Arc::make_mut(cluster).incarnation = incarnation;
    }
    parts.digest = None;
    State::restore(parts).expect("it is whole")
}

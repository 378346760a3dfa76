//! An in-memory engine for tests and the simulator. Its [`MemoryDisk`] survives a crash and can lose power at any
//! durable write.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    AcknowledgedEntry, ConfState, Error, HardState, LogStore, RaftEntry, Result, SnapshotMeta, StoredLog,
    WriteBatch, WriteStats, codec, extent::LogExtent,
};

/// When the power fails, relative to a durable write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// The write is lost.
    Before,
    /// The write is durable, but the caller receives an error.
    After,
}

/// State that survives a crash. Clones are handles to the same disk.
#[derive(Debug, Clone)]
pub struct MemoryDisk(Arc<Mutex<DiskState>>);

#[derive(Debug, Clone)]
struct DiskState {
    extent: LogExtent,
    entries: VecDeque<RaftEntry>,
    hard_state: HardState,
    conf_state: ConfState,
    snapshot: Option<SnapshotMeta>,
    acknowledged: Vec<AcknowledgedEntry>,
    /// Incremented by every opening, so that earlier writers are rejected.
    boot: u64,
    writes: u64,
    /// The number of the write at which the power fails.
    crash: Option<(u64, CrashPoint)>,
    is_powered: bool,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            extent: LogExtent::empty(0),
            entries: VecDeque::new(),
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            snapshot: None,
            acknowledged: Vec::new(),
            boot: 0,
            writes: 0,
            crash: None,
            is_powered: true,
        })))
    }

    /// Opens the log on this disk, with power on and no crash planned. Earlier handles of the log become
    /// unusable.
    pub fn open(&self) -> MemoryLog {
        let mut state = self.state();
        state.boot += 1;
        state.crash = None;
        state.is_powered = true;
        MemoryLog { disk: self.clone(), boot: state.boot, stats: WriteStats::default() }
    }

    /// Plans a crash at the `nth` durable write from now; 1 is the next one.
    pub fn crash_at(&self, nth: u64, point: CrashPoint) {
        let mut state = self.state();
        state.crash = Some((state.writes + nth, point));
    }

    /// Switches the power off now. Durable data is kept.
    pub fn power_off(&self) {
        self.state().is_powered = false;
    }

    /// An independent copy of what is durable on this disk now.
    pub fn clone_durable(&self) -> Self {
        let state = DiskState { crash: None, is_powered: true, ..self.state().clone() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Number of durable writes of the disk.
    pub fn durable_writes(&self) -> u64 {
        self.state().writes
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        // Nothing here panics between two changes, so the state is consistent even if the lock is poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskState {
    /// Applies `change` as one durable write, or crashes as planned.
    fn write(&mut self, change: impl FnOnce(&mut Self)) -> Result<()> {
        self.writes += 1;
        let crash = self.crash.filter(|(at, _)| *at == self.writes).map(|(_, point)| point);
        if crash != Some(CrashPoint::Before) {
            change(self);
        }
        if crash.is_some() {
            self.is_powered = false;
            return Err(Error::Crashed);
        }
        Ok(())
    }

    fn apply(&mut self, batch: &WriteBatch, after: LogExtent) {
        if let Some(snapshot) = &batch.snapshot {
            self.entries.clear();
            self.conf_state = snapshot.conf_state.clone();
            self.snapshot = Some(snapshot.clone());
        }
        if let Some(head) = batch.entries.first() {
            self.entries.truncate((head.index - after.first) as usize);
            self.entries.extend(batch.entries.iter().cloned());
        }
        if let Some(hard_state) = batch.hard_state {
            self.hard_state = hard_state;
        }
        if let Some(conf_state) = &batch.conf_state {
            self.conf_state = conf_state.clone();
        }
        if let Some(acknowledged) = &batch.acknowledged {
            self.acknowledged.clone_from(acknowledged);
        }
        self.extent = after;
    }
}

/// A raft log on a [`MemoryDisk`].
#[derive(Debug)]
pub struct MemoryLog {
    disk: MemoryDisk,
    boot: u64,
    stats: WriteStats,
}

impl MemoryLog {
    /// The disk state, if this log is its current writer and has power.
    fn state(&self) -> Result<MutexGuard<'_, DiskState>> {
        let state = self.disk.state();
        if !state.is_powered || state.boot != self.boot {
            return Err(Error::Crashed);
        }
        Ok(state)
    }
}

impl LogStore for MemoryLog {
    fn load(&self) -> Result<StoredLog> {
        let state = self.state()?;
        Ok(StoredLog {
            hard_state: state.hard_state,
            conf_state: state.conf_state.clone(),
            snapshot: state.snapshot.clone(),
            recovered: None,
            acknowledged: state.acknowledged.clone(),
            entries: state.entries.iter().cloned().collect(),
        })
    }

    fn append(&mut self, batch: &WriteBatch) -> Result<()> {
        let mut state = self.state()?;
        if batch.is_empty() {
            return Ok(());
        }
        let after = state.extent.append(batch)?;
        state.write(|state| state.apply(batch, after))?;
        drop(state);
        self.stats.durable_writes += 1;
        self.stats.bytes_appended += batch.stored_bytes();
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        let mut state = self.state()?;
        if state.snapshot.as_ref() == Some(snapshot) {
            return Ok(());
        }
        let after = state.extent.set_snapshot(snapshot)?;
        state.write(|state| {
            state.snapshot = Some(snapshot.clone());
            state.conf_state = snapshot.conf_state.clone();
            state.extent = after;
        })?;
        drop(state);
        self.stats.durable_writes += 1;
        self.stats.bytes_appended += codec::snapshot_meta_len(snapshot) as u64;
        Ok(())
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        let mut state = self.state()?;
        let after = state.extent.compact(up_to)?;
        if after == state.extent {
            return Ok(());
        }
        state.write(|state| {
            state.entries.drain(..(after.first - state.extent.first) as usize);
            state.extent = after;
        })?;
        drop(state);
        self.stats.durable_writes += 1;
        Ok(())
    }

    fn stats(&self) -> WriteStats {
        self.stats
    }
}

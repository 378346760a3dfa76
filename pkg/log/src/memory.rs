//! The engine without a disk, for tests and the simulator. Its [`Disk`] outlives a crash and can
//! be told to lose power at any durable write.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Acknowledged, Batch, ConfState, Entry, Error, HardState, Loaded, LogStore, Result, SnapshotMeta, Stats,
    codec, extent::Extent,
};

/// On which side of a durable write the power goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashPoint {
    /// The write is lost.
    Before,
    /// The write is durable, but the caller is not told so.
    After,
}

/// What survives a crash. Clones are handles to the same disk.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Clone)]
struct Platter {
    extent: Extent,
    entries: VecDeque<Entry>,
    hard_state: HardState,
    conf_state: ConfState,
    snapshot: Option<SnapshotMeta>,
    acknowledged: Vec<Acknowledged>,
    /// Raised by every opening, so that the writer of before the crash is shut out.
    boot: u64,
    writes: u64,
    /// The number of the write at which the power goes.
    crash: Option<(u64, CrashPoint)>,
    powered: bool,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Platter {
            extent: Extent::empty(0),
            entries: VecDeque::new(),
            hard_state: HardState::default(),
            conf_state: ConfState::default(),
            snapshot: None,
            acknowledged: Vec::new(),
            boot: 0,
            writes: 0,
            crash: None,
            powered: true,
        })))
    }

    /// Opens the log on this disk, with the power on and no crash planned. A log that was opened
    /// before can no longer be used.
    pub fn open(&self) -> MemoryLog {
        let mut platter = self.platter();
        platter.boot += 1;
        platter.crash = None;
        platter.powered = true;
        MemoryLog { disk: self.clone(), boot: platter.boot, stats: Stats::default() }
    }

    /// Plans a crash at the `nth` durable write from now; 1 is the next one.
    pub fn crash_at(&self, nth: u64, point: CrashPoint) {
        let mut platter = self.platter();
        platter.crash = Some((platter.writes + nth, point));
    }

    /// Switches the power off now. Everything durable stays.
    pub fn power_off(&self) {
        self.platter().powered = false;
    }

    /// An independent disk with what is durable on this one now, as a backup of it or an image.
    pub fn image(&self) -> Self {
        let platter = Platter { crash: None, powered: true, ..self.platter().clone() };
        Self(Arc::new(Mutex::new(platter)))
    }

    /// How many durable writes the disk has seen in its life.
    pub fn durable_writes(&self) -> u64 {
        self.platter().writes
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        // Nothing here panics between two changes, so a poisoned platter is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platter {
    /// Does `change` as one durable write, or crashes as planned.
    fn write(&mut self, change: impl FnOnce(&mut Self)) -> Result<()> {
        self.writes += 1;
        let crash = self.crash.filter(|(at, _)| *at == self.writes).map(|(_, point)| point);
        if crash != Some(CrashPoint::Before) {
            change(self);
        }
        if crash.is_some() {
            self.powered = false;
            return Err(Error::Crashed);
        }
        Ok(())
    }

    fn apply(&mut self, batch: &Batch, after: Extent) {
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

/// A raft log on a [`Disk`].
#[derive(Debug)]
pub struct MemoryLog {
    disk: Disk,
    boot: u64,
    stats: Stats,
}

impl MemoryLog {
    /// The disk, if this log is its current writer and has power.
    fn platter(&self) -> Result<MutexGuard<'_, Platter>> {
        let platter = self.disk.platter();
        if !platter.powered || platter.boot != self.boot {
            return Err(Error::Crashed);
        }
        Ok(platter)
    }
}

impl LogStore for MemoryLog {
    fn load(&self) -> Result<Loaded> {
        let platter = self.platter()?;
        Ok(Loaded {
            hard_state: platter.hard_state,
            conf_state: platter.conf_state.clone(),
            snapshot: platter.snapshot.clone(),
            recovered: None,
            acknowledged: platter.acknowledged.clone(),
            entries: platter.entries.iter().cloned().collect(),
        })
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        let mut platter = self.platter()?;
        if batch.is_empty() {
            return Ok(());
        }
        let after = platter.extent.append(batch)?;
        platter.write(|platter| platter.apply(batch, after))?;
        drop(platter);
        self.stats.durable_writes += 1;
        self.stats.bytes_appended += batch.stored_bytes();
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        let mut platter = self.platter()?;
        if platter.snapshot.as_ref() == Some(snapshot) {
            return Ok(());
        }
        let after = platter.extent.set_snapshot(snapshot)?;
        platter.write(|platter| {
            platter.snapshot = Some(snapshot.clone());
            platter.conf_state = snapshot.conf_state.clone();
            platter.extent = after;
        })?;
        drop(platter);
        self.stats.durable_writes += 1;
        self.stats.bytes_appended += codec::snapshot_len(snapshot) as u64;
        Ok(())
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        let mut platter = self.platter()?;
        let after = platter.extent.compact(up_to)?;
        if after == platter.extent {
            return Ok(());
        }
        platter.write(|platter| {
            platter.entries.drain(..(after.first - platter.extent.first) as usize);
            platter.extent = after;
        })?;
        drop(platter);
        self.stats.durable_writes += 1;
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

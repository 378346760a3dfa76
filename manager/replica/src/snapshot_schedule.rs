//! When a snapshot of the state is due.

/// When a snapshot is due, whichever comes first. Both limits grow with the state: if a snapshot has `n`
/// times `bytes`, the next one is due after `n` times as much. So snapshots write about as much as the log at
/// most, however large the state is, and the replay at start stays proportional to the data that is read
/// anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotThresholds {
    /// Bytes of commands.
    pub bytes: usize,
    /// Number of entries.
    pub entries: usize,
}

impl Default for SnapshotThresholds {
    /// Replaying this much takes well under a second.
    fn default() -> Self {
        Self { bytes: 16 << 20, entries: 50_000 }
    }
}

impl SnapshotThresholds {
    /// Whether the entries since the last snapshot, which had `last` bytes, exceed a limit.
    pub fn are_exceeded(&self, passed: Self, last: u64) -> bool {
        let times = (last / (self.bytes as u64).max(1)).max(1) as usize;
        passed.bytes >= self.bytes.saturating_mul(times)
            || passed.entries >= self.entries.saturating_mul(times)
    }
}

/// Counts what was applied since the last snapshot. One snapshot is written at a time.
#[derive(Debug, Clone)]
pub struct SnapshotSchedule {
    thresholds: SnapshotThresholds,
    /// Applied since the last snapshot.
    since_last: SnapshotThresholds,
    /// Size of the last snapshot's state in bytes.
    last_bytes: u64,
    is_writing: bool,
}

impl SnapshotSchedule {
    /// The last snapshot had `last_bytes` bytes of state; 0: none.
    pub fn new(thresholds: SnapshotThresholds, last_bytes: u64) -> Self {
        let since_last = SnapshotThresholds { bytes: 0, entries: 0 };
        Self { thresholds, since_last, last_bytes, is_writing: false }
    }

    /// Records an applied entry of `bytes` bytes.
    pub fn record_applied(&mut self, bytes: usize) {
        self.since_last.bytes += bytes;
        self.since_last.entries += 1;
    }

    /// Whether a snapshot is due.
    pub fn is_due(&self) -> bool {
        !self.is_writing && self.thresholds.are_exceeded(self.since_last, self.last_bytes)
    }

    /// A snapshot of the newest state is requested; it `begins` unless a later one exists.
    pub fn record_start(&mut self, begins: bool) {
        self.since_last = SnapshotThresholds { bytes: 0, entries: 0 };
        self.is_writing = begins;
    }

    /// Writing ended, with that size in bytes unless it failed.
    pub fn record_end(&mut self, bytes: Option<u64>) {
        self.is_writing = false;
        self.last_bytes = bytes.unwrap_or(self.last_bytes);
    }

    /// The leader's snapshot of `bytes` bytes replaced the state.
    pub fn record_installed(&mut self, bytes: u64) {
        (self.since_last, self.last_bytes) = (SnapshotThresholds { bytes: 0, entries: 0 }, bytes);
    }
}

//! Power cuts right after an acknowledgement, on a real file system.

use std::{ops::RangeInclusive, path::Path};

use warren_testkit::soak;

use crate::{
    Error, LogStore, Recovery, RedbLog, Result, SledLog,
    crash::{
        device::LoopDevice,
        recorder::{DiskRecording, RecordedTable},
        workload::Workload,
    },
    disk_log::DiskLog,
    sled_table::SledTable,
    table::{RecordTable, TableChange},
};

/// sled without the adapter: `flush`, without fdatasync.
struct FlushedSled(SledTable);

impl RecordTable for FlushedSled {
    const ACK_WATERMARK_IS_DURABLE: bool = false;

    fn open(path: &Path) -> Result<(Self, Option<Recovery>)> {
        SledTable::open(path).map(|(table, recovered)| (Self(table), recovered))
    }

    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>> {
        self.0.get(name)
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.0.scan(indexes, visit)
    }

    fn commit(&mut self, operation: &'static str, change: &TableChange) -> Result<()> {
        self.0.apply(operation, change)
    }
}

/// Result of one power cut.
struct CutResult {
    acknowledged: usize,
    /// The steps present; `None` for a rejected log.
    steps: Option<usize>,
}

/// Runs the steps with `W`, cuts the power after every `every`th, and opens the result with `R`.
fn cut_power<W: RecordTable, R: RecordTable>(workload: &Workload, every: usize) -> Vec<CutResult> {
    let device = LoopDevice::new(32);
    let mut log = DiskLog::<W>::open(device.path().join("log")).unwrap();
    let mut found = Vec::new();
    for (step, acknowledged) in workload.steps.iter().zip(1..) {
        step.apply(&mut log).unwrap();
        if acknowledged % every == 0 {
            let cut = LoopDevice::snapshot_of(&device);
            let loaded = DiskLog::<R>::open(cut.path().join("log")).and_then(|log| log.load());
            let steps = match loaded {
                Ok(loaded) => Some(workload.steps_in(&loaded).expect("no step left this")),
                Err(Error::Corrupt { .. }) => None,
                Err(error) => panic!("after {acknowledged} steps: {error}"),
            };
            found.push(CutResult { acknowledged, steps });
        }
    }
    found
}

fn nothing_is_lost<T: RecordTable>() {
    let appends = Workload::of_appends(soak::count(30, 400) as u64, 256);
    let all_kinds = Workload::new(11, soak::count(30, 400));
    for workload in [appends, all_kinds] {
        let cuts = cut_power::<T, T>(&workload, soak::count(10, 7));
        for cut in &cuts {
            assert_eq!(cut.steps, Some(cut.acknowledged), "of {} steps", cut.acknowledged);
        }
    }
}

fn something_is_lost<W: RecordTable, R: RecordTable>() {
    for cut in cut_power::<W, R>(&Workload::of_appends(60, 20_000), 20) {
        println!("{} acknowledged, {:?} found", cut.acknowledged, cut.steps);
        assert!(cut.steps.unwrap_or(0) < cut.acknowledged, "all {} are there", cut.acknowledged);
    }
}

#[test]
fn redb_keeps_acknowledged_writes() {
    nothing_is_lost::<crate::redb_table::RedbTable>();
}

#[test]
fn sled_keeps_acknowledged_writes() {
    nothing_is_lost::<SledTable>();
}

#[test]
fn missing_sync_is_detected_for_redb() {
    DiskRecording::default().start();
    something_is_lost::<RecordedTable<false>, crate::redb_table::RedbTable>();
}

#[test]
fn flush_without_sync_is_detected_for_sled() {
    something_is_lost::<FlushedSled, SledTable>();
}

/// A log that loses power right after its creation exists, empty, or can be created again.
#[test]
fn new_log_survives_power_cut() {
    for _ in 0..2 {
        let device = LoopDevice::new(32);
        let (redb, sled) = (device.path().join("log"), device.path().join("sled"));
        let logs = (RedbLog::open(&redb).unwrap(), SledLog::open(&sled).unwrap());
        let cut = LoopDevice::snapshot_of(&device);
        drop(logs);
        for name in ["log", "sled", "log.receipt", "sled.receipt"] {
            assert!(cut.path().join(name).exists(), "{name}");
        }
        assert!(RedbLog::open(cut.path().join("log")).unwrap().load().unwrap().entries.is_empty());
        assert!(SledLog::open(cut.path().join("sled")).unwrap().load().unwrap().entries.is_empty());
    }
}

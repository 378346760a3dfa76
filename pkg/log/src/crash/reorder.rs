//! redb over a disk that may lose, tear and reorder anything unsynced, stopped after every single
//! operation.

use std::{fs, path::Path};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use warren_testkit::soak;

use crate::{
    LogStore, RedbLog, WriteBatch,
    ack_watermark::AckWatermark,
    crash::{
        recorder::{DiskHistory, DiskOperation, DiskRecording, RecordedTable},
        workload::Workload,
    },
    disk_log::DiskLog,
};

/// Disk operations of a workload run, with the position at which each step was acknowledged.
struct RecordedRun {
    history: DiskHistory,
    /// For the creation of the log and each step: the number of operations at its acknowledgement.
    acknowledged: Vec<usize>,
}

impl RecordedRun {
    fn new<const HONEST: bool>(workload: &Workload) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recording = DiskRecording::default();
        recording.start();
        let mut log = DiskLog::<RecordedTable<HONEST>>::open(dir.path().join("log")).unwrap();
        let mut acknowledged = vec![recording.len()];
        for step in &workload.steps {
            step.apply(&mut log).unwrap();
            acknowledged.push(recording.len());
        }
        drop(log);
        Self { history: recording.history(), acknowledged }
    }

    /// The number of acknowledged steps after `at` operations, and the maximum number of applied ones.
    fn bounds(&self, at: usize) -> (usize, usize) {
        let done = self.acknowledged.partition_point(|end| *end <= at);
        let has_begun = done == 0 || self.acknowledged[done - 1] < at;
        let least = done.saturating_sub(1);
        let last = self.acknowledged.len() - 1;
        (least, if has_begun && done > 0 { (least + 1).min(last) } else { least })
    }
}

/// Opens an image like the real log, with a watermark of `watermark` writes.
fn reopen(image: &[u8], watermark: u64, workload: &Workload) -> Result<usize, String> {
    let dir = tempfile::tempdir_in(shared_memory()).unwrap();
    let path = dir.path().join("log");
    fs::write(&path, image).unwrap();
    let mut paper = AckWatermark::create(AckWatermark::path_of(&path)).unwrap();
    paper.advance(watermark, false).unwrap();
    let log = RedbLog::open(&path).map_err(|error| error.to_string())?;
    let loaded = log.load().map_err(|error| error.to_string())?;
    workload.steps_in(&loaded).ok_or(format!("holds what no step left: {loaded:?}"))
}

/// An in-memory directory, where syncs cost nothing.
fn shared_memory() -> &'static Path {
    let path = Path::new("/dev/shm");
    if path.is_dir() { path } else { Path::new("/tmp") }
}

/// Crashes after `at` operations of a run; returns the resulting violation, and the image.
fn check_crash_at(
    run: &RecordedRun,
    at: usize,
    workload: &Workload,
    rng: &mut StdRng,
) -> (Option<String>, Vec<u8>) {
    let image = run.history.survivors(at, rng);
    let (least, most) = run.bounds(at);
    // The watermark is not synced: it may be any of those written.
    let watermark = rng.random_range(0..=least as u64);
    let wrong = match reopen(&image, watermark, workload) {
        Ok(found) if (least..=most).contains(&found) => None,
        Ok(found) => Some(format!("holds {found} steps, not {least} to {most}")),
        Err(text) => Some(text),
    };
    (wrong, image)
}

#[test]
fn unsynced_writes_may_be_lost_torn_or_reordered() {
    let (mut crashes, mut repeats) = (0, 0);
    for seed in 0..soak::count(2, 60) as u64 {
        let workload = Workload::new(seed, 12);
        let run = RecordedRun::new::<true>(&workload);
        let mut rng = StdRng::seed_from_u64(seed);
        for at in 0..=run.history.operations.len() {
            for _ in 0..soak::count(3, 40) {
                let (wrong, image) = check_crash_at(&run, at, &workload, &mut rng);
                assert_eq!(
                    wrong,
                    None,
                    "seed {seed}, after {at} of {} operations",
                    run.history.operations.len()
                );
                crashes += 1;
                if rng.random_bool(0.1) {
                    crash_again(&image, run.bounds(at), &workload, &mut rng);
                    repeats += 1;
                }
            }
        }
    }
    println!("{crashes} crashes, {repeats} of them with a second one during the repair");
}

/// Crashes during the repair of an earlier crash, or in the first write after it.
fn crash_again(image: &[u8], (least, most): (usize, usize), workload: &Workload, rng: &mut StdRng) {
    let dir = tempfile::tempdir_in(shared_memory()).unwrap();
    let path = dir.path().join("log");
    fs::write(&path, image).unwrap();
    AckWatermark::create(AckWatermark::path_of(&path)).unwrap();
    let recording = DiskRecording::default();
    recording.start();
    let mut log = DiskLog::<RecordedTable<true>>::open(&path).unwrap();
    let found = workload.steps_in(&log.load().unwrap()).unwrap();
    assert!((least..=most).contains(&found));
    if let Some(next) = workload.steps.get(found) {
        next.apply(&mut log).unwrap();
    }
    drop(log);
    let history = recording.history();
    let image = history.survivors(rng.random_range(0..=history.operations.len()), rng);
    let again = reopen(&image, 0, workload).unwrap();
    assert!((found..=found + 1).contains(&again), "{found} steps became {again}");
}

#[test]
fn false_sync_is_detected() {
    let workload = Workload::new(1, 12);
    let run = RecordedRun::new::<false>(&workload);
    assert!(!run.history.operations.iter().any(|operation| matches!(operation, DiskOperation::Sync)));
    let mut rng = StdRng::seed_from_u64(1);
    let mut crash_at = |at| check_crash_at(&run, at, &workload, &mut rng).0.is_some();
    let lost = (0..=run.history.operations.len()).filter(|at| crash_at(*at)).count();
    println!("{lost} of {} crashes lost something", run.history.operations.len() + 1);
    assert!(
        lost > run.history.operations.len() / 4,
        "only {lost} of {} crashes",
        run.history.operations.len() + 1
    );
}

#[test]
fn one_append_is_one_sync() {
    let dir = tempfile::tempdir().unwrap();
    let recording = DiskRecording::default();
    recording.start();
    let mut log = DiskLog::<RecordedTable<true>>::open(dir.path().join("log")).unwrap();
    let mut growths = 0;
    for step in &Workload::new(7, 40).steps {
        let before = recording.len();
        step.apply(&mut log).unwrap();
        let operations = &recording.history().operations[before..];
        let count = |is: fn(&DiskOperation) -> bool| operations.iter().filter(|what| is(what)).count();
        // Growing the file, which doubles it, is a separate sync.
        let growth = count(|operation| matches!(operation, DiskOperation::Grow(_)));
        growths += growth;
        assert_eq!(count(|operation| matches!(operation, DiskOperation::Sync)), 1 + growth);
    }
    assert!(growths <= 3, "{growths}");
    let before = recording.len();
    log.append(&WriteBatch::default()).unwrap();
    log.load().unwrap();
    assert_eq!(recording.len(), before, "reading asks nothing of the disk");
}

#[test]
fn unfinished_write_is_truncated_with_warning() {
    let workload = Workload::of_appends(5, 256);
    let run = RecordedRun::new::<true>(&workload);
    // All of the last step is on disk except the pages before the header, or nothing is missing.
    let end = run.acknowledged[5];
    let begin = run.acknowledged[4];
    for is_cut in [true, false] {
        let mut history = run.history.clone();
        let operations = &mut history.operations;
        operations.truncate(end);
        if is_cut {
            let torn = |op: &DiskOperation| matches!(op, DiskOperation::Write(offset, _) if *offset >= 4096);
            let at = begin + operations[begin..].iter().position(torn).unwrap();
            operations.remove(at);
        }
        // After a sync, everything that was not removed is present.
        let image = history.survivors(history.operations.len(), &mut StdRng::seed_from_u64(0));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, image).unwrap();
        AckWatermark::create(AckWatermark::path_of(&path)).unwrap();
        let loaded = RedbLog::open(&path).unwrap().load().unwrap();
        let recovered = loaded.recovered.clone().unwrap();
        assert_eq!((recovered.path.as_path(), recovered.was_truncated), (path.as_path(), is_cut));
        let text = recovered.to_string();
        assert!(text.contains("log was not closed cleanly"), "{text}");
        assert_eq!(text.contains("was rolled back"), is_cut, "{text}");
        assert_eq!(workload.steps_in(&loaded), Some(if is_cut { 4 } else { 5 }));
        // Closed cleanly this time.
        drop(RedbLog::open(&path).unwrap());
        assert_eq!(RedbLog::open(&path).unwrap().load().unwrap().recovered, None);
    }
}

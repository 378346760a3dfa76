//! Flipped bits and truncated files: a log opens with exactly its acknowledged content, or opening fails.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use warren_testkit::soak;

use super::open;
use crate::{Error, LogEngine, LogStore, StoredLog, crash::workload::Workload};

const STEPS: usize = 14;

/// How a log was left.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ShutdownKind {
    /// It was closed.
    Closed,
    /// Its process was killed after the last acknowledgement.
    Killed,
}

/// A log, and the bytes of all its files.
struct DamageSample {
    engine: LogEngine,
    end: ShutdownKind,
    expected: StoredLog,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl DamageSample {
    fn new(engine: LogEngine, end: ShutdownKind, seed: u64) -> Self {
        let workload = Workload::new(seed, STEPS);
        let dir = memory_dir();
        let mut log = open(dir.path(), engine).unwrap();
        for step in &workload.steps {
            step.apply(&mut *log).unwrap();
        }
        let killed = files(dir.path());
        drop(log);
        let files = if end == ShutdownKind::Killed { killed } else { files(dir.path()) };
        Self { engine, end, expected: workload.states[STEPS].clone(), files }
    }

    /// Opens the log after `change` to one of its files.
    fn check(&self, file: usize, change: impl FnOnce(&mut Vec<u8>), what: &str) -> DamageOutcome {
        let dir = memory_dir();
        restore_files(dir.path(), &self.files);
        let (name, content) = &self.files[file];
        let mut content = content.clone();
        change(&mut content);
        fs::write(dir.path().join(name), content).unwrap();
        self.reopen_twice(dir.path(), &format!("{} {:?}, {}: {what}", self.engine, self.end, name.display()))
    }

    /// Twice, because a rejected log must not be accepted with less content at the next attempt.
    fn reopen_twice(&self, dir: &Path, what: &str) -> DamageOutcome {
        let mut outcome = DamageOutcome::Refused;
        for attempt in 1..=2 {
            match open_free(dir, self.engine).and_then(|log| log.load()) {
                Ok(loaded) => {
                    let loaded = StoredLog { recovered: None, ..loaded };
                    assert!(
                        loaded == self.expected,
                        "{what}: opened with another content at attempt {attempt}"
                    );
                    outcome = DamageOutcome::Intact;
                }
                Err(error) => {
                    let known =
                        matches!(error, Error::Corrupt { .. } | Error::Newer { .. } | Error::Older { .. });
                    assert!(known && error.to_string().contains("raft."), "{what}: {error}");
                }
            }
        }
        outcome
    }
}

/// Opens the log once its file is released: sled's threads may still hold it.
fn open_free(dir: &Path, engine: LogEngine) -> Result<Box<dyn LogStore>, Error> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match open(dir, engine) {
            // Between two checks of the file lock.
            Err(Error::InUse { .. }) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum DamageOutcome {
    Intact,
    Refused,
}

/// Syncs cost nothing there.
pub fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// All files below a directory, by relative path.
pub fn files(top: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut dirs, mut files) = (vec![top.to_owned()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for file in fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.push((path.strip_prefix(top).unwrap().to_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// Writes files into a directory.
pub fn restore_files(top: &Path, files: &[(PathBuf, Vec<u8>)]) {
    for (name, content) in files {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
    }
}

/// The non-empty parts of a file, and one page before and after each.
fn used_ranges(content: &[u8]) -> Vec<Range<usize>> {
    let mut used: Vec<Range<usize>> = Vec::new();
    for (number, page) in content.chunks(512).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            let range = number * 512..number * 512 + page.len();
            match used.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => used.push(range),
            }
        }
    }
    used
}

/// Flips single bits: `count` across the files, and many of redb's header and the watermark's numbers.
fn flip_bits(engine: LogEngine, end: ShutdownKind, seed: u64, count: usize) {
    let sample = DamageSample::new(engine, end, seed);
    assert_eq!(sample.check(0, |_| {}, "unharmed"), DamageOutcome::Intact);
    let mut chance = StdRng::seed_from_u64(seed);
    let places: Vec<(usize, usize)> = (0..sample.files.len())
        .flat_map(|file| used_ranges(&sample.files[file].1).into_iter().flatten().map(move |at| (file, at)))
        .collect();
    let step = (places.len() / count).max(1);
    let important = |at: usize| at % 4096 < 320 && at < 8192;
    let is_receipt = |file: usize| sample.files[file].0.extension().is_some_and(|kind| kind == "receipt");
    let is_chosen = |number: usize, file: usize, at: usize| match engine {
        LogEngine::Redb => number.is_multiple_of(soak::count(3, 1)),
        // It takes longer to open, and has no header there: the watermark's numbers are what matters.
        LogEngine::Sled => number.is_multiple_of(soak::count(9, 1)) || (is_receipt(file) && at % 4096 < 12),
    };
    let (mut exact, mut refused) = (0, 0);
    for (number, (file, at)) in places.iter().copied().enumerate() {
        if number % step != 0 && !(important(at) && is_chosen(number, file, at)) {
            continue;
        }
        let bit = 1u8 << chance.random_range(0..8);
        match sample.check(file, |content| content[at] ^= bit, &format!("byte {at} ^ {bit:#x}")) {
            DamageOutcome::Intact => exact += 1,
            DamageOutcome::Refused => refused += 1,
        }
    }
    println!("{engine} {end:?}: of {} used bytes {exact} flipped unharmed, {refused} refused", places.len());
    assert!(exact > 0 && refused > 0 && exact + refused >= count.min(places.len()));
}

fn flip_bits_after_each_shutdown(engine: LogEngine, count: usize) {
    for end in [ShutdownKind::Closed, ShutdownKind::Killed] {
        for seed in 0..soak::count(1, 8) as u64 {
            flip_bits(engine, end, seed, count);
        }
    }
}

#[test]
fn flipped_bit_in_redb_is_harmless_or_detected() {
    flip_bits_after_each_shutdown(LogEngine::Redb, soak::count(250, 5000));
}

#[test]
fn flipped_bit_in_sled_is_harmless_or_detected() {
    flip_bits_after_each_shutdown(LogEngine::Sled, soak::count(60, 5000));
}

#[test]
fn truncated_file_is_detected_or_intact() {
    for engine in LogEngine::ALL {
        let sample = DamageSample::new(engine, ShutdownKind::Closed, 5);
        let mut chance = StdRng::seed_from_u64(5);
        for file in 0..sample.files.len() {
            let length = sample.files[file].1.len();
            for _ in 0..soak::count(10, 300) {
                let at = chance.random_range(0..length);
                sample.check(file, |content| content.truncate(at), &format!("cut at {at}"));
                let zeros = |content: &mut Vec<u8>| content[at..].fill(0);
                sample.check(file, zeros, &format!("zeros from {at}"));
            }
        }
    }
}

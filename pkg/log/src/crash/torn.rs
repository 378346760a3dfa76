//! sled with a torn write: earlier acknowledged writes are present, and of the torn write all or nothing;
//! or opening fails.

use std::fs;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use warren_testkit::soak;

use crate::{
    Error, LogStore, SledLog,
    crash::{
        damage::{files, memory_dir, restore_files},
        workload::Workload,
    },
};

const SECTOR: usize = 512;

#[test]
fn torn_sled_write_keeps_acknowledged_data() {
    let (mut before, mut after, mut refused) = (0, 0, 0);
    for seed in 0..soak::count(2, 60) as u64 {
        let workload = Workload::new(seed, 20);
        let mut chance = StdRng::seed_from_u64(seed);
        let dir = memory_dir();
        let mut log = SledLog::open(dir.path().join("log")).unwrap();
        for (step, done) in workload.steps.iter().zip(0..) {
            let old = files(dir.path());
            step.apply(&mut log).unwrap();
            let new = files(dir.path());
            for _ in 0..soak::count(3, 30) {
                // The watermark, which is written last, is lost; of the rest any sectors were written.
                let mut torn = old.clone();
                let share = [0.1, 0.5, 0.9][chance.random_range(0..3)];
                let name = std::path::Path::new("log/db");
                let db = torn.iter_mut().find(|(path, _)| path == name).unwrap();
                let whole = &new.iter().find(|(path, _)| path == name).unwrap().1;
                db.1.resize(whole.len(), 0);
                for (torn, whole) in db.1.chunks_mut(SECTOR).zip(whole.chunks(SECTOR)) {
                    if chance.random_bool(share) {
                        torn.copy_from_slice(whole);
                    }
                }
                let dir = memory_dir();
                restore_files(dir.path(), &torn);
                match SledLog::open(dir.path().join("log")).and_then(|log| log.load()) {
                    Ok(loaded) => match workload.steps_in(&loaded) {
                        Some(steps) if steps == done => before += 1,
                        Some(steps) if steps == done + 1 => after += 1,
                        other => panic!("seed {seed}: {other:?} steps, {done} were acknowledged"),
                    },
                    Err(Error::Corrupt { .. }) => refused += 1,
                    Err(error) => panic!("seed {seed}, after {done} steps: {error}"),
                }
                fs::remove_dir_all(dir.path()).unwrap();
            }
        }
    }
    println!("without the write {before}, with it {after}, refused {refused}");
    assert!(before > 0 && after > 0);
    assert!(refused * 20 < before + after, "{refused} of {} refused", before + after + refused);
}

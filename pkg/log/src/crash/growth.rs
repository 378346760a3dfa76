//! A compacted log does not fill the disk.

use std::{fs, path::Path};

use warren_testkit::soak;
use warren_types::raft::{ConfState, EntryKind, RaftEntry, SnapshotMeta};

use super::open;
use crate::{LogEngine, WriteBatch};

fn size(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path).unwrap();
    if !metadata.is_dir() {
        return metadata.blocks() * 512;
    }
    fs::read_dir(path).unwrap().map(|file| size(&file.unwrap().path())).sum()
}

#[test]
fn a_compacted_log_stays_small() {
    for engine in LogEngine::ALL {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut log = open(dir.path(), engine).unwrap();
        let mut largest = 0;
        for round in 0..soak::count(30, 300) as u64 {
            for number in 0..100 {
                let first = round * 1000 + number * 10 + 1;
                let entries = (first..first + 10).map(|index| RaftEntry {
                    index,
                    term: 1,
                    kind: EntryKind::Command,
                    data: vec![index as u8; 250].into(),
                });
                log.append(&WriteBatch { entries: entries.collect(), ..WriteBatch::default() }).unwrap();
            }
            let index = (round + 1) * 1000;
            let conf_state = ConfState::of_voters(vec![1]);
            log.set_snapshot(&SnapshotMeta { index, term: 1, conf_state }).unwrap();
            log.compact(index - 500).unwrap();
            largest = largest.max(size(dir.path()));
            if round % 10 == 9 {
                println!("{engine}: {} KiB after {} entries", size(dir.path()) >> 10, index);
            }
        }
        assert!(largest < 24 << 20, "{engine} needed {largest} bytes for 1500 entries of 250 bytes");
        drop(log);
        let log = open(dir.path(), engine).unwrap();
        assert_eq!(log.load().unwrap().entries.len(), 500);
    }
}

//! Full, slow and broken disks: errors for callers, and no lost or repeated write.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::*;
use crate::store::PROPOSE_TIMEOUT;

/// Proposes until a write stalls, without waiting for the response.
async fn begin_stall(rig: &DriverFixture) -> tokio::task::JoinHandle<Result<u64, ProposeError>> {
    let store = rig.store.clone();
    let waiting = tokio::spawn(async move { count(&store).await });
    rig.until(|published| published.write_stall.is_some()).await;
    waiting
}

#[tokio::test]
async fn full_disk_refuses_writes_and_serves_reads() {
    for fault in [DiskFault::Full, DiskFault::Unavailable, DiskFault::FailAfterWrite] {
        let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
        let rig = fixture(&disk, &dir, usize::MAX);
        rig.prepare().await;
        assert_eq!(rig.count().await.unwrap(), 1);
        let (before, cost) = (rig.store.read().index, rig.store.read().log);
        disk.set_fault(fault);
        let began = Instant::now();
        let waiting = begin_stall(&rig).await;
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            let asked = Instant::now();
            let Err(ProposeError::WriteStalled(held)) = rig.count().await else { panic!("a refusal") };
            assert_eq!(
                (&*held.reason, held.is_disk_full),
                ("the disk of this manager is full: /disk/raft has 0B free", true)
            );
            fastest = fastest.min(asked.elapsed());
        }
        assert!(fastest < Duration::from_secs(1), "refusals do not wait: {fastest:?}");
        let published = rig.store.read();
        assert_eq!(published.index, before, "what is not known to be durable is not shown");
        assert!(published.role.is_leader && published.state.cluster().is_some());
        let tries = disk.openings();
        tokio::time::timeout(TEST_TIMEOUT, async {
            while disk.openings() < tries + 3 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("it is tried again and again");
        disk.set_fault(DiskFault::None);
        match tokio::time::timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap() {
            Ok(number) => assert_eq!(number, 2, "the write that waited is done once"),
            // A busy machine takes longer than a write may take. The next number shows that it is done once as well.
            Err(error) => {
                let is_late = began.elapsed() >= PROPOSE_TIMEOUT;
                assert!(is_late && matches!(error, ProposeError::Indeterminate(_)), "{error:?}");
            }
        }
        rig.until(|published| published.write_stall.is_none()).await;
        assert_eq!(rig.count().await.unwrap(), 3, "those that were refused are not done");
        let published = rig.store.read();
        assert!(published.write_stall.is_none());
        assert!(
            published.log.writes >= cost.writes && published.log.bytes >= cost.bytes,
            "no figure goes back"
        );
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn retrying_write_succeeds_when_disk_has_room() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set_fault(DiskFault::Full);
    let first = begin_stall(&rig).await;
    let patient = rig.store.propose_with_retry(Command::OpenSession {
        node: NODE,
        description: description(),
        manager: 1,
        at: Timestamp(1),
    });
    let freed = async {
        tokio::task::yield_now().await;
        disk.set_fault(DiskFault::None);
    };
    let (answer, ()) = tokio::join!(patient, freed);
    assert_eq!((first.await.unwrap().unwrap(), answer.unwrap()), (1, CommandResponse::Session { number: 2 }));
}

#[tokio::test]
async fn stop_does_not_wait_for_stalled_write() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set_fault(DiskFault::Full);
    let waiting = begin_stall(&rig).await;
    rig.stop.cancel();
    tokio::time::timeout(TEST_TIMEOUT, rig.end).await.unwrap().unwrap().unwrap();
    let answer = waiting.await.unwrap().unwrap_err();
    assert!(matches!(answer, ProposeError::Indeterminate(IndeterminateReason::DriverEnded)), "{answer:?}");
    assert!(matches!(count(&rig.store).await, Err(ProposeError::Stopping)));
    DataDir::open(dir.path()).expect("the directory is given back");
}

#[tokio::test]
async fn damaged_log_stops_driver_and_fails_waiters() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, usize::MAX);
    rig.prepare().await;
    disk.set_fault(DiskFault::Damaged);
    let asked = tokio::join!(rig.count(), rig.count(), rig.count());
    for answer in [asked.0, asked.1, asked.2] {
        let ended = matches!(
            answer,
            Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded)
                | ProposeError::DriverFailed(_)
                | ProposeError::Stopping
                | ProposeError::WriteStalled(_))
        );
        assert!(ended, "{answer:?}");
    }
    let error = rig.end.await.unwrap().unwrap_err();
    assert!(matches!(error, DriverError::Log(warren_log::Error::Corrupt { .. })), "{error}");
    assert!(rig.store.read().write_stall.is_none(), "nobody waits for a manager that has ended");
    DataDir::open(dir.path()).expect("the directory is given back");
}

#[tokio::test]
async fn replaced_log_is_refused() {
    for is_newer in [false, true] {
        let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
        let rig = fixture(&disk, &dir, usize::MAX);
        rig.prepare().await;
        disk.set_fault(DiskFault::Unavailable);
        let waiting = begin_stall(&rig).await;
        // Modified without the driver: an additional or a lost entry.
        let mut other = disk.disk.open();
        let loaded = other.load().unwrap();
        let last = loaded.entries.last().unwrap().clone();
        let entries = match is_newer {
            true => {
                [1, 2].map(|more| warren_log::RaftEntry { index: last.index + more, ..last.clone() }).to_vec()
            }
            false => vec![loaded.entries[0].clone()],
        };
        other.append(&LogBatch { entries, ..LogBatch::default() }).unwrap();
        disk.set_fault(DiskFault::None);
        let error = rig.end.await.unwrap().unwrap_err();
        assert!(matches!(error, DriverError::LogReplaced { .. }), "{error}");
        assert!(matches!(
            waiting.await.unwrap(),
            Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded))
        ));
    }
}

#[tokio::test]
async fn slow_disk_batches_writes() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, usize::MAX);
    rig.prepare().await;
    let (term, writes) = (rig.store.read().role.term, rig.store.read().log.writes);
    disk.set_fault(DiskFault::Slow(Duration::from_millis(300)));
    let writers: Vec<_> = (0..40)
        .map(|_| {
            let store = rig.store.clone();
            tokio::spawn(async move { count(&store).await })
        })
        .collect();
    let mut numbers = Vec::new();
    for writer in writers {
        numbers.push(writer.await.unwrap().unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=40).collect::<Vec<u64>>());
    let published = rig.store.read();
    assert_eq!(
        published.role,
        ReplicaRole { is_leader: true, leader_id: Some(1), term, can_plan: true },
        "nobody campaigns"
    );
    // The queue has room for 16 proposals, and each pause of the writers can add a write.
    assert!(published.log.writes - writes <= 10, "{} writes", published.log.writes - writes);
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();
}

/// Writers count while the disk fails in every retryable way and snapshots are written: every write is
/// answered once, with the next number, and all of them are on the disk at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_faults_apply_each_write_once() {
    const MOODS: [DiskFault; 4] = [
        DiskFault::Full,
        DiskFault::Unavailable,
        DiskFault::FailAfterWrite,
        DiskFault::Slow(Duration::from_millis(5)),
    ];
    for seed in 0..3 {
        let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
        let rig = fixture(&disk, &dir, 7);
        rig.prepare().await;
        let writers: Vec<_> = (0..6)
            .map(|_| {
                let store = rig.store.clone();
                tokio::spawn(async move {
                    let mut numbers = Vec::new();
                    while numbers.len() < 15 {
                        match count(&store).await {
                            Ok(number) => numbers.push(number),
                            Err(ProposeError::WriteStalled(_)) => tokio::task::yield_now().await,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    numbers
                })
            })
            .collect();
        let mut chance = StdRng::seed_from_u64(seed);
        let stop = CancellationToken::new();
        let moody = tokio::spawn({
            let (store, disk, stop) = (rig.store.clone(), disk.clone(), stop.clone());
            async move {
                let mut stalled_since: Option<Instant> = None;
                while !stop.is_cancelled() {
                    let bad = MOODS[chance.random_range(0..MOODS.len())];
                    let is_bad: bool = chance.random();
                    // A few stalls in a row must end before the writer gives up.
                    let is_stalled = store.read().write_stall.is_some();
                    stalled_since = is_stalled.then(|| stalled_since.unwrap_or_else(Instant::now));
                    let is_long = stalled_since.is_some_and(|since| since.elapsed() > Duration::from_secs(1));
                    disk.set_fault(if is_bad && !is_long { bad } else { DiskFault::None });
                    // Not a wait: faults are random.
                    tokio::time::sleep(Duration::from_millis(chance.random_range(1..40))).await;
                }
                disk.set_fault(DiskFault::None);
            }
        });
        let mut numbers = Vec::new();
        for writer in writers {
            numbers.extend(tokio::time::timeout(3 * TEST_TIMEOUT, writer).await.unwrap().unwrap());
        }
        stop.cancel();
        moody.await.unwrap();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=90).collect::<Vec<u64>>(), "seed {seed}");
        let applied = rig.store.read().index;
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
        assert_eq!(disk.loaded().entries.last().unwrap().index, applied, "seed {seed}");
    }
}

//! Full, slow and failed disks in a group.

use std::path::{Path, PathBuf};
use std::time::Instant;

use warren_consensus::{DurabilityStatus, FatalError};

use super::*;
use crate::raft::driver::tests::faulty::DiskFault;

#[tokio::test]
async fn leader_with_full_disk_is_replaced() {
    let (world, disks) = GroupFixture::with_faulty_disks();
    let old = world.prepare(1).await;
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 3).await;
    for fault in [DiskFault::Full, DiskFault::Unavailable, DiskFault::FailAfterWrite] {
        let old = world.leader().await;
        disks[&old].set_fault(fault);
        let waits = tokio::spawn({
            let store = world.store(old).clone();
            async move { count(&store, node(0)).await }
        });
        world.wait_until("it is held", |world| world.store(old).read().write_stall.is_some()).await;
        let refused = count(world.store(old), node(0)).await.unwrap_err();
        assert!(matches!(refused, ProposeError::WriteStalled(_)), "{refused:?}");
        let rest = world.others(old);
        world.leader_of(&rest).await;
        // Messages of the old leader may still be committed by the others.
        let next = count(world.store(rest[0]), node(0)).await.unwrap();
        assert!((counted_there + 1..=counted_there + 2).contains(&next), "{next} after {counted_there}");
        counted_there = world.count_on(&rest, next, 10).await;
        assert!(
            world.store(old).since_leader_seen() > Duration::from_millis(100),
            "it knows of nobody who leads"
        );
        assert!(world.store(rest[0]).since_leader_seen() < Duration::from_secs(1));
        disks[&old].set_fault(DiskFault::None);
        // The write was committed or not, which is known by then; if not, it was forwarded to the new leader.
        match waits.await.unwrap() {
            Ok(number) => counted_there = counted_there.max(number),
            Err(error) => panic!("{error:?}"),
        }
        world.wait_until("it can write", |world| world.store(old).read().write_stall.is_none()).await;
        world.leader().await;
        counted_there = world.count_on(&[old], counted_there, 3).await;
    }
    assert!(world.store(old).read_linearizable().await.is_ok());
    world.wait_equal_states().await;
}

#[tokio::test]
async fn follower_with_bad_disk_blocks_nobody() {
    const SLOW: Duration = Duration::from_millis(300);
    for fault in [DiskFault::Slow(SLOW), DiskFault::Full] {
        let (world, disks) = GroupFixture::with_faulty_disks();
        let leader = world.prepare(1).await;
        let bad = world.others(leader)[0];
        disks[&bad].set_fault(fault);
        let began = Instant::now();
        let counted_there = world.count_on(&[leader, world.others(leader)[1]], 0, 40).await;
        assert!(began.elapsed() < 20 * SLOW, "{:?}", began.elapsed());
        disks[&bad].set_fault(DiskFault::None);
        world.wait_until("it catches up", |world| counted(world.store(bad), node(0)) == counted_there).await;
        world.count_on(&[bad], counted_there, 3).await;
        world.wait_equal_states().await;
    }
}

#[tokio::test]
async fn member_with_lost_disk_stops_with_hint() {
    let mut world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let counted = world.count_on(&[1, 2, 3], 0, 9).await;
    let lost = world.others(leader)[0];
    world.kill(lost).await;
    world.dirs.remove(&lost);
    world.start(lost);
    let asked = world.store(lost).clone();
    let error = world.failed(lost).await;
    let DriverError::Raft(fatal) = &error else { panic!("{error:?}") };
    assert!(matches!(**fatal, FatalError::LogLost { .. }), "{fatal}");
    assert!(error.to_string().contains("must be removed and joined again with a new id"), "{error}");
    assert!(matches!(count(&asked, node(0)).await, Err(ProposeError::Stopping)));
    world.count_on(&world.ids(), counted, 3).await;
}

/// Copies a directory.
fn copy_of(dir: &Path) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut open = vec![PathBuf::new()];
    while let Some(below) = open.pop() {
        std::fs::create_dir_all(copy.path().join(&below)).unwrap();
        for entry in std::fs::read_dir(dir.join(&below)).unwrap().map(Result::unwrap) {
            let path = below.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => open.push(path),
                false => drop(std::fs::copy(entry.path(), copy.path().join(path)).unwrap()),
            }
        }
    }
    copy
}

#[tokio::test]
async fn member_with_old_copy_catches_up_and_votes() {
    let mut world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let restored = world.others(leader)[0];
    let before = world.count_on(&[1, 2, 3], 0, 3).await;
    world.stop(restored).await;
    let copy = copy_of(world.dirs[&restored].path());
    world.start(restored);
    let total = world.count_on(&[1, 2, 3], before, 9).await;
    world.kill(restored).await;
    world.dirs.insert(restored, copy);
    world.start(restored);
    world.wait_until("it has it all again", |world| counted(world.store(restored), node(0)) == total).await;
    assert_eq!(world.store(restored).read().durability, DurabilityStatus::default());
    world.kill(leader).await;
    world.leader().await;
    world.count_on(&world.ids(), total, 3).await;
    world.wait_equal_states().await;
}

/// The leader's clock ticks under any load, and one write contains all proposals queued during the previous
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_load_does_not_delay_ticks() {
    let (world, disks) = GroupFixture::with_faulty_disks();
    let leader = world.prepare(32).await;
    disks[&leader].set_fault(DiskFault::Slow(Duration::from_millis(5)));
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..32)
        .map(|number| {
            let (store, stop) = (world.store(leader).clone(), stop.clone());
            tokio::spawn(writers::write(store, node(number), stop))
        })
        .collect();
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let flooded = |_: &GroupFixture| {
        longest = longest.max(world.store(leader).since_leader_seen());
        began.elapsed() > Duration::from_secs(2)
    };
    world.wait_until("two seconds pass", flooded).await;
    stop.cancel();
    let mut confirmed = 0;
    for writer in writers {
        confirmed += writer.await.unwrap().confirmed;
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    assert!(confirmed > 500, "{confirmed}");
}

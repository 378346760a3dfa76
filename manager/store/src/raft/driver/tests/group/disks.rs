//! Full, slow and failed disks in a group.

use std::path::{Path, PathBuf};
use std::time::Instant;

use warren_consensus::{DurabilityStatus, FatalError};

use super::*;
use crate::raft::driver::tests::faulty::DiskFault;

#[tokio::test]
async fn leader_with_full_disk_is_replaced() {
    let (world, disks) = GroupFixture::with_faulty_disks();
    world.prepare(1).await;
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
        let next = world.count_after(rest[0], counted_there, &mut 1).await;
        counted_there = world.count_on(&rest, next, 10).await;
        let is_cut_off = |world: &GroupFixture| {
            let since_seen_there = world.store(rest[0]).since_leader_seen();
            let since_seen = world.store(old).since_leader_seen();
            since_seen > since_seen_there && since_seen > Duration::from_millis(100)
        };
        world.wait_until("it alone knows of nobody who leads", is_cut_off).await;
        disks[&old].set_fault(DiskFault::None);
        // The write was committed or not, which is known by then; if not, it was forwarded to the new leader.
        let unknown = match waits.await.unwrap() {
            Ok(number) => {
                counted_there = counted_there.max(number);
                0
            }
            // A busy machine took longer than a write may take.
            Err(ProposeError::Indeterminate(_)) => 1,
            // A busy machine elected another leader, so that the disk was full before this write, or none was known.
            Err(ProposeError::WriteStalled(_) | ProposeError::NoLeader(_)) => 0,
            Err(error) => panic!("{error:?}"),
        };
        world.wait_until("it can write", |world| world.store(old).read().write_stall.is_none()).await;
        world.leader().await;
        counted_there = world.count_after(old, counted_there, &mut { unknown }).await;
        counted_there = world.count_on(&[old], counted_there, 2).await;
    }
    read_with_retry(world.store(1)).await;
    world.wait_equal_states().await;
}

#[tokio::test]
async fn follower_with_bad_disk_blocks_nobody() {
    const SLOW: Duration = Duration::from_secs(1);
    for fault in [DiskFault::Slow(SLOW), DiskFault::Full] {
        let (world, disks) = GroupFixture::with_faulty_disks();
        world.prepare(1).await;
        let mut counted_there = 0;
        let (bad, elapsed) = world
            .with_leader(async |leader: MemberId| {
                let [bad, good]: [MemberId; 2] = world.others(leader).try_into().unwrap();
                disks[&bad].set_fault(fault);
                let began = Instant::now();
                counted_there = world.count_on(&[leader, good], counted_there, 40).await;
                let elapsed = began.elapsed();
                disks[&bad].set_fault(DiskFault::None);
                (bad, elapsed)
            })
            .await;
        assert!(elapsed < 20 * SLOW, "{elapsed:?}");
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
    let is_complete = |world: &GroupFixture| {
        let store = world.store(restored);
        counted(store, node(0)) == total && store.read().durability == DurabilityStatus::default()
    };
    world.wait_until("it has it all again", is_complete).await;
    world.kill(leader).await;
    world.leader().await;
    world.count_on(&world.ids(), total, 3).await;
    world.wait_equal_states().await;
}

/// The leader's clock ticks under any load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_load_does_not_delay_ticks() {
    let (world, disks) = GroupFixture::with_faulty_disks();
    world.prepare(32).await;
    let leader = world.leader().await;
    let (store, nodes) = (world.store(leader), (0..32).map(node));
    let term = store.read().role.term;
    disks[&leader].set_fault(DiskFault::Slow(Duration::from_millis(5)));
    let stop = CancellationToken::new();
    let writers: Vec<_> =
        nodes.clone().map(|node| tokio::spawn(writers::write(store.clone(), node, stop.clone()))).collect();
    let began = Instant::now();
    let (mut longest, mut last) = (Duration::ZERO, Duration::ZERO);
    let flooded = |_: &GroupFixture| {
        let role = store.read().role;
        // A pause of the driver delays its turns as well. At its end it can show in one sample, but not in two.
        let delay = store.since_leader_seen().saturating_sub(store.since_last_turn());
        if role.is_leader && role.term == term {
            longest = longest.max(delay.min(last));
        }
        last = delay;
        let written: u64 = nodes.clone().map(|node| counted(store, node)).sum();
        began.elapsed() > Duration::from_secs(2) && written > 500
    };
    world.wait_until("two seconds pass, and much is written", flooded).await;
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

//! Disks that are full, slow or gone, in a group that has others.

use std::path::{Path, PathBuf};
use std::time::Instant;

use warren_consensus::{Durability, Fatal};

use super::*;
use crate::raft::driver::tests::faulty::Mood;

#[tokio::test]
async fn a_leader_with_a_full_disk_is_replaced_and_comes_back() {
    let (world, disks) = World::moody();
    let old = world.prepare(1).await;
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 3).await;
    for mood in [Mood::Full, Mood::Shut, Mood::ShutAfterwards] {
        let old = world.leader().await;
        disks[&old].set(mood);
        let waits = tokio::spawn({
            let store = world.store(old).clone();
            async move { count(&store, node(0)).await }
        });
        world.until("it is held", |world| world.store(old).read().held.is_some()).await;
        let refused = count(world.store(old), node(0)).await.unwrap_err();
        assert!(matches!(refused, ProposeError::Held(_)), "{refused:?}");
        let rest = world.others(old);
        world.leader_of(&rest).await;
        // What the old one has sent may be committed by the others.
        let next = count(world.store(rest[0]), node(0)).await.unwrap();
        assert!((counted_there + 1..=counted_there + 2).contains(&next), "{next} after {counted_there}");
        counted_there = world.count_on(&rest, next, 10).await;
        assert!(world.store(old).silence() > Duration::from_millis(100), "it knows of nobody who leads");
        assert!(world.store(rest[0]).silence() < Duration::from_secs(1));
        disks[&old].set(Mood::Works);
        // It was committed or not, which is known by then; if not, it went to the new leader.
        match waits.await.unwrap() {
            Ok(number) => counted_there = counted_there.max(number),
            Err(error) => panic!("{error:?}"),
        }
        world.until("it can write", |world| world.store(old).read().held.is_none()).await;
        world.leader().await;
        counted_there = world.count_on(&[old], counted_there, 3).await;
    }
    assert!(world.store(old).read_now().await.is_ok());
    world.agree().await;
}

#[tokio::test]
async fn a_follower_with_a_bad_disk_keeps_nobody_waiting() {
    const SLOW: Duration = Duration::from_millis(300);
    for mood in [Mood::Slow(SLOW), Mood::Full] {
        let (world, disks) = World::moody();
        let leader = world.prepare(1).await;
        let bad = world.others(leader)[0];
        disks[&bad].set(mood);
        let began = Instant::now();
        let counted_there = world.count_on(&[leader, world.others(leader)[1]], 0, 40).await;
        assert!(began.elapsed() < 20 * SLOW, "{:?}", began.elapsed());
        disks[&bad].set(Mood::Works);
        world.until("it catches up", |world| counted(world.store(bad), node(0)) == counted_there).await;
        world.count_on(&[bad], counted_there, 3).await;
        world.agree().await;
    }
}

#[tokio::test]
async fn a_member_that_lost_its_disk_ends_and_says_what_to_do() {
    let mut world = World::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let counted = world.count_on(&[1, 2, 3], 0, 9).await;
    let lost = world.others(leader)[0];
    world.kill(lost).await;
    world.dirs.remove(&lost);
    world.start(lost);
    let asked = world.store(lost).clone();
    let error = world.failed(lost).await;
    let DriverError::Raft(fatal) = &error else { panic!("{error:?}") };
    assert!(matches!(**fatal, Fatal::LostLog { .. }), "{fatal}");
    assert!(error.to_string().contains("must join again as a new one"), "{error}");
    assert!(matches!(count(&asked, node(0)).await, Err(ProposeError::Stopping)));
    world.count_on(&world.ids(), counted, 3).await;
}

/// What is in a directory, in another one.
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
async fn member_restored_from_an_older_copy_is_brought_up_to_date_and_votes_again() {
    let mut world = World::of([1, 2, 3]);
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
    world.until("it has it all again", |world| counted(world.store(restored), node(0)) == total).await;
    assert_eq!(world.store(restored).read().durability, Durability::default());
    world.kill(leader).await;
    world.leader().await;
    world.count_on(&world.ids(), total, 3).await;
    world.agree().await;
}

/// However much there is to do, the leader's clock goes on. While one write is under way, enough gathers for the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_writes_stops_no_clock() {
    let (world, disks) = World::moody();
    let leader = world.prepare(32).await;
    disks[&leader].set(Mood::Slow(Duration::from_millis(5)));
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..32)
        .map(|number| {
            let (store, stop) = (world.store(leader).clone(), stop.clone());
            tokio::spawn(writers::write(store, node(number), stop))
        })
        .collect();
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    let flooded = |_: &World| {
        longest = longest.max(world.store(leader).silence());
        began.elapsed() > Duration::from_secs(2)
    };
    world.until("two seconds pass", flooded).await;
    stop.cancel();
    let mut confirmed = 0;
    for writer in writers {
        confirmed += writer.await.unwrap().confirmed;
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    assert!(confirmed > 500, "{confirmed}");
}

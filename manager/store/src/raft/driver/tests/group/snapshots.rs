//! Members that are further behind than the start of the log.

use super::*;

#[tokio::test]
async fn lagging_member_gets_snapshot_and_watchers_resync() {
    let mut world = GroupFixture::with_short_log([1, 2, 3]);
    let leader = world.prepare(1).await;
    let away = world.others(leader)[0];
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 5).await;
    for round in 0..3 {
        let seen = world.store(away).read().index;
        let mut watch = world.store(away).watch(seen);
        // Partitioned while running, or stopped.
        match round {
            0 => world.isolate(away),
            _ => drop(world.kill(away).await),
        }
        counted_there = world.count_on(&world.others(away), counted_there, 60).await;
        match round {
            0 => world.reconnect(away),
            _ => {
                world.start(away);
                watch = world.store(away).watch(seen);
            }
        }
        let snapshots = |world: &GroupFixture| world.net.0.lock().unwrap().snapshots;
        world.wait_until("it catches up", |world| counted(world.store(away), node(0)) == counted_there).await;
        let missed = loop {
            if let Err(HistoryGap(index)) = watch.next().await {
                break index;
            }
        };
        assert!(missed > seen, "round {round}: {missed} after {seen}");
        world.wait_until("the leader hears that it arrived", |world| snapshots(world) > round).await;
        // A restored member writes, stores and takes snapshots like any other.
        counted_there = world.count_on(&[away], counted_there, 30).await;
        world.kill(away).await;
        world.start(away);
        counted_there = world.count_on(&[away], counted_there, 1).await;
        world.wait_equal_states().await;
    }
    let files = std::fs::read_dir(world.dirs[&away].path().join("manager/snapshots")).unwrap().count();
    assert!(files <= 2, "older snapshots are removed: {files}");
}

/// All members write while one of them receives one snapshot after the other.
#[tokio::test]
async fn snapshots_during_writes_lose_nothing() {
    let world = GroupFixture::with_short_log([1, 2, 3]);
    let leader = world.prepare(3).await;
    let away = world.others(leader)[0];
    let stop = CancellationToken::new();
    let writers: Vec<_> = (0..3)
        .map(|number| {
            let (store, stop) = (world.store(number + 1).clone(), stop.clone());
            tokio::spawn(writers::write(store, node(number.into()), stop))
        })
        .collect();
    for round in 1..=5 {
        world.isolate(away);
        let (leader, rest) = (world.others(away)[0], world.others(away));
        let index = world.store(leader).read().index;
        world.wait_until("much is written", |world| world.store(rest[0]).read().index > index + 40).await;
        world.reconnect(away);
        let caught_up = |world: &GroupFixture| world.store(away).read().index > index + 40;
        world.wait_until(&format!("it catches up {round} times"), caught_up).await;
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(world.net.0.lock().unwrap().snapshots > 0);
    world.wait_equal_states().await;
}

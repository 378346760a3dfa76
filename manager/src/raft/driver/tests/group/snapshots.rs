//! Members that were away for longer than the log reaches back.

use super::*;

#[tokio::test]
async fn whoever_was_away_for_too_long_gets_the_state_and_its_watchers_are_told() {
    let mut world = World::forgetful([1, 2, 3]);
    let leader = world.prepare(1).await;
    let away = world.others(leader)[0];
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 5).await;
    for round in 0..3 {
        let seen = world.store(away).read().index;
        let mut watch = world.store(away).watch(seen);
        // Cut off while it runs, or not there at all.
        match round {
            0 => world.cut_off(away),
            _ => drop(world.kill(away).await),
        }
        counted_there = world.count_on(&world.others(away), counted_there, 60).await;
        match round {
            0 => world.let_back(away),
            _ => {
                world.start(away);
                watch = world.store(away).watch(seen);
            }
        }
        let snapshots = |world: &World| world.net.0.lock().unwrap().snapshots;
        world.until("it catches up", |world| counted(world.store(away), node(0)) == counted_there).await;
        let missed = loop {
            if let Err(Missed(index)) = watch.next().await {
                break index;
            }
        };
        assert!(missed > seen + 50, "round {round}: {missed} after {seen}");
        world.until("the leader hears that it arrived", |world| snapshots(world) > round).await;
        // It is a member like any other: it writes, keeps what it writes, and takes snapshots of its own.
        counted_there = world.count_on(&[away], counted_there, 30).await;
        world.kill(away).await;
        world.start(away);
        counted_there = world.count_on(&[away], counted_there, 1).await;
        world.agree().await;
    }
    let files = std::fs::read_dir(world.dirs[&away].path().join("manager/snapshots")).unwrap().count();
    assert!(files <= 2, "older snapshots are removed: {files}");
}

/// Writes go on at all members while one of them gets one snapshot after the other.
#[tokio::test]
async fn snapshots_come_and_go_while_everybody_writes() {
    let world = World::forgetful([1, 2, 3]);
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
        world.cut_off(away);
        let (leader, rest) = (world.others(away)[0], world.others(away));
        let index = world.store(leader).read().index;
        world.until("much is written", |world| world.store(rest[0]).read().index > index + 40).await;
        world.let_back(away);
        let caught_up = |world: &World| world.store(away).read().index > index + 40;
        world.until(&format!("it catches up {round} times"), caught_up).await;
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(world.net.0.lock().unwrap().snapshots > 0);
    world.agree().await;
}

//! Members that are further behind than the start of the log.

use super::*;

impl GroupFixture {
    fn snapshots(&self) -> usize {
        self.net.0.lock().unwrap().snapshots
    }

    /// Partitions or kills a member while the others write, and again until it gets a snapshot: nothing determines
    /// when the others remove entries from their logs. Returns what all have counted to.
    pub(super) async fn force_snapshot(&mut self, away: MemberId, is_killed: bool, before: u64) -> u64 {
        let mut counted_there = before;
        for _ in 0..MAX_ATTEMPTS {
            let (seen, watch) = if is_killed {
                (self.kill(away).await.read().index, None)
            } else {
                self.isolate(away);
                let seen = self.store(away).read().index;
                (seen, Some(self.store(away).watch(seen)))
            };
            counted_there = self.count_on(&self.others(away), counted_there, 60).await;
            if is_killed {
                self.start(away);
            } else {
                self.reconnect(away);
            }
            let mut watch = watch.unwrap_or_else(|| self.store(away).watch(seen));
            let is_current = |world: &Self| counted(world.store(away), node(0)) == counted_there;
            self.wait_until("it catches up", is_current).await;
            let changes = tokio::time::timeout(TEST_TIMEOUT, watch.next()).await.unwrap();
            if let Err(HistoryGap(missed)) = changes {
                assert!(missed > seen, "{missed} after {seen}");
                return counted_there;
            }
        }
        panic!("member {away} gets no snapshot");
    }
}

#[tokio::test]
async fn lagging_member_gets_snapshot_and_watchers_resync() {
    let mut world = GroupFixture::with_short_log([1, 2, 3]);
    let leader = world.prepare(1).await;
    let away = world.others(leader)[0];
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 5).await;
    for is_killed in [false, true, true] {
        let before = world.snapshots();
        counted_there = world.force_snapshot(away, is_killed, counted_there).await;
        world.wait_until("the leader hears that it arrived", |world| world.snapshots() > before).await;
        // A restored member writes, stores and takes snapshots like any other.
        counted_there = world.count_on(&[away], counted_there, 30).await;
        world.kill(away).await;
        world.start(away);
        counted_there = world.count_on(&[away], counted_there, 1).await;
        world.wait_equal_states().await;
    }
    let dir = world.dirs[&away].path().join("manager/snapshots");
    let is_cleaned = |_: &GroupFixture| std::fs::read_dir(&dir).unwrap().count() <= 2;
    world.wait_until("older snapshots are removed", is_cleaned).await;
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
    let mut rounds = 0;
    while rounds < 5 || (world.snapshots() == 0 && rounds < MAX_ATTEMPTS) {
        rounds += 1;
        world.isolate(away);
        let (leader, rest) = (world.others(away)[0], world.others(away));
        let index = world.store(leader).read().index;
        world.wait_until("much is written", |world| world.store(rest[0]).read().index > index + 40).await;
        world.reconnect(away);
        let caught_up = |world: &GroupFixture| world.store(away).read().index > index + 40;
        world.wait_until(&format!("it catches up {rounds} times"), caught_up).await;
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!(world.snapshots() > 0);
    world.wait_equal_states().await;
}

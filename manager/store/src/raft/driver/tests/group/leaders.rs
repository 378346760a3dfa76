//! Elections, reads, and leaders that fail and restart.

use super::*;

#[tokio::test]
async fn every_member_serves_reads_and_writes() {
    let world = GroupFixture::of([1, 2, 3]);
    world.prepare(1).await;
    let mut number = world.count_on(&[1, 2, 3], 0, 30).await;
    let other = Command::CreateCluster {
        id: ClusterId(Id(2)),
        ranges: vec![],
        feature_level: FEATURE_LEVEL,
        at: Timestamp(1),
    };
    let (rejected, refused) = world
        .with_leader(async |leader: MemberId| {
            let follower = world.store(world.others(leader)[0]);
            (follower.propose(other.clone()).await, follower.propose_locally(other.clone()).await)
        })
        .await;
    assert!(matches!(rejected, Err(ProposeError::Rejected(_))), "a refusal comes back as well: {rejected:?}");
    assert!(matches!(refused, Err(ProposeError::NotLeader)), "{refused:?}");
    let leader = world.leader().await;
    for _ in 0..29 {
        number = world.count_on(&[leader], number, 1).await;
        for reader in world.ids() {
            let published = read_with_retry(world.store(reader)).await;
            assert_eq!(published.state.node(&node(0)).unwrap().session, number, "read at {reader}");
        }
    }
    world.wait_equal_states().await;
    let is_known = |world: &GroupFixture| {
        let leader = world.current_leader();
        world.ids().into_iter().all(|id| {
            let peers: Vec<_> = world.store(id).peers().iter().map(|peer| peer.id).collect();
            let expected = if Some(id) == leader { world.others(id) } else { vec![] };
            peers == expected && world.store(id).since_leader_seen() < Duration::from_secs(2)
        })
    };
    world.wait_until("all know the leader, and it alone its peers", is_known).await;
}

#[tokio::test]
async fn isolated_leader_serves_no_stale_read() {
    let world = GroupFixture::of([1, 2, 3]);
    world.prepare(1).await;
    let count_before = world.count_on(&[1, 2, 3], 0, 3).await;
    let old = world.leader().await;
    let rest = world.others(old);
    world.isolate(old);
    let (reader, writer) = (world.store(old).clone(), world.store(old).clone());
    let read = tokio::spawn(async move { read_with_retry(&reader).await.state.clone() });
    let (net, other) = (world.net.clone(), rest[0]);
    let write = tokio::spawn(async move {
        let mut unknown = 0;
        loop {
            match count(&writer, node(0)).await {
                Ok(number) => return (number, unknown),
                Err(ProposeError::NoLeader(_)) => {}
                // No write of an isolated leader is ever replicated.
                Err(ProposeError::Indeterminate(_)) => unknown += u64::from(net.end(old, other).is_some()),
                Err(error) => panic!("{error:?}"),
            }
        }
    });
    let new = world.leader_of(&rest).await;
    assert_ne!(new, old);
    let counted_there = world.count_on(&rest, count_before, 10).await;
    world.wait_until("the old one knows", |world| !world.store(old).read().role.is_leader).await;
    assert_eq!(counted(world.store(old), node(0)), count_before, "it shows what it knows, and no more");
    assert!(!read.is_finished() && !write.is_finished(), "it answers nobody");
    world.reconnect(old);
    let read = tokio::time::timeout(TEST_TIMEOUT, read).await.unwrap().unwrap();
    assert!(read.node(&node(0)).unwrap().session >= counted_there, "it was read after it was let back");
    // The write was never replicated, so it was forwarded to the new leader.
    let (number, unknown) = tokio::time::timeout(TEST_TIMEOUT, write).await.unwrap().unwrap();
    let range = counted_there + 1..=counted_there + 1 + unknown;
    assert!(range.contains(&number), "{number} is not in {range:?}");
    world.count_on(&[old], number, 3).await;
    world.wait_equal_states().await;
}

#[tokio::test]
async fn no_quorum_no_reads_or_writes() {
    let mut world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let counted = world.count_on(&[1, 2, 3], 0, 3).await;
    let away = world.others(leader);
    for id in &away {
        world.kill(*id).await;
    }
    world.wait_until("it gives up", |world| world.store(leader).read().role.leader_id.is_none()).await;
    let (read, write) =
        tokio::join!(world.store(leader).read_linearizable(), count(world.store(leader), node(0)));
    assert!(matches!(read.map(|_| ()), Err(ProposeError::NoLeader(_))));
    assert!(matches!(write, Err(ProposeError::NoLeader(_))), "{write:?}");
    assert!(world.store(leader).since_leader_seen() > Duration::from_secs(5));
    away.iter().for_each(|id| world.start(*id));
    world.leader().await;
    world.count_on(&[1, 2, 3], counted, 6).await;
}

#[tokio::test]
async fn stopping_leader_transfers_first() {
    let mut world = GroupFixture::of([1, 2, 3]);
    world.prepare(1).await;
    let (mut counted, mut rounds, mut transfers) = (0, 0, 0);
    // On a busy machine another member is elected before, or the transfer takes too long.
    while transfers < 3 {
        rounds += 1;
        assert!(rounds <= 10, "only {transfers} transfers");
        let leader = world.leader().await;
        let term = world.store(leader).read().role.term;
        let role = world.stop(leader).await.read().role;
        let knows_heir = role.leader_id.is_some_and(|heir| heir != leader) && !role.is_leader;
        // One election, and nobody waited for it.
        transfers += usize::from(knows_heir && role.term == term + 1);
        counted = world.count_on(&world.ids(), counted, 4).await;
        world.start(leader);
        counted = world.count_on(&[leader], counted, 1).await;
    }
    world.wait_equal_states().await;
}

/// Transfers the leadership while writers count, to a certain member or to any. Returns whether that caused the next
/// election, and what is counted then.
async fn transfer(world: &GroupFixture, is_heir_named: bool, before: u64) -> (bool, u64) {
    let leader = world.leader().await;
    let term = world.store(leader).read().role.term;
    let heir = world.others(leader)[1];
    let transferred = world.store(leader).transfer_leadership(is_heir_named.then_some(heir));
    // Writers are not affected.
    let (transferred, counted) = tokio::join!(transferred, world.count_on(&[1, 2, 3], before, 30));
    let next = world.leader().await;
    let is_expected = if is_heir_named { next == heir } else { next != leader };
    match transferred {
        Ok(()) => (is_expected && world.store(next).read().role.term == term + 1, counted),
        Err(TransferError::NotLeader | TransferError::Timeout(_)) => (false, counted),
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn leadership_transfers_to_target() {
    let world = GroupFixture::of([1, 2, 3]);
    world.prepare(1).await;
    let (leader, refused) = world
        .with_leader(async |leader: MemberId| {
            let request = |from: MemberId, to| world.store(from).transfer_leadership(to);
            let by_follower = request(world.others(leader)[1], None).await;
            (leader, [by_follower, request(leader, Some(9)).await, request(leader, Some(leader)).await])
        })
        .await;
    let expected = [TransferError::NotLeader, TransferError::NotVoter(9), TransferError::NotVoter(leader)];
    assert_eq!(refused.map(Result::unwrap_err), expected);
    let mut counted = 0;
    for is_heir_named in [true, false] {
        let (mut attempts, mut is_done) = (0, false);
        while !is_done {
            attempts += 1;
            assert!(attempts <= MAX_ATTEMPTS, "no transfer succeeds");
            (is_done, counted) = transfer(&world, is_heir_named, counted).await;
        }
    }
    world.count_on(&[1, 2, 3], counted, 3).await;
}

#[tokio::test]
async fn restarted_group_keeps_state() {
    for forgetful in [false, true] {
        let mut world =
            if forgetful { GroupFixture::with_short_log([1, 2, 3]) } else { GroupFixture::of([1, 2, 3]) };
        world.prepare(1).await;
        let mut counted = world.count_on(&[1, 2, 3], 0, 50).await;
        for _ in 0..2 {
            for id in [1, 2, 3] {
                world.kill(id).await;
            }
            [1, 2, 3].into_iter().for_each(|id| world.start(id));
            world.leader().await;
            counted = world.count_on(&[1, 2, 3], counted, 9).await;
        }
        world.wait_equal_states().await;
    }
}

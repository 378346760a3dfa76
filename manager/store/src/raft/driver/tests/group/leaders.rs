//! Elections, reads, and leaders that fail and restart.

use super::*;

#[tokio::test]
async fn every_member_serves_reads_and_writes() {
    let world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    world.count_on(&[1, 2, 3], 0, 30).await;
    let follower = world.store(world.others(leader)[0]);
    let other = Command::CreateCluster {
        id: ClusterId(Id(2)),
        ranges: vec![],
        feature_level: FEATURE_LEVEL,
        at: Timestamp(1),
    };
    let refused = follower.propose(other.clone()).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(_)), "a refusal comes back as well: {refused:?}");
    let refused = follower.propose_locally(other).await.unwrap_err();
    assert!(matches!(refused, ProposeError::NotLeader), "{refused:?}");
    for number in 31..60 {
        count(world.store(leader), node(0)).await.unwrap();
        for reader in world.ids() {
            let published = world.store(reader).read_linearizable().await.unwrap();
            assert_eq!(published.state.node(&node(0)).unwrap().session, number, "read at {reader}");
        }
    }
    world.wait_equal_states().await;
    for id in world.ids() {
        let peers = world.store(id).peers();
        let expected = if id == leader { world.others(id) } else { vec![] };
        assert_eq!(peers.iter().map(|peer| peer.id).collect::<Vec<_>>(), expected);
        assert!(world.store(id).since_leader_seen() < Duration::from_secs(2));
    }
}

#[tokio::test]
async fn isolated_leader_serves_no_stale_read() {
    let world = GroupFixture::of([1, 2, 3]);
    let old = world.prepare(1).await;
    let count_before = world.count_on(&[1, 2, 3], 0, 3).await;
    world.isolate(old);
    let (reader, writer) = (world.store(old).clone(), world.store(old).clone());
    let read = tokio::spawn(async move { reader.read_linearizable().await.map(|read| read.state.clone()) });
    let write = tokio::spawn(async move { count(&writer, node(0)).await });
    let rest = world.others(old);
    let new = world.leader_of(&rest).await;
    assert_ne!(new, old);
    let counted_there = world.count_on(&rest, count_before, 10).await;
    world.wait_until("the old one knows", |world| !world.store(old).read().role.is_leader).await;
    assert_eq!(counted(world.store(old), node(0)), count_before, "it shows what it knows, and no more");
    world.reconnect(old);
    let read = read.await.unwrap().unwrap();
    assert!(read.node(&node(0)).unwrap().session >= counted_there, "it was read after it was let back");
    // The write was never replicated, so it was forwarded to the new leader.
    assert_eq!(write.await.unwrap().unwrap(), counted_there + 1);
    world.count_on(&[old], counted_there + 1, 3).await;
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
    let mut counted = {
        world.prepare(1).await;
        0
    };
    for _ in 0..3 {
        let leader = world.leader().await;
        let term = world.store(leader).read().role.term;
        let stopped = world.stop(leader).await.read();
        let heir = stopped.role.leader_id.expect("it knew who leads when it ended");
        assert!(heir != leader && !stopped.role.is_leader);
        assert_eq!(stopped.role.term, term + 1, "one election, and nobody waited for it");
        counted = world.count_on(&world.ids(), counted, 4).await;
        world.start(leader);
        counted = world.count_on(&[leader], counted, 1).await;
    }
    world.wait_equal_states().await;
}

#[tokio::test]
async fn leadership_transfers_to_target() {
    let world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let heir = world.others(leader)[1];
    let transfer = |from, to| world.store(from).transfer_leadership(to);
    assert_eq!(transfer(heir, None).await, Err(TransferError::NotLeader));
    assert_eq!(transfer(leader, Some(9)).await, Err(TransferError::NotVoter(9)));
    assert_eq!(transfer(leader, Some(leader)).await, Err(TransferError::NotVoter(leader)));
    // Writers are not affected.
    let (transferred, counted) =
        tokio::join!(transfer(leader, Some(heir)), world.count_on(&[1, 2, 3], 0, 30));
    assert_eq!((transferred, counted), (Ok(()), 30));
    assert_eq!(world.leader().await, heir);
    assert_eq!(transfer(heir, None).await, Ok(()));
    assert_ne!(world.leader().await, heir);
    world.count_on(&[1, 2, 3], 30, 3).await;
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

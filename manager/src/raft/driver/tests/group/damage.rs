//! A member whose state is not that of the others: damaged on purpose, as no log and no checksum would show it.

use warren_core::{Digest, State};

use super::*;
use crate::agreement::Agreement;
use crate::raft::codec::{read_snapshot, write_snapshot};

/// A snapshot in which the second node has another name, and which is sound in itself.
fn renamed(plain: Vec<u8>) -> Vec<u8> {
    let mut parts = read_snapshot(&plain).unwrap().export();
    Arc::make_mut(&mut parts.nodes[1].0).name = "mistaken".parse().unwrap();
    parts.digest = None;
    let mut bytes = Vec::new();
    write_snapshot(&State::restore(parts).unwrap(), &mut bytes).unwrap();
    bytes
}

/// What each of the managers that run says of its state when it is asked.
fn told(world: &World) -> BTreeMap<MemberId, Vec<Digest>> {
    world.running.iter().map(|(id, member)| (*id, member.store.digests())).collect()
}

#[tokio::test]
async fn a_member_with_another_state_is_found_whether_there_are_writes_or_not() {
    let world = World::forgetful([1, 2, 3]);
    let leader = world.prepare(2).await;
    let (away, members) = (world.others(leader)[0], BTreeSet::from([1, 2, 3]));
    let agreement = Agreement::default();
    let compare = |world: &World| {
        agreement.take(&told(world), Some(leader), &members);
        agreement.all()
    };
    let found = |wrong: Option<MemberId>| [1, 2, 3].map(|id| (id, Some(id) == wrong));
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 10).await;
    world.until("all are compared", |world| compare(world) == found(None)).await;

    world.net.0.lock().unwrap().damage = Some(renamed);
    world.cut_off(away);
    counted_there = world.count_on(&world.others(away), counted_there, 60).await;
    world.let_back(away);
    world.until("it is found out", |world| compare(world) == found(Some(away))).await;
    let difference = agreement.difference(away).unwrap();
    assert_eq!(difference.others, world.others(away));

    // It does not go away by writing, and is seen at the same entry, however far each of them is when it is asked.
    let store = world.store(leader).clone();
    while store.read().index < 3 * 1024 {
        let write = |_| {
            let store = store.clone();
            tokio::spawn(async move { count(&store, node(0)).await })
        };
        for written in (0..256).map(write).collect::<Vec<_>>() {
            counted_there = counted_there.max(written.await.unwrap().unwrap());
        }
    }
    let has_passed = |world: &World| world.running.values().all(|it| it.store.read().index >= 3 * 1024);
    world.until("all have written it down", has_passed).await;
    let mut told = told(&world);
    told.values_mut().for_each(|digests| digests.retain(|digest| digest.index == 3 * 1024));
    assert!(told.values().all(|digests| digests.len() == 1), "{told:?}");
    let agreement = Agreement::default();
    agreement.take(&told, Some(leader), &members);
    assert_eq!(agreement.all(), found(Some(away)));

    // What takes the place of the state takes that of the damage, and of what was told of it.
    world.net.0.lock().unwrap().damage = None;
    world.cut_off(away);
    counted_there = world.count_on(&world.others(away), counted_there, 60).await;
    world.let_back(away);
    world.until("it catches up", |world| counted(world.store(away), node(0)) == counted_there).await;
    world.until("it is as the others are", |world| compare(world) == found(None)).await;
}

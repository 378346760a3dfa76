//! A member with a diverged state that neither the log nor checksums detect.

use warren_core::{State, StateDigest};

use super::*;
use crate::codec::{read_snapshot, write_snapshot};
use crate::state_comparison::StateComparison;

/// A valid snapshot in which the second node has another name.
fn renamed(plain: Vec<u8>) -> Vec<u8> {
    let mut parts = read_snapshot(&plain).unwrap().export();
    Arc::make_mut(&mut parts.nodes[1].0).name = "mistaken".parse().unwrap();
    parts.digest = None;
    let mut bytes = Vec::new();
    write_snapshot(&State::restore(parts).unwrap(), &mut bytes).unwrap();
    bytes
}

/// The digests that each running manager reports.
fn digests(world: &GroupFixture) -> BTreeMap<MemberId, Vec<StateDigest>> {
    world.running.iter().map(|(id, member)| (*id, member.store.digests())).collect()
}

#[tokio::test]
async fn divergent_member_is_detected() {
    let world = GroupFixture::with_short_log([1, 2, 3]);
    let leader = world.prepare(2).await;
    let (away, members) = (world.others(leader)[0], BTreeSet::from([1, 2, 3]));
    let agreement = StateComparison::default();
    let compare = |world: &GroupFixture| {
        agreement.record_digests(&digests(world), Some(leader), &members);
        agreement.results()
    };
    let found = |wrong: Option<MemberId>| [1, 2, 3].map(|id| (id, Some(id) == wrong));
    let mut counted_there = world.count_on(&[1, 2, 3], 0, 10).await;
    world.wait_until("all are compared", |world| compare(world) == found(None)).await;

    world.net.0.lock().unwrap().damage = Some(renamed);
    world.isolate(away);
    counted_there = world.count_on(&world.others(away), counted_there, 60).await;
    world.reconnect(away);
    world.wait_until("it is found out", |world| compare(world) == found(Some(away))).await;
    let difference = agreement.divergence(away).unwrap();
    assert_eq!(difference.agreeing, world.others(away));

    // The divergence persists, and is detected at the same index, however far each member is.
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
    let has_passed =
        |world: &GroupFixture| world.running.values().all(|it| it.store.read().index >= 3 * 1024);
    world.wait_until("all have written it down", has_passed).await;
    let mut reported = digests(&world);
    reported.values_mut().for_each(|digests| digests.retain(|digest| digest.index == 3 * 1024));
    assert!(reported.values().all(|digests| digests.len() == 1), "{reported:?}");
    let agreement = StateComparison::default();
    agreement.record_digests(&reported, Some(leader), &members);
    assert_eq!(agreement.results(), found(Some(away)));

    // A new snapshot replaces the diverged state and its report.
    world.net.0.lock().unwrap().damage = None;
    world.isolate(away);
    counted_there = world.count_on(&world.others(away), counted_there, 60).await;
    world.reconnect(away);
    world.wait_until("it catches up", |world| counted(world.store(away), node(0)) == counted_there).await;
    world.wait_until("it is as the others are", |world| compare(world) == found(None)).await;
}

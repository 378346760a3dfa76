//! A member with a diverged state that neither the log nor checksums detect.

use warren_core::{State, StateDigest};

use super::*;
use crate::codec::{read_snapshot, write_snapshot};
use crate::state_comparison::StateComparison;

/// A valid snapshot in which the second node has this name.
fn renamed(plain: &[u8], name: &str) -> Vec<u8> {
    let mut parts = read_snapshot(plain).unwrap().export();
    Arc::make_mut(&mut parts.nodes[1].0).name = name.parse().unwrap();
    parts.digest = None;
    let mut bytes = Vec::new();
    write_snapshot(&State::restore(parts).unwrap(), &mut bytes).unwrap();
    bytes
}

/// The digests that each running manager reports.
fn digests(world: &GroupFixture) -> BTreeMap<MemberId, Vec<StateDigest>> {
    world.running.iter().map(|(id, member)| (*id, member.store.digests())).collect()
}

/// Writes on `member` until all have applied the entry `index`. Returns what they have counted to.
async fn write_up_to(world: &GroupFixture, member: MemberId, index: u64, before: u64) -> u64 {
    let store = world.store(member).clone();
    let (mut last, mut unknown) = (before, 0);
    while store.read().index < index {
        let write = |_| {
            let store = store.clone();
            tokio::spawn(async move { count(&store, node(0)).await })
        };
        for written in (0..256).map(write).collect::<Vec<_>>() {
            match written.await.unwrap() {
                Ok(number) => last = last.max(number),
                // A busy machine elects other leaders.
                Err(ProposeError::NoLeader(_)) => {}
                Err(ProposeError::Indeterminate(_)) => unknown += 1,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let has_passed = |world: &GroupFixture| world.running.values().all(|it| it.store.read().index >= index);
    world.wait_until("all have written it down", has_passed).await;
    world.count_after(member, last, &mut { unknown }).await
}

#[tokio::test]
async fn divergent_member_is_detected() {
    let mut world = GroupFixture::with_short_log([1, 2, 3]);
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

    // On a busy machine others get snapshots as well, maybe from the diverged member: those have the right name.
    let damage =
        move |to: MemberId, plain: Vec<u8>| renamed(&plain, if to == away { "mistaken" } else { "n1" });
    world.net.0.lock().unwrap().damage = Some(Arc::new(damage));
    counted_there = world.force_snapshot(away, false, counted_there).await;
    let is_found_out = |world: &GroupFixture| {
        let is_found = compare(world) == found(Some(away));
        is_found && agreement.divergence(away).is_some_and(|known| known.agreeing == world.others(away))
    };
    world.wait_until("it is found out by both others", is_found_out).await;

    // The divergence persists, and is detected at the same index, however far each member is.
    let mut checkpoint = 3 * 1024;
    let reported = loop {
        counted_there = write_up_to(&world, leader, checkpoint, counted_there).await;
        let mut reported = digests(&world);
        reported.values_mut().for_each(|digests| digests.retain(|digest| digest.index == checkpoint));
        if reported.values().all(|digests| digests.len() == 1) {
            break reported;
        }
        // A member got a snapshot instead of the entry.
        checkpoint += 1024;
        assert!(checkpoint < 20 * 1024, "{reported:?}");
    };
    let agreement = StateComparison::default();
    agreement.record_digests(&reported, Some(leader), &members);
    assert_eq!(agreement.results(), found(Some(away)));

    // A new snapshot replaces the diverged state and its report.
    world.net.0.lock().unwrap().damage = None;
    world.force_snapshot(away, false, counted_there).await;
    world.wait_until("it is as the others are", |world| compare(world) == found(None)).await;
}

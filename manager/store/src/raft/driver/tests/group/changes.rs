//! Membership changes.

use warren_consensus::{InvalidMemberChange, MemberChange};

use super::*;

impl GroupFixture {
    async fn change(&self, leader: MemberId, change: MemberChange) {
        self.store(leader).change_members(change).await.unwrap();
        let settled = |world: &Self| world.store(leader).read().members.voters_outgoing.is_empty();
        self.wait_until("the joint phase ends", settled).await;
    }

    async fn wait_caught_up(&self, leader: MemberId, id: MemberId) {
        let near = |world: &Self| {
            let applied = world.store(leader).read().index;
            let is_near = |peer: &warren_consensus::PeerProgress| peer.active && peer.matched + 5 >= applied;
            world.store(leader).peers().iter().any(|peer| peer.id == id && is_near(peer))
        };
        self.wait_until("the new one is near", near).await;
    }

    fn members(&self, id: MemberId) -> (Vec<MemberId>, Vec<MemberId>) {
        let members = self.store(id).read().members.clone();
        (members.voters.clone(), members.learners.clone())
    }
}

#[tokio::test]
async fn group_grows_replaces_and_shrinks() {
    let mut world = GroupFixture::with_short_log([1]);
    world.prepare(1).await;
    let mut counted = world.count_on(&[1], 0, 50).await;
    for id in [2, 3] {
        world.start(id);
        world.change(1, MemberChange::add_learner(id)).await;
        world.wait_caught_up(1, id).await;
        counted = world.count_on(&[1, id], counted, 4).await;
        assert!(world.store(id).read_linearizable().await.is_ok(), "a learner reads like any other");
    }
    assert_eq!(world.members(1), (vec![1], vec![2, 3]));
    world.change(1, MemberChange::promote([2, 3])).await;
    assert_eq!(world.members(1), (vec![1, 2, 3], vec![]));
    counted = world.count_on(&[1, 2, 3], counted, 30).await;

    // 3 loses its machine, and 4 replaces it.
    world.kill(3).await;
    world.start(4);
    world.change(1, MemberChange::add_learner(4)).await;
    world.wait_caught_up(1, 4).await;
    world.change(1, MemberChange::replace(3, 4)).await;
    counted = world.count_on(&[1, 2, 4], counted, 9).await;
    assert_eq!(world.members(4), (vec![1, 2, 4], vec![]));
    world.wait_equal_states().await;

    world.change(1, MemberChange::remove(2)).await;
    world.stop(2).await;
    world.change(1, MemberChange::remove(4)).await;
    world.stop(4).await;
    assert_eq!(world.members(1), (vec![1], vec![]));
    counted = world.count_on(&[1], counted, 3).await;
    assert_eq!(world.store(1).since_leader_seen(), Duration::ZERO);
    world.kill(1).await;
    world.start(1);
    world.leader().await;
    world.count_on(&[1], counted, 3).await;
}

#[tokio::test]
async fn invalid_change_is_refused_with_reason() {
    let world = GroupFixture::of([1, 2, 3]);
    let leader = world.prepare(1).await;
    let follower = world.others(leader)[0];
    let change = |at: MemberId, change| world.store(at).change_members(change);
    assert_eq!(change(follower, MemberChange::remove(leader)).await, Err(ChangeError::NotLeader));
    let itself = change(leader, MemberChange::remove(leader)).await;
    assert_eq!(itself, Err(ChangeError::Invalid(InvalidMemberChange::RemovesLeader { id: leader })));
    let nobody = change(leader, MemberChange::remove(9)).await;
    assert_eq!(nobody, Err(ChangeError::Invalid(InvalidMemberChange::NotMember { id: 9 })));
    // One at a time.
    let (first, second) = tokio::join!(
        change(leader, MemberChange::add_learner(8)),
        change(leader, MemberChange::add_learner(9))
    );
    assert_eq!((first, second), (Ok(()), Err(ChangeError::ChangeInProgress)));
    world.count_on(&[1, 2, 3], 0, 3).await;
}

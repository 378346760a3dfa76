//! Membership changes.

use warren_consensus::{InvalidMemberChange, MemberChange};

use super::*;

impl GroupFixture {
    /// Makes the change on member 1, which no change removes. If a busy machine elected another leader, member 1 gets
    /// the leadership back first.
    async fn change(&self, change: MemberChange) {
        let changed = async {
            let (mut poll, mut is_unknown) = (interval(Duration::from_millis(2)), false);
            loop {
                poll.tick().await;
                let Some(leader) = self.current_leader() else { continue };
                if leader != 1 {
                    // Repeated unless it succeeds.
                    let _ = self.store(leader).transfer_leadership(Some(1)).await;
                    continue;
                }
                match self.store(1).change_members(change.clone()).await {
                    Ok(()) => return,
                    Err(ChangeError::NotLeader | ChangeError::ChangeInProgress) => {}
                    Err(ChangeError::Indeterminate) => is_unknown = true,
                    // It was made before.
                    Err(ChangeError::Invalid(_)) if is_unknown => return,
                    Err(error) => panic!("{error:?}"),
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, changed).await.unwrap();
        let settled = |world: &Self| world.store(1).read().members.voters_outgoing.is_empty();
        self.wait_until("the joint phase ends", settled).await;
    }

    async fn wait_caught_up(&self, id: MemberId) {
        let near = |world: &Self| {
            let Some(leader) = world.current_leader() else { return false };
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

/// Starting a member takes the test thread long while the disk is busy. Other threads deliver messages meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_grows_replaces_and_shrinks() {
    let mut world = GroupFixture::with_short_log([1]);
    world.prepare(1).await;
    let mut counted = world.count_on(&[1], 0, 50).await;
    for id in [2, 3] {
        world.start(id);
        world.change(MemberChange::add_learner(id)).await;
        world.wait_caught_up(id).await;
        counted = world.count_on(&[1, id], counted, 4).await;
        // A learner reads like any other.
        read_with_retry(world.store(id)).await;
    }
    assert_eq!(world.members(1), (vec![1], vec![2, 3]));
    world.change(MemberChange::promote([2, 3])).await;
    assert_eq!(world.members(1), (vec![1, 2, 3], vec![]));
    counted = world.count_on(&[1, 2, 3], counted, 30).await;

    // 3 loses its machine, and 4 replaces it.
    world.kill(3).await;
    world.start(4);
    world.change(MemberChange::add_learner(4)).await;
    world.wait_caught_up(4).await;
    world.change(MemberChange::replace(3, 4)).await;
    counted = world.count_on(&[1, 2, 4], counted, 9).await;
    assert_eq!(world.members(4), (vec![1, 2, 4], vec![]));
    world.wait_equal_states().await;

    world.change(MemberChange::remove(2)).await;
    world.stop(2).await;
    world.change(MemberChange::remove(4)).await;
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
    world.prepare(1).await;
    // Every attempt adds others.
    let mut learners = 10..;
    let mut add_learner = move || MemberChange::add_learner(learners.next().unwrap());
    let (leader, [by_follower, itself, nobody, first, second]) = world
        .with_leader(async |leader: MemberId| {
            let change = |at: MemberId, change| world.store(at).change_members(change);
            let by_follower = change(world.others(leader)[0], add_learner()).await;
            let itself = change(leader, MemberChange::remove(leader)).await;
            let nobody = change(leader, MemberChange::remove(9)).await;
            let (first, second) = tokio::join!(change(leader, add_learner()), change(leader, add_learner()));
            (leader, [by_follower, itself, nobody, first, second])
        })
        .await;
    assert_eq!(by_follower, Err(ChangeError::NotLeader));
    assert_eq!(itself, Err(ChangeError::Invalid(InvalidMemberChange::RemovesLeader { id: leader })));
    assert_eq!(nobody, Err(ChangeError::Invalid(InvalidMemberChange::NotMember { id: 9 })));
    assert_eq!((first, second), (Ok(()), Err(ChangeError::ChangeInProgress)), "one at a time");
    world.count_on(&[1, 2, 3], 0, 3).await;
}

//! Managers that lose their vote, hand over or go.

use tonic::{Code, Status};
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;

use super::group::Group;
use crate::world::PATIENCE;

impl Group {
    async fn wants(&self, at: usize, name: &str, wanted: v1::Suffrage) -> Result<v1::Manager, Status> {
        let request = v1::UpdateManagerRequest {
            reference: name.to_owned(),
            wanted: wanted.into(),
            ..Default::default()
        };
        Ok(self.managers(at).await.update(request).await?.into_inner())
    }

    /// Waits until whoever leads hears so many others.
    async fn answer(&self, wanted: usize) {
        eventually_async(PATIENCE, "the leader to hear as many", || async {
            let leader = self.look_for_leader().await?;
            let credentials = self.hosts[leader].credentials();
            let channel = self.hosts[leader].channel(&self.roots, Some(&credentials)).await;
            let status = PeersClient::new(channel).status(v1::StatusRequest {}).await;
            let peers = status.map_err(|status| status.to_string())?.into_inner().peers;
            let active = peers.iter().filter(|peer| peer.active).count();
            if active == wanted { Ok(()) } else { Err(format!("{peers:?}")) }
        })
        .await;
    }

    pub async fn remove(&self, at: usize, name: &str, force: bool) -> Result<v1::Manager, Status> {
        let request = v1::RemoveManagerRequest { reference: name.to_owned(), force };
        Ok(self.managers(at).await.remove(request).await?.into_inner())
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> Problem {
    let problem = Problem::from(&answer.unwrap_err());
    assert_eq!(problem.code, Code::FailedPrecondition, "{problem}");
    problem
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_goes_whom_the_others_need() {
    let mut group = Group::of_three().await;
    group.add("m4").await;
    group.add("m5").await;
    group.all_vote().await;
    let leader = group.leader().await;
    let others: Vec<usize> = (0..5).filter(|number| *number != leader).collect();
    let [first, second, needed, last] = others[..] else { unreachable!("five without one") };
    for gone in [first, second] {
        group.hosts[gone].stop().await;
    }
    let name = |number: usize| group.hosts[number].name.as_str();
    // Of five voters three answer: not one of them may go.
    group.answer(2).await;
    let (demoted, removed) = futures::join!(
        group.wants(last, name(needed), v1::Suffrage::Learner),
        group.remove(leader, name(last), true)
    );
    for problem in [refused(demoted), refused(removed)] {
        assert_eq!(problem.reason, "WOULD_LOSE_QUORUM", "{problem}");
        assert!(problem.message.contains("voters"), "{problem}");
    }
    group.create(last, "web").await.unwrap();
    // Those that are away may go, and then the others are a group of three.
    for gone in [first, second] {
        group.remove(needed, name(gone), false).await.unwrap();
    }
    group.shows("them to be gone", |listed| listed.len() == 3).await;
    group.remove(leader, name(needed), true).await.unwrap();
    group.create(leader, "db").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_are_taken_and_given_back_and_leadership_is_handed_over() {
    let group = Group::of_three().await;
    let leader = group.leader().await;
    let name = group.hosts[leader].name.clone();
    let to = group.hosts[group.follower().await].name.clone();
    let request = v1::TransferLeadershipRequest { to: to.clone() };
    let answer = group.managers(leader).await.transfer_leadership(request).await.unwrap().into_inner();
    assert_eq!((answer.name.as_str(), answer.leader), (to.as_str(), true));
    assert_eq!(group.hosts[group.leader().await].name, to);
    // Whoever leads and is to lose its vote hands over first, to one of those that it hears.
    group.answer(2).await;
    group.wants(leader, &to, v1::Suffrage::Learner).await.unwrap();
    group
        .shows("it to learn", |listed| listed[&to].suffrage() == v1::Suffrage::Learner && !listed[&to].leader)
        .await;
    group.create(leader, "web").await.unwrap();
    group.wants(leader, &to, v1::Suffrage::Voter).await.unwrap();
    group.all_vote().await;
    let unknown = group.wants(leader, "nobody", v1::Suffrage::Voter).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(group.listed(0).await.unwrap().contains_key(&name));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_removed_hears_it_and_stays_outside() {
    let mut group = Group::of_three().await;
    let (leader, gone) = (group.leader().await, group.follower().await);
    let name = group.hosts[gone].name.clone();
    let problem = refused(group.remove(leader, &name, false).await);
    assert!(problem.message.contains("--force"), "{problem}");
    let (credentials, member) =
        (group.hosts[gone].credentials(), group.listed(leader).await.unwrap()[&name].member);
    group.remove(leader, &name, true).await.unwrap();
    let failed = tokio::time::timeout(PATIENCE, group.hosts[gone].manager_mut().failed()).await;
    let failed = failed.expect("a removed manager ends").to_string();
    assert!(failed.contains("removed"), "{failed}");
    group.hosts[gone].stop().await;
    group.shows("it to be gone", |listed| !listed.contains_key(&name)).await;
    let refused = group.hosts[gone].start(false).await.unwrap_err();
    assert!(refused.to_string().contains("removed"), "{refused}");
    // Nor is it let in by what its certificate says.
    let channel = group.hosts[leader].channel(&group.roots, Some(&credentials)).await;
    let address = group.hosts[gone].address().to_string();
    let hello = v1::PeerHello { member, address, incarnation: 1 };
    let frames = tokio_stream::once(v1::RaftFrame { hello: Some(hello), messages: Vec::new() });
    let status = PeersClient::new(channel).converse(frames).await.unwrap_err();
    assert_eq!(Problem::from(&status).reason, "MEMBER_REMOVED", "{status}");
    // With a token it begins anew, as another member.
    let token = group.token(NodeRole::Manager).await;
    let through = group.hosts[leader].address();
    group.hosts[gone].join(through, &token).await.unwrap();
    group.hosts[gone].start(false).await.unwrap();
    group.all_vote().await;
    eventually_async(PATIENCE, "it to take writes", || async {
        group.create(gone, "web").await.map_err(|status| status.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_when_it_was_removed_hears_it_when_it_comes_back() {
    let mut group = Group::of_three().await;
    let (leader, gone) = (group.leader().await, group.follower().await);
    let name = group.hosts[gone].name.clone();
    group.hosts[gone].stop().await;
    group.remove(leader, &name, true).await.unwrap();
    group.shows("it to be gone", |listed| listed.len() == 2 && !listed.contains_key(&name)).await;
    group.hosts[gone].start(false).await.unwrap();
    let failed = tokio::time::timeout(PATIENCE, group.hosts[gone].manager_mut().failed()).await;
    let failed = failed.expect("a removed manager ends").to_string();
    assert!(failed.contains("removed"), "{failed}");
    group.create(leader, "web").await.unwrap();
}

//! Managers that are demoted, transfer leadership or are removed.

use tonic::{Code, Response, Status};
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;

use super::group::{ManagerGroup, repeated, repeated_removal};
use crate::dial::until_accepted;
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    async fn set_suffrage(
        &self,
        at: usize,
        name: &str,
        expected: v1::Suffrage,
    ) -> Result<v1::Manager, Status> {
        let request = v1::UpdateManagerRequest {
            reference: name.to_owned(),
            desired_suffrage: expected.into(),
            ..Default::default()
        };
        let managers = self.managers(at).await;
        let call = || {
            let (mut managers, request) = (managers.clone(), request.clone());
            async move { managers.update(request).await }
        };
        Ok(repeated(call).await?.into_inner())
    }

    /// Waits until the leader has contact with that many others.
    async fn wait_voters(&self, expected: usize) {
        eventually_async(WAIT_DEADLINE, "the leader to have contact with the other managers", || async {
            let leader = self.find_leader().await?;
            let credentials = self.hosts[leader].credentials();
            let channel = self.hosts[leader].channel(&self.roots, Some(&credentials)).await;
            let status = PeersClient::new(channel).status(v1::StatusRequest {}).await;
            let peers = status.map_err(|status| status.to_string())?.into_inner().peers;
            let active = peers.iter().filter(|peer| peer.active).count();
            if active == expected { Ok(()) } else { Err(format!("{peers:?}")) }
        })
        .await;
    }

    pub async fn remove(&self, at: usize, name: &str, force: bool) -> Result<v1::Manager, Status> {
        let request = v1::RemoveManagerRequest { reference: name.to_owned(), force };
        let managers = self.managers(at).await;
        let removed = repeated_removal(|| async { managers.clone().remove(request.clone()).await }).await?;
        Ok(removed.map(Response::into_inner).unwrap_or_default())
    }

    /// Removes a manager that runs. The leader may not hear from all others at once.
    pub async fn remove_by_force(&self, at: usize, name: &str) {
        eventually_async(WAIT_DEADLINE, "a removal that keeps the quorum", || async {
            self.remove(at, name, true).await.map(drop).map_err(|status| status.to_string())
        })
        .await;
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> Problem {
    let problem = Problem::from(&answer.unwrap_err());
    assert_eq!(problem.code, Code::FailedPrecondition, "{problem}");
    problem
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_that_loses_quorum_is_refused() {
    let mut group = ManagerGroup::of_three().await;
    group.add("m4").await;
    group.add("m5").await;
    group.all_vote().await;
    let leader = group.leader().await;
    let others: Vec<usize> = (0..5).filter(|number| *number != leader).collect();
    let [first, second, needed, last] = others[..] else { unreachable!("five without one") };
    for missing in [first, second] {
        group.hosts[missing].stop().await;
    }
    let name = |number: usize| group.hosts[number].name.as_str();
    // Three of five voters answer: none of them may be removed.
    group.wait_voters(2).await;
    let (demoted, removed) = futures::join!(
        group.set_suffrage(last, name(needed), v1::Suffrage::Learner),
        group.remove(leader, name(last), true)
    );
    for problem in [refused(demoted), refused(removed)] {
        assert_eq!(problem.reason, "WOULD_LOSE_QUORUM", "{problem}");
        assert!(problem.message.contains("voters"), "{problem}");
    }
    group.create(last, "web").await.unwrap();
    // The unreachable ones may be removed, and then the others are a group of three.
    for missing in [first, second] {
        // A leader of less than two seconds may not know yet who is there.
        eventually_async(WAIT_DEADLINE, "a removal that keeps the quorum", || async {
            let removed = group.remove(needed, name(missing), false).await;
            removed.map(drop).map_err(|status| status.to_string())
        })
        .await;
    }
    group.wait_for_managers("them to be gone", |listed| listed.len() == 3).await;
    group.remove_by_force(leader, name(needed)).await;
    group.create(leader, "db").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_are_demoted_and_promoted_and_leadership_is_transferred() {
    let group = ManagerGroup::of_three().await;
    let (leader, next) = group.leader_and_follower().await;
    let [name, to] = [leader, next].map(|number| group.hosts[number].name.clone());
    let request = v1::TransferLeadershipRequest { to: to.clone() };
    // A transfer fails if leadership has just moved.
    let answer = eventually_async(WAIT_DEADLINE, "a transfer", || async {
        let answer = group.managers(leader).await.transfer_leadership(request.clone()).await;
        answer.map(tonic::Response::into_inner).map_err(|status| status.to_string())
    })
    .await;
    assert_eq!((answer.name.as_str(), answer.leader), (to.as_str(), true));
    group.ensure_leader(|leader| leader == next).await;
    // A leader that is to be demoted first transfers leadership to a reachable voter.
    group.wait_voters(2).await;
    group.set_suffrage(leader, &to, v1::Suffrage::Learner).await.unwrap();
    group
        .wait_for_managers("it to learn", |listed| {
            listed[&to].suffrage() == v1::Suffrage::Learner && !listed[&to].leader
        })
        .await;
    group.create(leader, "web").await.unwrap();
    group.set_suffrage(leader, &to, v1::Suffrage::Voter).await.unwrap();
    group.all_vote().await;
    let unknown = group.set_suffrage(leader, "nobody", v1::Suffrage::Voter).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(group.listed(0).await.unwrap().contains_key(&name));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_manager_stops_and_is_refused() {
    let mut group = ManagerGroup::of_three().await;
    let (leader, missing) = group.leader_and_follower().await;
    let name = group.hosts[missing].name.clone();
    let problem = refused(group.remove(leader, &name, false).await);
    assert!(problem.message.contains("--force"), "{problem}");
    let (credentials, member) =
        (group.hosts[missing].credentials(), group.listed(leader).await.unwrap()[&name].member_id);
    group.remove_by_force(leader, &name).await;
    let failed = tokio::time::timeout(WAIT_DEADLINE, group.hosts[missing].manager_mut().wait_failed()).await;
    let failed = failed.expect("a removed manager ends").to_string();
    assert!(failed.contains("removed"), "{failed}");
    group.hosts[missing].stop().await;
    group.wait_for_managers("it to be gone", |listed| !listed.contains_key(&name)).await;
    let refused = group.hosts[missing].start(false).await.unwrap_err();
    assert!(refused.to_string().contains("removed"), "{refused}");
    // Nor does its certificate give it access.
    until_accepted(group.hosts[leader].address(), &group.roots, &credentials, false).await;
    let anonymous = group.hosts[leader].channel(&group.roots, None).await;
    let id = credentials.identity().id().to_owned();
    let request = v1::CheckManagerRequest { id, member_id: member, incarnation: 1 };
    let peers = PeersClient::new(anonymous);
    let status = repeated(|| async { peers.clone().check_manager(request.clone()).await }).await.unwrap_err();
    assert_eq!(Problem::from(&status).reason, "MEMBER_REMOVED", "{status}");
    // With a token it joins again, as another member.
    let token = group.token(NodeRole::Manager).await;
    let through = group.hosts[leader].address();
    group.hosts[missing].join(through, &token).await.unwrap();
    group.hosts[missing].start(false).await.unwrap();
    group.all_vote().await;
    eventually_async(WAIT_DEADLINE, "it to take writes", || async {
        group.create(missing, "web").await.map_err(|status| status.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_manager_stops_on_return() {
    let mut group = ManagerGroup::of_three().await;
    let (leader, missing) = group.leader_and_follower().await;
    let name = group.hosts[missing].name.clone();
    group.hosts[missing].stop().await;
    group.remove_by_force(leader, &name).await;
    group.wait_for_managers("it to be gone", |listed| listed.len() == 2 && !listed.contains_key(&name)).await;
    group.hosts[missing].start(false).await.unwrap();
    let failed = tokio::time::timeout(WAIT_DEADLINE, group.hosts[missing].manager_mut().wait_failed()).await;
    let failed = failed.expect("a removed manager ends").to_string();
    assert!(failed.contains("removed"), "{failed}");
    group.create(leader, "web").await.unwrap();
}

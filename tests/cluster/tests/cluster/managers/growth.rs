//! A group grows from one manager to three.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Code;
use warren_manager::ManagerTuning;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;

use super::group::ManagerGroup;
use super::host::ManagerHost;
use crate::fixture::WAIT_DEADLINE;
use crate::joining::JoiningMachine;

fn voters(listed: &BTreeMap<String, v1::Manager>) -> usize {
    listed.values().filter(|manager| manager.suffrage() == v1::Suffrage::Voter).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_manager_is_learner_until_both_vote() {
    let mut group = ManagerGroup::founded(ManagerTuning::default()).await;
    group.add("m2").await;
    group
        .wait_for_managers("m2 to learn, and to say why", |listed| {
            let second = listed.get("m2");
            let learns = |manager: &v1::Manager| {
                let status = (manager.suffrage(), manager.desired_suffrage(), manager.status());
                status == (v1::Suffrage::Learner, v1::Suffrage::Voter, v1::ManagerStatus::Ready)
                    && manager.reason.contains("odd")
            };
            second.is_some_and(learns) && voters(listed) == 1
        })
        .await;
    group.add("m3").await;
    let mut seen = BTreeSet::new();
    while !seen.contains(&3) {
        seen.insert(voters(&group.listed(0).await.unwrap()));
    }
    assert!(!seen.contains(&2), "{seen:?}");
    group
        .wait_for_managers("nothing to be left to do", |listed| {
            let leads = |manager: &&v1::Manager| manager.leader;
            let members: BTreeSet<u64> = listed.values().map(|manager| manager.member_id).collect();
            listed.values().filter(leads).count() == 1
                && members == BTreeSet::from([1, 2, 3])
                && listed.values().all(|manager| manager.reason.is_empty() && !manager.removing)
        })
        .await;
    eventually_async(WAIT_DEADLINE, "all to know the leader", || async {
        let mut leaders = BTreeSet::new();
        for number in 0..3 {
            let info = group.info(number).await.map_err(|status| status.to_string())?;
            assert_eq!(info.managers, 3, "{info:?}");
            leaders.insert(info.leader_name);
        }
        if leaders.len() == 1 && !leaders.contains("") { Ok(()) } else { Err(format!("{leaders:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_join_address_is_fixed_by_restart() {
    let mut group = ManagerGroup::founded(ManagerTuning::default()).await;
    let mut host = ManagerHost::new("m2", ManagerTuning::default());
    let token = group.token(NodeRole::Manager).await;
    let wrong = format!("127.0.0.1:{}", warren_testkit::ports::allocate()).parse().unwrap();
    host.join_as(group.hosts[0].address(), &token, &wrong).await.unwrap();
    host.start(false).await.unwrap();
    let right = host.advertised().to_string();
    group.hosts.push(host);
    group
        .wait_for_managers("m2 at its right address, and caught up", |listed| {
            let second = listed.get("m2");
            second.is_some_and(|m2| m2.address == right && m2.status() == v1::ManagerStatus::Ready)
        })
        .await;
    group.add("m3").await;
    group.all_vote().await;
}

/// It would replace that member whenever it is down for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_manager_address_is_refused() {
    let group = ManagerGroup::founded(ManagerTuning::default()).await;
    let (host, first) = (ManagerHost::new("m2", ManagerTuning::default()), &group.hosts[0]);
    let token = group.token(NodeRole::Manager).await;
    let Err(refused) = host.join_as(first.address(), &token, &first.advertised()).await else {
        panic!("it was let in");
    };
    let expected =
        format!("manager m1 is active at {}: give the address of this machine", first.advertised());
    assert!(refused.why.contains(&expected), "{refused:?}");
    assert_eq!(group.listed(0).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_entries_give_equal_states() {
    let group = ManagerGroup::of_three().await;
    for number in 0..9 {
        group.create(number % 3, &format!("s{number}")).await.unwrap();
    }
    let digests = eventually_async(WAIT_DEADLINE, "all to have applied as much", || async {
        let mut found = Vec::new();
        for number in 0..3 {
            found.push(group.info(number).await.map_err(|status| status.to_string())?);
        }
        let same = found.iter().all(|info| info.applied_index == found[0].applied_index);
        let digests: BTreeSet<String> = found.iter().map(|info| info.digest.clone()).collect();
        if same { Ok(digests) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(digests.len(), 1, "{digests:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_admits_only_its_role() {
    let group = ManagerGroup::founded(ManagerTuning::default()).await;
    let (manager, worker) = (group.token(NodeRole::Manager).await, group.token(NodeRole::Worker).await);
    let other = ManagerHost::new("m2", ManagerTuning::default());
    let refused = other.join(group.hosts[0].address(), &worker).await.unwrap_err();
    assert!(refused.why.contains("warren worker join"), "{refused:?}");
    let foreign = group.hosts[0].channel(&group.roots, None).await;
    let refused = JoiningMachine::new("n2").join_over(foreign, &manager).await.unwrap_err();
    let refused = Problem::from(&refused);
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::PermissionDenied, "TOKEN_ROLE_MISMATCH"),
        "{refused}"
    );
    assert!(refused.message.contains("warren manager join"), "{refused}");
    assert_eq!(group.listed(0).await.unwrap().len(), 1);
    // An interrupted join is completed with the same key, so it is the same manager.
    other.join(group.hosts[0].address(), &manager).await.unwrap();
    assert_eq!(group.listed(0).await.unwrap()["m2"].member_id, 2);
}

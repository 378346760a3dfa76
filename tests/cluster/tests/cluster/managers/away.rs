//! Managers that were away: for a while, or with all they had.

use warren_manager::Tuning;
use warren_manager::config::CERTIFICATES;
use warren_manager::raft::snapshot::Bounds;
use warren_proto::v1;
use warren_testkit::wait::eventually_async;

use super::group::{Group, stale};
use crate::world::PATIENCE;

/// A snapshot after every few entries, and hardly any log behind it.
const EAGER: Tuning = Tuning {
    snapshots: Bounds { bytes: 1 << 20, entries: 5 },
    keep_entries: 2,
    history: 1 << 16,
    certificates: CERTIFICATES,
};

/// Waits until this manager has so many services by itself.
async fn has_services(group: &Group, number: usize, wanted: usize) {
    let services = group.services(number).await;
    eventually_async(PATIENCE, "the services to be there", || async {
        let request = stale(v1::ListRequest { page_size: 1_000, ..Default::default() });
        let listed = services.clone().list(request).await.map_err(|status| status.to_string())?;
        let found = listed.into_inner().services.len();
        if found == wanted { Ok(()) } else { Err(format!("{found} services")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_away_for_longer_than_the_log_gets_a_snapshot() {
    let mut group = Group::of_three_tuned(EAGER).await;
    let away = group.follower().await;
    let leader = group.leader().await;
    group.create(away, "before").await.unwrap();
    group.hosts[away].stop().await;
    for number in 0..40 {
        group.create(leader, &format!("s{number}")).await.unwrap();
    }
    group.hosts[away].start(false).await.unwrap();
    has_services(&group, away, 41).await;
    // It is a member like any other, also after it was started again.
    group.create(away, "after").await.unwrap();
    group.hosts[away].let_go().await;
    group.hosts[away].start(false).await.unwrap();
    has_services(&group, away, 42).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_its_disk_joins_again_and_takes_its_own_place() {
    let mut group = Group::of_three().await;
    group.create(0, "web").await.unwrap();
    let lost = group.follower().await;
    let name = group.hosts[lost].name.clone();
    let before = group.listed(0).await.unwrap()[&name].clone();
    group.hosts[lost].stop().await;
    group.hosts[lost].lose_disk();
    group.join(lost).await;
    group.all_vote().await;
    group
        .shows("the old one to be gone", |listed| {
            listed.len() == 3 && listed.get(&name).is_some_and(|now| now.id != before.id && now.member == 4)
        })
        .await;
    has_services(&group, lost, 1).await;
    // Its vote counts: another one may go.
    let other = (0..3).find(|number| *number != lost).unwrap();
    group.hosts[other].stop().await;
    eventually_async(PATIENCE, "writes to go on", || async {
        group.create(lost, "other").await.map_err(|status| status.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_that_people_gave_a_stopped_manager_stays_when_it_starts_as_before() {
    let mut group = Group::of_three().await;
    let (leader, away) = (group.leader().await, group.follower().await);
    let name = group.hosts[away].name.clone();
    // It has said so, and knows that it was heard.
    let said = group.hosts[away].data_dir().join("manager").join("advertised");
    eventually_async(PATIENCE, "what it said to be written down", || async {
        if said.exists() { Ok(()) } else { Err("it is not".to_owned()) }
    })
    .await;
    group.hosts[away].stop().await;
    let address = format!("localhost:{}", group.hosts[away].address().port());
    let request =
        v1::UpdateManagerRequest { reference: name.clone(), address: address.clone(), ..Default::default() };
    group.managers(leader).await.update(request).await.unwrap();
    // The second time its own state has the address from the beginning.
    for round in 0..2 {
        group.hosts[away].start(false).await.unwrap();
        group.all_vote().await;
        eventually_async(PATIENCE, "it to take writes", || async {
            let made = group.create(away, &format!("s{round}")).await;
            made.map(drop).map_err(|status| status.to_string())
        })
        .await;
        for number in 0..3 {
            assert_eq!(group.listed(number).await.unwrap()[&name].address, address, "round {round}");
        }
        group.hosts[away].stop().await;
    }
}

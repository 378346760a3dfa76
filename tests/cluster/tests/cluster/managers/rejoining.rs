//! Managers that were stopped for a while, or lost their data.

use warren_manager::ManagerTuning;
use warren_manager::config::CERTIFICATE_CHECK_INTERVAL;
use warren_proto::v1;
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_testkit::wait::eventually_async;

use super::group::{ManagerGroup, repeated, stale};
use crate::fixture::WAIT_DEADLINE;

/// A snapshot after every few entries, and a short log after it.
const SMALL_SNAPSHOTS: ManagerTuning = ManagerTuning {
    replica: ReplicaTuning {
        snapshot_thresholds: SnapshotThresholds { bytes: 1 << 20, entries: 5 },
        kept_entries: 2,
        history_changes: 1 << 16,
    },
    certificate_check_interval: CERTIFICATE_CHECK_INTERVAL,
};

/// Waits until this manager's own state has that many services.
async fn has_services(group: &ManagerGroup, number: usize, expected: usize) {
    let services = group.services(number).await;
    eventually_async(WAIT_DEADLINE, "the services to be there", || async {
        let request = stale(v1::ListServicesRequest { page_size: 1_000, ..Default::default() });
        let listed = services.clone().list(request).await.map_err(|status| status.to_string())?;
        let found = listed.into_inner().services.len();
        if found == expected { Ok(()) } else { Err(format!("{found} services")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_manager_gets_a_snapshot() {
    let mut group = ManagerGroup::of_three_tuned(SMALL_SNAPSHOTS).await;
    let (leader, away) = group.leader_and_follower().await;
    group.create(away, "before").await.unwrap();
    group.hosts[away].stop().await;
    for number in 0..40 {
        group.create(leader, &format!("s{number}")).await.unwrap();
    }
    group.hosts[away].start(false).await.unwrap();
    has_services(&group, away, 41).await;
    // It is a member like any other, also after a restart.
    group.create(away, "after").await.unwrap();
    group.hosts[away].drop_manager().await;
    group.hosts[away].start(false).await.unwrap();
    has_services(&group, away, 42).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_without_disk_rejoins_as_itself() {
    let mut group = ManagerGroup::of_three().await;
    group.create(0, "web").await.unwrap();
    let lost = group.follower().await;
    let name = group.hosts[lost].name.clone();
    let before = group.listed(0).await.unwrap()[&name].clone();
    group.hosts[lost].stop().await;
    group.hosts[lost].lose_disk();
    group.join(lost).await;
    group.all_vote().await;
    group
        .wait_for_managers("the old one to be gone", |listed| {
            listed.len() == 3
                && listed.get(&name).is_some_and(|now| now.id != before.id && now.member_id == 4)
        })
        .await;
    has_services(&group, lost, 1).await;
    // Its vote counts: another one may be removed.
    let other = (0..3).find(|number| *number != lost).unwrap();
    group.hosts[other].stop().await;
    eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        group.create(lost, "other").await.map_err(|status| status.to_string())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updated_address_of_stopped_manager_is_kept() {
    let mut group = ManagerGroup::of_three().await;
    let (leader, away) = group.leader_and_follower().await;
    let name = group.hosts[away].name.clone();
    group.hosts[away].address_recorded().await;
    group.hosts[away].stop().await;
    let address = format!("localhost:{}", group.hosts[away].address().port());
    let request =
        v1::UpdateManagerRequest { reference: name.clone(), address: address.clone(), ..Default::default() };
    let managers = group.managers(leader).await;
    repeated(|| async { managers.clone().update(request.clone()).await }).await.unwrap();
    // At the second start its own state already has the address.
    for round in 0..2 {
        group.hosts[away].start(false).await.unwrap();
        group.all_vote().await;
        eventually_async(WAIT_DEADLINE, "it to take writes", || async {
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

//! Watches that continue at another manager.

use tokio::time::timeout;
use tonic::{Code, Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::watch_event::Change;
use warren_testkit::wait::eventually_async;

use super::group::ManagerGroup;
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    async fn watch(&self, number: usize, resume_index: u64) -> Result<Streaming<v1::WatchEvent>, Status> {
        let request = v1::WatchRequest { service: String::new(), resume_index };
        Ok(ClusterClient::new(self.channel(number).await).watch(request).await?.into_inner())
    }
}

async fn next(stream: &mut Streaming<v1::WatchEvent>) -> (u64, Change) {
    let event = timeout(WAIT_DEADLINE, stream.message()).await.expect("an event in time");
    let event = event.unwrap().expect("the stream continues");
    (event.index, event.change.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_resumed_at_a_manager_that_lags_never_goes_back() {
    let mut group = ManagerGroup::of_three().await;
    let lags = group.follower().await;
    group.hosts[lags].drop_manager().await;
    let leader = group.leader().await;
    let mut watch = group.watch(leader, 0).await.unwrap();
    for number in 0..20 {
        group.create(leader, &format!("s{number}")).await.unwrap();
    }
    let (mut seen, mut named) = (0, 0);
    while named < 20 {
        let (index, change) = next(&mut watch).await;
        seen = index;
        named += usize::from(matches!(change, Change::Service(_)));
    }
    let others: Vec<usize> = (0..3).filter(|number| *number != lags).collect();
    for number in &others {
        group.hosts[*number].drop_manager().await;
    }
    group.hosts[lags].start(false).await.unwrap();
    let refused = match group.watch(lags, seen).await {
        Ok(mut stream) => panic!("resumed after {seen}, got {:?}", next(&mut stream).await),
        Err(refused) => refused,
    };
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");

    // It catches up with the others, and the watch continues after the last event.
    for number in others {
        group.hosts[number].start(false).await.unwrap();
    }
    let mut resumed = eventually_async(WAIT_DEADLINE, "the watch to be resumed", || async {
        group.watch(lags, seen).await.map_err(|status| status.to_string())
    })
    .await;
    assert_eq!(next(&mut resumed).await, (seen, Change::Resync(v1::Resync {})));
    eventually_async(WAIT_DEADLINE, "a write", || async {
        group.create(lags, "after").await.map_err(|status| status.to_string())
    })
    .await;
    loop {
        let (index, change) = next(&mut resumed).await;
        assert!(index >= seen, "{index} after {seen}");
        match change {
            Change::Service(service) => {
                assert_eq!(service.spec.unwrap().name, "after");
                assert!(index > seen);
                break;
            }
            Change::Resync(_) => panic!("no event was missed"),
            _ => {}
        }
    }
}

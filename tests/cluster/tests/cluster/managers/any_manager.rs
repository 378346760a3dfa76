//! Every manager answers every request.

use tonic::Code;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::watch_event::Change;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;

use super::group::{ManagerGroup, repeated, stale};
use crate::fixture::{WAIT_DEADLINE, new_id, spec};

fn reference(name: &str) -> v1::Reference {
    v1::Reference { reference: name.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_write_is_read_on_every_manager() {
    let group = ManagerGroup::of_three().await;
    let services = [group.services(0).await, group.services(1).await, group.services(2).await];
    for round in 0..5 {
        for at in 0..3 {
            let name = format!("s{round}{at}");
            let made = group.create(at, &name).await.unwrap();
            for client in &services {
                let found = repeated(|| async { client.clone().get(reference(&name)).await }).await;
                assert_eq!(found.unwrap().into_inner().version, made.version);
            }
        }
    }
    // The answer contains the addresses of the managers, the answering one first.
    let answer = repeated(|| async { services[1].clone().get(reference("s00")).await }).await.unwrap();
    let managers = answer.metadata().get("warren-manager-addresses").unwrap().to_str().unwrap();
    let addresses: Vec<String> =
        [1, 0, 2].map(|number: usize| group.hosts[number].address().to_string()).into();
    assert_eq!(managers.split(',').collect::<Vec<_>>(), addresses);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_at_a_follower_sees_what_others_write() {
    let group = ManagerGroup::of_three().await;
    let (leader, follower) = group.leader_and_follower().await;
    let mut cluster = ClusterClient::new(group.channel(follower).await);
    let mut events = cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let mut next = async || {
        let event = tokio::time::timeout(WAIT_DEADLINE, events.message()).await.expect("an event in time");
        event.unwrap().expect("the stream continues").change.unwrap()
    };
    assert!(matches!(next().await, Change::Resync(_)));
    let made = group.create(leader, "web").await.unwrap();
    loop {
        if matches!(next().await, Change::Service(service) if service.id == made.id) {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isolated_manager_reports_and_serves_stale_reads() {
    let mut group = ManagerGroup::of_three().await;
    group.create(0, "web").await.unwrap();
    let alone = group.leader().await;
    for number in (0..3).filter(|number| *number != alone) {
        group.hosts[number].drop_manager().await;
    }
    let mut services = group.services(alone).await;
    let refused =
        eventually_async(WAIT_DEADLINE, "the last manager to notice that it has no leader", || async {
            match services.clone().get(reference("web")).await {
                Err(refused) => Ok(refused),
                Ok(_) => Err("it answers".to_owned()),
            }
        })
        .await;
    let problem = Problem::from(&refused);
    assert_eq!((problem.code, problem.reason.as_str()), (Code::Unavailable, "NO_LEADER"), "{problem}");
    let shown = services.get(stale(reference("web"))).await.unwrap().into_inner();
    assert_eq!(shown.spec.unwrap().name, "web");

    // A write is refused at once, so that the client can use another manager; the same write may be repeated.
    let request = v1::CreateServiceRequest {
        id: new_id().to_string(),
        spec: Some((&spec("db", 0)).into()),
        ..Default::default()
    };
    let refused = Problem::from(&services.create(request.clone()).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "NO_LEADER"), "{refused}");
    for number in (0..3).filter(|number| *number != alone) {
        group.hosts[number].start(false).await.unwrap();
    }
    let made = eventually_async(WAIT_DEADLINE, "writes to go on", || async {
        let made = services.clone().create(request.clone()).await;
        made.map(tonic::Response::into_inner).map_err(|status| status.to_string())
    })
    .await;
    for number in 0..3 {
        let services = group.services(number).await;
        let found = repeated(|| async { services.clone().get(reference("db")).await }).await;
        assert_eq!(found.unwrap().into_inner().version, made.version);
    }
}

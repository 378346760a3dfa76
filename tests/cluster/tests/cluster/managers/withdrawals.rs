//! A node learns when the other nodes send its stopping tasks no new clients.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;
use warren_proto::v1;
use warren_types::spec::WITHDRAWAL_TIMEOUT;

use super::group::{ManagerGroup, repeated_removal};
use crate::fixture::WAIT_DEADLINE;
use crate::worker::ScriptedWorker;

/// Ready endpoints that the worker knows.
fn ready_endpoints(worker: &ScriptedWorker) -> usize {
    let services = worker.network.catalogues.values().flat_map(|catalogue| catalogue.services.values());
    services.flat_map(|service| &service.endpoints).filter(|endpoint| endpoint.ready).count()
}

async fn knows_endpoints(worker: &mut ScriptedWorker, count: usize) {
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    let reached = async {
        while ready_endpoints(worker) != count {
            pace.tick().await;
            worker.sync().await;
        }
    };
    timeout(WAIT_DEADLINE, reached).await.unwrap_or_else(|_| panic!("never {count} ready endpoints"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_task_is_withdrawn_once_nodes_at_all_managers_have_acknowledged() {
    let group = ManagerGroup::of_three().await;
    let mut workers = Vec::new();
    for number in 0..3 {
        let node = group.node(&format!("n{number}")).await;
        workers.push(group.session(number, &node, None).await);
    }
    // Managers wait for a limited time: on a busy machine it may be over too early.
    for number in 1..=5 {
        // The service of an earlier try may not be deleted yet.
        if is_withdrawn_by_last_acknowledgement(&group, &mut workers, &format!("web{number}")).await {
            return;
        }
    }
    panic!("nothing says that the task is withdrawn");
}

/// Runs a service with a task on each node and removes it.
async fn is_withdrawn_by_last_acknowledgement(
    group: &ManagerGroup,
    workers: &mut [ScriptedWorker],
    service: &str,
) -> bool {
    group.run(0, service, 3).await;
    for worker in &mut *workers {
        worker.has("a task", |tasks| tasks.len() == 1).await;
        worker.run_all().await;
    }
    for worker in &mut *workers {
        knows_endpoints(worker, 3).await;
    }
    let [first, second, third] = &mut workers[..] else { panic!("three workers") };
    second.acknowledges_network = false;
    let request = v1::RemoveServiceRequest { reference: service.to_owned(), ..Default::default() };
    let services = group.services(1).await;
    repeated_removal(|| async { services.clone().remove(request.clone()).await }).await.unwrap();
    for worker in [&mut *first, third, &mut *second] {
        knows_endpoints(worker, 0).await;
    }
    // Its manager has answered after the others had acknowledged.
    first.sync().await;
    assert!(first.withdrawn.is_empty(), "{:?}", first.withdrawn);
    second.acknowledge_network().await;
    second.acknowledges_network = true;
    let task = first.tasks.keys().next().unwrap().clone();
    let told = async {
        while !first.withdrawn.contains(&task) {
            let frame = first.receive().await;
            first.accept_update(frame).await;
        }
    };
    let is_told = timeout(WITHDRAWAL_TIMEOUT, told).await.is_ok();
    for worker in workers {
        worker.apply_assignment().await;
        worker.has("nothing", BTreeMap::is_empty).await;
        worker.withdrawn.clear();
    }
    is_told
}

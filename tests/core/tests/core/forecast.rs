//! Forecasts: what they say is what happens, and nothing happens by them.

use warren_core::{Command, Forecast, Forecaster, pin_command};
use warren_types::*;

use crate::test_cluster::*;

/// The forecast of writes that are accepted. The state stays as it is.
#[track_caller]
fn forecast(cluster: &TestCluster, writes: &[Command]) -> Forecast {
    let before = cluster.state.digest().value;
    let mut forecaster = Forecaster::new(&cluster.state, cluster.now);
    for write in writes {
        assert!(forecaster.write(write).unwrap(), "{write:?} changes nothing");
    }
    let forecast = forecaster.finish();
    assert_eq!(cluster.state.digest().value, before);
    assert_eq!(forecast.incomplete_reason, "");
    forecast
}

fn create(number: u128, spec: ServiceSpec, cluster: &TestCluster) -> Command {
    Command::CreateService { id: service_id(number), spec, at: cluster.now }
}

fn update(number: u128, cluster: &TestCluster, change: impl FnOnce(&mut ServiceSpec)) -> Command {
    let (id, at) = (service_id(number), cluster.now);
    let mut spec = (*cluster.state.service(&id).unwrap().spec).clone();
    change(&mut spec);
    Command::UpdateService { id, version: None, spec, force: false, at }
}

/// Slots with the numbers of their nodes; 0 for none.
fn slots(forecast: &Forecast) -> Vec<(u32, u32, bool)> {
    let number = |node: &NodeName| node.as_str().trim_start_matches("node-").parse().unwrap();
    let slot = |slot: &warren_core::forecast::SlotForecast| {
        (slot.slot, slot.node.as_ref().map_or(0, number), slot.is_new)
    };
    forecast.slots.iter().map(slot).collect()
}

/// Does the writes, and lets everything follow; returns where the tasks of the service are.
fn carry_out(cluster: &mut TestCluster, service: u128, writes: &[Command]) -> Vec<(u32, u32)> {
    writes.iter().for_each(|write| drop(cluster.accept(write.clone())));
    for _ in 0..100 {
        cluster.settle();
        cluster.clean_up();
    }
    let node = |task: &Task| task.node.map_or(0, |node| u32::try_from(node.0.0).unwrap());
    let live = cluster.state.tasks_of(&service_id(service)).filter(|task| task.is_live());
    let mut tasks: Vec<(u32, u32)> = live.map(|task| (task.slot, node(task))).collect();
    tasks.sort_unstable();
    tasks
}

#[test]
fn replicas_run_where_the_forecast_says() {
    let mut cluster = TestCluster::with_nodes(3);
    let writes = [create(1, reserving("web", 5, resources(100, 100)), &cluster)];
    let created = forecast(&cluster, &writes);
    assert_eq!(created.slots.len(), 5);
    assert!(created.slots.iter().all(|slot| slot.is_new && slot.reason.is_empty()), "{created:?}");
    let expected: Vec<(u32, u32)> = slots(&created).into_iter().map(|(slot, node, _)| (slot, node)).collect();
    assert_eq!(carry_out(&mut cluster, 1, &writes), expected);

    let writes = [update(1, &cluster, |spec| spec.task.image = "demo:2".parse().unwrap())];
    let updated = forecast(&cluster, &writes);
    assert!(updated.slots.iter().all(|slot| slot.is_new && slot.node.is_some()), "{updated:?}");
    assert_eq!(updated.stops.len(), 5, "every old task is stopped");
    let expected: Vec<(u32, u32)> = slots(&updated).into_iter().map(|(slot, node, _)| (slot, node)).collect();
    assert_eq!(carry_out(&mut cluster, 1, &writes), expected);

    // A change that makes no new tasks.
    let writes = [update(1, &cluster, |spec| spec.labels = [("a".to_owned(), "b".to_owned())].into())];
    let same = forecast(&cluster, &writes);
    assert_eq!((same.stops.len(), same.slots.iter().filter(|slot| slot.is_new).count()), (0, 0));
    let fewer = update(1, &cluster, |spec| spec.mode = ServiceMode::Replicated { replicas: 2 });
    let fewer = forecast(&cluster, &[fewer]);
    assert_eq!((fewer.slots.len(), fewer.stops.len()), (2, 3));
    let removed = forecast(
        &cluster,
        &[Command::RemoveService { id: service_id(1), version: None, force: false, at: cluster.now }],
    );
    assert_eq!((removed.slots.len(), removed.stops.len()), (0, 5));
}

#[test]
fn replica_without_a_node_has_the_reason_of_the_scheduler() {
    let mut cluster = TestCluster::with_nodes(2);
    let writes = [create(1, reserving("db", 3, resources(0, 600)), &cluster)];
    let tight = forecast(&cluster, &writes);
    assert_eq!(slots(&tight).iter().filter(|(_, node, _)| *node == 0).count(), 1);
    let waiting = tight.slots.iter().find(|slot| slot.node.is_none()).unwrap();
    cluster.accept(writes[0].clone());
    cluster.settle();
    cluster.settle();
    let number = cluster.live(1).iter().find(|(slot, _)| *slot == waiting.slot).unwrap().1;
    assert_eq!(waiting.reason, cluster.reason(1, number));
    assert!(waiting.reason.contains("2 lack memory"), "{}", waiting.reason);
    // Far more than fit are not all created.
    let many = forecast(&cluster, &[create(2, reserving("many", 10_000, resources(0, 600)), &cluster)]);
    assert!(many.slots.len() < 200 && many.uncreated.len() == 1, "{:?}", many.uncreated);
}

#[test]
fn refused_write_changes_nothing_and_the_others_count() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, publishing("web", 1, 8080));
    cluster.settle();
    let mut forecaster = Forecaster::new(&cluster.state, cluster.now);
    let refused = forecaster.write(&create(2, publishing("api", 1, 8080), &cluster)).unwrap_err();
    assert!(refused.to_string().contains("8080"), "{refused}");
    assert!(forecaster.write(&create(3, spec("other", 1), &cluster)).unwrap());
    let same = update(1, &cluster, |_| ());
    assert!(!forecaster.write(&same).unwrap(), "it changes nothing");
    let forecast = forecaster.finish();
    assert_eq!(forecast.slots.len(), 1);
    assert_eq!(forecast.slots[0].service.as_str(), "other");
}

#[test]
fn new_data_of_a_secret_and_a_drained_node_replace_tasks() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.secret(1, "key", 1);
    cluster.service(1, with_secrets("web", 2, &["key"]));
    (0..3).for_each(|_| cluster.settle());
    let (id, at) = (secret_object_id(1), cluster.now);
    let new_data = Command::UpdateSecretObject { id, version: None, data: sealed(2), at };
    let replaced = forecast(&cluster, &[new_data]);
    assert_eq!((replaced.stops.len(), replaced.slots.iter().filter(|slot| slot.is_new).count()), (2, 2));

    let drain = Command::UpdateNode {
        id: node_id(1),
        version: None,
        label_add: Default::default(),
        label_rm: Default::default(),
        availability: Some(Availability::Drain),
        taint_add: Default::default(),
        taint_rm: Default::default(),
        at,
    };
    let drained = forecast(&cluster, &[drain]);
    assert!(slots(&drained).iter().all(|(_, node, _)| *node == 2), "{drained:?}");
    assert_eq!(drained.stops.len(), 1);
}

#[test]
fn update_of_many_slots_is_followed_for_a_while() {
    let mut cluster = TestCluster::new();
    (1..=5).for_each(|number| cluster.node(number, resources(64_000, 64 << 10)));
    cluster.service(1, spec("web", 500));
    (0..5).for_each(|_| cluster.settle());
    let mut forecaster = Forecaster::new(&cluster.state, cluster.now);
    let write = update(1, &cluster, |spec| spec.task.image = "demo:2".parse().unwrap());
    assert!(forecaster.write(&write).unwrap());
    let forecast = forecaster.finish();
    assert!(!forecast.incomplete_reason.is_empty());
    assert_eq!(forecast.slots.len(), 500);
    assert!(forecast.stops.len() > 100, "{}", forecast.stops.len());
}

#[test]
fn image_that_managers_do_not_know_yet_does_not_hold_the_forecast() {
    let mut cluster = TestCluster::with_nodes(2);
    let mut spec = spec("web", 2);
    spec.task.resolve_image = ImageResolver::Manager;
    let writes = [create(1, spec, &cluster)];
    carry_out(&mut cluster, 1, &writes);
    let digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
    let pin = pin_command(&cluster.state, service_id(1), 1, digest, cluster.now);
    cluster.accept(pin);
    let writes = [update(1, &cluster, |spec| spec.task.image = "demo:2".parse().unwrap())];
    let updated = forecast(&cluster, &writes);
    assert_eq!((updated.slots.len(), updated.stops.len()), (2, 2));
    assert!(updated.slots.iter().all(|slot| slot.is_new), "{updated:?}");
}

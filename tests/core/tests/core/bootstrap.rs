//! Bootstrap services: they start first on a node, and leave it last.

use warren_core::Command;
use warren_types::*;

use crate::test_cluster::*;

/// Two bootstrap services, one of them per zone, and a replicated and a global service.
fn with_services(nodes: u128) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(nodes);
    cluster.service(1, bootstrap(global("dns")));
    cluster.service(2, bootstrap(per_zone("cache")));
    cluster.service(3, spec("web", 2));
    cluster.service(4, global("agent"));
    cluster
}

/// Reconciles and schedules, without any report of a worker.
fn plan(cluster: &mut TestCluster) {
    for service in 1..=4 {
        cluster.reconcile(service);
    }
    cluster.schedule();
}

/// How many live tasks of each of the services have a node.
fn placed(cluster: &TestCluster) -> [usize; 4] {
    [1, 2, 3, 4].map(|service| {
        let tasks = cluster.state.tasks_of(&service_id(service));
        tasks.filter(|task| task.is_live() && task.node.is_some()).count()
    })
}

fn run(cluster: &mut TestCluster, service: u128) {
    let waiting =
        |task: &&std::sync::Arc<Task>| task.is_live() && task.node.is_some() && !task.observed.ready;
    let tasks: Vec<_> =
        cluster.state.tasks_of(&service_id(service)).filter(waiting).map(|task| task.id).collect();
    tasks.into_iter().for_each(|task| cluster.observe(task, TaskState::Running));
}

#[test]
fn other_services_wait_for_bootstrap_services() {
    let mut cluster = with_services(2);
    cluster.label(1, "zone", Some("a"));
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [2, 1, 0, 0]);
    let why = "0 of 2 nodes fit: 2 wait for bootstrap service \"dns\"";
    assert_eq!(
        (cluster.reason(3, 1), cluster.reason(4, 1)),
        (why.into(), why.replace('2', "1").replace("wait", "waits"))
    );
    run(&mut cluster, 1);
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [2, 1, 2, 1], "the node without the label waits for the first only");
    assert_eq!(cluster.reason(4, 1), "0 of 1 nodes fit: 1 waits for bootstrap service \"cache\"");
    run(&mut cluster, 2);
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [2, 1, 2, 2]);
    // Its value has a task elsewhere, so a further node waits for that of each node only.
    cluster.node(3, resources(4000, 1024));
    cluster.label(3, "zone", Some("a"));
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [3, 1, 2, 2]);
    run(&mut cluster, 1);
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [3, 1, 2, 3]);
}

#[test]
fn task_that_is_not_ready_holds_its_node() {
    let mut cluster = with_services(1);
    plan(&mut cluster);
    cluster.report(TaskReport {
        ready: false,
        health: Health::Starting,
        ..report(task_id(1, 1), 1, TaskState::Running)
    });
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [1, 0, 0, 0]);
    cluster.report(TaskReport { health: Health::Healthy, ..report(task_id(1, 1), 1, TaskState::Running) });
    plan(&mut cluster);
    assert_eq!(placed(&cluster), [1, 0, 2, 1]);
    // Tasks that have a node stay when it fails; new ones wait.
    cluster.report(report(task_id(1, 1), 1, TaskState::Failed));
    cluster.scale(3, 3);
    plan(&mut cluster);
    assert_eq!(placed(&cluster)[2..], [2, 1]);
    // A service that is no bootstrap service holds nothing, and neither does one that is removed.
    let is_bootstrap = ServiceSpec { bootstrap: false, ..bootstrap(global("dns")) };
    cluster.update(1, is_bootstrap);
    plan(&mut cluster);
    assert_eq!(placed(&cluster)[2..], [3, 1]);
}

#[test]
fn update_of_bootstrap_service_holds_nothing() {
    for order in [UpdateOrder::StartFirst, UpdateOrder::StopFirst] {
        let mut cluster = TestCluster::with_nodes(1);
        let mut dns = pausing(bootstrap(global("dns")));
        dns.update.order = Some(order);
        cluster.service(1, dns);
        cluster.service(3, spec("web", 1));
        for _ in 0..3 {
            cluster.settle();
        }
        cluster.update_image(1, "demo:2");
        cluster.reconcile(1);
        cluster.schedule();
        let newer = task_id(1, 2);
        cluster.observe(newer, TaskState::Ready);
        cluster.reconcile(1);
        cluster.clean_up();
        cluster.reconcile(1);
        cluster.observe(newer, TaskState::Failed);
        cluster.reconcile(1);
        cluster.scale(3, 2);
        cluster.reconcile(3);
        cluster.schedule();
        assert!(cluster.task(3, 2).node.is_some(), "{order:?}: {}", cluster.reason(3, 2));
    }
}

#[test]
fn bootstrap_service_that_has_done_its_work_holds_nothing() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut setup = bootstrap(global("setup"));
    setup.task.restart.condition = RestartCondition::OnFailure;
    cluster.service(1, setup);
    cluster.service(3, spec("web", 1));
    cluster.reconcile(1);
    cluster.reconcile(3);
    cluster.schedule();
    assert!(cluster.task(3, 1).node.is_none());
    cluster.observe(task_id(1, 1), TaskState::Complete);
    cluster.schedule();
    assert!(cluster.task(3, 1).node.is_some());
}

#[test]
fn node_that_may_not_have_the_bootstrap_service_does_not_wait_for_it() {
    let mut cluster = TestCluster::with_nodes(2);
    let mut dns = bootstrap(global("dns"));
    dns.placement.constraints = vec!["node.labels.dns exists".parse().unwrap()];
    cluster.label(1, "dns", Some("yes"));
    cluster.service(1, dns);
    cluster.service(3, tolerating(spec("web", 4), &["x"]));
    cluster.reconcile(3);
    cluster.schedule();
    let nodes: Vec<_> = cluster.state.tasks_of(&service_id(3)).map(|task| task.node).collect();
    assert_eq!(nodes, [Some(node_id(2)); 4]);
    cluster.taint(1, &["x:NoSchedule"], &[]);
    cluster.scale(3, 5);
    cluster.reconcile(3);
    cluster.schedule();
    assert_eq!(cluster.task(3, 5).node, Some(node_id(1)));
}

#[test]
fn drained_node_loses_bootstrap_services_last() {
    let mut cluster = with_services(2);
    cluster.label(1, "zone", Some("a"));
    cluster.label(2, "zone", Some("a"));
    for _ in 0..3 {
        cluster.settle();
    }
    let holder = cluster.state.live_task(&service_id(2), 1).unwrap().node.unwrap().0.0;
    cluster.availability(holder, Availability::Drain);
    let on = |cluster: &TestCluster, service: u128| {
        let tasks = cluster.state.tasks_on(&node_id(holder));
        tasks.filter(|task| task.id.service == service_id(service) && task.is_live()).count()
    };
    for _ in 0..4 {
        cluster.settle();
    }
    assert_eq!([1, 2, 3, 4].map(|service| on(&cluster, service)), [1, 1, 0, 0]);
    let stopping = cluster.state.tasks_on(&node_id(holder)).find(|task| task.id.service == service_id(4));
    let stopping = stopping.unwrap().id;
    assert_eq!(cluster.state.services_leaving_after(&stopping).count(), 2);
    assert!(cluster.reconcile(1).is_empty() && cluster.reconcile(2).is_empty());
    for _ in 0..6 {
        cluster.clean_up();
        cluster.settle();
    }
    assert_eq!(cluster.state.tasks_on(&node_id(holder)).count(), 0);
    assert_ne!(cluster.state.live_task(&service_id(2), 1).unwrap().node, Some(node_id(holder)));
}

#[test]
fn unverified_node_and_one_under_pressure_get_bootstrap_services_only() {
    let mut cluster = with_services(2);
    cluster.label(1, "zone", Some("a"));
    cluster.label(2, "zone", Some("a"));
    cluster.taint(1, &["warren.io/unverified:NoSchedule"], &[]);
    cluster.conditions(2, &[NodeCondition::DiskPressure, NodeCondition::MemoryPressure]);
    for _ in 0..3 {
        cluster.settle();
    }
    assert_eq!(placed(&cluster), [2, 1, 0, 0]);
    let holder = cluster.state.live_task(&service_id(2), 1).unwrap().node;
    assert_eq!(holder, Some(node_id(2)), "a verified node is better");
    cluster.taint(1, &["warren.io/unverified:NoExecute"], &[]);
    assert!(cluster.reconcile(1).is_empty(), "it is not evicted");
    cluster.taint(1, &["other:NoExecute"], &[]);
    cluster.reconcile(1);
    assert_eq!(placed(&cluster), [1, 1, 0, 0], "other taints apply as to all services");
    cluster.conditions(2, &[NodeCondition::RuntimeUnavailable]);
    cluster.service(5, bootstrap(global("logs")));
    cluster.reconcile(5);
    cluster.schedule();
    assert_eq!(cluster.reason(5, 1), "0 of 1 nodes fit: 1 has containerd unavailable");
}

#[test]
fn bootstrap_service_is_removed_only_with_force() {
    let mut cluster = with_services(1);
    cluster.settle();
    let remove = |force| Command::RemoveService { id: service_id(1), version: None, force, at: Timestamp(0) };
    let refusal = "service dns is a bootstrap service: tasks of other services on its nodes may depend on it; \
                   remove it with `warren service rm --force dns`";
    assert_eq!(cluster.refuse(remove(false)), refusal);
    cluster.accept(remove(true));
    cluster.accept(remove(false));
    let web = Command::RemoveService { id: service_id(3), version: None, force: false, at: Timestamp(0) };
    cluster.accept(web);
}

#[test]
fn nodes_learn_that_a_service_has_become_a_bootstrap_service() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, global("dns"));
    cluster.settle();
    let assigned = |cluster: &TestCluster| {
        let assignment = cluster.state.assignment(&node_id(1)).unwrap();
        (assignment.tasks[0].bootstrap, assignment.version)
    };
    let (before, version) = assigned(&cluster);
    cluster.update(1, bootstrap(global("dns")));
    let (after, newer) = assigned(&cluster);
    assert_eq!((before, after, newer > version), (false, true, true));
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, 1, "its tasks stay");
    assert!(cluster.reconcile(1).is_empty());
}

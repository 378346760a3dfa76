//! Services with more replicas than the nodes have room for.

use proptest::prelude::*;
use warren_core::reconcile::{MAX_ITEMS, SPARE_TASKS, unplaced_tasks};
use warren_core::*;
use warren_testkit::soak;
use warren_types::Availability;

use crate::test_cluster::*;

const MILLION: u32 = 1_000_000;
/// Addresses for tasks on one node.
const PER_NODE: u64 = 4 * 253;

/// Plans until nothing changes, and returns how many tasks are placed, and how many are not.
fn plan_all(cluster: &mut TestCluster, service: u128) -> (u64, u64) {
    loop {
        let planned = cluster.reconcile(service);
        assert!(planned.commands.iter().all(|command| items(command) <= MAX_ITEMS), "{planned:?}");
        let placed = cluster.schedule();
        if planned.is_empty() && placed.assignments.is_empty() {
            break;
        }
    }
    let unplaced = unplaced_tasks(&cluster.state, &service_id(service));
    (u64::from(cluster.state.task_counts(&service_id(service)).live) - unplaced, unplaced)
}

fn items(command: &Command) -> usize {
    match command {
        Command::CreateTasks { slots, .. } => slots.len(),
        Command::SetDesiredTaskState { tasks, .. } | Command::DeleteTasks { tasks, .. } => tasks.len(),
        _ => 1,
    }
}

fn uncreated(cluster: &TestCluster) -> u32 {
    uncreated_tasks(&cluster.state, cluster.state.service(&service_id(1)).unwrap())
}

#[test]
fn tasks_without_a_node_are_bounded_by_the_free_room() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", MILLION));
    assert_eq!(plan_all(&mut cluster, 1), (2 * PER_NODE, SPARE_TASKS));
    assert_eq!(u64::from(uncreated(&cluster)), u64::from(MILLION) - 2 * PER_NODE - SPARE_TASKS);
    let addresses = cluster.state.tasks().filter(|task| task.address.is_some()).count() as u64;
    assert_eq!(addresses, 2 * PER_NODE, "a task without a node holds no address");

    cluster.node(3, resources(4000, 1024));
    assert_eq!(plan_all(&mut cluster, 1), (3 * PER_NODE, SPARE_TASKS));
    cluster.scale(1, 3100);
    assert_eq!(plan_all(&mut cluster, 1).1, 3100 - 3 * PER_NODE);
    assert_eq!(uncreated(&cluster), 0);
    cluster.scale(1, MILLION);
    plan_all(&mut cluster, 1);

    cluster.remove(1);
    plan_all(&mut cluster, 1);
    cluster.clean_up();
    while cluster.state.service(&service_id(1)).is_some() {
        assert!(cluster.reap(1).commands.iter().all(|command| items(command) <= MAX_ITEMS));
    }
    assert_eq!(cluster.state.task_count(), 0);
}

#[test]
fn updated_tasks_without_a_node_are_bounded() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, reserving("big", MILLION, resources(0, 300)));
    assert_eq!(plan_all(&mut cluster, 1), (6, SPARE_TASKS));
    cluster.update_image(1, "demo:2");
    cluster.settle();
    assert!(plan_all(&mut cluster, 1).1 <= SPARE_TASKS + 1, "one more, beside the task that it replaces");
    assert!(cluster.state.tasks().any(|task| task.revision.number == 2), "the update has begun");
}

#[test]
fn room_depends_on_reservations_and_placement() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, reserving("big", MILLION, resources(0, 300)));
    assert_eq!(plan_all(&mut cluster, 1), (6, SPARE_TASKS));
    let mut few = spec("few", MILLION);
    few.placement.max_per_node = Some(4);
    cluster.service(2, few);
    assert_eq!(plan_all(&mut cluster, 2), (8, SPARE_TASKS));
    cluster.service(3, constrained("nowhere", MILLION, &["node.labels.zone==none"]));
    assert_eq!(plan_all(&mut cluster, 3), (0, SPARE_TASKS));
}

#[test]
fn service_that_fits_is_created_at_once() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 500));
    assert_eq!(cluster.reconcile(1).recheck_after, None);
    assert_eq!((cluster.state.task_count(), uncreated(&cluster)), (500, 0));
}

#[test]
fn replicas_above_the_limit_are_refused_unless_they_are_fewer_than_before() {
    let cluster = TestCluster::new();
    let check = |wanted, current| cluster.state.check_replicas(Some(wanted), current);
    assert_eq!((check(10_000, None), check(20_000, Some(20_000))), (Ok(()), Ok(())));
    assert_eq!(cluster.state.check_replicas(None, None), Ok(()));
    assert_eq!(check(MILLION + 1, None), Ok(()), "refused as a field, since --yes does not help");
    assert_eq!(
        check(MILLION, Some(3)).unwrap_err().to_string(),
        "1000000 replicas are more than 10000, the cluster's limit per service (max-replicas-per-service); \
         give fewer, confirm the number with --yes, or raise the limit with \
         `warren cluster update --max-replicas-per-service 1000000`"
    );
}

/// How many tasks of the service below fit on one node.
const FIT: u64 = 3;
const NODES: u128 = 4;

#[derive(Debug, Clone)]
enum Step {
    Scale(u32),
    Update(u8),
    SetDown(u128),
    Connect(u128),
    SetAvailability(u128, Availability),
    Wait,
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 1..=NODES;
    let replicas = prop::sample::select(vec![0, 1, 20, 150, 5_000, MILLION]);
    prop_oneof![
        2 => replicas.prop_map(Step::Scale),
        1 => (0..3u8).prop_map(Step::Update),
        1 => node().prop_map(Step::SetDown),
        1 => node().prop_map(Step::Connect),
        1 => (node(), prop::sample::select(&Availability::ALL[..])).prop_map(|(n, to)| Step::SetAvailability(n, to)),
        1 => Just(Step::Wait),
        4 => Just(Step::Settle),
    ]
}

fn run_step(cluster: &mut TestCluster, step: Step) {
    match step {
        Step::Scale(replicas) => cluster.scale(1, replicas),
        Step::Update(image) => drop(cluster.update_image(1, &format!("demo:{image}"))),
        Step::SetDown(node) => cluster.set_down(node),
        Step::Connect(node) => drop(cluster.connect(node)),
        Step::SetAvailability(node, availability) => cluster.availability(node, availability),
        Step::Wait => cluster.advance_time(std::time::Duration::from_secs(10)),
        Step::Settle => {
            cluster.settle();
            cluster.clean_up();
            cluster.reap(1);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: soak::count(12, 500) as u32, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever happens to nodes and to the number of replicas, a task without a node is one of those that fit
    /// on the empty nodes, one of the spare ones, or stands beside a placed task that it replaces.
    #[test]
    fn unplaced_tasks_stay_bounded(steps in prop::collection::vec(step(), 1..25)) {
        let mut cluster = TestCluster::with_nodes(NODES);
        cluster.service(1, reserving("big", MILLION, resources(0, 300)));
        let fits = FIT * NODES as u64;
        for step in steps {
            run_step(&mut cluster, step.clone());
            let unplaced = unplaced_tasks(&cluster.state, &service_id(1));
            prop_assert!(unplaced <= 2 * fits + SPARE_TASKS, "{unplaced} after {step:?}");
        }
        let service = cluster.state.service(&service_id(1)).unwrap().clone();
        plan_all(&mut cluster, 1);
        let live = cluster.live(1).into_iter().map(|(slot, _)| slot).collect::<std::collections::BTreeSet<_>>();
        let without = service.spec.replicas().unwrap() - u32::try_from(live.len()).unwrap();
        prop_assert_eq!(uncreated(&cluster), without, "what has no task is counted");
    }
}

//! Placement preferences: tasks are spread over the values of labels of nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use warren_types::*;

use crate::test_cluster::*;

/// Spreads its tasks over the values of these labels.
fn preferring(spec: ServiceSpec, labels: &[&str]) -> ServiceSpec {
    let preferences = labels.iter().map(|key| PlacementPreference::Spread((*key).to_owned())).collect();
    ServiceSpec { placement: Placement { preferences, ..spec.placement.clone() }, ..spec }
}

/// Nodes from 1 on, with these values of the labels `zone` and `rack`; an empty value is no label.
fn cluster(nodes: &[(&str, &str)]) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(nodes.len() as u128);
    for (number, (zone, rack)) in (1..).zip(nodes) {
        for (key, value) in
            [("zone", zone), ("rack", rack)].into_iter().filter(|(_, value)| !value.is_empty())
        {
            cluster.label(number, key, Some(value));
        }
    }
    cluster
}

/// The number of live tasks by node.
fn by_node(cluster: &TestCluster) -> Vec<usize> {
    let live = |node: &Node| cluster.state.tasks_on(&node.id).filter(|task| task.is_live()).count();
    cluster.state.nodes().map(|node| live(node)).collect()
}

#[test]
fn zones_have_equal_shares_whatever_their_number_of_nodes() {
    let mut cluster = cluster(&[("a", ""), ("a", ""), ("a", ""), ("b", ""), ("", "")]);
    cluster.service(1, preferring(spec("web", 9), &["zone"]));
    cluster.settle();
    assert_eq!(by_node(&cluster), [1, 1, 1, 3, 3]);
    // The preference alone makes no new tasks, and applies to later ones.
    cluster.update(1, spec("web", 9));
    cluster.scale(1, 12);
    cluster.settle();
    assert_eq!(by_node(&cluster), [2, 2, 2, 3, 3]);
    cluster.update(1, preferring(spec("web", 15), &["zone"]));
    cluster.settle();
    assert_eq!(by_node(&cluster), [2, 2, 2, 4, 5]);
}

#[test]
fn tasks_are_spread_over_labels_of_agents() {
    let mut cluster = TestCluster::new();
    for (number, rack) in [(1, "1"), (2, "1"), (3, "2")] {
        cluster.node(number, resources(4000, 8192));
        let mut description = description(resources(4000, 8192));
        description.labels.insert("rack".to_owned(), rack.to_owned());
        let (node, at) = (node_id(number), cluster.now);
        cluster.accept(warren_core::Command::OpenSession { node, description, manager: 1, at });
    }
    let preferences = vec!["spread=engine.labels.rack".parse().unwrap()];
    let placement = Placement { preferences, ..Placement::default() };
    cluster.service(1, ServiceSpec { placement, ..spec("web", 4) });
    cluster.settle();
    assert_eq!(by_node(&cluster), [1, 1, 2]);
}

#[test]
fn later_preference_applies_within_the_earlier_one() {
    let nodes = [("a", "1"), ("a", "1"), ("a", "2"), ("b", "1"), ("b", ""), ("b", "")];
    let mut both = cluster(&nodes);
    both.service(1, preferring(spec("web", 16), &["zone", "rack"]));
    both.settle();
    assert_eq!(by_node(&both), [2, 2, 4, 4, 2, 2]);
    let mut other = cluster(&nodes);
    other.service(1, preferring(spec("web", 12), &["rack", "zone"]));
    other.settle();
    assert_eq!(by_node(&other), [1, 1, 4, 2, 2, 2]);
}

#[test]
fn full_zone_gets_no_more_than_fits() {
    let mut cluster = cluster(&[("a", ""), ("b", ""), ("b", "")]);
    let mut spec = preferring(spec("web", 7), &["zone"]);
    spec.placement.max_per_node = Some(3);
    cluster.service(1, spec);
    cluster.settle();
    assert_eq!(by_node(&cluster), [3, 2, 2]);
    cluster.scale(1, 9);
    cluster.settle();
    assert_eq!(by_node(&cluster), [3, 3, 3]);
}

#[test]
fn node_to_avoid_outweighs_a_preference() {
    let mut cluster = cluster(&[("a", ""), ("b", ""), ("b", "")]);
    cluster.taint(1, &["old:PreferNoSchedule"], &[]);
    cluster.service(1, preferring(spec("web", 4), &["zone"]));
    cluster.settle();
    assert_eq!(by_node(&cluster), [0, 2, 2]);
}

#[test]
fn task_that_failed_in_a_zone_goes_to_another_one() {
    let mut cluster = cluster(&[("a", ""), ("b", ""), ("c", "")]);
    cluster.service(1, preferring(spec("web", 3), &["zone"]));
    cluster.settle();
    let failed = cluster.task(1, 1).node;
    cluster.observe(task_id(1, 1), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(5));
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.schedule();
    assert_ne!(cluster.task(1, 4).node, failed);
}

#[test]
fn update_keeps_the_zones_even() {
    let mut cluster = cluster(&[("a", ""), ("a", ""), ("b", "")]);
    cluster.service(1, preferring(spec("web", 8), &["zone"]));
    cluster.settle();
    assert_eq!(by_node(&cluster), [2, 2, 4]);
    cluster.update_image(1, "demo:2");
    for _ in 0..20 {
        cluster.settle();
        cluster.clean_up();
    }
    let mut live = cluster.state.tasks_of(&service_id(1)).filter(|task| task.is_live());
    assert!(live.all(|task| task.revision.number == 2));
    assert_eq!(by_node(&cluster), [2, 2, 4]);
}

/// The differences between the numbers of tasks of branches with the same parent are at most one.
fn assert_even(tasks: &BTreeMap<(Option<String>, Option<String>, u128), usize>) -> Result<(), TestCaseError> {
    let even = |counts: Vec<usize>| {
        let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
        prop_assert!(most <= least.map(|least| least + 1), "{tasks:?}");
        Ok(())
    };
    let mut zones: BTreeMap<_, usize> = BTreeMap::new();
    let mut racks: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    let mut nodes: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for ((zone, rack, _), count) in tasks {
        *zones.entry(zone).or_default() += count;
        *racks.entry(zone).or_default().entry(rack).or_default() += count;
        nodes.entry((zone, rack)).or_default().push(*count);
    }
    even(zones.into_values().collect())?;
    racks.into_values().try_for_each(|racks| even(racks.into_values().collect()))?;
    nodes.into_values().try_for_each(even)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_is_even(
        nodes in prop::collection::vec((0..4usize, 0..4usize), 1..12),
        steps in prop::collection::vec(1..20u32, 1..4),
    ) {
        let values = ["", "a", "b", "c"];
        let nodes: Vec<_> = nodes.into_iter().map(|(zone, rack)| (values[zone], values[rack])).collect();
        let mut cluster = cluster(&nodes);
        cluster.service(1, preferring(spec("web", 0), &["zone", "rack"]));
        let mut replicas = 0;
        for more in steps {
            replicas += more;
            cluster.scale(1, replicas);
            cluster.settle();
            let value = |node: &Node, key: &str| node.labels.get(key).cloned();
            let tasks = cluster.state.nodes().zip(by_node(&cluster));
            let tasks: BTreeMap<_, _> = tasks
                .map(|(node, tasks)| ((value(node, "zone"), value(node, "rack"), node.id.0.0), tasks))
                .collect();
            prop_assert_eq!(tasks.values().sum::<usize>(), replicas as usize);
            assert_even(&tasks)?;
        }
    }
}

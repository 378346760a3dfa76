//! Settings of the cluster.

use warren_core::*;
use warren_types::*;

use crate::test_cluster::*;

fn update(version: Option<u64>, task_history_limit: u32, at: Timestamp) -> Command {
    let change = ClusterSettingsChange { task_history_limit: Some(task_history_limit), ..Default::default() };
    Command::UpdateCluster { version, change, at }
}

fn version(cluster: &TestCluster) -> u64 {
    cluster.state.cluster().unwrap().version
}

#[test]
fn settings_are_compared_and_set() {
    let mut cluster = TestCluster::new();
    let (first, at) = (version(&cluster), cluster.now);
    cluster.accept(update(Some(first), 2, at));
    let second = version(&cluster);
    assert_eq!(second, cluster.state.applied().index);
    let settings = &cluster.state.cluster().unwrap().settings;
    assert_eq!(*settings, ClusterSettings { task_history_limit: 2, ..ClusterSettings::default() });

    let refused = cluster.refuse(update(Some(first), 3, at));
    let conflict = format!("is at version {second}, not {first}: it changed meanwhile");
    assert!(refused.contains(&conflict), "{refused}");
    // They are set already.
    assert!(matches!(cluster.apply(&update(Some(first), 2, at)), ApplyOutcome::Unchanged { .. }));
}

#[test]
fn value_out_of_range_is_refused_with_its_path() {
    let mut cluster = TestCluster::new();
    let refused = cluster.refuse(update(None, 101, cluster.now));
    assert_eq!(refused, "settings.taskHistoryLimit: 101 is out of range; give 0 to 100");
}

#[test]
fn admission_policy_is_compared_set_and_validated() {
    let mut cluster = TestCluster::new();
    let (first, at) = (version(&cluster), cluster.now);
    let set = |version, host_binds: &[&str]| {
        let host_binds = host_binds.iter().copied().map(str::to_owned).collect();
        let operator = AdmissionRules { host_binds, ..Default::default() };
        let admission_policy = Some(AdmissionPolicy { operator });
        let change = ClusterSettingsChange { admission_policy, ..Default::default() };
        Command::UpdateCluster { version, change, at }
    };
    cluster.accept(set(Some(first), &["/srv"]));
    let conflict = cluster.refuse(set(Some(first), &["/opt"]));
    assert!(conflict.contains("it changed meanwhile"), "{conflict}");
    let refused = cluster.refuse(set(None, &["srv"]));
    assert!(
        refused.starts_with("settings.admissionPolicy.operator.hostBinds[0]: \"srv\" is not"),
        "{refused}"
    );
    // Other settings keep it, and a policy is replaced as a whole.
    cluster.accept(update(None, 2, at));
    let policy = |cluster: &TestCluster| cluster.state.cluster().unwrap().settings.admission_policy.clone();
    assert_eq!(policy(&cluster).operator.host_binds, ["/srv"]);
    cluster.accept(set(None, &[]));
    assert_eq!(policy(&cluster), AdmissionPolicy::default());
}

#[test]
fn task_history_limit_is_the_number_of_ended_tasks_per_slot() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.accept(update(None, 1, cluster.now));
    for number in 1..=4 {
        cluster.settle();
        cluster.observe(task_id(1, number), TaskState::Failed);
        cluster.advance_time(std::time::Duration::from_secs(1000));
    }
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    let ended: Vec<u64> =
        cluster.state.tasks().filter(|task| !task.is_live()).map(|task| task.id.number).collect();
    assert_eq!(ended, [4]);
}

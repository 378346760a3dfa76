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
        let admission_policy = Some(AdmissionPolicy { operator, ..Default::default() });
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

fn set_default(cluster: &mut TestCluster, namespace: UserNamespace) {
    let change = ClusterSettingsChange { default_user_namespace: Some(namespace), ..Default::default() };
    cluster.accept(Command::UpdateCluster { version: None, change, at: cluster.now });
}

#[track_caller]
fn check_namespace(cluster: &TestCluster, revision: u64, expected: UserNamespace) {
    let current = &cluster.state.service(&service_id(1)).unwrap().revision;
    assert_eq!((current.number, current.user_namespace), (revision, expected));
}

#[test]
fn services_take_the_default_user_namespace_when_their_task_changes() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    set_default(&mut cluster, UserNamespace::Private);
    check_namespace(&cluster, 1, UserNamespace::Host);
    let mut labelled = spec("web", 1);
    labelled.labels = [("tier".into(), "front".into())].into();
    cluster.update(1, labelled.clone());
    check_namespace(&cluster, 1, UserNamespace::Host);
    labelled.task.env = vec![EnvVar { name: "A".into(), value: "b".into() }];
    cluster.update(1, labelled.clone());
    check_namespace(&cluster, 2, UserNamespace::Private);
    cluster.settle();
    let assignment = cluster.state.assignment(&node_id(1)).unwrap();
    let asked = assignment.tasks.last().unwrap().spec.user_namespace;
    assert_eq!(asked, Some(UserNamespace::Private), "workers do not know the default");
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().spec.task.user_namespace, None);

    set_default(&mut cluster, UserNamespace::Host);
    let (id, version, at) = (service_id(1), Some(cluster.version(1)), cluster.now);
    let forced = Command::UpdateService { id, version, spec: labelled.clone(), force: true, at };
    cluster.accept(forced);
    check_namespace(&cluster, 3, UserNamespace::Host);
    labelled.task.user_namespace = Some(UserNamespace::Private);
    cluster.update(1, labelled);
    check_namespace(&cluster, 4, UserNamespace::Private);
    cluster.rollback(1, Some(1));
    check_namespace(&cluster, 5, UserNamespace::Host);
}

#[test]
fn services_take_the_default_of_privileges_when_their_task_changes() {
    let set_default = |cluster: &mut TestCluster, is_on| {
        let change = ClusterSettingsChange { no_new_privileges: Some(is_on), ..Default::default() };
        cluster.accept(Command::UpdateCluster { version: None, change, at: cluster.now });
    };
    let check = |cluster: &TestCluster, revision: u64, expected: NoNewPrivileges| {
        let current = &cluster.state.service(&service_id(1)).unwrap().revision;
        assert_eq!(current.number, revision);
        assert_eq!(current.assigned_task().no_new_privileges, expected);
        cluster.state.check().unwrap();
    };
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    set_default(&mut cluster, true);
    check(&cluster, 1, NoNewPrivileges::Default);
    let mut labelled = spec("web", 1);
    labelled.labels = [("tier".into(), "front".into())].into();
    cluster.update(1, labelled.clone());
    check(&cluster, 1, NoNewPrivileges::Default);
    labelled.task.env = vec![EnvVar { name: "A".into(), value: "b".into() }];
    cluster.update(1, labelled.clone());
    check(&cluster, 2, NoNewPrivileges::On);
    let kept = cluster.state.service(&service_id(1)).unwrap().spec.task.no_new_privileges;
    assert_eq!(kept, NoNewPrivileges::Default);
    labelled.task.no_new_privileges = NoNewPrivileges::Off;
    cluster.update(1, labelled.clone());
    check(&cluster, 3, NoNewPrivileges::Off);
    set_default(&mut cluster, false);
    labelled.task.no_new_privileges = NoNewPrivileges::On;
    cluster.update(1, labelled);
    check(&cluster, 4, NoNewPrivileges::On);
    cluster.rollback(1, Some(2));
    check(&cluster, 5, NoNewPrivileges::On);
    cluster.rollback(1, Some(1));
    check(&cluster, 6, NoNewPrivileges::Default);
}

#[test]
fn services_with_earlier_defaults_are_known() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut own = spec("own", 1);
    own.task.user_namespace = Some(UserNamespace::Host);
    own.task.no_new_privileges = NoNewPrivileges::Off;
    cluster.service(1, spec("web", 1));
    cluster.service(2, own);
    let found = |cluster: &TestCluster, service: u128| -> Vec<&'static str> {
        let service = cluster.state.service(&service_id(service)).unwrap().clone();
        cluster.state.earlier_defaults(&service).into_iter().collect()
    };
    let force = |cluster: &mut TestCluster| {
        let (id, version, at) = (service_id(1), Some(cluster.version(1)), cluster.now);
        cluster.accept(Command::UpdateService { id, version, spec: spec("web", 1), force: true, at });
    };
    assert_eq!((found(&cluster, 1), found(&cluster, 2)), (vec![], vec![]));
    set_default(&mut cluster, UserNamespace::Private);
    assert_eq!(found(&cluster, 1), ["userNamespace"]);
    let change = ClusterSettingsChange { no_new_privileges: Some(true), ..Default::default() };
    cluster.accept(Command::UpdateCluster { version: None, change, at: cluster.now });
    assert_eq!(found(&cluster, 1), ["noNewPrivileges", "userNamespace"]);
    assert_eq!(found(&cluster, 2), [""; 0], "it says itself what it has");
    force(&mut cluster);
    assert_eq!(found(&cluster, 1), [""; 0]);
    // An earlier revision counts as long as tasks have it.
    cluster.settle();
    let change = ClusterSettingsChange { no_new_privileges: Some(false), ..Default::default() };
    cluster.accept(Command::UpdateCluster { version: None, change, at: cluster.now });
    force(&mut cluster);
    assert_eq!(found(&cluster, 1), ["noNewPrivileges"]);
    for _ in 0..5 {
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(found(&cluster, 1), [""; 0]);
}

#[test]
fn private_default_is_refused_for_what_cannot_have_it() {
    let mut cluster = TestCluster::with_nodes(1);
    set_default(&mut cluster, UserNamespace::Private);
    let mut spec = spec("web", 1);
    spec.task.privileged = true;
    let create =
        |spec: &ServiceSpec, at| Command::CreateService { id: service_id(1), spec: spec.clone(), at };
    let refused = cluster.refuse(create(&spec, cluster.now));
    assert!(
        refused.starts_with("spec.task.userNamespace: the default of the cluster is private"),
        "{refused}"
    );
    spec.task.user_namespace = Some(UserNamespace::Host);
    cluster.accept(create(&spec, cluster.now));
    check_namespace(&cluster, 1, UserNamespace::Host);
}

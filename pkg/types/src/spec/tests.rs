use super::*;
use crate::{Bytes, MilliCpu, Resources};

fn spec() -> ServiceSpec {
    ServiceSpec {
        mode: ServiceMode::Replicated { replicas: 2 },
        ..ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx:1.27".parse().unwrap()))
    }
}

fn port(host_ip: Option<Ipv4Addr>, host_port: u16) -> PublishedPort {
    let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
    PublishedPort {
        host_ip,
        host_port,
        container_port: 80,
        protocol,
        mode,
        prefer_local: false,
        client_affinity: false,
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut ServiceSpec), expected: &[&str]) {
    let mut spec = spec();
    change(&mut spec);
    let found: Vec<String> = spec.validate().0.into_iter().map(|v| v.path).collect();
    assert_eq!(found, expected);
}

/// The violations of the changed spec as text.
fn check_one(change: impl FnOnce(&mut ServiceSpec)) -> String {
    let mut spec = spec();
    change(&mut spec);
    spec.validate().to_string()
}

#[test]
fn violation_names_field_path() {
    check(|_| (), &[]);
    check(|s| s.mode = ServiceMode::Replicated { replicas: MAX_REPLICAS + 1 }, &["mode.replicated.replicas"]);
    check(|s| s.task.limits.memory = Some(Bytes(1 << 20)), &["task.limits.memory"]);
    check(|s| s.task.limits.cpu = Some(MilliCpu(1)), &["task.limits.cpu"]);
    check(|s| s.task.command = Some(vec![]), &["task.command"]);
    check(|s| s.task.args = Some(vec!["a\0".into()]), &["task.args"]);
    check(|s| s.ports = vec![port(None, 0)], &[]);
    check(|s| s.ports = vec![port(None, 0), port(None, 0)], &["ports[1].hostPort"]);
    let var = |name: &str| EnvVar { name: name.into(), value: "v".into() };
    check(|s| s.task.env = vec![var("A"), var("A=B"), var("A")], &["task.env[1].name", "task.env[2].name"]);
    let long = EnvVar { name: "A".into(), value: "v".repeat(MAX_TASK_JSON_SIZE) };
    check(|s| s.task.env = vec![long], &["task.env"]);
    let volume = |number: usize| {
        let name = format!("{number:0>64}");
        let source = MountSource::Volume { name, subpath: None, no_copy: false };
        Mount { target: format!("/{number}"), source, read_only: false }
    };
    check(|s| s.task.mounts = (0..40).map(volume).collect(), &[]);
    check(|s| s.task.mounts = (0..64).map(volume).collect(), &["task.env"]);
    check(|s| s.labels = BTreeMap::from([(String::new(), String::new())]), &["labels[\"\"]"]);
    let container_label =
        |key: &str, value: String| BTreeMap::from([(key.to_owned(), value), ("tier".into(), "db".into())]);
    check(|s| s.task.container_labels = container_label("a.b/c", "v".repeat(1024)), &[]);
    for (key, value) in [
        ("warren.task", String::new()),
        ("warren/cluster", String::new()),
        ("containerd.io/restart.status", "running".to_owned()),
        ("a b", String::new()),
        ("long", "v".repeat(1025)),
    ] {
        let path = format!("task.containerLabels[{key:?}]");
        check(|s| s.task.container_labels = container_label(key, value), &[&path]);
    }
    let many = (0..=MAX_LABELS).map(|number| (format!("l{number}"), String::new())).collect();
    check(|s| s.task.container_labels = many, &["task.containerLabels"]);
    let hooks = |words: &[&str], count| {
        vec![LifecycleHook::new(words.iter().map(|word| (*word).to_owned()).collect()); count]
    };
    check(|s| s.task.post_start = hooks(&["a", ""], MAX_HOOKS), &[]);
    check(|s| s.task.pre_stop = hooks(&["a"], MAX_HOOKS + 1), &["task.preStop"]);
    check(|s| s.task.post_start = hooks(&[], 1), &["task.postStart[0].command"]);
    check(|s| s.task.post_start = hooks(&["a\0"], 1), &["task.postStart[0].command"]);
    check(
        |s| {
            let (workdir, user) = (Some("x".to_owned()), Some("a b".to_owned()));
            s.task.pre_stop = vec![LifecycleHook { workdir, user, ..hooks(&["a"], 1).remove(0) }];
        },
        &["task.preStop[0].workdir", "task.preStop[0].user"],
    );
    let soon = OnDisconnect::StopAfter(Duration::from_secs(1));
    check(|s| s.task.on_disconnect = soon, &["task.onDisconnect.stopAfter"]);
    let tolerations = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    check(|s| s.placement.tolerations = tolerations(&["*", "a", "a=b", "a:NoExecute"]), &[]);
    check(|s| s.placement.tolerations = tolerations(&["a", "*", "a"]), &["placement.tolerations[2]"]);
    let many = |most| (0..most).map(|number| format!("k{number}").parse().unwrap()).collect();
    check(|s| s.placement.tolerations = many(64), &[]);
    check(|s| s.placement.tolerations = many(65), &["placement.tolerations"]);
    let spread =
        |labels: &[&str]| labels.iter().map(|key| PlacementPreference::Spread((*key).into())).collect();
    check(|s| s.placement.preferences = spread(&["zone", "rack"]), &[]);
    check(|s| s.placement.preferences = spread(&["a", "b", "a"]), &["placement.preferences[2]"]);
    let labels = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    check(|s| s.placement.preferences = spread(&labels[..MAX_PREFERENCES]), &[]);
    check(|s| s.placement.preferences = spread(&labels), &["placement.preferences"]);
    check(
        |s| (s.mode, s.placement.preferences) = (ServiceMode::Global, spread(&["a"])),
        &["placement.preferences"],
    );
    check(|s| s.replace_after = MAX_DISCONNECT_TIME, &[]);
    check(|s| s.replace_after = MAX_DISCONNECT_TIME * 2, &["replaceAfter"]);
    check(|s| (s.mode, s.replace_after) = (ServiceMode::Global, MAX_DISCONNECT_TIME), &["replaceAfter"]);
}

#[test]
fn invalid_update_policy_is_refused() {
    check(|s| s.update.delay = MAX_UPDATE_PERIOD * 2, &["update.delay"]);
    check(|s| s.rollback.monitor = MAX_UPDATE_PERIOD * 2, &["rollback.monitor"]);
    check(|s| s.update.parallelism = Parallelism::Percent(0), &["update.parallelism"]);
    check(|s| s.update.failure_ratio = FailureRatio(1001), &["update.failureRatio"]);
    check(|s| s.update.on_failure = Some(FailureAction::Rollback), &[]);
    check(|s| s.rollback.on_failure = Some(FailureAction::Rollback), &["rollback.onFailure"]);
    let source = MountSource::Volume { name: "data".into(), subpath: None, no_copy: false };
    let mount = |read_only| Mount { target: "/data".into(), source: source.clone(), read_only };
    let order = |order| move |s: &mut ServiceSpec| s.update.order = Some(order);
    check(|s| (s.task.mounts = vec![mount(true)], order(UpdateOrder::StartFirst)(s)).1, &[]);
    check(|s| (s.task.mounts = vec![mount(false)], order(UpdateOrder::StopFirst)(s)).1, &[]);
    check(|s| (s.task.mounts = vec![mount(false)], order(UpdateOrder::StartFirst)(s)).1, &["update.order"]);
}

#[test]
fn what_no_node_can_run_is_refused_with_its_field() {
    let image = |text: &str| check_one(|s| s.task.image = text.parse().unwrap());
    assert_eq!(
        image("UPPER/Bad:::tag"),
        "task.image: \"UPPER/Bad:::tag\" is not an image reference: its path must be lower case; expected \
         [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]"
    );
    let sysctl = |key: &str| check_one(|s| s.task.sysctls = [(key.to_owned(), "1".to_owned())].into());
    assert_eq!(
        sysctl("vm.swappiness"),
        "task.sysctls[\"vm.swappiness\"]: vm.swappiness applies to the whole machine, not to a container; \
         set it on the node"
    );
    let mount = |target: &str| {
        let source = MountSource::Tmpfs { size: None, mode: None, exec: false };
        let mount = Mount { target: target.into(), source, read_only: false };
        check_one(|s| s.task.mounts = vec![mount])
    };
    for (target, expected) in [
        ("/", "is not an absolute path below /"),
        ("/proc/", "/proc is reserved"),
        ("//proc", "/proc is reserved"),
        ("/proc/sys/x", "is in /proc"),
        ("/sys", "/sys is reserved for the container; mount below it"),
        ("/dev", "/dev is reserved for the container; mount below it"),
    ] {
        let found = mount(target);
        assert!(found.starts_with("task.mounts[0].target: ") && found.contains(expected), "{found}");
    }
    for target in ["/proc/cpuinfo", "/dev/shm", "/sys/fs/cgroup", "/etc", "/process"] {
        assert_eq!(mount(target), "", "{target}");
    }
    let config = |target: Option<&str>, name: &str| {
        let mut config = SecretObjectMount::new(name.parse().unwrap());
        config.target = target.map(ToOwned::to_owned);
        check_one(|s| s.task.configs = vec![config])
    };
    let directory = "task.configs[0].target: /etc is a directory of every usual image; give the path of a file, \
                     like /etc/";
    assert_eq!(config(Some("/etc"), "web"), format!("{directory}web"));
    assert_eq!(config(None, "etc"), format!("{directory}etc"), "the target of a config without one is /NAME");
    assert_eq!((config(Some("/etc/web"), "web"), config(None, "web")), (String::new(), String::new()));
}

proptest::proptest! {
    #[test]
    fn json_keeps_every_field(spec in crate::strategies::service_specs()) {
        let json = serde_json::to_string(&spec).unwrap();
        proptest::prop_assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
    }
}

#[test]
fn reservation_above_limit_is_refused() {
    let reserve = Resources { cpu: MilliCpu(600), memory: Bytes(64 << 20) };
    check(|s| s.task.reservations = reserve, &[]);
    let limits = Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(32 << 20)), pids: None };
    let expected = ["task.reservations.cpu", "task.reservations.memory"];
    check(|s| (s.task.reservations, s.task.limits) = (reserve, limits), &expected);
}

#[test]
fn same_host_port_conflicts_unless_addresses_differ() {
    let (one, two) = (Some(Ipv4Addr::new(10, 0, 0, 1)), Some(Ipv4Addr::new(10, 0, 0, 2)));
    check(|s| s.ports = vec![port(one, 80), port(two, 80), port(None, 81)], &[]);
    check(|s| s.ports = vec![port(one, 80), port(one, 80)], &["ports[1].hostPort"]);
    check(|s| s.ports = vec![port(one, 80), port(None, 80)], &["ports[1].hostPort"]);
}

use std::time::Duration;

use warren_types::spec::DeviceAccess;
use warren_types::*;

use super::{check, task_spec};

fn mount(change: fn(&mut Mount)) -> Vec<Mount> {
    let source = MountSource::Bind { path: "/a".into(), propagation: Propagation::Private, recursive: false };
    let mut mount = Mount { target: "/t".into(), source, read_only: false };
    change(&mut mount);
    vec![mount]
}

fn bind(path: &str, propagation: Propagation, recursive: bool) -> MountSource {
    MountSource::Bind { path: path.into(), propagation, recursive }
}

fn tmpfs(size: Option<u64>, mode: Option<u32>, exec: bool) -> MountSource {
    MountSource::Tmpfs { size: size.map(Bytes), mode, exec }
}

fn device(source: &str, target: &str, read: bool) -> Vec<Device> {
    let access = DeviceAccess { read, write: true, mknod: false };
    vec![Device { source: source.into(), target: target.into(), access }]
}

fn volume(name: &str, subpath: Option<&str>, no_copy: bool) -> MountSource {
    MountSource::Volume { name: name.into(), subpath: subpath.map(Into::into), no_copy }
}

fn content(change: fn(&mut ContentMount)) -> Vec<ContentMount> {
    let mut mount = ContentMount::new("key".parse().unwrap());
    change(&mut mount);
    vec![mount]
}

fn health(probe: Probe, change: fn(&mut HealthCheck)) -> Option<HealthCheck> {
    let mut check = HealthCheck::new(probe);
    change(&mut check);
    Some(check)
}

fn http(port: u16, path: &str, headers: &[(&str, &str)]) -> Probe {
    let header = |(name, value): &(&str, &str)| HttpHeader { name: (*name).into(), value: (*value).into() };
    Probe::Http { port, path: path.into(), headers: headers.iter().map(header).collect() }
}

fn exec(words: &[&str]) -> Probe {
    Probe::Exec { command: words.iter().map(|word| (*word).into()).collect() }
}

fn ulimit(name: &str, soft: Option<u64>, hard: Option<u64>) -> Vec<Ulimit> {
    vec![Ulimit { name: name.parse().unwrap(), soft, hard }]
}

#[test]
fn every_field_of_what_a_task_runs_counts() {
    let changes: &[fn(&mut TaskSpec)] = &[
        |t| t.image = "web:2".parse().unwrap(),
        |t| t.command = Some(vec![]),
        |t| t.command = Some(vec!["a".into(), "b".into()]),
        |t| t.command = Some(vec!["ab".into()]),
        |t| t.args = Some(vec![]),
        |t| t.args = Some(vec!["ab".into()]),
        |t| t.env = vec![EnvVar { name: "a".into(), value: "b".into() }],
        |t| t.env = vec![EnvVar { name: "ab".into(), value: String::new() }],
        |t| t.limits.cpu = Some(MilliCpu(0)),
        |t| t.limits.cpu = Some(MilliCpu(5)),
        |t| t.limits.memory = Some(Bytes(0)),
        |t| t.limits.memory = Some(Bytes(5)),
        |t| t.reservations.cpu = MilliCpu(5),
        |t| t.reservations.memory = Bytes(5),
        |t| t.stop_grace = Duration::from_secs(1),
        |t| t.stop_grace = Duration::from_millis(1),
        |t| t.on_disconnect = OnDisconnect::StopAfter(Duration::ZERO),
        |t| t.on_disconnect = OnDisconnect::StopAfter(Duration::from_secs(1)),
        |t| t.on_disconnect = OnDisconnect::StopAfter(Duration::from_millis(1)),
        |t| t.pull = PullPolicy::Always,
        |t| t.pull = PullPolicy::Never,
        |t| t.workdir = Some(String::new()),
        |t| t.workdir = Some("/w".into()),
        |t| t.user = Some(String::new()),
        |t| t.user = Some("/w".into()),
        |t| t.groups = vec!["a".into(), "b".into()],
        |t| t.hostname = Some(String::new()),
        |t| t.hostname = Some("/w".into()),
        |t| t.hosts = vec![HostEntry { name: "a".into(), address: [10, 0, 0, 1].into() }],
        |t| t.hosts = vec![HostEntry { name: "a".into(), address: [10, 0, 0, 2].into() }],
        |t| t.tty = true,
        |t| t.init = true,
        |t| t.stop_signal = Some(Signal::TERM),
        |t| t.limits.pids = Some(0),
        |t| t.limits.pids = Some(5),
        |t| t.ulimits = ulimit("core", None, None),
        |t| t.ulimits = ulimit("core", Some(0), None),
        |t| t.ulimits = ulimit("core", None, Some(0)),
        |t| t.ulimits = ulimit("core", Some(0), Some(1)),
        |t| t.ulimits = ulimit("nproc", None, None),
        |t| t.sysctls = [("a".into(), "b".into())].into(),
        |t| t.shm_size = Some(Bytes(0)),
        |t| t.shm_size = Some(Bytes(5)),
        |t| t.oom_score_adj = Some(0),
        |t| t.oom_score_adj = Some(-5),
        |t| t.privileged = true,
        |t| t.cap_add = vec!["NET_ADMIN".parse().unwrap()],
        |t| t.cap_drop = vec!["NET_ADMIN".parse().unwrap()],
        |t| t.no_new_privileges = true,
        |t| t.seccomp = Seccomp::Unconfined,
        |t| t.devices = device("/a", "/b", true),
        |t| t.devices = device("/b", "/a", true),
        |t| t.devices = device("/a", "/b", false),
        |t| t.read_only = true,
        |t| t.mounts = mount(|_| ()),
        |t| t.mounts = mount(|m| m.target = "/u".into()),
        |t| t.mounts = mount(|m| m.read_only = true),
        |t| t.mounts = mount(|m| m.source = bind("/b", Propagation::Private, false)),
        |t| t.mounts = mount(|m| m.source = bind("/a", Propagation::Slave, false)),
        |t| t.mounts = mount(|m| m.source = bind("/a", Propagation::Shared, false)),
        |t| t.mounts = mount(|m| m.source = bind("/a", Propagation::Private, true)),
        |t| t.mounts = mount(|m| m.source = tmpfs(None, None, false)),
        |t| t.mounts = mount(|m| m.source = tmpfs(Some(0), None, false)),
        |t| t.mounts = mount(|m| m.source = tmpfs(None, Some(0), false)),
        |t| t.mounts = mount(|m| m.source = tmpfs(Some(4096), Some(0o700), false)),
        |t| t.mounts = mount(|m| m.source = tmpfs(None, None, true)),
        |t| t.mounts = mount(|m| m.source = volume("/a", None, false)),
        |t| t.mounts = mount(|m| m.source = volume("/b", None, false)),
        |t| t.mounts = mount(|m| m.source = volume("/a", Some(""), false)),
        |t| t.mounts = mount(|m| m.source = volume("/a", Some("b"), false)),
        |t| t.mounts = mount(|m| m.source = volume("/a", None, true)),
        |t| t.restart.condition = RestartCondition::OnFailure,
        |t| t.restart.condition = RestartCondition::None,
        |t| t.restart.delay = Duration::from_secs(2),
        |t| t.restart.delay = Duration::from_millis(2),
        |t| t.restart.max = 4,
        |t| t.restart.window = Duration::from_secs(2),
        |t| t.restart.window = Duration::from_millis(2),
        |t| t.logs.max_size = Bytes(5),
        |t| t.logs.max_files = 50,
    ];
    check(task_spec, &TaskSpec::new("web:1".parse().unwrap()), changes);
}

#[test]
fn every_field_of_contents_and_checks_counts() {
    let changes: &[fn(&mut TaskSpec)] = &[
        |t| t.secrets = content(|_| ()),
        |t| t.configs = content(|_| ()),
        |t| (t.secrets, t.configs) = (content(|_| ()), content(|_| ())),
        |t| t.secrets = content(|c| c.source = "k".parse().unwrap()),
        |t| t.secrets = content(|c| c.target = Some(String::new())),
        |t| t.secrets = content(|c| c.target = Some("/a".into())),
        |t| t.secrets = content(|c| c.uid = Some(0)),
        |t| t.secrets = content(|c| c.uid = Some(1)),
        |t| t.secrets = content(|c| c.gid = Some(0)),
        |t| t.secrets = content(|c| c.gid = Some(1)),
        |t| t.secrets = content(|c| c.mode = Some(0)),
        |t| t.secrets = content(|c| c.mode = Some(1)),
        |t| t.secrets = content(|c| c.template = true),
        |t| t.health = health(Probe::Tcp { port: 80 }, |_| ()),
        |t| t.health = health(Probe::Tcp { port: 81 }, |_| ()),
        |t| t.health = health(Probe::Tcp { port: 80 }, |c| c.interval *= 2),
        |t| t.health = health(Probe::Tcp { port: 80 }, |c| c.timeout *= 2),
        |t| t.health = health(Probe::Tcp { port: 80 }, |c| c.retries = 9),
        |t| t.health = health(Probe::Tcp { port: 80 }, |c| c.start_period = Duration::from_secs(2)),
        |t| t.health = health(Probe::Tcp { port: 80 }, |c| c.start_interval = Duration::from_nanos(2)),
        |t| t.health = health(http(80, "/", &[]), |_| ()),
        |t| t.health = health(http(81, "/", &[]), |_| ()),
        |t| t.health = health(http(80, "/a", &[]), |_| ()),
        |t| t.health = health(http(80, "/", &[("a", "b")]), |_| ()),
        |t| t.health = health(http(80, "/", &[("a", "c")]), |_| ()),
        |t| t.health = health(exec(&["a"]), |_| ()),
        |t| t.health = health(exec(&["a", "b"]), |_| ()),
    ];
    check(task_spec, &TaskSpec::new("web:1".parse().unwrap()), changes);
}

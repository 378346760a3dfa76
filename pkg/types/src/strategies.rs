//! Proptest strategies for valid specs in which every field varies, and one in which every field is set. Only for tests
//! (feature `strategies`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::spec::{
    MAX_DISCONNECT_TIME, MAX_RESTART_DELAY, MAX_RESTART_WINDOW, MAX_RESTARTS, MAX_STOP_GRACE,
    MAX_UPDATE_PERIOD, MIN_HEALTH_INTERVAL, MIN_HEALTH_TIMEOUT, MIN_RESTART_DELAY, MIN_STOP_AFTER,
};
use crate::{
    AppArmor, Bytes, Capability, Catalogue, CatalogueService, Device, DeviceAccess, DnsLabel, DnsSettings,
    Endpoint, EndpointMode, EnvVar, FailureAction, FailureRatio, HealthCheck, HostEntry, HttpHeader, Id,
    ImageResolver, LifecycleHook, Limits, LogLimits, MilliCpu, Mount, MountSource, NetworkAttachment,
    NetworkId, NoNewPrivileges, OnDisconnect, Parallelism, Placement, PlacementPreference, Probe,
    Propagation, Protocol, PublishMode, PublishedPort, PullPolicy, Resources, RestartCondition,
    RestartPolicy, Seccomp, SecretObjectMount, ServiceMode, ServiceName, ServicePort, ServiceSpec, Signal,
    TaintSelector, TaskNetworkMode, TaskSpec, Ulimit, UlimitName, UpdateOrder, UpdatePolicy, UserNamespace,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn paths() -> impl Strategy<Value = String> {
    "(/[a-z:,\\\\= ]{1,4}[a-z]){1,2}"
}

fn names() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,8}"
}

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map("[a-zA-Z0-9._/-]{1,8}", ".{0,8}", 0..4)
}

fn between(from: Duration, to: Duration) -> impl Strategy<Value = Duration> {
    (from.as_millis() as u64..=to.as_millis() as u64).prop_map(Duration::from_millis)
}

fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    let bind = (paths(), select(Propagation::ALL.to_vec()), any::<bool>())
        .prop_map(|(path, propagation, recursive)| MountSource::Bind { path, propagation, recursive });
    let tmpfs = (option::of(4096..1u64 << 50), option::of(0..=0o7777u32), any::<bool>())
        .prop_map(|(size, mode, exec)| MountSource::Tmpfs { size: size.map(Bytes), mode, exec });
    let name = prop_oneof!["[a-zA-Z0-9]([a-z._-]{0,4}[a-z])?", Just("data-{{.Task.Slot}}".to_owned())];
    let subpath = option::of("[a-z:,=\\\\]{1,4}(/[a-z:,]{1,3})?");
    let volume = (name, subpath, any::<bool>()).prop_map(|(name, subpath, no_copy)| MountSource::Volume {
        name,
        subpath,
        no_copy,
    });
    let mount = (prop_oneof![bind, tmpfs, volume], any::<bool>());
    btree_map(paths(), mount, 0..4).prop_map(|mounts| {
        let mount = |(target, (source, read_only))| Mount { target, source, read_only };
        mounts.into_iter().map(mount).collect()
    })
}

/// Each has its own target, below `dir` if not at its default.
fn secret_object_mounts(dir: &'static str) -> impl Strategy<Value = Vec<SecretObjectMount>> {
    let owner = (option::of(any::<u32>()), option::of(any::<u32>()), option::of(0..=0o777u32));
    let one = ("[a-z]([a-z._:-]{0,4}[a-z])?", option::of(paths()), owner, any::<bool>());
    vec(one, 0..4).prop_map(move |all| {
        let mount =
            |(i, (name, target, (uid, gid, mode), template)): (usize, (String, Option<String>, _, _))| {
                // No other mount has a digit, and no name one after a punctuation mark.
                let source = format!("{name}{i}").parse().unwrap();
                let target = target.map(|path| format!("/{dir}-{i}{path}"));
                SecretObjectMount { source, target, uid, gid, mode, template }
            };
        all.into_iter().enumerate().map(mount).collect()
    })
}

fn health_checks() -> impl Strategy<Value = HealthCheck> {
    let header =
        ("x-[a-z]{1,4}", "([!-~]([ -~]{0,4}[!-~])?)?").prop_map(|(name, value)| HttpHeader { name, value });
    let http = (1..=u16::MAX, "/[a-z0-9:/?=&%.]{0,8}", vec(header, 0..3))
        .prop_map(|(port, path, headers)| Probe::Http { port, path, headers });
    let shell = "[a-z][^\0]{0,8}".prop_map(|words| Probe::Exec {
        command: ["/bin/sh", "-c", words.as_str()].map(str::to_owned).to_vec(),
    });
    let exec = ("[^\0]{1,8}", vec("[^\0]{0,8}", 0..3)).prop_map(|(first, rest)| {
        let command = std::iter::once(first).chain(rest).collect();
        Probe::Exec { command }
    });
    let tcp = (1..=u16::MAX).prop_map(|port| Probe::Tcp { port });
    let day = Duration::from_secs(24 * 3600);
    let interval = || between(MIN_HEALTH_INTERVAL, day);
    let timeout = between(MIN_HEALTH_TIMEOUT, day);
    let times = (interval(), timeout, 1..=100u32, between(Duration::ZERO, day), interval());
    (prop_oneof![http, tcp, shell, exec], times).prop_map(|(probe, times)| {
        let (interval, timeout, retries, start_period, start_interval) = times;
        HealthCheck { probe, interval, timeout, retries, start_period, start_interval }
    })
}

fn devices() -> impl Strategy<Value = Vec<Device>> {
    let access = (1..8u8).prop_map(|bits| DeviceAccess {
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        mknod: bits & 4 != 0,
    });
    vec(
        (paths(), paths(), access).prop_map(|(source, target, access)| Device { source, target, access }),
        0..3,
    )
}

fn ulimits() -> impl Strategy<Value = Vec<Ulimit>> {
    let ulimit = |name: &'static str| {
        any::<(Option<u64>, Option<u64>)>().prop_map(move |(one, other)| {
            let greatest = |bound: &Option<u64>| bound.unwrap_or(u64::MAX);
            let (soft, hard) = if greatest(&one) > greatest(&other) { (other, one) } else { (one, other) };
            Ulimit { name: name.parse().unwrap(), soft, hard }
        })
    };
    let names = subsequence(UlimitName::names().to_vec(), 0..3);
    names.prop_flat_map(move |names| names.into_iter().map(ulimit).collect::<Vec<_>>())
}

fn capabilities() -> impl Strategy<Value = Vec<Capability>> {
    vec(select(Capability::names().to_vec()).prop_map(|name| name.parse().unwrap()), 0..3)
}

fn restarts() -> impl Strategy<Value = RestartPolicy> {
    let delay = between(MIN_RESTART_DELAY, MAX_RESTART_DELAY);
    let window = between(Duration::from_secs(1), MAX_RESTART_WINDOW);
    (select(RestartCondition::ALL.to_vec()), delay, 0..=MAX_RESTARTS, window)
        .prop_map(|(condition, delay, max, window)| RestartPolicy { condition, delay, max, window })
}

/// Limits, and reservations that do not exceed them.
fn limits_and_reservations() -> impl Strategy<Value = (Limits, Resources)> {
    let limits = (option::of(10..1u64 << 20), option::of(6u64 << 20..1 << 40), option::of(1..=u32::MAX));
    (limits, 0..1u64 << 21, 0..1u64 << 41).prop_map(|((cpu, memory, pids), reserved_cpu, reserved_memory)| {
        let cpu_reserved = MilliCpu(cpu.map_or(reserved_cpu, |limit| reserved_cpu.min(limit)));
        let memory_reserved = Bytes(memory.map_or(reserved_memory, |limit| reserved_memory.min(limit)));
        let limits = Limits { cpu: cpu.map(MilliCpu), memory: memory.map(Bytes), pids };
        (limits, Resources { cpu: cpu_reserved, memory: memory_reserved })
    })
}

/// Catalogues that `validate` accepts. Names and aliases are few, so that those of different networks meet; addresses
/// are of 10.NUMBER.0.0/16, so that every one belongs to one network.
pub fn catalogues(number: u8) -> impl Strategy<Value = Catalogue> {
    let port = (1..=9u16, option::of("[a-z]{1,2}"));
    let service = (
        vec("[a-e]", 0..3),
        select(EndpointMode::ALL.to_vec()),
        any::<bool>(),
        vec(port, 0..3),
        btree_map(0..4u32, any::<bool>(), 0..4),
    );
    let services = btree_map("[a-e](-[1-3])?", service, 0..6);
    (services, any::<bool>()).prop_map(move |(services, internal)| {
        let mut addresses = (1..).map(|host: u16| {
            let [high, low] = host.to_be_bytes();
            Ipv4Addr::new(10, number, high, low)
        });
        let mut next = || addresses.next().unwrap();
        let names: Vec<ServiceName> = services.keys().map(|name| name.parse().unwrap()).collect();
        let is_free = |alias: &DnsLabel| names.iter().all(|name| name.as_str() != alias.as_str());
        let service = |(aliases, mode, has_address, ports, endpoints)| {
            let aliases: Vec<String> = aliases;
            let ports: Vec<(u16, Option<String>)> = ports;
            let mut seen = std::collections::BTreeSet::new();
            let mut is_new = |value: String| seen.insert(value);
            let ports = ports
                .into_iter()
                .filter(|(port, name)| is_new(port.to_string()) & name.clone().is_none_or(&mut is_new));
            let port = |(port, name): (u16, Option<String>)| ServicePort {
                port,
                protocol: Protocol::ALL[usize::from(port % 3)],
                name: name.map(|name| name.parse().unwrap()),
                published: None,
                prefer_local: false,
                client_affinity: false,
            };
            let endpoints: std::collections::BTreeMap<u32, bool> = endpoints;
            CatalogueService {
                aliases: aliases.iter().map(|alias| alias.parse().unwrap()).filter(is_free).collect(),
                mode,
                virtual_address: bool::then(has_address, &mut next),
                ports: ports.map(port).collect(),
                entry_nodes: None,
                endpoints: endpoints
                    .into_iter()
                    .map(|(slot, ready)| Endpoint { slot, address: next(), ready })
                    .collect(),
            }
        };
        let services = services.into_values().map(service).collect::<Vec<_>>();
        Catalogue {
            network: NetworkId(Id(number.into())),
            name: format!("net-{number}").parse().unwrap(),
            number: number.into(),
            internal,
            services: names.clone().into_iter().zip(services).collect(),
        }
    })
}

/// The tasks of [`service_specs`].
pub fn task_specs() -> impl Strategy<Value = TaskSpec> {
    let command = option::of(("[^\0]{1,8}", vec("[^\0]{0,8}", 0..3)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    }));
    let args = option::of(vec("[^\0]{0,8}", 0..4));
    let literal = "[^\0]{0,8}".prop_filter("braces begin a template", |text| !text.contains("{{"));
    let value = prop_oneof![9 => literal, 1 => Just("{{.Service.Name}}-{{.Task.Slot}}".to_owned())];
    let env = btree_map("[^=\0]{1,8}", value, 0..4)
        .prop_map(|env| env.into_iter().map(|(name, value)| EnvVar { name, value }).collect::<Vec<_>>());
    let host = (names(), any::<u32>())
        .prop_map(|(name, address)| HostEntry { name, address: Ipv4Addr::from(address) });
    let image = "[a-z]{1,8}(:[a-z0-9]{1,4})?".prop_map(|text| text.parse().unwrap());
    let signal = option::of((1..=64).prop_map(|number| Signal::from_number(number).unwrap()));
    let logs = (64u64 << 10..=1 << 40, 1..=1000u32)
        .prop_map(|(max_size, max_files)| LogLimits { max_size: Bytes(max_size), max_files });
    let user = option::of("[a-z0-9._]{1,8}(:[a-z0-9]{1,8})?");
    let process =
        (command, args, env, option::of(paths()), user, vec(names(), 0..3), option::of(names()), labels());
    let time = || between(Duration::ZERO, MAX_STOP_GRACE);
    let alone = between(MIN_STOP_AFTER, MAX_DISCONNECT_TIME);
    let alone = option::of(alone).prop_map(|time| time.map_or(OnDisconnect::Keep, OnDisconnect::StopAfter));
    let life = (vec(host, 0..3), signal, (time(), time()), restarts(), logs, alone, connections());
    let sysctls = btree_map("(net|fs[.]mqueue)[.][a-z_]{1,8}", "[^\0\n]{1,8}", 0..3);
    let rest = (
        limits_and_reservations(),
        ulimits(),
        sysctls,
        (option::of(4096..1u64 << 40), option::of(1u64 << 20..1 << 40)),
        option::of(-1000..=1000),
    );
    let own = Seccomp::Config("profile".parse().unwrap());
    let seccomp = select(vec![Seccomp::Default, Seccomp::Unconfined, own]);
    let apparmor = select(vec![AppArmor::Default, AppArmor::Unconfined, AppArmor::Profile("web".into())]);
    let storage = (
        devices(),
        mounts(),
        secret_object_mounts("s"),
        secret_object_mounts("c"),
        option::of(health_checks()),
    );
    let pulling = (select(PullPolicy::ALL.to_vec()), select(ImageResolver::ALL.to_vec()));
    let rights = (any::<[bool; 6]>(), capabilities(), capabilities(), (seccomp, apparmor), storage);
    (image, pulling, process, life, rest, rights).prop_map(
        |(image, (pull, resolve_image), process, life, rest, rights)| {
            let (command, args, env, workdir, user, groups, hostname, container_labels) = process;
            let (hosts, stop_signal, (drain_delay, stop_grace), restart, logs, on_disconnect, (network, dns)) = life;
            let ((limits, reservations), ulimits, sysctls, (shm_size, storage_limit), oom_score_adj) = rest;
            let (switches, cap_add, cap_drop, (seccomp, apparmor), storage) = rights;
            let (devices, mounts, secrets, configs, health) = storage;
            let [tty, stdin, init, privileged, no_new_privileges, read_only] = switches;
            let allow_metadata = tty && network.has_address();
            let (shm_size, storage_limit) = (shm_size.map(Bytes), storage_limit.map(Bytes));
            let hook = |command: &Vec<String>| {
                let (env, workdir, user) = (env.clone(), workdir.clone(), user.clone());
                LifecycleHook { command: command.clone(), env, workdir, user }
            };
            let hooks: Vec<LifecycleHook> = command.iter().map(hook).collect();
            let (post_start, pre_stop) = (hooks.clone(), if init { hooks } else { Vec::new() });
            let spec = TaskSpec {
                image,
                pull,
                resolve_image,
                command,
                args,
                env,
                container_labels,
                workdir,
                user,
                groups,
                hostname,
                hosts,
                tty,
                stdin,
                init,
                stop_signal,
                drain_delay,
                stop_grace,
                post_start,
                pre_stop,
                limits,
                reservations,
                ulimits,
                sysctls,
                shm_size,
                storage_limit,
                oom_score_adj,
                privileged,
                cap_add,
                cap_drop,
                no_new_privileges: match (no_new_privileges, tty) {
                    (true, _) => NoNewPrivileges::On,
                    (false, true) => NoNewPrivileges::Off,
                    (false, false) => NoNewPrivileges::Default,
                },
                seccomp,
                apparmor,
                devices,
                read_only,
                mounts,
                secrets,
                configs,
                health,
                restart,
                on_disconnect,
                logs,
                network,
                dns,
                allow_metadata,
                user_namespace: init.then_some(UserNamespace::Host),
            };
            match stdin && spec.private_users_conflict().is_none() {
                true => TaskSpec { user_namespace: Some(UserNamespace::Private), ..spec },
                false => spec,
            }
        },
    )
}

/// A task, valid in a service with the label `app`, in which no field has its default.
pub fn full_task_spec() -> TaskSpec {
    let front = NetworkAttachment {
        network: "front".parse().unwrap(),
        aliases: BTreeSet::from(["shop", "www"].map(|alias| alias.parse().unwrap())),
    };
    let attachments = [TaskNetworkMode::default().attachments(), &[front]].concat();
    TaskSpec {
        image: "web:1".parse().unwrap(),
        pull: PullPolicy::Always,
        resolve_image: ImageResolver::Worker,
        command: Some(vec!["/bin/web".into()]),
        args: Some(vec!["-v".into(), "2".into()]),
        env: vec![EnvVar { name: "A".into(), value: "{{.Service.Labels.app}}".into() }],
        container_labels: BTreeMap::from([("tier".into(), "front".into())]),
        workdir: Some("/srv".into()),
        user: Some("web:web".into()),
        groups: vec!["video".into()],
        hostname: Some("web".into()),
        hosts: vec![HostEntry { name: "db".into(), address: [192, 0, 2, 9].into() }],
        tty: true,
        stdin: true,
        init: true,
        stop_signal: Some("SIGQUIT".parse().unwrap()),
        drain_delay: Duration::from_millis(2500),
        stop_grace: Duration::from_millis(1500),
        post_start: vec![LifecycleHook {
            env: vec![EnvVar { name: "STEP".into(), value: "one".into() }],
            workdir: Some("/srv".into()),
            user: Some("root".into()),
            ..LifecycleHook::new(vec!["/set-up".into(), "now".into()])
        }],
        pre_stop: vec![LifecycleHook::new(vec!["/shut-down".into()])],
        limits: Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(64 << 20)), pids: Some(100) },
        reservations: Resources { cpu: MilliCpu(100), memory: Bytes(32 << 20) },
        ulimits: vec![Ulimit { name: "nofile".parse().unwrap(), soft: Some(1024), hard: Some(4096) }],
        sysctls: BTreeMap::from([("net.core.somaxconn".into(), "512".into())]),
        shm_size: Some(Bytes(8 << 20)),
        storage_limit: Some(Bytes(2 << 30)),
        oom_score_adj: Some(-100),
        privileged: true,
        cap_add: vec!["NET_ADMIN".parse().unwrap()],
        cap_drop: vec!["CHOWN".parse().unwrap()],
        no_new_privileges: NoNewPrivileges::On,
        seccomp: Seccomp::Unconfined,
        apparmor: AppArmor::Profile("web".into()),
        devices: vec![Device {
            source: "/dev/fuse".into(),
            target: "/dev/fuse".into(),
            access: DeviceAccess::FULL,
        }],
        read_only: true,
        mounts: full_mounts(),
        secrets: vec![SecretObjectMount {
            source: "key".parse().unwrap(),
            target: Some("/run/key".into()),
            uid: Some(1000),
            gid: Some(1001),
            mode: Some(0o440),
            template: true,
        }],
        configs: vec![SecretObjectMount::new("conf".parse().unwrap())],
        health: Some(HealthCheck {
            probe: Probe::Http {
                port: 80,
                path: "/health".into(),
                headers: vec![HttpHeader { name: "Host".into(), value: "web".into() }],
            },
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            retries: 4,
            start_period: Duration::from_secs(60),
            start_interval: Duration::from_millis(500),
        }),
        restart: RestartPolicy {
            condition: RestartCondition::OnFailure,
            delay: Duration::from_secs(2),
            max: 3,
            window: Duration::from_secs(60),
        },
        on_disconnect: OnDisconnect::StopAfter(Duration::from_secs(30)),
        logs: LogLimits { max_size: Bytes(1 << 20), max_files: 3 },
        network: TaskNetworkMode::Networks(attachments),
        dns: DnsSettings {
            servers: vec![[192, 0, 2, 53].into(), [192, 0, 2, 54].into()],
            searches: vec!["example.org".into()],
        },
        allow_metadata: true,
        user_namespace: Some(UserNamespace::Host),
    }
}

/// One of each kind.
fn full_mounts() -> Vec<Mount> {
    let bind = MountSource::Bind { path: "/srv".into(), propagation: Propagation::Shared, recursive: true };
    let tmpfs = MountSource::Tmpfs { size: Some(Bytes(1 << 20)), mode: Some(0o1777), exec: true };
    let volume = MountSource::Volume { name: "data".into(), subpath: Some("sub/dir".into()), no_copy: true };
    vec![
        Mount { target: "/data".into(), source: bind, read_only: true },
        Mount { target: "/tmp".into(), source: tmpfs, read_only: false },
        Mount { target: "/srv/data".into(), source: volume, read_only: true },
    ]
}

fn connections() -> impl Strategy<Value = (TaskNetworkMode, DnsSettings)> {
    let attachments = btree_map("n[a-c]", btree_map("[f-i]", Just(()), 0..3), 1..3);
    let networks = attachments.prop_map(|networks| {
        let attachment =
            |(network, aliases): (String, std::collections::BTreeMap<String, ()>)| NetworkAttachment {
                network: network.parse().unwrap(),
                aliases: aliases.into_keys().map(|alias| alias.parse().unwrap()).collect(),
            };
        TaskNetworkMode::Networks(networks.into_iter().map(attachment).collect())
    });
    let mode = prop_oneof![
        4 => Just(TaskNetworkMode::default()),
        4 => networks,
        1 => Just(TaskNetworkMode::Host),
        1 => Just(TaskNetworkMode::None),
    ];
    let dns = (
        vec((1..=9u8).prop_map(|last| Ipv4Addr::new(192, 0, 2, last)), 0..3),
        vec("[a-z]{1,4}[.][a-z]{1,3}", 0..3),
    )
        .prop_map(|(servers, searches)| DnsSettings { servers, searches });
    (mode, dns)
}

/// Policies of updates that `validate` accepts.
pub fn update_policies() -> impl Strategy<Value = UpdatePolicy> {
    let parallelism =
        prop_oneof![(0..=9u32).prop_map(Parallelism::Slots), (1..=100u8).prop_map(Parallelism::Percent),];
    let period = || between(Duration::ZERO, MAX_UPDATE_PERIOD);
    let order = option::of(select(UpdateOrder::ALL.to_vec()));
    let action = option::of(select(FailureAction::ALL.to_vec()));
    (parallelism, period(), order, period(), 0..=1000u16, action).prop_map(
        |(parallelism, delay, order, monitor, ratio, on_failure)| {
            let failure_ratio = FailureRatio(ratio);
            UpdatePolicy { parallelism, delay, order, monitor, failure_ratio, on_failure }
        },
    )
}

/// Specs that `validate` accepts.
pub fn service_specs() -> impl Strategy<Value = ServiceSpec> {
    let name = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let label = option::of("node[.]labels[.][a-z]{1,4}".prop_map(|text| text.parse().unwrap()));
    let mode = prop_oneof![
        (0..=1_000_000u32).prop_map(|replicas| (ServiceMode::Replicated { replicas }, None, false)),
        (Just(ServiceMode::Global), label, any::<bool>())
    ];
    let ports = btree_map(1..=u16::MAX, (option::of(any::<u32>()), 1..=u16::MAX), 0..4).prop_map(|ports| {
        let port = |(host_port, (ip, container_port)): (u16, (Option<u32>, u16))| PublishedPort {
            host_ip: ip.map(Ipv4Addr::from),
            host_port,
            container_port,
            protocol: Protocol::ALL[usize::from(container_port % 3)],
            mode: if ip.is_none() && container_port % 2 == 0 {
                PublishMode::Ingress
            } else {
                PublishMode::Host
            },
            prefer_local: ip.is_none() && container_port % 4 == 0,
            client_affinity: ip.is_none() && container_port % 6 == 0,
        };
        ports.into_iter().map(port).collect()
    });
    let constraint = "node[.]((name|arch) (==|!=) [a-z]{1,4}|labels[.]x exists)|\
        (node|engine)[.]labels[.][a-z]{1,4} (in|notin) [(]a,b[)]"
        .prop_map(|text| text.parse().unwrap());
    let later = between(Duration::ZERO, MAX_DISCONNECT_TIME);
    let toleration = "[*]|[a-c](=[xy]?)?(:(NoSchedule|PreferNoSchedule|NoExecute))?"
        .prop_map(|text| text.parse().unwrap());
    let preference = |text: &str| text.parse::<PlacementPreference>().unwrap();
    let spread =
        ["spread=node.labels.zone", "spread=engine.labels.zone", "spread=node.labels.rack"].map(preference);
    let preferences = (0..=spread.len()).prop_map(move |most| spread[..most].to_vec());
    let rules = (vec(constraint.clone(), 0..3), vec(toleration, 0..3), preferences);
    let ports = (ports, vec(constraint, 0..3));
    let placed = (rules, option::of(1..=u32::MAX), later, select(EndpointMode::ALL.to_vec()));
    let policies = (update_policies(), update_policies());
    (name, labels(), mode, task_specs(), ports, placed, policies).prop_map(
        |(
            name,
            labels,
            (mode, per, bootstrap),
            task,
            (ports, publish_on),
            ((constraints, tolerations, preferences), most, later, endpoint_mode),
            (mut update, mut rollback),
        )| {
            let ports: Vec<PublishedPort> = if task.network.has_address() { ports } else { Vec::new() };
            let has_ingress = ports.iter().any(PublishedPort::is_ingress);
            let publish_on = if has_ingress { publish_on } else { Vec::new() };
            if task.writes_to_volumes() {
                (update.order, rollback.order) = (None, None);
            }
            rollback.on_failure = rollback.on_failure.filter(|action| *action != FailureAction::Rollback);
            // A global service has one task per node anyway.
            let max_per_node = most.filter(|_| mode != ServiceMode::Global);
            let tolerations: BTreeSet<TaintSelector> = tolerations.into_iter().collect();
            let tolerations = tolerations.into_iter().collect();
            let preferences = if mode == ServiceMode::Global { Vec::new() } else { preferences };
            let placement = Placement { constraints, tolerations, max_per_node, preferences };
            let waits_for_node = mode == ServiceMode::Global && per.is_none();
            let replace_after = if waits_for_node { Duration::ZERO } else { later };
            ServiceSpec {
                name,
                labels,
                mode,
                per,
                bootstrap,
                task,
                ports,
                placement,
                replace_after,
                endpoint_mode,
                publish_on,
                update,
                rollback,
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name and text of each field.
    fn fields(spec: &TaskSpec) -> BTreeMap<String, String> {
        let (text, mut name, mut fields) = (format!("{spec:#?}"), String::new(), BTreeMap::new());
        for line in text.lines() {
            let first =
                line.strip_prefix("    ").filter(|rest| rest.starts_with(|it: char| it.is_alphabetic()));
            if let Some((found, _)) = first.and_then(|rest| rest.split_once(':')) {
                found.clone_into(&mut name);
            }
            fields.entry(name.clone()).or_insert_with(String::new).push_str(line);
        }
        fields
    }

    #[test]
    fn no_field_of_the_full_task_spec_has_its_default() {
        let defaults = fields(&TaskSpec::new("nginx".parse().unwrap()));
        let full = fields(&full_task_spec());
        assert!(full.keys().eq(defaults.keys()) && full.len() > 40, "{:?}", full.keys());
        let same: Vec<&String> = full.keys().filter(|name| full[*name] == defaults[*name]).collect();
        // The line with the name of the type.
        assert_eq!(same, [""]);
    }
}

//! What a spec says can be said on the command line, and arrives: flags → types → wire → bytes → wire →
//! types.

use clap::Parser;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::net::Ipv4Addr;
use std::time::Duration;
use warren_proto::v1;
use warren_types::{
    Bytes, Device, DeviceAccess, HostEntry, Limits, Mount, MountSource, Propagation, Protocol, PublishMode,
    PublishedPort, RestartCondition, Signal, Ulimit, UlimitName,
};

use super::*;
use crate::args::{Cli, Command, ServiceCommand};

/// A colon or backslash of a path as it is written on a command line.
fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace(':', "\\:")
}

/// The command line that expresses `spec`. Every field is named, so that none can be forgotten.
fn to_flags(spec: &ServiceSpec) -> Vec<String> {
    let ServiceSpec { name, labels, mode, task, ports, placement } = spec;
    let Placement { constraints, max_per_node } = placement;
    let mut flags = vec![format!("--name={name}")];
    let mut say = |flag: &str, value: String| flags.push(format!("--{flag}={value}"));
    match mode {
        Mode::Replicated { replicas } => say("replicas", replicas.to_string()),
        Mode::Global => say("mode", "global".to_owned()),
    }
    labels.iter().for_each(|(key, value)| say("label", format!("{key}={value}")));
    constraints.iter().for_each(|constraint| say("constraint", constraint.to_string()));
    max_per_node.iter().for_each(|most| say("max-per-node", most.to_string()));
    for PublishedPort { host_ip, host_port, container_port, protocol, mode } in ports {
        let (Protocol::Tcp, PublishMode::Host) = (protocol, mode);
        let ip = host_ip.map(|ip| format!("{ip}:")).unwrap_or_default();
        say("publish", format!("{ip}{host_port}:{container_port}/tcp,mode=host"));
    }
    flags.extend(task_flags(task));
    flags
}

fn task_flags(task: &TaskSpec) -> Vec<String> {
    let TaskSpec {
        image,
        pull,
        command,
        args,
        env,
        workdir,
        user,
        groups,
        hostname,
        hosts,
        tty,
        init,
        stop_signal,
        stop_grace,
        limits: Limits { cpu, memory, pids },
        reservations: Resources { cpu: reserved_cpu, memory: reserved_memory },
        ulimits,
        sysctls,
        shm_size,
        oom_score_adj,
        privileged,
        cap_add,
        cap_drop,
        no_new_privileges,
        seccomp,
        devices,
        read_only,
        mounts,
        restart,
        logs,
    } = task;
    let mut flags = life_flags(restart, logs);
    let mut say = |flag: &str, value: String| flags.push(format!("--{flag}={value}"));
    say("image", image.to_string());
    say("pull", pull.as_str().to_owned());
    command.iter().flatten().for_each(|word| say("command", word.clone()));
    env.iter().for_each(|EnvVar { name, value }| say("env", format!("{name}={value}")));
    workdir.iter().for_each(|path| say("workdir", path.clone()));
    user.iter().for_each(|user| say("user", user.clone()));
    groups.iter().for_each(|group| say("group", group.clone()));
    hostname.iter().for_each(|name| say("hostname", name.clone()));
    hosts.iter().for_each(|HostEntry { name, address }| say("host", format!("{name}:{address}")));
    say("tty", tty.to_string());
    say("init", init.to_string());
    stop_signal.iter().for_each(|signal| say("stop-signal", signal.to_string()));
    say("stop-grace", time(*stop_grace));
    cpu.iter().for_each(|cpu| say("cpus", cpu.to_string()));
    memory.iter().for_each(|memory| say("memory", memory.to_string()));
    pids.iter().for_each(|pids| say("pids", pids.to_string()));
    say("reserve-cpus", reserved_cpu.to_string());
    say("reserve-memory", reserved_memory.to_string());
    for Ulimit { name, soft, hard } in ulimits {
        let bound = |bound: &Option<u64>| bound.map_or("unlimited".to_owned(), |bound| bound.to_string());
        say("ulimit", format!("{name}={}:{}", bound(soft), bound(hard)));
    }
    sysctls.iter().for_each(|(key, value)| say("sysctl", format!("{key}={value}")));
    shm_size.iter().for_each(|size| say("shm-size", size.to_string()));
    oom_score_adj.iter().for_each(|score| say("oom-score-adj", score.to_string()));
    say("privileged", privileged.to_string());
    cap_add.iter().for_each(|capability| say("cap-add", capability.to_string()));
    cap_drop.iter().for_each(|capability| say("cap-drop", capability.to_string()));
    say("no-new-privileges", no_new_privileges.to_string());
    say("seccomp", seccomp.to_string());
    for Device { source, target, access } in devices {
        say("device", format!("{}:{}:{access}", escaped(source), escaped(target)));
    }
    say("read-only", read_only.to_string());
    mounts.iter().map(mount_flag).for_each(|(flag, value)| say(flag, value));
    match args.as_deref() {
        None => {}
        Some([]) => flags.push("--no-args".to_owned()),
        Some(words) => flags.extend(std::iter::once("--".to_owned()).chain(words.iter().cloned())),
    }
    flags
}

fn time(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

fn life_flags(restart: &RestartPolicy, logs: &LogLimits) -> Vec<String> {
    let RestartPolicy { condition, delay, max, window } = *restart;
    let LogLimits { max_size, max_files } = logs;
    vec![
        format!("--restart={}", condition.as_str()),
        format!("--restart-delay={}", time(delay)),
        format!("--restart-max={max}"),
        format!("--restart-window={}", time(window)),
        format!("--log-max-size={max_size}"),
        format!("--log-files={max_files}"),
    ]
}

fn mount_flag(Mount { target, source, read_only }: &Mount) -> (&'static str, String) {
    let access = if *read_only { "ro" } else { "rw" };
    match source {
        MountSource::Bind { path, propagation, recursive } => {
            let alone = if *recursive { "" } else { ",nonrecursive" };
            let (path, target) = (escaped(path), escaped(target));
            ("bind", format!("{path}:{target}:{access},{}{alone}", propagation.as_str()))
        }
        MountSource::Tmpfs { size, mode, exec } => {
            let mut options = vec![access.to_owned()];
            options.extend(size.map(|size| format!("size={size}")));
            options.extend(mode.map(|mode| format!("mode={mode:o}")));
            options.push(if *exec { "exec" } else { "noexec" }.to_owned());
            ("tmpfs", format!("{}:{}", escaped(target), options.join(",")))
        }
    }
}

fn paths() -> impl Strategy<Value = String> {
    "(/[a-z:,\\\\= ]{1,4}[a-z]){1,2}"
}

fn names() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9]{0,8}"
}

fn between(from: Duration, to: Duration) -> impl Strategy<Value = Duration> {
    (from.as_millis() as u64..=to.as_millis() as u64).prop_map(Duration::from_millis)
}

fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    let bind = (paths(), select(Propagation::ALL.to_vec()), any::<bool>())
        .prop_map(|(path, propagation, recursive)| MountSource::Bind { path, propagation, recursive });
    let tmpfs = (option::of(4096..1u64 << 50), option::of(0..=0o7777u32), any::<bool>())
        .prop_map(|(size, mode, exec)| MountSource::Tmpfs { size: size.map(Bytes), mode, exec });
    let mount = (prop_oneof![bind, tmpfs], any::<bool>());
    btree_map(paths(), mount, 0..4).prop_map(|mounts| {
        let mount = |(target, (source, read_only))| Mount { target, source, read_only };
        mounts.into_iter().map(mount).collect()
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
    use warren_types::spec::{LONGEST_RESTART_DELAY, MAX_RESTART_WINDOW, MAX_RESTARTS, MIN_RESTART_DELAY};
    let delay = between(MIN_RESTART_DELAY, LONGEST_RESTART_DELAY);
    let window = between(Duration::from_secs(1), MAX_RESTART_WINDOW);
    (select(RestartCondition::ALL.to_vec()), delay, 0..=MAX_RESTARTS, window)
        .prop_map(|(condition, delay, max, window)| RestartPolicy { condition, delay, max, window })
}

/// Limits, and reservations that do not exceed them.
fn bounds() -> impl Strategy<Value = (Limits, Resources)> {
    let limits = (option::of(10..1u64 << 20), option::of(6u64 << 20..1 << 40), option::of(1..=u32::MAX));
    (limits, 0..1u64 << 21, 0..1u64 << 41).prop_map(|((cpu, memory, pids), reserved_cpu, reserved_memory)| {
        let cpu_reserved = MilliCpu(cpu.map_or(reserved_cpu, |limit| reserved_cpu.min(limit)));
        let memory_reserved = Bytes(memory.map_or(reserved_memory, |limit| reserved_memory.min(limit)));
        let limits = Limits { cpu: cpu.map(MilliCpu), memory: memory.map(Bytes), pids };
        (limits, Resources { cpu: cpu_reserved, memory: memory_reserved })
    })
}

fn task_specs() -> impl Strategy<Value = TaskSpec> {
    let command = option::of(("[^\0]{1,8}", vec("[^\0]{0,8}", 0..3)).prop_map(|(first, mut rest)| {
        rest.insert(0, first);
        rest
    }));
    let args = option::of(vec("[^\0]{0,8}", 0..4));
    let env = btree_map("[^=\0]{1,8}", "[^\0]{0,8}", 0..4)
        .prop_map(|env| env.into_iter().map(|(name, value)| EnvVar { name, value }).collect::<Vec<_>>());
    let host = (names(), any::<u32>())
        .prop_map(|(name, address)| HostEntry { name, address: Ipv4Addr::from(address) });
    let image = "[a-z]{1,8}(:[a-z0-9]{1,4})?".prop_map(|text| text.parse().unwrap());
    let signal = option::of((1..=64).prop_map(|number| Signal::from_number(number).unwrap()));
    let logs = (64u64 << 10..=1 << 40, 1..=1000u32)
        .prop_map(|(max_size, max_files)| LogLimits { max_size: Bytes(max_size), max_files });
    let user = option::of("[a-z0-9._]{1,8}(:[a-z0-9]{1,8})?");
    let process = (command, args, env, option::of(paths()), user, vec(names(), 0..3), option::of(names()));
    let grace = between(Duration::ZERO, warren_types::spec::MAX_STOP_GRACE);
    let life = (vec(host, 0..3), signal, grace, restarts(), logs);
    let sysctls = btree_map("[a-z]{1,4}[.][a-z_]{1,8}", "[^\0\n]{0,8}", 0..3);
    let rest = (bounds(), ulimits(), sysctls, option::of(4096..1u64 << 40), option::of(-1000..=1000));
    let seccomp = select(vec![Seccomp::Default, Seccomp::Unconfined]);
    let rights = (any::<[bool; 5]>(), capabilities(), capabilities(), seccomp, devices(), mounts());
    (image, select(PullPolicy::ALL.to_vec()), process, life, rest, rights).prop_map(
        |(image, pull, process, life, rest, rights)| {
            let (command, args, env, workdir, user, groups, hostname) = process;
            let (hosts, stop_signal, stop_grace, restart, logs) = life;
            let ((limits, reservations), ulimits, sysctls, shm_size, oom_score_adj) = rest;
            let (switches, cap_add, cap_drop, seccomp, devices, mounts) = rights;
            let [tty, init, privileged, no_new_privileges, read_only] = switches;
            let shm_size = shm_size.map(Bytes);
            TaskSpec {
                image,
                pull,
                command,
                args,
                env,
                workdir,
                user,
                groups,
                hostname,
                hosts,
                tty,
                init,
                stop_signal,
                stop_grace,
                limits,
                reservations,
                ulimits,
                sysctls,
                shm_size,
                oom_score_adj,
                privileged,
                cap_add,
                cap_drop,
                no_new_privileges,
                seccomp,
                devices,
                read_only,
                mounts,
                restart,
                logs,
            }
        },
    )
}

fn specs() -> impl Strategy<Value = ServiceSpec> {
    let name = "[a-z0-9]{1,8}".prop_map(|text| text.parse().unwrap());
    let mode = prop_oneof![
        (0..=1_000_000u32).prop_map(|replicas| Mode::Replicated { replicas }),
        Just(Mode::Global)
    ];
    let ports = btree_map(1..=u16::MAX, (option::of(any::<u32>()), 1..=u16::MAX), 0..4).prop_map(|ports| {
        let port = |(host_port, (ip, container_port)): (u16, (Option<u32>, u16))| PublishedPort {
            host_ip: ip.map(Ipv4Addr::from),
            host_port,
            container_port,
            protocol: Protocol::Tcp,
            mode: PublishMode::Host,
        };
        ports.into_iter().map(port).collect()
    });
    let constraint =
        "node[.]((name|arch) (==|!=) [a-z]{1,4}|labels[.][a-z]{1,4} (in|notin) [(]a,b[)]|labels[.]x exists)"
            .prop_map(|text| text.parse().unwrap());
    let labels = btree_map("[a-zA-Z0-9._/-]{1,8}", ".{0,8}", 0..4);
    (name, labels, mode, task_specs(), ports, vec(constraint, 0..3), option::of(1..=u32::MAX)).prop_map(
        |(name, labels, mode, task, ports, constraints, most)| {
            // A global service has one task per node anyway.
            let max_per_node = most.filter(|_| mode != Mode::Global);
            let placement = Placement { constraints, max_per_node };
            ServiceSpec { name, labels, mode, task, ports, placement }
        },
    )
}

/// What `warren service create` sends for this command line, as it arrives.
fn sent(flags: &[String]) -> Result<ServiceSpec, String> {
    let start = ["warren", "service", "create"].map(str::to_owned);
    let cli = Cli::try_parse_from(start.iter().chain(flags)).map_err(|error| error.to_string())?;
    let Command::Service(ServiceCommand::Create(args)) = cli.command else { panic!("{flags:?}") };
    let env = crate::command::service::environment::read(&args.lists, "x").map_err(|why| why.to_string())?;
    let spec = create(args.name.as_deref().unwrap(), &args, &env).map_err(|wrong| wrong.to_string())?;
    let bytes = prost::Message::encode_to_vec(&v1::ServiceSpec::from(&spec));
    let wire: v1::ServiceSpec = prost::Message::decode(bytes.as_slice()).unwrap();
    ServiceSpec::try_from(wire).map_err(|wrong| wrong.to_string())
}

proptest! {
    #[test]
    fn no_field_is_lost_between_the_command_line_and_the_manager(spec in specs()) {
        prop_assert_eq!(spec.validate(), Violations::default(), "only valid specs are generated");
        prop_assert_eq!(sent(&to_flags(&spec)), Ok(spec));
    }
}

//! What one task runs, as one number.

use std::time::Duration;

use warren_types::spec::{LogLimits, MountSource};
use warren_types::{
    ContentMount, Device, DeviceAccess, EnvVar, HealthCheck, HostEntry, HttpHeader, Limits, Mount, Probe,
    Propagation, PullPolicy, Resources, RestartCondition, RestartPolicy, Seccomp, TaskSpec, Ulimit,
};

use super::{Kind, flags, hash, later, list, pair, text};

pub(super) fn task_spec(spec: &TaskSpec) -> u64 {
    let known =
        hash([Kind::TaskSpec as u64, process(spec), bounds(spec), rights(spec), storage(spec), life(spec)]);
    let TaskSpec { secrets, configs, .. } = spec;
    let [secrets, configs] = [secrets, configs].map(|mounts| list(mounts.iter().map(content_mount)));
    let known = later(later(later(known, 1, secrets), 2, configs), 3, checks(spec));
    later(known, 4, spec.on_disconnect.stop_after().map_or(0, span))
}

/// A time as one word.
pub(super) fn span(time: Duration) -> u64 {
    hash([time.as_secs(), time.subsec_nanos().into()])
}

/// What is run, and what it sees.
fn process(spec: &TaskSpec) -> u64 {
    let TaskSpec {
        image, pull, command, args, env, workdir, user, groups, hostname, hosts, tty, init, ..
    } = spec;
    let words = |words: &Option<Vec<String>>| list(words.iter().flatten().map(|word| text(word)));
    let one = |word: &Option<String>| text(word.as_deref().unwrap_or_default());
    let pull = match pull {
        PullPolicy::Missing => 0,
        PullPolicy::Always => 1,
        PullPolicy::Never => 2,
    };
    let given = [
        command.is_some(),
        args.is_some(),
        workdir.is_some(),
        user.is_some(),
        hostname.is_some(),
        *tty,
        *init,
    ];
    hash([
        text(image.as_str()),
        words(command),
        words(args),
        list(env.iter().flat_map(|EnvVar { name, value }| [text(name), text(value)])),
        one(workdir),
        one(user),
        list(groups.iter().map(|group| text(group))),
        one(hostname),
        list(hosts.iter().flat_map(|HostEntry { name, address }| [text(name), u32::from(*address).into()])),
        pair(pull, flags(given)),
    ])
}

/// What it can use up.
fn bounds(spec: &TaskSpec) -> u64 {
    let TaskSpec { limits, reservations, ulimits, sysctls, shm_size, oom_score_adj, .. } = spec;
    let Limits { cpu, memory, pids } = limits;
    let Resources { cpu: reserved_cpu, memory: reserved_memory } = reservations;
    let ulimit = |ulimit: &Ulimit| {
        let Ulimit { name, soft, hard } = ulimit;
        let given = flags([soft.is_some(), hard.is_some()]);
        hash([text(name.as_str()), given.into(), soft.unwrap_or(0), hard.unwrap_or(0)])
    };
    let given =
        [cpu.is_some(), memory.is_some(), pids.is_some(), shm_size.is_some(), oom_score_adj.is_some()];
    hash([
        cpu.map_or(0, |cpu| cpu.0),
        memory.map_or(0, |memory| memory.0),
        reserved_cpu.0,
        reserved_memory.0,
        list(ulimits.iter().map(ulimit)),
        list(sysctls.iter().flat_map(|(name, value)| [text(name), text(value)])),
        shm_size.map_or(0, |size| size.0),
        pair(pids.unwrap_or(0), oom_score_adj.unwrap_or(0).cast_unsigned()),
        flags(given).into(),
    ])
}

/// What it may do.
fn rights(spec: &TaskSpec) -> u64 {
    let TaskSpec { privileged, cap_add, cap_drop, no_new_privileges, seccomp, devices, .. } = spec;
    let device = |device: &Device| {
        let Device { source, target, access: DeviceAccess { read, write, mknod } } = device;
        hash([text(source), text(target), flags([*read, *write, *mknod]).into()])
    };
    let unconfined = match seccomp {
        Seccomp::Default => false,
        Seccomp::Unconfined => true,
    };
    hash([
        list(cap_add.iter().map(|capability| text(capability.as_str()))),
        list(cap_drop.iter().map(|capability| text(capability.as_str()))),
        list(devices.iter().map(device)),
        flags([*privileged, *no_new_privileges, unconfined]).into(),
    ])
}

/// What it sees mounted.
fn storage(spec: &TaskSpec) -> u64 {
    let TaskSpec { read_only, mounts, .. } = spec;
    let mount = |mount: &Mount| {
        let Mount { target, source, read_only } = mount;
        let source = match source {
            MountSource::Bind { path, propagation, recursive } => {
                let propagation = match propagation {
                    Propagation::Private => 0,
                    Propagation::Slave => 1,
                    Propagation::Shared => 2,
                };
                hash([1, text(path), propagation, u64::from(*recursive)])
            }
            MountSource::Volume { name, subpath, no_copy } => {
                let given = flags([subpath.is_some(), *no_copy]);
                hash([3, text(name), text(subpath.as_deref().unwrap_or_default()), given.into()])
            }
            MountSource::Tmpfs { size, mode, exec } => {
                let given = flags([size.is_some(), mode.is_some(), *exec]);
                hash([2, size.map_or(0, |size| size.0), pair(given, mode.unwrap_or(0)), 0])
            }
        };
        hash([text(target), source, u64::from(*read_only)])
    };
    hash([u64::from(*read_only), list(mounts.iter().map(mount))])
}

fn content_mount(mount: &ContentMount) -> u64 {
    let ContentMount { source, target, uid, gid, mode, template } = mount;
    let given = [target.is_some(), uid.is_some(), gid.is_some(), mode.is_some(), *template];
    hash([
        text(source.as_str()),
        text(target.as_deref().unwrap_or_default()),
        pair(uid.unwrap_or(0), gid.unwrap_or(0)),
        pair(mode.unwrap_or(0), flags(given)),
    ])
}

/// How it is found to be well; 0 for while it runs.
fn checks(spec: &TaskSpec) -> u64 {
    let TaskSpec { health: Some(check), .. } = spec else { return 0 };
    let HealthCheck { probe, interval, timeout, retries, start_period, start_interval } = check;
    let probe = match probe {
        Probe::Http { port, path, headers } => {
            let words = headers.iter().flat_map(|HttpHeader { name, value }| [text(name), text(value)]);
            hash([1, u64::from(*port), text(path), list(words)])
        }
        Probe::Tcp { port } => hash([2, u64::from(*port), 0, 0]),
        Probe::Exec { command } => hash([3, list(command.iter().map(|word| text(word))), 0, 0]),
    };
    let (interval, timeout) = (span(*interval), span(*timeout));
    hash([probe, interval, timeout, u64::from(*retries), span(*start_period), span(*start_interval)])
}

/// How it is started again, stopped and remembered. The others look at the fields that are skipped here; one
/// that none of them names does not compile.
fn life(spec: &TaskSpec) -> u64 {
    let TaskSpec {
        image: _,
        pull: _,
        command: _,
        args: _,
        env: _,
        workdir: _,
        user: _,
        groups: _,
        hostname: _,
        hosts: _,
        tty: _,
        init: _,
        limits: _,
        reservations: _,
        ulimits: _,
        sysctls: _,
        shm_size: _,
        oom_score_adj: _,
        privileged: _,
        cap_add: _,
        cap_drop: _,
        no_new_privileges: _,
        seccomp: _,
        devices: _,
        read_only: _,
        mounts: _,
        secrets: _,
        configs: _,
        health: _,
        on_disconnect: _,
        stop_signal,
        stop_grace,
        restart: RestartPolicy { condition, delay, max, window },
        logs: LogLimits { max_size, max_files },
    } = spec;
    let condition = match condition {
        RestartCondition::Any => 0,
        RestartCondition::OnFailure => 1,
        RestartCondition::None => 2,
    };
    hash([
        stop_signal.map_or(0, |signal| u64::from(signal.number().cast_unsigned())),
        stop_grace.as_secs(),
        stop_grace.subsec_nanos().into(),
        pair(condition, *max),
        delay.as_secs(),
        delay.subsec_nanos().into(),
        window.as_secs(),
        window.subsec_nanos().into(),
        max_size.0,
        u64::from(*max_files),
    ])
}

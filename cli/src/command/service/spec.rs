//! From flags to a spec: a new one, or an old one with changes. Pure; whoever calls has read the files and
//! the environment that variables come from.

mod health;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use warren_proto::convert::replicas;
use warren_types::spec::DEFAULT_STOP_GRACE;
use warren_types::{
    Capability, ContentMount, EnvVar, LogLimits, MilliCpu, Mode, MountSource, OnDisconnect, Placement,
    PullPolicy, Resources, RestartPolicy, Seccomp, ServiceSpec, TaskSpec, Violations,
};

use crate::args::lists::{Additions, Mounts, Removals};
use crate::args::spec::{BoundFlags, LifeFlags, ProcessFlags, RightFlags, ScaleFlags, SpecArgs};
use crate::args::value::{ModeName, Setting};
use crate::args::{CreateArgs, UpdateArgs};

/// The spec of a new service, or everything that is wrong with it; paths are those of a request. `env` is what
/// files and flags say together.
pub fn create(name: &str, args: &CreateArgs, env: &[EnvVar]) -> Result<ServiceSpec, Violations> {
    let CreateArgs { positional_name: _, name: _, mode, spec: settings, lists, detach: _ } = args;
    let mut wrong = Violations::default();
    let name = name.parse().map_err(|why| wrong.add("spec.name", why));
    let blank = ServiceSpec {
        // A name that cannot be read is in `wrong`, and the image is among the flags.
        name: name.unwrap_or_else(|()| "unreadable".parse().expect("it is a name")),
        labels: BTreeMap::new(),
        mode: match mode {
            ModeName::Replicated => Mode::Replicated { replicas: 1 },
            ModeName::Global => Mode::Global,
        },
        task: TaskSpec::new("unreadable".parse().expect("it is a reference")),
        ports: Vec::new(),
        placement: Placement::default(),
        replace_after: Duration::ZERO,
    };
    let mut draft = Draft { spec: blank, emptied: Emptied::default(), wrong };
    draft.settings(settings);
    draft.add(lists, env);
    draft.health(&settings.health, &lists.health_header);
    for flag in std::mem::take(&mut draft.emptied.0) {
        draft.wrong.add(flag, "is empty; leave it out for the default");
    }
    draft.finish()
}

/// `spec` as `args` change it, or everything that is wrong with it then. What lists lose is taken away first.
pub fn change(spec: &ServiceSpec, args: &UpdateArgs, env: &[EnvVar]) -> Result<ServiceSpec, Violations> {
    let UpdateArgs { service: _, force: _, spec: settings, added, removed, detach: _ } = args;
    let mut draft = Draft { spec: spec.clone(), emptied: Emptied::default(), wrong: Violations::default() };
    let Additions { cap_add, cap_drop, .. } = &added.0;
    if let Some(both) = cap_add.iter().find(|capability| cap_drop.contains(capability)) {
        let message = format!("{both} is to be added and to be dropped; give one of the two");
        draft.wrong.add("spec.task.capAdd", message);
    }
    draft.settings(settings);
    draft.remove(removed);
    draft.add(&added.0, env);
    draft.health(&settings.health, &added.0.health_header);
    draft.finish()
}

/// A spec that is being written.
struct Draft {
    spec: ServiceSpec,
    emptied: Emptied,
    wrong: Violations,
}

/// Flags whose value was empty: what they set is the default again.
#[derive(Default)]
struct Emptied(Vec<&'static str>);

impl Emptied {
    /// A setting that always has a value.
    fn put<T: Clone>(&mut self, flag: &'static str, given: &Option<Setting<T>>, place: &mut T, default: T) {
        match given {
            None => {}
            Some(Setting::To(value)) => *place = value.clone(),
            Some(Setting::Default) => {
                self.0.push(flag);
                *place = default;
            }
        }
    }

    /// A setting that may have none.
    fn optional<T: Clone>(&mut self, flag: &'static str, given: &Option<Setting<T>>, place: &mut Option<T>) {
        match given {
            None => {}
            Some(Setting::To(value)) => *place = Some(value.clone()),
            Some(Setting::Default) => {
                self.0.push(flag);
                *place = None;
            }
        }
    }

    /// A list of words: one that is empty and alone stands for what the image says.
    fn words(&mut self, flag: &'static str, given: &[String], place: &mut Option<Vec<String>>) {
        match given {
            [] => {}
            [word] if word.is_empty() => {
                self.0.push(flag);
                *place = None;
            }
            words => *place = Some(words.to_vec()),
        }
    }
}

impl Draft {
    fn finish(mut self) -> Result<ServiceSpec, Violations> {
        self.wrong.nest("spec", self.spec.validate());
        self.wrong.into_result(self.spec)
    }

    fn settings(&mut self, args: &SpecArgs) {
        // The health check comes after the lists, since its port may be one that they publish.
        let SpecArgs { scale, process, bounds, rights, health: _, life } = args;
        self.scale(scale);
        self.process(process);
        self.bounds(bounds);
        self.rights(rights);
        self.life(life);
    }

    fn scale(&mut self, args: &ScaleFlags) {
        let ScaleFlags { replicas: wanted, max_per_node } = args;
        self.emptied.optional("--max-per-node", max_per_node, &mut self.spec.placement.max_per_node);
        let Some(wanted) = wanted else { return };
        match (self.spec.mode, replicas(wanted.0)) {
            (Mode::Replicated { .. }, Ok(replicas)) => self.spec.mode = Mode::Replicated { replicas },
            (Mode::Replicated { .. }, Err(wrong)) => self.wrong.nest("spec.mode.replicated", wrong),
            (Mode::Global, _) => {
                let message = "a global service has one task per node; leave --replicas out";
                self.wrong.add("spec.mode", message);
            }
        }
    }

    fn process(&mut self, flags: &ProcessFlags) {
        let ProcessFlags {
            image,
            pull,
            command,
            arg,
            no_args,
            args,
            workdir,
            user,
            hostname,
            tty,
            init,
            stop_signal,
            stop_grace,
        } = flags;
        let (task, emptied) = (&mut self.spec.task, &mut self.emptied);
        match image.as_ref().map(|image| image.parse()) {
            Some(Ok(image)) => task.image = image,
            Some(Err(why)) => self.wrong.add("spec.task.image", why),
            None => {}
        }
        emptied.put("--pull", pull, &mut task.pull, PullPolicy::default());
        emptied.words("--command", command, &mut task.command);
        emptied.words("--arg", arg, &mut task.args);
        if *no_args || !args.is_empty() {
            task.args = Some(args.clone());
        }
        emptied.optional("--workdir", workdir, &mut task.workdir);
        emptied.optional("--user", user, &mut task.user);
        emptied.optional("--hostname", hostname, &mut task.hostname);
        task.tty = tty.unwrap_or(task.tty);
        task.init = init.unwrap_or(task.init);
        emptied.optional("--stop-signal", stop_signal, &mut task.stop_signal);
        emptied.put("--stop-grace", stop_grace, &mut task.stop_grace, DEFAULT_STOP_GRACE);
    }

    fn bounds(&mut self, flags: &BoundFlags) {
        let BoundFlags { cpus, memory, pids, reserve_cpus, reserve_memory, shm_size, oom_score_adj } = flags;
        let (task, emptied) = (&mut self.spec.task, &mut self.emptied);
        emptied.optional("--cpus", cpus, &mut task.limits.cpu);
        emptied.optional("--memory", memory, &mut task.limits.memory);
        emptied.optional("--pids", pids, &mut task.limits.pids);
        let Resources { cpu, memory } = &mut task.reservations;
        emptied.put("--reserve-cpus", reserve_cpus, cpu, MilliCpu::default());
        emptied.put("--reserve-memory", reserve_memory, memory, Resources::default().memory);
        emptied.optional("--shm-size", shm_size, &mut task.shm_size);
        emptied.optional("--oom-score-adj", oom_score_adj, &mut task.oom_score_adj);
    }

    fn rights(&mut self, flags: &RightFlags) {
        let RightFlags { privileged, no_new_privileges, seccomp, read_only } = flags;
        let task = &mut self.spec.task;
        task.privileged = privileged.unwrap_or(task.privileged);
        task.no_new_privileges = no_new_privileges.unwrap_or(task.no_new_privileges);
        self.emptied.put("--seccomp", seccomp, &mut task.seccomp, Seccomp::default());
        task.read_only = read_only.unwrap_or(task.read_only);
    }

    fn life(&mut self, flags: &LifeFlags) {
        let LifeFlags {
            restart,
            restart_delay,
            restart_max,
            restart_window,
            log_max_size,
            log_files,
            on_disconnect,
            replace_after,
        } = flags;
        let (policy, default) = (&mut self.spec.task.restart, RestartPolicy::default());
        self.emptied.put("--restart", restart, &mut policy.condition, default.condition);
        self.emptied.put("--restart-delay", restart_delay, &mut policy.delay, default.delay);
        self.emptied.put("--restart-max", restart_max, &mut policy.max, default.max);
        self.emptied.put("--restart-window", restart_window, &mut policy.window, default.window);
        let (logs, default) = (&mut self.spec.task.logs, LogLimits::default());
        self.emptied.put("--log-max-size", log_max_size, &mut logs.max_size, default.max_size);
        self.emptied.put("--log-files", log_files, &mut logs.max_files, default.max_files);
        let policy = &mut self.spec.task.on_disconnect;
        self.emptied.put("--on-disconnect", on_disconnect, policy, OnDisconnect::default());
        self.emptied.put("--replace-after", replace_after, &mut self.spec.replace_after, Duration::ZERO);
    }

    /// Puts items into the lists. One with the key of another that is there takes its place; two of a command
    /// line with one key are for the spec's own check to refuse.
    fn add(&mut self, lists: &Additions, env: &[EnvVar]) {
        let Additions {
            label,
            env: _,
            env_file: _,
            constraint,
            publish,
            host,
            group,
            mounts: Mounts(mounts),
            secret,
            config,
            health_header: _,
            device,
            ulimit,
            sysctl,
            cap_add,
            cap_drop,
        } = lists;
        let ServiceSpec { labels, task, ports, placement, .. } = &mut self.spec;
        pairs("spec.labels", labels, label, &mut self.wrong);
        pairs("spec.task.sysctls", &mut task.sysctls, sysctl, &mut self.wrong);
        merge(&mut task.env, env, |var| var.name.clone());
        merge(&mut placement.constraints, constraint, Clone::clone);
        merge(ports, publish, |port| *port);
        merge(&mut task.hosts, host, Clone::clone);
        merge(&mut task.groups, group, Clone::clone);
        merge(&mut task.mounts, mounts, |mount| mount.target.trim_end_matches('/').to_owned());
        merge(&mut task.secrets, secret, ContentMount::secret_target);
        merge(&mut task.configs, config, ContentMount::config_target);
        merge(&mut task.devices, device, |device| device.target.clone());
        merge(&mut task.ulimits, ulimit, |ulimit| ulimit.name);
        self.capabilities(cap_add, cap_drop);
    }

    /// As in Docker, a capability that the service has dropped is not dropped any more when it is added, and the
    /// other way round: it is among the default ones again, or not.
    fn capabilities(&mut self, add: &[Capability], drop: &[Capability]) {
        let TaskSpec { cap_add: added, cap_drop: dropped, .. } = &mut self.spec.task;
        let (had, lacked) = (added.clone(), dropped.clone());
        dropped.retain(|capability| !add.contains(capability));
        added.retain(|capability| !drop.contains(capability));
        let new = |known: &[Capability], undone: &[Capability], given: &[Capability]| {
            let new = given.iter().filter(|one| !known.contains(one) && !undone.contains(one));
            new.copied().collect::<Vec<_>>()
        };
        added.extend(new(&had, &lacked, add));
        dropped.extend(new(&lacked, &had, drop));
    }

    /// Takes items out of the lists; what is not there is gone already.
    fn remove(&mut self, lists: &Removals) {
        let Removals {
            label_rm,
            env_rm,
            constraint_rm,
            publish_rm,
            host_rm,
            group_rm,
            mount_rm,
            volume_rm,
            secret_rm,
            config_rm,
            health_header_rm,
            no_health,
            device_rm,
            ulimit_rm,
            sysctl_rm,
        } = lists;
        let ServiceSpec { labels, task, ports, placement, .. } = &mut self.spec;
        labels.retain(|key, _| !label_rm.contains(key));
        task.env.retain(|var| !env_rm.contains(&var.name));
        placement.constraints.retain(|constraint| !constraint_rm.contains(constraint));
        ports.retain(|port| !publish_rm.iter().any(|unwanted| unwanted.is(port)));
        task.hosts.retain(|entry| {
            let is = |address| address == entry.address;
            !host_rm.iter().any(|(name, address)| *name == entry.name && address.is_none_or(is))
        });
        task.groups.retain(|group| !group_rm.contains(group));
        let path = |path: &str| path.trim_end_matches('/').to_owned();
        task.mounts.retain(|mount| !mount_rm.iter().any(|target| path(target) == path(&mount.target)));
        task.mounts.retain(|mount| match &mount.source {
            MountSource::Volume { name, .. } => !names(volume_rm, name, &path(&mount.target)),
            MountSource::Bind { .. } | MountSource::Tmpfs { .. } => true,
        });
        task.secrets.retain(|one| !names(secret_rm, one.source.as_str(), &one.secret_target()));
        task.configs.retain(|one| !names(config_rm, one.source.as_str(), &one.config_target()));
        health::remove(&mut task.health, *no_health, health_header_rm);
        task.devices.retain(|device| !device_rm.contains(&device.target));
        task.ulimits.retain(|ulimit| !ulimit_rm.contains(&ulimit.name));
        task.sysctls.retain(|key, _| !sysctl_rm.contains(key));
    }
}

/// Whether one of the `unwanted` is this name, or this path in the container.
fn names(unwanted: &[String], name: &str, target: &str) -> bool {
    unwanted.iter().any(|one| one == name || one.trim_end_matches('/') == target)
}

/// Items in place of those that the list had under their key, or at its end.
fn merge<T: Clone, K: PartialEq>(list: &mut Vec<T>, items: &[T], key: impl Fn(&T) -> K) {
    let old = list.len();
    for (i, item) in items.iter().enumerate() {
        let key_of = key(item);
        let again = items[..i].iter().any(|earlier| key(earlier) == key_of);
        match list[..old].iter_mut().find(|known| key(known) == key_of) {
            Some(place) if !again => *place = item.clone(),
            _ => list.push(item.clone()),
        }
    }
}

/// As [`merge`], for what can hold each key only once: a command line that says one twice is refused here.
fn pairs(path: &str, map: &mut BTreeMap<String, String>, items: &[(String, String)], wrong: &mut Violations) {
    for (i, (key, value)) in items.iter().enumerate() {
        if items[..i].iter().any(|(earlier, _)| earlier == key) {
            wrong.add(format!("{path}[{key:?}]"), "is given twice");
        }
        map.insert(key.clone(), value.clone());
    }
}

//! Builds a spec from flags: a new one, or a changed one. Pure; the caller has read files and the environment.

mod health;
mod network;
#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use warren_proto::convert::replicas;
use warren_types::spec::{ConstraintKey, ConstraintOperator, DEFAULT_DRAIN_DELAY, DEFAULT_STOP_GRACE};
use warren_types::{
    AppArmor, Capability, Constraint, EnvVar, ImageResolver, LifecycleHook, MountSource, NoNewPrivileges,
    PublishedPort, PullPolicy, Seccomp, SecretObjectMount, ServiceMode, ServiceSpec, TaskNetworkMode,
    TaskSpec, Violations,
};

use super::seccomp_files::SeccompFiles;
use crate::args::lists::{ListAdditions, ListRemovals, MountArgs};
use crate::args::spec::{PrivilegeFlags, ProcessFlags, ScaleFlags, SpecArgs};
use crate::args::value::{ModeName, PortList, ResetFlags, SeccompSource, SecurityOption, Setting};
use crate::args::{ServiceCreateArgs, ServiceUpdateArgs};

/// The spec of a new service, or all violations with request paths. `env` merges files and flags; `profiles` has the
/// files of seccomp profiles.
pub fn create(
    name: &str,
    args: &ServiceCreateArgs,
    env: &[EnvVar],
    profiles: &SeccompFiles,
) -> Result<ServiceSpec, Violations> {
    let ServiceCreateArgs {
        positional_name: _,
        name: _,
        mode,
        spec: settings,
        additions: lists,
        // A new service has no check to remove.
        no_health: _,
        detach: _,
        quiet: _,
        yes: _,
    } = args;
    let mut wrong = Violations::default();
    let name = name.parse().map_err(|why| wrong.add("spec.name", why));
    let blank = ServiceSpec {
        mode: match mode {
            ModeName::Replicated => ServiceMode::Replicated { replicas: 1 },
            ModeName::Global => ServiceMode::Global,
        },
        // An invalid name is in `wrong`; the image is set by a flag.
        ..ServiceSpec::new(
            name.unwrap_or_else(|()| "unreadable".parse().expect("it is a name")),
            TaskSpec::new("unreadable".parse().expect("it is a reference")),
        )
    };
    let mut draft = SpecDraft { spec: blank, resets: ResetFlags::default(), violations: wrong };
    draft.settings(settings, profiles);
    if !lists.network.is_empty() {
        draft.spec.task.network = TaskNetworkMode::Networks(Vec::new());
    }
    draft.add(lists, env);
    draft.health(&settings.health, &lists.health_header);
    for flag in std::mem::take(&mut draft.resets.0) {
        draft.violations.add(flag, "is empty; leave it out for the default");
    }
    draft.finish()
}

/// `spec` with the changes of `args`, or all violations. Removals come before additions.
pub fn change(
    spec: &ServiceSpec,
    args: &ServiceUpdateArgs,
    env: &[EnvVar],
    profiles: &SeccompFiles,
) -> Result<ServiceSpec, Violations> {
    let ServiceUpdateArgs {
        service: _,
        force: _,
        resume: _,
        rollback: _,
        spec: settings,
        additions: added,
        removals: removed,
        detach: _,
        quiet: _,
        yes: _,
    } = args;
    let mut draft =
        SpecDraft { spec: spec.clone(), resets: ResetFlags::default(), violations: Violations::default() };
    let ListAdditions { cap_add, cap_drop, .. } = &added.0;
    if let Some(both) = cap_add.iter().find(|capability| cap_drop.contains(capability)) {
        let message = format!("{both} is both added and dropped; give one of the two");
        draft.violations.add("spec.task.capAdd", message);
    }
    draft.settings(settings, profiles);
    draft.remove(removed);
    draft.add(&added.0, env);
    draft.health(&settings.health, &added.0.health_header);
    draft.finish()
}

/// A spec under construction.
struct SpecDraft {
    spec: ServiceSpec,
    resets: ResetFlags,
    violations: Violations,
}

impl SpecDraft {
    fn finish(mut self) -> Result<ServiceSpec, Violations> {
        self.violations.nest("spec", self.spec.validate());
        self.violations.into_result(self.spec)
    }

    fn settings(&mut self, args: &SpecArgs, profiles: &SeccompFiles) {
        // The health check follows the lists, since its port may be one that they publish.
        let SpecArgs { scale, process, resources, privileges, health: _, lifecycle, update, rollback } = args;
        self.scale(scale);
        self.process(process);
        resources.change(&mut self.resets, &mut self.spec.task);
        self.privileges(privileges, profiles);
        lifecycle.change(&mut self.resets, &mut self.spec);
        update.change(&mut self.resets, &mut self.spec.update);
        rollback.change(&mut self.resets, &mut self.spec.rollback);
    }

    fn scale(&mut self, args: &ScaleFlags) {
        let ScaleFlags { replicas: expected, max_per_node, per, bootstrap, endpoint_mode } = args;
        per.iter().for_each(|label| self.spec.per = Some(label.clone()));
        self.spec.bootstrap = bootstrap.unwrap_or(self.spec.bootstrap);
        self.spec.endpoint_mode = endpoint_mode.unwrap_or(self.spec.endpoint_mode);
        self.resets.set_optional("--max-per-node", max_per_node, &mut self.spec.placement.max_per_node);
        let Some(expected) = expected else { return };
        match (self.spec.mode, replicas(expected.0)) {
            (ServiceMode::Replicated { .. }, Ok(replicas)) => {
                self.spec.mode = ServiceMode::Replicated { replicas }
            }
            (ServiceMode::Replicated { .. }, Err(wrong)) => {
                self.violations.nest("spec.mode.replicated", wrong)
            }
            (ServiceMode::Global, _) => {
                let per = if self.spec.per.is_some() { "value of its label" } else { "node" };
                let message = format!("a global service has one task per {per}; leave --replicas out");
                self.violations.add("spec.mode", message);
            }
        }
    }

    fn process(&mut self, flags: &ProcessFlags) {
        let ProcessFlags {
            image,
            pull,
            resolve_image,
            command,
            arg,
            no_args,
            args,
            workdir,
            user,
            hostname,
            tty,
            stdin,
            init,
            stop_signal,
            drain_delay,
            stop_grace,
            post_start,
            pre_stop,
        } = flags;
        let (task, emptied) = (&mut self.spec.task, &mut self.resets);
        match image.as_ref().map(|image| image.parse()) {
            Some(Ok(image)) => task.image = image,
            Some(Err(why)) => self.violations.add("spec.task.image", why),
            None => {}
        }
        emptied.set("--pull", pull, &mut task.pull, PullPolicy::default());
        emptied.set("--resolve-image", resolve_image, &mut task.resolve_image, ImageResolver::default());
        emptied.set_words("--command", command, &mut task.command);
        emptied.set_words("--arg", arg, &mut task.args);
        if *no_args || !args.is_empty() {
            task.args = Some(args.clone());
        }
        emptied.set_optional("--workdir", workdir, &mut task.workdir);
        emptied.set_optional("--user", user, &mut task.user);
        emptied.set_optional("--hostname", hostname, &mut task.hostname);
        task.tty = tty.unwrap_or(task.tty);
        task.stdin = stdin.unwrap_or(task.stdin);
        task.init = init.unwrap_or(task.init);
        emptied.set_optional("--stop-signal", stop_signal, &mut task.stop_signal);
        emptied.set("--drain-delay", drain_delay, &mut task.drain_delay, DEFAULT_DRAIN_DELAY);
        emptied.set("--stop-grace", stop_grace, &mut task.stop_grace, DEFAULT_STOP_GRACE);
        for (given, hooks) in [(post_start, &mut task.post_start), (pre_stop, &mut task.pre_stop)] {
            if !given.is_empty() {
                let commands = given.iter().filter(|command| !command.is_empty());
                *hooks = commands.map(|command| LifecycleHook::new(health::shell(command))).collect();
            }
        }
    }

    fn privileges(&mut self, flags: &PrivilegeFlags, profiles: &SeccompFiles) {
        let PrivilegeFlags {
            privileged,
            no_new_privileges,
            allow_metadata,
            seccomp,
            apparmor,
            security_opt,
            user_namespace,
            read_only,
        } = flags;
        let task = &mut self.spec.task;
        task.privileged = privileged.unwrap_or(task.privileged);
        let given = &mut task.no_new_privileges;
        self.resets.set("--no-new-privileges", no_new_privileges, given, NoNewPrivileges::default());
        self.resets.set("--apparmor", apparmor, &mut task.apparmor, AppArmor::default());
        task.allow_metadata = allow_metadata.unwrap_or(task.allow_metadata);
        self.resets.set_optional("--user-namespace", user_namespace, &mut task.user_namespace);
        task.read_only = read_only.unwrap_or(task.read_only);
        match seccomp {
            None => {}
            Some(Setting::Set(source)) => self.seccomp(source, profiles),
            Some(Setting::Default) => {
                self.resets.0.push("--seccomp");
                self.spec.task.seccomp = Seccomp::Default;
            }
        }
        for option in security_opt {
            match option {
                SecurityOption::NoNewPrivileges(asked) => self.spec.task.no_new_privileges = *asked,
                SecurityOption::Seccomp(source) => self.seccomp(source, profiles),
                SecurityOption::AppArmor(profile) => self.spec.task.apparmor = profile.clone(),
            }
        }
    }

    fn seccomp(&mut self, source: &SeccompSource, profiles: &SeccompFiles) {
        let seccomp = match source {
            SeccompSource::Named(seccomp) => Some(seccomp.clone()),
            SeccompSource::File(path) => profiles.config(path).cloned().map(Seccomp::Config),
        };
        match seccomp {
            Some(seccomp) => self.spec.task.seccomp = seccomp,
            None => self.violations.add("spec.task.seccomp", "is a file that was not read"),
        }
    }

    /// Adds items to the lists. An item replaces the one with the same key; two with one key on the command line are
    /// refused by the validation of the spec.
    fn add(&mut self, lists: &ListAdditions, env: &[EnvVar]) {
        let ListAdditions {
            label,
            container_label,
            env: _,
            env_file: _,
            constraint,
            toleration,
            prefer,
            publish,
            publish_on,
            network,
            alias,
            dns,
            dns_search,
            host,
            group,
            mounts: MountArgs(mounts),
            secret,
            config,
            health_header: _,
            device,
            ulimit,
            sysctl,
            cap_add,
            cap_drop,
        } = lists;
        let ServiceSpec { labels, task, ports, publish_on: entry_nodes, placement, .. } = &mut self.spec;
        pairs("spec.labels", labels, label, &mut self.violations);
        let container_labels = &mut task.container_labels;
        pairs("spec.task.containerLabels", container_labels, container_label, &mut self.violations);
        pairs("spec.task.sysctls", &mut task.sysctls, sysctl, &mut self.violations);
        merge(&mut task.env, env, |var| var.name.clone());
        merge(&mut placement.constraints, constraint, compared_value);
        merge(&mut placement.tolerations, toleration, Clone::clone);
        merge(&mut placement.preferences, prefer, Clone::clone);
        let publish: Vec<PublishedPort> = publish.iter().flat_map(|PortList(ports)| ports).copied().collect();
        let automatic = |port: &PublishedPort| (port.host_port == 0).then_some(port.container_port);
        merge(ports, &publish, |port| (port.host_ip, port.host_port, port.protocol, automatic(port)));
        merge(entry_nodes, publish_on, compared_value);
        network::add(&mut task.network, network, alias, &mut self.violations);
        merge(&mut task.dns.servers, dns, Clone::clone);
        merge(&mut task.dns.searches, dns_search, Clone::clone);
        merge(&mut task.hosts, host, Clone::clone);
        merge(&mut task.groups, group, Clone::clone);
        merge(&mut task.mounts, mounts, |mount| mount.target.trim_end_matches('/').to_owned());
        merge(&mut task.secrets, secret, SecretObjectMount::secret_target);
        merge(&mut task.configs, config, SecretObjectMount::config_target);
        merge(&mut task.devices, device, |device| device.target.clone());
        merge(&mut task.ulimits, ulimit, |ulimit| ulimit.name);
        self.capabilities(cap_add, cap_drop);
    }

    /// As in Docker, adding a dropped capability, or dropping an added one, restores the default.
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

    /// Removes items from the lists; missing items are ignored.
    fn remove(&mut self, lists: &ListRemovals) {
        let ListRemovals {
            label_rm,
            container_label_rm,
            env_rm,
            constraint_rm,
            toleration_rm,
            prefer_rm,
            publish_rm,
            publish_on_rm,
            network_rm,
            alias_rm,
            dns_rm,
            dns_search_rm,
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
        let ServiceSpec { labels, task, ports, publish_on, placement, .. } = &mut self.spec;
        labels.retain(|key, _| !label_rm.contains(key));
        task.container_labels.retain(|key, _| !container_label_rm.contains(key));
        task.env.retain(|var| !env_rm.contains(&var.name));
        placement.constraints.retain(|constraint| !constraint_rm.contains(constraint));
        placement.tolerations.retain(|toleration| !toleration_rm.contains(toleration));
        placement.preferences.retain(|preference| !prefer_rm.contains(preference));
        ports.retain(|port| !publish_rm.iter().any(|unwanted| unwanted.matches(port)));
        publish_on.retain(|constraint| !publish_on_rm.contains(constraint));
        network::remove(&mut task.network, network_rm, alias_rm);
        task.dns.servers.retain(|server| !dns_rm.contains(server));
        task.dns.searches.retain(|domain| !dns_search_rm.contains(domain));
        task.hosts.retain(|entry| {
            let is = |address| address == entry.address;
            !host_rm.iter().any(|(name, address)| *name == entry.name && address.is_none_or(is))
        });
        task.groups.retain(|group| !group_rm.contains(group));
        let path = |path: &str| path.trim_end_matches('/').to_owned();
        task.mounts.retain(|mount| !mount_rm.iter().any(|target| path(target) == path(&mount.target)));
        task.mounts.retain(|mount| match &mount.source {
            MountSource::Volume { name, .. } => {
                !matches_name_or_target(volume_rm, name, &path(&mount.target))
            }
            MountSource::Bind { .. } | MountSource::Tmpfs { .. } => true,
        });
        task.secrets
            .retain(|one| !matches_name_or_target(secret_rm, one.source.as_str(), &one.secret_target()));
        task.configs
            .retain(|one| !matches_name_or_target(config_rm, one.source.as_str(), &one.config_target()));
        health::remove_from_check(&mut task.health, *no_health, health_header_rm);
        task.devices.retain(|device| !device_rm.contains(&device.target));
        task.ulimits.retain(|ulimit| !ulimit_rm.contains(&ulimit.name));
        task.sysctls.retain(|key, _| !sysctl_rm.contains(key));
    }
}

/// Whether `unwanted` contains this name, or this path in the container.
fn matches_name_or_target(unwanted: &[String], name: &str, target: &str) -> bool {
    unwanted.iter().any(|one| one == name || one.trim_end_matches('/') == target)
}

/// What a constraint replaces: `==` and `in` another one that selects by the same value of the node, since a node that
/// satisfies both is rarely meant; any other constraint only itself.
fn compared_value(constraint: &Constraint) -> (ConstraintKey, Option<ConstraintOperator>) {
    let operator = match &constraint.operator {
        ConstraintOperator::Equals(_) | ConstraintOperator::In(_) => None,
        other => Some(other.clone()),
    };
    (constraint.key.clone(), operator)
}

/// Replaces items with the same key, and appends the others.
fn merge<T: Clone, K: PartialEq>(list: &mut Vec<T>, items: &[T], key: impl Fn(&T) -> K) {
    let old = list.len();
    for (i, item) in items.iter().enumerate() {
        let key_of = key(item);
        let again = items[..i].iter().any(|earlier| key(earlier) == key_of);
        match list[..old].iter_mut().find(|known| key(known) == key_of) {
            Some(target) if !again => *target = item.clone(),
            _ => list.push(item.clone()),
        }
    }
}

/// As [`merge`] for a map; duplicate keys on the command line are violations.
fn pairs(path: &str, map: &mut BTreeMap<String, String>, items: &[(String, String)], wrong: &mut Violations) {
    for (i, (key, value)) in items.iter().enumerate() {
        if items[..i].iter().any(|(earlier, _)| earlier == key) {
            wrong.add(format!("{path}[{key:?}]"), "is given twice");
        }
        map.insert(key.clone(), value.clone());
    }
}

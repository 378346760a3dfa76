//! What a task runs.

use std::net::Ipv4Addr;
use std::time::Duration;

use warren_client::SeccompConfig;
use warren_types::base64::{decode_base64, encode_base64};
use warren_types::spec::DEFAULT_STOP_GRACE;
use warren_types::{
    AppArmor, Capability, EnvVar, HealthCheck, HostEntry, NoNewPrivileges, Probe, RestartPolicy, Seccomp,
    TaskSpec, Ulimit,
};

use super::DefaultFields;
use super::mounts;
use super::policies::{
    logs_from_docker, logs_to_docker, resources_from_docker, resources_to_docker, restart_from_docker,
    restart_to_docker,
};
use super::reader::{SpecReader, nanos, non_empty};
use crate::model;
use crate::object_ids::ObjectIds;

/// Defaults of a health check in Docker.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
const HEALTH_START_INTERVAL: Duration = Duration::from_secs(5);

fn path(field: &str) -> String {
    format!("TaskTemplate.ContainerSpec.{field}")
}

/// The task without its networks and placement; `None` if its image is wrong.
pub fn task(reader: &mut SpecReader, docker: model::TaskSpec, ids: &ObjectIds) -> Option<TaskSpec> {
    let model::TaskSpec {
        plugin_spec,
        container_spec,
        network_attachment_spec,
        resources,
        restart_policy,
        placement: _,
        force_update: _,
        runtime,
        networks: _,
        log_driver,
    } = docker;
    reader.refuse_if(
        plugin_spec.is_some(),
        "TaskTemplate.PluginSpec",
        "Warren has no plugins; give ContainerSpec",
    );
    let is_set = network_attachment_spec.is_some();
    reader.refuse_if(is_set, "TaskTemplate.NetworkAttachmentSpec", "is not for services; give ContainerSpec");
    reader.only("TaskTemplate.Runtime", runtime, "container");
    let mut task = container(reader, container_spec.unwrap_or_default(), ids);
    let (limits, reservations) = resources_from_docker(reader, resources.unwrap_or_default());
    let restart = restart_from_docker(reader, restart_policy.unwrap_or_default());
    let logs = logs_from_docker(reader, log_driver.unwrap_or_default());
    if let Some(task) = &mut task {
        (task.limits, task.reservations) = (limits, reservations);
        (task.restart, task.logs) = (restart, logs);
    }
    task
}

fn container(reader: &mut SpecReader, docker: model::ContainerSpec, ids: &ObjectIds) -> Option<TaskSpec> {
    let model::ContainerSpec {
        image,
        labels,
        command,
        args,
        hostname,
        env,
        dir,
        user,
        groups,
        privileges,
        stop_signal,
        tty,
        open_stdin,
        read_only,
        mounts,
        stop_grace_period,
        healthcheck,
        hosts,
        dns_config,
        secrets,
        configs,
        isolation,
        init,
        sysctls,
        capability_add,
        capability_drop,
        ulimits,
        oom_score_adj,
    } = docker;
    let image = reader.parse(path("Image"), &image.unwrap_or_default());
    let words = |words: Option<Vec<String>>| words.filter(|words| !words.is_empty());
    let has_image = image.is_some();
    let mut task = TaskSpec::new(image.unwrap_or_else(|| "unknown".parse().expect("it is a reference")));
    task.container_labels = labels.unwrap_or_default();
    (task.command, task.args) = (words(command), words(args));
    task.env = variables(reader, env.unwrap_or_default());
    (task.workdir, task.user) = (non_empty(dir), non_empty(user));
    (task.groups, task.hostname) = (groups.unwrap_or_default(), non_empty(hostname));
    read_privileges(reader, privileges.unwrap_or_default(), &mut task);
    task.stop_signal = non_empty(stop_signal).and_then(|signal| reader.parse(path("StopSignal"), &signal));
    task.stop_grace = reader.duration(path("StopGracePeriod"), stop_grace_period).unwrap_or(task.stop_grace);
    (task.tty, task.stdin) = (tty.unwrap_or_default(), open_stdin.unwrap_or_default());
    task.init = init.unwrap_or_default();
    task.read_only = read_only.unwrap_or_default();
    reader.only(path("Isolation"), isolation, "default");
    task.mounts = mounts::mounts_from_docker(reader, mounts.unwrap_or_default());
    task.secrets = mounts::secrets_from_docker(reader, secrets.unwrap_or_default(), ids);
    task.configs = mounts::configs_from_docker(reader, configs.unwrap_or_default(), ids);
    task.health = healthcheck.and_then(|check| health(reader, check));
    task.hosts = host_entries(reader, hosts.unwrap_or_default());
    let model::DnsConfig { nameservers, search, options } = dns_config.unwrap_or_default();
    let servers = nameservers.into_iter().flatten().enumerate();
    let servers = servers.filter_map(|(i, text)| {
        let message = format!("{text:?} is not an IPv4 address, which this version needs");
        let address = text.parse::<Ipv4Addr>();
        reader.refuse_if(address.is_err(), path(&format!("DNSConfig.Nameservers[{i}]")), message);
        address.ok()
    });
    task.dns.servers = servers.collect();
    task.dns.searches = search.unwrap_or_default();
    let is_set = options.is_some_and(|options| !options.is_empty());
    reader.refuse_if(
        is_set,
        path("DNSConfig.Options"),
        "options of the resolver are not supported by this version",
    );
    task.sysctls = sysctls.unwrap_or_default();
    task.cap_add = capabilities(reader, "CapabilityAdd", capability_add);
    task.cap_drop = capabilities(reader, "CapabilityDrop", capability_drop);
    for (i, limit) in ulimits.into_iter().flatten().enumerate() {
        let model::Ulimit { name, soft, hard } = limit;
        let Some(name) = reader.parse(path(&format!("Ulimits[{i}].Name")), &name.unwrap_or_default()) else {
            continue;
        };
        // -1 is unlimited.
        let bound = |bound: Option<i64>| u64::try_from(bound.unwrap_or_default()).ok();
        task.ulimits.push(Ulimit { name, soft: bound(soft), hard: bound(hard) });
    }
    task.oom_score_adj =
        oom_score_adj.map(|score| i32::try_from(score).unwrap_or(i32::MAX)).filter(|score| *score != 0);
    has_image.then_some(task)
}

fn variables(reader: &mut SpecReader, env: Vec<String>) -> Vec<EnvVar> {
    let mut variables: Vec<EnvVar> = Vec::new();
    for (i, text) in env.into_iter().enumerate() {
        let Some((name, value)) = text.split_once('=') else {
            let message = "has no value, and the environment of an image cannot be reduced; give NAME=VALUE";
            reader.refuse(path(&format!("Env[{i}]")), message);
            continue;
        };
        let (name, value) = (name.to_owned(), value.to_owned());
        // As in Docker, the last one counts.
        match variables.iter_mut().find(|known| known.name == name) {
            Some(known) => known.value = value,
            None => variables.push(EnvVar { name, value }),
        }
    }
    variables
}

fn read_privileges(reader: &mut SpecReader, docker: model::Privileges, task: &mut TaskSpec) {
    let model::Privileges { credential_spec, selinux_context, seccomp, app_armor, no_new_privileges } =
        docker;
    let path = |field: &str| path(&format!("Privileges.{field}"));
    reader.refuse_if(
        credential_spec.is_some(),
        path("CredentialSpec"),
        "is for Windows, which Warren does not run",
    );
    let message = "labels of SELinux are not supported by this version; leave it out";
    reader.refuse_if(selinux_context.is_some(), path("SELinuxContext"), message);
    let mode = app_armor.and_then(|profile| profile.mode).unwrap_or_default();
    task.apparmor = match mode.as_str() {
        "disabled" => AppArmor::Unconfined,
        _ => AppArmor::Default,
    };
    let is_known = matches!(mode.as_str(), "" | "default" | "disabled");
    let message = format!("{mode:?} is not a mode; give default or disabled");
    reader.refuse_if(!is_known, path("AppArmor.Mode"), message);
    task.seccomp = read_seccomp(reader, seccomp.unwrap_or_default());
    // Many clients send false for what was not said.
    task.no_new_privileges = match no_new_privileges {
        Some(true) => NoNewPrivileges::On,
        Some(false) | None => NoNewPrivileges::Default,
    };
}

/// The profile of the mode `custom` is its JSON, or as it is shown: [`Seccomp`] as text.
fn read_seccomp(reader: &mut SpecReader, docker: model::Seccomp) -> Seccomp {
    let model::Seccomp { mode, profile } = docker;
    let path = |field: &str| path(&format!("Privileges.Seccomp.{field}"));
    let profile = non_empty(profile);
    let is_custom = mode.as_deref() == Some("custom");
    reader.refuse_if(profile.is_some() && !is_custom, path("Profile"), "is only for the mode custom");
    match mode.as_deref().unwrap_or_default() {
        "" | "default" => return Seccomp::Default,
        "unconfined" => return Seccomp::Unconfined,
        "custom" => {}
        other => {
            let message = format!("{other:?} is not a mode; give default, unconfined or custom");
            reader.refuse(path("Mode"), message);
            return Seccomp::Default;
        }
    }
    let Some(json) = decode_base64(&profile.unwrap_or_default()) else {
        reader.refuse(path("Profile"), "is not base64");
        return Seccomp::Default;
    };
    let named = std::str::from_utf8(&json).ok().and_then(|text| text.parse::<Seccomp>().ok());
    if let Some(named) = named.filter(|named| named.config().is_some()) {
        return named;
    }
    match SeccompConfig::new(&json) {
        Ok(config) => {
            let name = config.name.clone();
            reader.profiles.push(config);
            Seccomp::Config(name)
        }
        Err(wrong) => {
            reader.wrong.nest(&path("Profile"), wrong);
            Seccomp::Default
        }
    }
}

fn seccomp_to_docker(seccomp: &Seccomp) -> Option<model::Seccomp> {
    let (mode, profile) = match seccomp {
        Seccomp::Default => return None,
        Seccomp::Unconfined => ("unconfined", None),
        Seccomp::Config(_) => ("custom", Some(encode_base64(seccomp.to_string().as_bytes()))),
    };
    Some(model::Seccomp { mode: Some(mode.to_owned()), profile })
}

fn health(reader: &mut SpecReader, docker: model::HealthCheck) -> Option<HealthCheck> {
    let model::HealthCheck { test, interval, timeout, retries, start_period, start_interval } = docker;
    let path = |field: &str| path(&format!("Healthcheck.{field}"));
    let test = test.unwrap_or_default();
    let command = match test.split_first().map(|(kind, words)| (kind.as_str(), words)) {
        Some(("NONE", [])) => return None,
        Some(("CMD", words)) if !words.is_empty() => words.to_vec(),
        Some(("CMD-SHELL", [command])) => vec!["/bin/sh".to_owned(), "-c".to_owned(), command.clone()],
        None => {
            let message =
                "is missing: Warren does not read the health check of the image; give the command, or NONE";
            reader.refuse(path("Test"), message);
            return None;
        }
        _ => {
            reader.refuse(path("Test"), "begins with CMD and a command, CMD-SHELL and one text, or NONE");
            return None;
        }
    };
    let mut check = HealthCheck::new(Probe::Exec { command });
    let mut time = |field, nanos, default| reader.positive_duration(path(field), nanos).unwrap_or(default);
    check.interval = time("Interval", interval, check.interval);
    check.timeout = time("Timeout", timeout, HEALTH_TIMEOUT);
    check.start_period = time("StartPeriod", start_period, check.start_period);
    check.start_interval = time("StartInterval", start_interval, HEALTH_START_INTERVAL);
    check.retries = reader.positive(path("Retries"), retries).unwrap_or(check.retries);
    Some(check)
}

/// Lines of `/etc/hosts`: an address and its names.
fn host_entries(reader: &mut SpecReader, lines: Vec<String>) -> Vec<HostEntry> {
    let mut entries = Vec::new();
    for (i, line) in lines.into_iter().enumerate() {
        let mut words = line.split_whitespace();
        match words.next().map(str::parse::<Ipv4Addr>) {
            Some(Ok(address)) => {
                entries.extend(words.map(|name| HostEntry { name: name.to_owned(), address }));
            }
            _ => {
                let message =
                    format!("{line:?} does not begin with an IPv4 address, which this version needs");
                reader.refuse(path(&format!("Hosts[{i}]")), message);
            }
        }
    }
    entries
}

fn capabilities(reader: &mut SpecReader, field: &str, names: Option<Vec<String>>) -> Vec<Capability> {
    let names = names.into_iter().flatten().enumerate();
    names.filter_map(|(i, name)| reader.parse(path(&format!("{field}[{i}]")), &name)).collect()
}

/// Without networks and placement, and without what Docker cannot say.
pub fn to_docker(task: &TaskSpec, ids: &ObjectIds, defaults: DefaultFields) -> model::TaskSpec {
    let TaskSpec {
        image, command, args, env, container_labels, workdir, user, groups, hostname, hosts, ..
    } = task;
    let TaskSpec {
        tty, stdin, init, stop_signal, stop_grace, limits, reservations, ulimits, sysctls, ..
    } = task;
    let TaskSpec { oom_score_adj, cap_add, cap_drop, no_new_privileges, seccomp, apparmor, .. } = task;
    let TaskSpec { read_only, mounts, secrets, configs, health, restart, logs, dns, .. } = task;
    let list = |list: Vec<String>| (!list.is_empty()).then_some(list);
    let capability = |capability: &Capability| match capability.as_str() {
        "ALL" => "ALL".to_owned(),
        name => format!("CAP_{name}"),
    };
    let bound = |bound: Option<u64>| bound.map_or(-1, |bound| i64::try_from(bound).unwrap_or(i64::MAX));
    let ulimit = |Ulimit { name, soft, hard }: &Ulimit| model::Ulimit {
        name: Some(name.to_string()),
        soft: Some(bound(*soft)),
        hard: Some(bound(*hard)),
    };
    let privileges = model::Privileges {
        seccomp: seccomp_to_docker(seccomp),
        // Docker's services name no profile.
        app_armor: (*apparmor == AppArmor::Unconfined)
            .then(|| model::AppArmor { mode: Some("disabled".to_owned()) }),
        no_new_privileges: (*no_new_privileges == NoNewPrivileges::On).then_some(true),
        ..Default::default()
    };
    let dns = model::DnsConfig {
        nameservers: list(dns.servers.iter().map(ToString::to_string).collect()),
        search: list(dns.searches.clone()),
        options: None,
    };
    let ulimits: Vec<model::Ulimit> = ulimits.iter().map(ulimit).collect();
    let container = model::ContainerSpec {
        image: Some(image.to_string()),
        labels: (!container_labels.is_empty()).then(|| container_labels.clone()),
        command: command.clone(),
        args: args.clone().filter(|args| !args.is_empty()),
        hostname: hostname.clone(),
        env: list(env.iter().map(|EnvVar { name, value }| format!("{name}={value}")).collect()),
        dir: workdir.clone(),
        user: user.clone(),
        groups: list(groups.clone()),
        privileges: (privileges != model::Privileges::default()).then_some(privileges),
        stop_signal: stop_signal.map(|signal| signal.to_string()),
        tty: tty.then_some(true),
        open_stdin: stdin.then_some(true),
        read_only: read_only.then_some(true),
        mounts: mounts::mounts_to_docker(mounts),
        stop_grace_period: defaults.show(*stop_grace == DEFAULT_STOP_GRACE, || nanos(*stop_grace)),
        healthcheck: health.as_ref().and_then(health_to_docker),
        hosts: list(hosts.iter().map(|HostEntry { name, address }| format!("{address} {name}")).collect()),
        dns_config: (dns != model::DnsConfig::default()).then_some(dns),
        secrets: mounts::secrets_to_docker(secrets, ids),
        configs: mounts::configs_to_docker(configs, ids),
        isolation: Some("default".to_owned()),
        init: defaults.show(!init, || *init),
        sysctls: (!sysctls.is_empty()).then(|| sysctls.clone()),
        capability_add: list(cap_add.iter().map(capability).collect()),
        capability_drop: list(cap_drop.iter().map(capability).collect()),
        ulimits: (!ulimits.is_empty()).then_some(ulimits),
        oom_score_adj: oom_score_adj.map(i64::from),
    };
    model::TaskSpec {
        container_spec: Some(container),
        resources: Some(resources_to_docker(limits, reservations)),
        restart_policy: defaults.show(*restart == RestartPolicy::default(), || restart_to_docker(restart)),
        force_update: Some(0),
        runtime: Some("container".to_owned()),
        log_driver: logs_to_docker(logs),
        ..Default::default()
    }
}

/// `None` for checks over the network, which Docker does not have.
fn health_to_docker(check: &HealthCheck) -> Option<model::HealthCheck> {
    let HealthCheck { probe, interval, timeout, retries, start_period, start_interval } = check;
    let Probe::Exec { command } = probe else { return None };
    let test = match command.as_slice() {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => {
            vec!["CMD-SHELL".to_owned(), text.clone()]
        }
        words => std::iter::once("CMD".to_owned()).chain(words.iter().cloned()).collect(),
    };
    Some(model::HealthCheck {
        test: Some(test),
        interval: Some(nanos(*interval)),
        timeout: Some(nanos(*timeout)),
        retries: Some((*retries).into()),
        start_period: Some(nanos(*start_period)),
        start_interval: Some(nanos(*start_interval)),
    })
}

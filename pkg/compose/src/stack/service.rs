//! One service.

use std::net::Ipv4Addr;

use warren_types::{
    Bytes, DnsLabel, EnvVar, HostEntry, ImageReference, LifecycleHook, NetworkAttachment, Protocol,
    PublishMode, PublishedPort, PullPolicy, ServiceName, ServiceSpec, TaskNetworkMode, TaskSpec,
};

use super::build::build;
use super::dependencies::dependencies;
use super::fields::Fields;
use super::mounts::{local_paths, mounts, secret_objects};
use super::policies::policies;
use super::resources::{resources, security_options};
use super::{DEFAULT_NETWORK, Names, STACK_LABEL, StackSecretObject, StackService, health};
use crate::scalar::parse_size;

/// The keys that fields of a spec come from, unless they have the name of the field in snake case.
const KEYS: [(&str, &str); 19] = [
    ("args", "command"),
    ("command", "entrypoint"),
    ("containerLabels", "labels"),
    ("env", "environment"),
    ("groups", "group_add"),
    ("health", "healthcheck"),
    ("hosts", "extra_hosts"),
    ("labels", "deploy"),
    ("logs", "logging"),
    ("mode", "deploy"),
    ("mounts", "volumes"),
    ("network", "networks"),
    ("placement", "deploy"),
    ("rollback", "deploy"),
    ("stopGrace", "stop_grace_period"),
    ("storageLimit", "storage_opt"),
    ("update", "deploy"),
    ("userNamespace", "userns_mode"),
    ("workdir", "working_dir"),
];

/// The spec of the service `key`, with the config of its seccomp profile; `None` if its name or image is wrong.
pub(super) fn service(
    key: &str,
    service: &Fields<'_>,
    names: &Names<'_>,
) -> Option<(StackService, Option<StackSecretObject>)> {
    let name: Option<ServiceName> = service.parse_text(&format!("{}_{key}", names.stack));
    let alias: Option<DnsLabel> = service.parse_text(key);
    let build = build(service);
    let image: Option<ImageReference> = match (service.text("image"), &build) {
        (Some(_), _) => service.parse("image"),
        // Without a registry, so that no node looks for it in one.
        (None, Some(_)) => service.parse_text(&format!("localhost/{}_{key}:latest", names.stack)),
        (None, None) => {
            service.fail("has no image; give `image`");
            None
        }
    };
    let (name, alias, image) = (name?, alias?, image?);
    let mut task = TaskSpec::new(image);
    process(service, &mut task);
    resources(service, &mut task);
    let profile = format!("{}_{key}.seccomp", names.stack);
    let profile = security_options(service, &profile, names.stack, &mut task);
    task.mounts = mounts(service, names);
    task.secrets = secret_objects(service, "secrets", "/run/secrets/", names);
    task.configs = secret_objects(service, "configs", "/", names);
    task.health = health::health(service);
    logs(service, &mut task);
    network(service, &alias, names, &mut task);
    only_default_values(service);
    let mut spec = ServiceSpec::new(name, task);
    let ports = service.items("ports");
    let ports = ports.iter().filter_map(|item| Some((port(item)?, item.position())));
    let (published, ports) = ports.unzip();
    spec.ports = published;
    policies(service, &mut spec);
    spec.labels = service.sub("deploy").map(|deploy| deploy.pairs("labels")).unwrap_or_default();
    spec.labels.insert(STACK_LABEL.to_owned(), names.stack.to_string());
    for violation in spec.validate().0 {
        let message = format!("{} ({})", violation.message, violation.path);
        match service.sub(&key_of(service, &violation.path)) {
            Some(inner) => inner.fail(message),
            None => service.fail(message),
        }
    }
    let (dependencies, local_paths) = (dependencies(service, names), local_paths(service));
    let defined = service.position();
    Some((StackService { defined, spec, ports, dependencies, build, local_paths }, profile))
}

/// The key of a service that the field at `path` of its spec comes from.
fn key_of(service: &Fields<'_>, path: &str) -> String {
    let path = path.strip_prefix("task.").unwrap_or(path);
    let field = path.split(['.', '[']).next().unwrap_or(path);
    if field == "restart" && service.sub("deploy").is_some_and(|it| it.sub("restart_policy").is_some()) {
        return "deploy".to_owned();
    }
    if let Some((_, key)) = KEYS.iter().find(|(name, _)| *name == field) {
        return (*key).to_owned();
    }
    let letters = field.chars().map(|letter| match letter.is_ascii_uppercase() {
        true => format!("_{}", letter.to_ascii_lowercase()),
        false => letter.to_string(),
    });
    letters.collect()
}

fn process(service: &Fields<'_>, task: &mut TaskSpec) {
    task.pull = match service.text("pull_policy") {
        None | Some("missing" | "if_not_present") => PullPolicy::Missing,
        Some("always") => PullPolicy::Always,
        Some("never") => PullPolicy::Never,
        Some("build") if service.sub("build").is_some() => PullPolicy::Missing,
        Some(other) => {
            let message = format!(
                "{other:?} is not supported by this version; give always, missing, never, or build beside `build`"
            );
            service.fail_at("pull_policy", message);
            PullPolicy::Missing
        }
    };
    (task.command, task.args) = (service.texts("entrypoint"), service.texts("command"));
    if task.command.as_ref().is_some_and(Vec::is_empty) {
        // Without the entrypoint of the image, the first word of the command is the program.
        task.command = task.args.take().filter(|words| !words.is_empty());
        if task.command.is_none() {
            service.fail_at("entrypoint", "is empty, and `command` names no program; give one of them");
        }
    }
    let variables = service.pairs("environment").into_iter();
    task.env = variables.map(|(name, value)| EnvVar { name, value }).collect();
    task.container_labels = service.pairs("labels");
    task.workdir = service.text("working_dir").map(str::to_owned);
    task.user = service.text("user").map(str::to_owned);
    task.groups = service.texts("group_add").unwrap_or_default();
    task.hostname = service.text("hostname").map(str::to_owned);
    for (name, addresses) in service.entries("extra_hosts") {
        for address in addresses.node.items() {
            let text = address.as_text().unwrap_or_default();
            match text.parse::<Ipv4Addr>() {
                Ok(address) => task.hosts.push(HostEntry { name: name.to_owned(), address }),
                Err(_) => {
                    addresses.fail(format!("{text:?} is not an IPv4 address, which this version needs"))
                }
            }
        }
    }
    task.tty = service.flag("tty").unwrap_or_default();
    task.init = service.flag("init").unwrap_or_default();
    task.stdin = service.flag("stdin_open").unwrap_or_default();
    task.stop_signal = service.parse("stop_signal");
    task.stop_grace = service.duration("stop_grace_period").unwrap_or(task.stop_grace);
    task.post_start = hooks(service, "post_start");
    task.pre_stop = hooks(service, "pre_stop");
}

fn hooks(service: &Fields<'_>, key: &str) -> Vec<LifecycleHook> {
    let hook = |hook: &Fields<'_>| {
        if hook.flag("privileged") == Some(true) && service.flag("privileged") != Some(true) {
            hook.fail_at(
                "privileged",
                "a hook has the rights of its container in this version; make the service privileged, or leave it out",
            );
        }
        let variables = hook.pairs("environment").into_iter();
        LifecycleHook {
            command: hook.texts("command").unwrap_or_default(),
            env: variables.map(|(name, value)| EnvVar { name, value }).collect(),
            workdir: hook.text("working_dir").map(str::to_owned),
            user: hook.text("user").map(str::to_owned),
        }
    };
    service.items(key).iter().map(hook).collect()
}

/// Keys of which only one value is possible.
fn only_default_values(service: &Fields<'_>) {
    for (key, value) in [("cgroup", "private"), ("ipc", "private"), ("isolation", "default")] {
        if let Some(other) = service.text(key).filter(|given| *given != value) {
            service.fail_at(
                key,
                format!("{other:?} is not supported by this version; give {value}, or leave it out"),
            );
        }
    }
}

fn logs(service: &Fields<'_>, task: &mut TaskSpec) {
    let Some(logging) = service.sub("logging") else { return };
    if let Some(driver) = logging.sub("driver")
        && !matches!(driver.node.as_text(), Some("json-file" | "local"))
    {
        driver.warn("has no effect: the node keeps the output, and `warren service logs` shows it");
    }
    for (name, option) in logging.entries("options") {
        let text = option.node.as_text().unwrap_or_default();
        match name {
            "max-size" => match parse_size(text) {
                Some(size) => task.logs.max_size = Bytes(size),
                None => option.fail(format!("{text:?} is not a number of bytes like 10m")),
            },
            "max-file" => task.logs.max_files = option.parse_self().unwrap_or(task.logs.max_files),
            _ => option
                .warn("has no effect: the node keeps the output, with the options max-size and max-file"),
        }
    }
}

fn network(service: &Fields<'_>, alias: &DnsLabel, names: &Names<'_>, task: &mut TaskSpec) {
    task.dns.servers = service.items("dns").iter().filter_map(|server| server.parse_self()).collect();
    task.dns.searches = service.texts("dns_search").unwrap_or_default();
    let networks = service.entries("networks");
    let container_name = service.sub("container_name");
    let own_name = container_name.as_ref().and_then(|name| name.node.as_text()?.parse::<DnsLabel>().ok());
    if let Some(name) = container_name.filter(|_| own_name.is_none()) {
        name.warn("has no effect: it is not a DNS label, so it cannot be an alias");
    }
    if let Some(mode) = service.sub("network_mode") {
        if !networks.is_empty() {
            mode.fail("cannot be combined with `networks`; leave one of them out");
        }
        match mode.node.as_text().unwrap_or_default() {
            "host" => task.network = TaskNetworkMode::Host,
            "none" => task.network = TaskNetworkMode::None,
            other => mode.fail(format!(
                "{other:?} is not supported by this version; give host or none, or use `networks`"
            )),
        }
        return;
    }
    let attachment = |key: &str, aliases: &[Fields<'_>]| {
        let network = service.parse_text(&names.name_of("networks", key))?;
        let more = aliases.iter().filter_map(|alias| alias.parse_self::<DnsLabel>());
        let more = own_name.iter().filter(|name| *name != alias).cloned().chain(more);
        let aliases = std::iter::once(alias.clone()).chain(more).collect();
        Some(NetworkAttachment { network, aliases })
    };
    let mut attachments: Vec<NetworkAttachment> =
        networks.iter().filter_map(|(key, network)| attachment(key, &network.items("aliases"))).collect();
    if networks.is_empty() {
        attachments.extend(attachment(DEFAULT_NETWORK, &[]));
    }
    task.network = TaskNetworkMode::Networks(attachments);
}

fn port(port: &Fields<'_>) -> Option<PublishedPort> {
    let Some(container_port) = port.number::<u16>("target") else {
        if port.sub("target").is_none() {
            port.fail("has no port of the container; give `target`");
        }
        return None;
    };
    let protocol = port.parse("protocol").unwrap_or(Protocol::Tcp);
    let host_ip = port.parse::<Ipv4Addr>("host_ip").filter(|ip| !ip.is_unspecified());
    let host_port = match port.text("published") {
        None | Some("") => 0,
        Some(published) if published.contains('-') => {
            let message =
                "a port of a range is not chosen by this version; give one port, or none for any free one";
            port.fail_at("published", message);
            return None;
        }
        Some(_) => port.number("published")?,
    };
    let mode = match port.sub("mode").map(|mode| (mode.node.as_text().unwrap_or_default(), mode)) {
        None => PublishMode::default_for(host_ip),
        Some(("host", _)) => PublishMode::Host,
        Some(("ingress", _)) => PublishMode::Ingress,
        Some((other, mode)) => {
            mode.fail(format!("{other:?} is not a mode; give host or ingress"));
            return None;
        }
    };
    Some(PublishedPort {
        host_ip,
        host_port,
        container_port,
        protocol,
        mode,
        prefer_local: false,
        client_affinity: false,
    })
}

//! Every spec can be given on the command line, and arrives unchanged: flags → types → wire → bytes → wire →
//! types.

use std::time::Duration;

use clap::Parser;
use proptest::prelude::*;
use warren_proto::v1;
use warren_testkit::soak;
use warren_types::strategies::{full_task_spec, service_specs};
use warren_types::{
    Device, DnsSettings, FailureAction, FailureRatio, HealthCheck, HostEntry, HttpHeader, Limits, LogLimits,
    Mount, MountSource, NetworkAttachment, Parallelism, Placement, Probe, PublishMode, PublishedPort,
    Resources, RestartPolicy, Ulimit, UpdateOrder, UpdatePolicy,
};

use super::tests::{changed, reset_of};
use super::*;
use crate::args::{Cli, CliCommand, ServiceCommand};

/// A colon or backslash of a path as it is written on a command line.
fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace(':', "\\:")
}

/// The same where a comma ends something, too.
fn escaped_all(text: &str) -> String {
    escaped(text).replace(',', "\\,")
}

/// The command line that expresses `spec`. Every field is named, so that none can be forgotten.
fn to_flags(spec: &ServiceSpec) -> Vec<String> {
    let ServiceSpec {
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
    } = spec;
    let Placement { constraints, tolerations, max_per_node, preferences } = placement;
    let mut flags = vec![format!("--name={name}")];
    let mut say = |flag: &str, value: String| flags.push(format!("--{flag}={value}"));
    match mode {
        ServiceMode::Replicated { replicas } => say("replicas", replicas.to_string()),
        ServiceMode::Global => say("mode", "global".to_owned()),
    }
    per.iter().for_each(|label| say("per", label.to_string()));
    say("bootstrap", bootstrap.to_string());
    say("replace-after", time(*replace_after));
    say("endpoint-mode", endpoint_mode.to_string());
    labels.iter().for_each(|(key, value)| say("label", format!("{key}={value}")));
    constraints.iter().for_each(|constraint| say("constraint", constraint.to_string()));
    publish_on.iter().for_each(|constraint| say("publish-on", constraint.to_string()));
    tolerations.iter().for_each(|toleration| say("toleration", toleration.to_string()));
    preferences.iter().for_each(|preference| say("prefer", preference.to_string()));
    max_per_node.iter().for_each(|most| say("max-per-node", most.to_string()));
    for port in ports {
        let PublishedPort {
            host_ip,
            host_port,
            container_port,
            protocol,
            mode,
            prefer_local,
            client_affinity,
        } = port;
        let mode = match mode {
            PublishMode::Host => "host",
            PublishMode::Ingress => "ingress",
        };
        let ip = host_ip.map(|ip| format!("{ip}:")).unwrap_or_default();
        let prefer = if *prefer_local { ",prefer=local" } else { "" };
        let affinity = if *client_affinity { ",affinity=client" } else { "" };
        say("publish", format!("{ip}{host_port}:{container_port}/{protocol},mode={mode}{prefer}{affinity}"));
    }
    flags.extend(policy_flags("update", update));
    flags.extend(policy_flags("rollback", rollback));
    flags.extend(task_flags(task));
    flags
}

fn policy_flags(prefix: &str, policy: &UpdatePolicy) -> Vec<String> {
    let UpdatePolicy { parallelism, delay, order, monitor, failure_ratio, on_failure } = policy;
    let mut flags = Vec::new();
    let mut say = |flag: &str, value: String| flags.push(format!("--{prefix}-{flag}={value}"));
    say("parallelism", parallelism.to_string());
    say("delay", time(*delay));
    order.iter().for_each(|order| say("order", order.as_str().to_owned()));
    say("monitor", time(*monitor));
    say("failure-ratio", failure_ratio.to_string());
    on_failure.iter().for_each(|action| say("on-failure", action.as_str().to_owned()));
    flags
}

fn task_flags(task: &TaskSpec) -> Vec<String> {
    let TaskSpec {
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
        limits: Limits { cpu, memory, pids },
        reservations: Resources { cpu: reserved_cpu, memory: reserved_memory },
        ulimits,
        sysctls,
        shm_size,
        storage_limit,
        oom_score_adj,
        privileged,
        cap_add,
        cap_drop,
        no_new_privileges,
        allow_metadata,
        user_namespace,
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
        dns: DnsSettings { servers, searches },
    } = task;
    let mut flags = lifecycle_flags(restart, logs);
    flags.push(format!("--on-disconnect={on_disconnect}"));
    flags.extend(health.iter().flat_map(health_flags));
    flags.extend(secrets.iter().map(|secret| format!("--secret={}", secret_object_flag(secret))));
    flags.extend(configs.iter().map(|config| format!("--config={}", secret_object_flag(config))));
    let mut say = |flag: &str, value: String| flags.push(format!("--{flag}={value}"));
    say("image", image.to_string());
    say("pull", pull.as_str().to_owned());
    say("resolve-image", resolve_image.as_str().to_owned());
    command.iter().flatten().for_each(|word| say("command", word.clone()));
    env.iter().for_each(|EnvVar { name, value }| say("env", format!("{name}={value}")));
    container_labels.iter().for_each(|(key, value)| say("container-label", format!("{key}={value}")));
    workdir.iter().for_each(|path| say("workdir", path.clone()));
    user.iter().for_each(|user| say("user", user.clone()));
    groups.iter().for_each(|group| say("group", group.clone()));
    hostname.iter().for_each(|name| say("hostname", name.clone()));
    match network {
        TaskNetworkMode::Networks(attachments) => {
            attachments.iter().for_each(|NetworkAttachment { network, aliases }| {
                let aliases: String = aliases.iter().map(|alias| format!(",alias={alias}")).collect();
                say("network", format!("{network}{aliases}"));
            })
        }
        TaskNetworkMode::Host => say("network", "host".to_owned()),
        TaskNetworkMode::None => say("network", "none".to_owned()),
    }
    servers.iter().for_each(|server| say("dns", server.to_string()));
    searches.iter().for_each(|domain| say("dns-search", domain.clone()));
    hosts.iter().for_each(|HostEntry { name, address }| say("host", format!("{name}:{address}")));
    say("tty", tty.to_string());
    say("stdin", stdin.to_string());
    say("init", init.to_string());
    stop_signal.iter().for_each(|signal| say("stop-signal", signal.to_string()));
    say("drain-delay", time(*drain_delay));
    say("stop-grace", time(*stop_grace));
    for (flag, hooks) in [("post-start", post_start), ("pre-stop", pre_stop)] {
        hooks.iter().for_each(|hook| say(flag, hook.command[2].clone()));
    }
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
    storage_limit.iter().for_each(|limit| say("storage-limit", limit.to_string()));
    oom_score_adj.iter().for_each(|score| say("oom-score-adj", score.to_string()));
    say("privileged", privileged.to_string());
    cap_add.iter().for_each(|capability| say("cap-add", capability.to_string()));
    cap_drop.iter().for_each(|capability| say("cap-drop", capability.to_string()));
    no_new_privileges.asked().iter().for_each(|asked| say("no-new-privileges", asked.to_string()));
    say("allow-metadata", allow_metadata.to_string());
    say("seccomp", seccomp.to_string());
    say("apparmor", apparmor.to_string());
    user_namespace.iter().for_each(|kind| say("user-namespace", kind.to_string()));
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

fn lifecycle_flags(restart: &RestartPolicy, logs: &LogLimits) -> Vec<String> {
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
        MountSource::Volume { name, subpath, no_copy } => {
            let subpath = subpath.iter().map(|path| format!(",subpath={}", escaped_all(path)));
            let rest = subpath.chain(no_copy.then(|| ",nocopy".to_owned())).collect::<String>();
            ("volume", format!("{}:{}:{access}{rest}", escaped_all(name), escaped_all(target)))
        }
    }
}

fn secret_object_flag(mount: &SecretObjectMount) -> String {
    let SecretObjectMount { source, target, uid, gid, mode, template } = mount;
    let mut value = escaped_all(source.as_str());
    value.extend(target.iter().map(|target| format!(":{}", escaped_all(target))));
    value.extend(uid.map(|uid| format!(",uid={uid}")));
    value.extend(gid.map(|gid| format!(",gid={gid}")));
    value.extend(mode.map(|mode| format!(",mode={mode:o}")));
    value.extend(template.then_some(",template"));
    value
}

fn health_flags(check: &HealthCheck) -> Vec<String> {
    let HealthCheck { probe, interval, timeout, retries, start_period, start_interval } = check;
    let mut flags = vec![
        format!("--health-interval={}", time(*interval)),
        format!("--health-timeout={}", time(*timeout)),
        format!("--health-retries={retries}"),
        format!("--health-start-period={}", time(*start_period)),
        format!("--health-start-interval={}", time(*start_interval)),
    ];
    match probe {
        Probe::Http { port, path, headers } => {
            flags.push(format!("--health-http=:{port}{path}"));
            let header = |HttpHeader { name, value }: &HttpHeader| format!("--health-header={name}={value}");
            flags.extend(headers.iter().map(header));
        }
        Probe::Tcp { port } => flags.push(format!("--health-tcp={port}")),
        Probe::Exec { command } => match command.as_slice() {
            [shell, flag, words] if shell == "/bin/sh" && flag == "-c" => {
                flags.push(format!("--health-cmd={words}"));
            }
            words => flags.extend(words.iter().map(|word| format!("--health-exec={word}"))),
        },
    }
    flags
}

/// What `warren service create` sends for this command line, as it arrives.
fn through_wire(flags: &[String]) -> Result<ServiceSpec, String> {
    let start = ["warren", "service", "create"].map(str::to_owned);
    let cli = Cli::try_parse_from(start.iter().chain(flags)).map_err(|error| error.to_string())?;
    let CliCommand::Service(ServiceCommand::Create(args)) = cli.command else { panic!("{flags:?}") };
    let env = crate::command::environment::read(&args.additions, "x").map_err(|why| why.to_string())?;
    let spec = create(args.name.as_deref().unwrap(), &args, &env, &SeccompFiles::default());
    let spec = spec.map_err(|wrong| wrong.to_string())?;
    let bytes = prost::Message::encode_to_vec(&v1::ServiceSpec::from(&spec));
    let wire: v1::ServiceSpec = prost::Message::decode(bytes.as_slice()).unwrap();
    ServiceSpec::try_from(wire).map_err(|wrong| wrong.to_string())
}

/// The flags know shell commands only.
fn with_shell_hooks(mut spec: ServiceSpec) -> ServiceSpec {
    for hook in spec.task.post_start.iter_mut().chain(&mut spec.task.pre_stop) {
        *hook = LifecycleHook::new(vec!["/bin/sh".into(), "-c".into(), hook.command.remove(0)]);
    }
    spec
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(soak::count(64, 1000) as u32))]

    #[test]
    fn every_field_round_trips(spec in service_specs()) {
        prop_assert_eq!(spec.validate(), Violations::default(), "only valid specs are generated");
        let spec = with_shell_hooks(spec);
        prop_assert_eq!(through_wire(&to_flags(&spec)), Ok(spec));
    }
}

#[test]
fn empty_value_in_an_update_is_no_flag_in_a_create() {
    let spec = with_shell_hooks(ServiceSpec {
        labels: BTreeMap::from([("app".into(), "shop".into())]),
        placement: Placement { max_per_node: Some(4), ..Placement::default() },
        replace_after: Duration::from_secs(300),
        update: UpdatePolicy {
            parallelism: Parallelism::Percent(25),
            delay: Duration::from_secs(3),
            order: Some(UpdateOrder::StartFirst),
            monitor: Duration::from_secs(7),
            failure_ratio: FailureRatio(200),
            on_failure: Some(FailureAction::Continue),
        },
        rollback: UpdatePolicy {
            parallelism: Parallelism::Slots(3),
            delay: Duration::from_secs(4),
            order: Some(UpdateOrder::StopFirst),
            monitor: Duration::from_secs(8),
            failure_ratio: FailureRatio(300),
            on_failure: Some(FailureAction::Continue),
        },
        ..ServiceSpec::new("web".parse().unwrap(), full_task_spec())
    });
    let flags = to_flags(&spec);
    let resets: Vec<String> = flags.iter().filter_map(|flag| reset_of(flag)).collect();
    assert_eq!(resets.len(), 47, "{resets:?}");
    for reset in resets {
        let others: Vec<String> = flags.iter().filter(|flag| !flag.starts_with(&reset)).cloned().collect();
        assert_eq!(changed(&spec, &[&reset]).unwrap(), through_wire(&others).unwrap(), "{reset}");
    }
}

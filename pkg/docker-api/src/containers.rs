//! `/containers`: the tasks of all nodes that have, or had, a container.

use std::collections::BTreeMap;

use futures::TryFutureExt;
use serde_json::{Value, json};
use tonic::Code;
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;
use warren_types::{AppArmor, Mount, MountSource, NoNewPrivileges, Seccomp, TaskId, TaskSpec, UserNamespace};

use crate::docker_error::DockerError;
use crate::images::{familiar, split_tag};
use crate::object_ids::{ObjectIds, id_of};
use crate::one_off::{self, ONE_OFF_LABEL, OneOffContainer, STDIN_ONCE_LABEL};
use crate::request::DockerRequest;
use crate::response::{Answer, joined, ok, time};
use crate::spec::{self, DefaultFields};
use crate::system::now_ms;
use crate::task_ids::{container_id, docker_id, task_of, warren_id};
use crate::{logs, objects, tasks};

const FILTERS: [&str; 11] =
    ["ancestor", "exited", "health", "id", "is-task", "label", "name", "network", "node", "status", "volume"];
/// The least number of digits of a prefix of an id.
const MIN_PREFIX: usize = 6;
/// What a part of a name does not have.
const REGULAR_EXPRESSION: [char; 11] = ['*', '+', '?', '[', ']', '(', ')', '{', '}', '|', '\\'];

/// The task whose container has this id, prefix of an id, or name: `web.1.ID`, or `web.1` for the newest one.
pub async fn find(client: &Client, reference: &str) -> Result<v1::Task, DockerError> {
    let reference = reference.trim_start_matches('/');
    let missing = || DockerError::not_found(format!("No such container: {reference}"));
    let get = async |task: &str| match client.tasks().get(task).await {
        Err(Error::Refused { problem }) if matches!(problem.code, Code::NotFound | Code::InvalidArgument) => {
            Err(missing())
        }
        other => Ok(other?),
    };
    if let Some(task) = task_of(reference) {
        return match get(&task.to_string()).await {
            Ok(task) if !one_off::is_one_off(&task) => Ok(task),
            _ => Ok(one_off::find(client, reference).await?.ok_or_else(missing)?.into_task()),
        };
    }
    let suffix = reference.rsplit_once('.').and_then(|(_, suffix)| warren_id(suffix));
    if let Some(task) = suffix {
        return get(&task.to_string()).await;
    }
    let is_prefix = reference.len() >= MIN_PREFIX && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_prefix {
        if let Some(task) = find_by_service(client, reference).await? {
            return Ok(task);
        }
        let mut all = client.tasks().list(TaskFilter::default()).await?;
        all.retain(|task| one_off::id_of_task(task).starts_with(reference));
        return match all.as_slice() {
            [task] => Ok(task.clone()),
            [] => Err(missing()),
            _ => {
                let message = format!("{reference} is ambiguous: {} containers have such ids", all.len());
                Err(DockerError::invalid(message))
            }
        };
    }
    if reference.contains('.') {
        return get(reference).await;
    }
    // Any other name is of another kind of object: a service, for example.
    Ok(one_off::find(client, reference).await?.ok_or_else(missing)?.into_task())
}

/// The number of a task and the first digits of its service are its prefix: with one such service and task, no list of
/// all tasks is needed.
async fn find_by_service(client: &Client, prefix: &str) -> Result<Option<v1::Task>, DockerError> {
    let Some((number, digits)) =
        prefix.split_at_checked(6).filter(|(_, digits)| (6..=32).contains(&digits.len()))
    else {
        return Ok(None);
    };
    let Ok(number) = u64::from_str_radix(number, 16) else { return Ok(None) };
    let mut found = None;
    for service in client.services().summaries_as(|service| service.id).await? {
        let task = format!("{service}-{number}");
        if !container_id(&task)[6..].starts_with(digits) {
            continue;
        }
        let own = one_off::find(client, &container_id(&task)).await?.map(OneOffContainer::into_task);
        let task = match client.tasks().get(&task).await {
            Ok(task) => own.or(Some(task)),
            Err(Error::Refused { problem }) if problem.code == Code::NotFound => own,
            Err(error) => return Err(error.into()),
        };
        if found.is_some() && task.is_some() {
            return Ok(None);
        }
        found = found.or(task);
    }
    Ok(found)
}

/// It runs, and its node is not lost.
pub fn is_running(task: &v1::Task) -> bool {
    task.state() == v1::TaskState::Running && task.lost_since.is_none() && !task.removed
}

/// `GET /containers/json`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    if filters.values("name").into_iter().flatten().any(|name| name.contains(REGULAR_EXPRESSION)) {
        return Err(DockerError::invalid(
            "name: regular expressions are not served; give a part of the name",
        ));
    }
    let limit = match request.text("limit") {
        None => 0,
        Some(text) => text.parse::<i64>().map_err(|_| DockerError::invalid("limit: it is not a number"))?,
    };
    let is_every = request.flag("all") || limit > 0 || filters.values("status").is_some();
    let (all, ids) = futures::try_join!(
        tasks_of_containers(client, is_every),
        ObjectIds::read_networks(client).map_err(DockerError::from)
    )?;
    let mut shown = Vec::new();
    for task in all {
        let view = ContainerView::new(task)?;
        let task = &view.task;
        let image = view.spec.image.to_string();
        let has_network = |name: &str| {
            let attachments = view.spec.network.attachments();
            let is_named = |network: &str| network == name || id_of(&ids.networks, network) == name;
            attachments.iter().any(|attachment| is_named(attachment.network.as_str()))
        };
        let exit_code = task.exit.as_ref().map(|exit| exit.code.to_string());
        let is_mounted = |volume: &str| {
            let mut mounts = view.mounts().into_iter();
            mounts.any(|mount| mount.name.as_deref() == Some(volume) || mount.destination == volume)
        };
        let is_accepted = filters.any("id", |id| view.id.starts_with(id))
            && (filters.name_part(&view.name) || filters.name_part(&format!("/{}", view.name)))
            && filters.any("status", |status| status == view.status())
            && filters.any("health", |health| health == view.health())
            && filters.any("ancestor", |wanted| is_image(wanted, &image, &task.digest))
            && filters.any("is-task", |wanted| matches!(wanted, "true" | "1"))
            && filters.any("node", |node| task.node_name == node || task.node_id.starts_with(node))
            && filters.any("network", has_network)
            && filters.any("volume", is_mounted)
            && filters.any("exited", |code| view.status() == "exited" && exit_code.as_deref() == Some(code))
            && filters.labels("label", |key| view.labels.get(key));
        if is_accepted {
            shown.push((task.created_at, view.summary(&ids)));
        }
    }
    shown.sort_by_key(|(created_at, _)| std::cmp::Reverse(*created_at));
    if let Ok(limit @ 1..) = usize::try_from(limit) {
        shown.truncate(limit);
    }
    ok(&shown.into_iter().map(|(_, one)| one).collect::<Vec<_>>())
}

/// The task of each container, or of those that run.
async fn tasks_of_containers(client: &Client, is_every: bool) -> Result<Vec<v1::Task>, DockerError> {
    let mut all = client.tasks().list(TaskFilter::default()).await?;
    if is_every {
        let others = one_off::without_tasks(client, &all).await?;
        all.extend(others);
    }
    let newest = newest_of_one_offs(&all);
    all.retain(|task| {
        let is_container = match newest.get(&task.service_id) {
            Some(newest) => newest == &task.id,
            None => !task.node_id.is_empty() && !task.removed,
        };
        is_container && (is_every || is_running(task))
    });
    Ok(all)
}

/// The task of each container, also of those that do not run.
pub async fn with_ended(client: &Client) -> Result<Vec<v1::Task>, DockerError> {
    tasks_of_containers(client, true).await
}

/// All containers, as in lists.
pub async fn all(client: &Client) -> Result<Vec<objects::Container>, DockerError> {
    let tasks = with_ended(client).await?;
    let ids = ObjectIds::read_networks(client).await?;
    tasks.into_iter().map(|task| Ok(ContainerView::new(task)?.summary(&ids))).collect()
}

/// The id of the newest task of each container of its own, by the id of its service.
fn newest_of_one_offs(tasks: &[v1::Task]) -> BTreeMap<String, String> {
    let number = |task: &v1::Task| task.id.parse::<TaskId>().map_or(0, |id| id.number);
    let mut newest: BTreeMap<String, &v1::Task> = BTreeMap::new();
    for task in tasks.iter().filter(|task| one_off::is_one_off(task)) {
        let known = newest.entry(task.service_id.clone()).or_insert(task);
        if number(task) > number(known) {
            *known = task;
        }
    }
    newest.into_iter().map(|(service, task)| (service, task.id.clone())).collect()
}

/// Whether a name, an id, or a part of either that Docker shows, means the image.
fn is_image(wanted: &str, image: &str, digest: &str) -> bool {
    let (image, wanted) = (familiar(image), familiar(wanted));
    let (repository, tag) = split_tag(image.split('@').next().unwrap_or(image));
    let (wanted_repository, wanted_tag) = split_tag(wanted);
    let is_id =
        wanted.len() >= 12 && [wanted, &format!("sha256:{wanted}")].iter().any(|id| digest.starts_with(id));
    let is_name =
        repository == wanted_repository && wanted_tag.unwrap_or("latest") == tag.unwrap_or("latest");
    is_id || image == wanted || is_name
}

/// `GET /containers/ID/json`.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    let task = find(client, reference).await?;
    let ids = ObjectIds::read_networks(client).await?;
    ok(&ContainerView::new(task)?.details(&ids))
}

/// `GET /containers/ID/logs`.
pub async fn logs(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if request.text("until").is_some_and(|until| until != "0") {
        return Err(DockerError::invalid("until: logs are read to their end; leave it out"));
    }
    let task = find(client, reference).await?;
    logs::read_task(client, task, request).await
}

/// What Docker shows of a task as a container.
struct ContainerView {
    /// Without its spec.
    task: v1::Task,
    spec: TaskSpec,
    id: String,
    name: String,
    labels: BTreeMap<String, String>,
}

impl ContainerView {
    fn new(mut task: v1::Task) -> Result<Self, DockerError> {
        let spec = TaskSpec::try_from(task.spec.take().unwrap_or_default())?;
        let mut labels = spec.container_labels.clone();
        labels.remove(STDIN_ONCE_LABEL);
        if labels.remove(ONE_OFF_LABEL).is_some() {
            labels.insert("com.docker.swarm.node.id".to_owned(), task.node_id.clone());
            let (id, name) = (one_off::id_of_service(&task.service_id), task.service_name.clone());
            return Ok(Self { task, spec, id, name, labels });
        }
        let id = docker_id(&task.id);
        let name = format!("{}.{id}", tasks::name_of(&task));
        let own = [
            ("node.id", task.node_id.as_str()),
            ("service.id", &task.service_id),
            ("service.name", &task.service_name),
            ("task", ""),
            ("task.id", &id),
            ("task.name", &name),
        ];
        labels.extend(own.map(|(key, value)| (format!("com.docker.swarm.{key}"), value.to_owned())));
        Ok(Self { id: container_id(&task.id), task, spec, name, labels })
    }

    fn status(&self) -> &'static str {
        match self.task.state() {
            _ if self.task.lost_since.is_some() => "dead",
            v1::TaskState::Running => "running",
            v1::TaskState::Complete
            | v1::TaskState::Shutdown
            | v1::TaskState::Failed
            | v1::TaskState::Rejected => "exited",
            _ => "created",
        }
    }

    fn health(&self) -> &'static str {
        match self.task.health() {
            v1::Health::None => "none",
            v1::Health::Starting => "starting",
            v1::Health::Healthy => "healthy",
            v1::Health::Unhealthy => "unhealthy",
        }
    }

    fn exit_code(&self) -> i32 {
        self.task.exit.as_ref().map_or(0, |exit| exit.code)
    }

    /// `Up 3 minutes (healthy)`.
    fn status_text(&self) -> String {
        let since = human_duration(now_ms().saturating_sub(self.task.state_since));
        match (self.status(), self.health()) {
            ("running", "none") => format!("Up {since}"),
            ("running", "starting") => format!("Up {since} (health: starting)"),
            ("running", health) => format!("Up {since} ({health})"),
            ("exited", _) => format!("Exited ({}) {since} ago", self.exit_code()),
            ("dead", _) => format!("Dead (its node is lost, {since})"),
            _ => "Created".to_owned(),
        }
    }

    /// The words that the image does not give.
    fn words(&self) -> Vec<&str> {
        let parts = [&self.spec.command, &self.spec.args];
        parts.into_iter().flatten().flatten().map(String::as_str).collect()
    }

    fn mounts(&self) -> Vec<objects::MountPoint> {
        let shown = self.spec.mounts.iter().map(|Mount { target, source, read_only }| {
            let (r#type, name) = match source {
                MountSource::Bind { path, .. } => ("bind", Some(path)),
                MountSource::Volume { name, .. } => ("volume", Some(name)),
                MountSource::Tmpfs { .. } => ("tmpfs", None),
            };
            objects::MountPoint {
                r#type,
                name: name.cloned(),
                source: name.cloned(),
                destination: target.clone(),
                driver: "local",
                mode: "z",
                rw: !read_only,
                propagation: "",
            }
        });
        shown.collect()
    }

    fn networks(&self, ids: &ObjectIds) -> BTreeMap<String, objects::EndpointSettings> {
        let attachments = self.spec.network.attachments();
        let shown = attachments.iter().map(|attachment| {
            let name = attachment.network.as_str();
            let settings = objects::EndpointSettings {
                network_id: id_of(&ids.networks, name),
                endpoint_id: "",
                gateway: "",
                ip_address: self.task.address.clone(),
                ip_prefix_len: 32,
                mac_address: "",
                aliases: (),
                links: (),
                ipam_config: (),
                global_ipv6_address: "",
                global_ipv6_prefix_len: 0,
                ipv6_gateway: "",
            };
            (name.to_owned(), settings)
        });
        shown.collect()
    }

    fn network_mode(&self) -> String {
        let names = self.spec.network.attachments().iter().map(|attachment| attachment.network.as_str());
        names.min().unwrap_or("host").to_owned()
    }

    /// As in lists.
    fn summary(self, ids: &ObjectIds) -> objects::Container {
        let ports = tasks::host_ports(&self.task).into_iter().map(|port| objects::ContainerPort {
            ip: "0.0.0.0",
            private_port: port.target_port.unwrap_or_default(),
            public_port: port.published_port.unwrap_or_default(),
            r#type: port.protocol.unwrap_or_default(),
        });
        objects::Container {
            names: [format!("/{}", self.name)],
            image: self.spec.image.to_string(),
            command: self.words().join(" "),
            created: self.task.created_at / 1000,
            ports: ports.collect(),
            state: self.status(),
            status: self.status_text(),
            host_config: objects::HostConfig { network_mode: self.network_mode() },
            network_settings: objects::NetworkSettings { networks: self.networks(ids) },
            mounts: self.mounts(),
            id: self.id,
            image_id: self.task.digest,
            labels: self.labels,
        }
    }

    /// As of one container.
    fn details(&self, ids: &ObjectIds) -> Value {
        let Self { task, spec, id, name, labels } = self;
        let docker = spec::task_to_docker(spec, ids, DefaultFields::LeftOut);
        let container = docker.container_spec.unwrap_or_default();
        let words = self.words();
        let (path, arguments) = words.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
        let is_exited = self.status() == "exited";
        let never = "0001-01-01T00:00:00Z".to_owned();
        let finished = if is_exited { time(task.state_since) } else { never.clone() };
        let started = match self.status() {
            "running" => time(task.state_since),
            "exited" => time(task.created_at),
            _ => never,
        };
        let mut state = json!({
            "Status": self.status(), "Running": is_running(task), "Paused": false, "Restarting": false,
            "OOMKilled": task.exit.as_ref().is_some_and(|exit| exit.out_of_memory), "Dead": false, "Pid": 0,
            "ExitCode": self.exit_code(), "Error": if is_exited { task.reason.as_str() } else { "" },
            "StartedAt": started, "FinishedAt": finished,
        });
        if self.health() != "none" {
            let results = task.checks.iter().map(|check| {
                let end = check.at + check.duration_us / 1000;
                json!({
                    "Start": time(check.at), "End": time(end), "ExitCode": u8::from(!check.ok),
                    "Output": check.output,
                })
            });
            let failing = task.checks.iter().rev().take_while(|check| !check.ok).count();
            let log: Vec<Value> = results.collect();
            state = joined(
                state,
                json!({"Health": {"Status": self.health(), "FailingStreak": failing, "Log": log}}),
            );
        }
        let apparmor = match &spec.apparmor {
            AppArmor::Default => String::new(),
            named => named.to_string(),
        };
        let limits = &spec.limits;
        let host = json!({
            "NetworkMode": self.network_mode(), "LogConfig": {"Type": "json-file", "Config": {}},
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}, "AutoRemove": false, "Binds": null,
            "PortBindings": {}, "Privileged": spec.privileged, "ReadonlyRootfs": spec.read_only,
            "CapAdd": container.capability_add, "CapDrop": container.capability_drop,
            "Memory": limits.memory.map_or(0, |memory| memory.0),
            "NanoCpus": limits.cpu.map_or(0, |cpu| cpu.0.saturating_mul(1_000_000)), "Init": spec.init,
            "OomScoreAdj": spec.oom_score_adj.unwrap_or(0), "PidsLimit": limits.pids.unwrap_or(0),
            "Sysctls": spec.sysctls, "ShmSize": spec.shm_size.map_or(0, |size| size.0), "Runtime": "runc",
            "StorageOpt": spec.storage_limit.map(|limit| json!({"size": limit.0.to_string()})),
            "UsernsMode": spec.user_namespace.map_or("", UserNamespace::as_str),
            "SecurityOpt": security_options(spec),
        });
        let config = json!({
            "Hostname": spec.hostname, "User": container.user.unwrap_or_default(), "Tty": spec.tty,
            "OpenStdin": spec.stdin, "StdinOnce": spec.container_labels.contains_key(STDIN_ONCE_LABEL),
            "AttachStdin": false, "AttachStdout": false, "AttachStderr": false,
            "Env": container.env.unwrap_or_default(), "Cmd": spec.args, "Entrypoint": spec.command,
            "Image": spec.image.to_string(), "WorkingDir": container.dir.unwrap_or_default(), "Labels": labels,
            "Volumes": null, "StopSignal": container.stop_signal,
        });
        json!({
            "Id": id, "Created": time(task.created_at), "Path": path, "Args": arguments,
            "State": state, "Image": task.digest, "Name": format!("/{name}"), "RestartCount": 0,
            "Driver": "overlayfs", "Platform": "linux", "ResolvConfPath": "", "HostnamePath": "", "HostsPath": "",
            "LogPath": "", "MountLabel": "", "ProcessLabel": "", "AppArmorProfile": apparmor, "ExecIDs": null,
            "HostConfig": host, "GraphDriver": {"Name": "overlayfs", "Data": null}, "Mounts": self.mounts(),
            "Config": config, "Node": {"ID": task.node_id, "Name": task.node_name},
            "NetworkSettings": {
                "Networks": self.networks(ids), "Ports": {}, "IPAddress": task.address, "SandboxID": "",
            },
        })
    }
}

/// As in `--security-opt`; `null` without any.
fn security_options(spec: &TaskSpec) -> Option<Vec<String>> {
    let switch = match spec.no_new_privileges {
        NoNewPrivileges::Default => None,
        NoNewPrivileges::On => Some("no-new-privileges".to_owned()),
        NoNewPrivileges::Off => Some("no-new-privileges=false".to_owned()),
    };
    let seccomp = (spec.seccomp != Seccomp::Default).then(|| format!("seccomp={}", spec.seccomp));
    let apparmor = (spec.apparmor != AppArmor::Default).then(|| format!("apparmor={}", spec.apparmor));
    let options: Vec<String> = switch.into_iter().chain(seccomp).chain(apparmor).collect();
    (!options.is_empty()).then_some(options)
}

/// A duration as Docker writes it: `About a minute`.
fn human_duration(milliseconds: u64) -> String {
    const DAY: u64 = 24;
    let seconds = milliseconds / 1000;
    let (minutes, hours) = (seconds / 60, (seconds + 1800) / 3600);
    match seconds {
        0 => return "Less than a second".to_owned(),
        1 => return "1 second".to_owned(),
        2..60 => return format!("{seconds} seconds"),
        _ => {}
    }
    match (minutes, hours) {
        (1, _) => "About a minute".to_owned(),
        (2..60, _) => format!("{minutes} minutes"),
        (_, 0 | 1) => "About an hour".to_owned(),
        (_, 2..48) => format!("{hours} hours"),
        _ if hours < 14 * DAY => format!("{} days", hours / DAY),
        _ if hours < 60 * DAY => format!("{} weeks", hours / DAY / 7),
        _ if hours < 730 * DAY => format!("{} months", hours / DAY / 30),
        _ => format!("{} years", hours / DAY / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_options_are_those_of_the_task() {
        let mut spec = TaskSpec::new("nginx".parse().unwrap());
        assert_eq!(security_options(&spec), None);
        spec.no_new_privileges = NoNewPrivileges::On;
        spec.seccomp = "config/strict".parse().unwrap();
        spec.apparmor = AppArmor::Unconfined;
        let shown = security_options(&spec).unwrap();
        assert_eq!(shown, ["no-new-privileges", "seccomp=config/strict", "apparmor=unconfined"]);
    }

    #[test]
    fn durations_are_those_of_docker() {
        for (seconds, expected) in [
            (0, "Less than a second"),
            (1, "1 second"),
            (59, "59 seconds"),
            (60, "About a minute"),
            (180, "3 minutes"),
            (3600, "About an hour"),
            (7200, "2 hours"),
            (3 * 86_400, "3 days"),
            (21 * 86_400, "3 weeks"),
            (90 * 86_400, "3 months"),
            (800 * 86_400, "2 years"),
        ] {
            assert_eq!(human_duration(seconds * 1000), expected, "{seconds}");
        }
    }
}

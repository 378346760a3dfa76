//! `/tasks`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use warren_client::{Client, TaskFilter};
use warren_proto::v1;
use warren_types::TaskSpec;

use crate::docker_error::DockerError;
use crate::filters::Filters;
use crate::object_ids::{ObjectIds, id_of};
use crate::one_off;
use crate::request::DockerRequest;
use crate::response::{Answer, joined, meta, ok, time};
use crate::services::to_value;
use crate::spec;
use crate::task_ids::{NUMBER_DIGITS, docker_id, warren_id};

/// `_up-to-date` is what `docker service create` waits with: only tasks of the current spec.
const FILTERS: [&str; 8] =
    ["_up-to-date", "desired-state", "id", "label", "name", "node", "runtime", "service"];
/// The task with this id, prefix of an id, or name.
pub async fn find(client: &Client, reference: &str) -> Result<v1::Task, DockerError> {
    if let Some(id) = warren_id(reference) {
        return Ok(client.tasks().get(&id.to_string()).await?);
    }
    let mut all = client.tasks().list(TaskFilter::default()).await?;
    if reference.len() >= NUMBER_DIGITS {
        all.retain(|task| docker_id(&task.id).starts_with(reference));
        match all.as_slice() {
            [task] => return Ok(task.clone()),
            [] => {}
            _ => {
                let message = format!("{reference} is ambiguous: {} tasks have ids that begin so", all.len());
                return Err(DockerError::invalid(message));
            }
        }
    }
    Ok(client.tasks().get(reference).await?)
}

/// `GET /tasks/ID`.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    let task = find(client, reference).await?;
    let ids = ObjectIds::read(client).await?;
    ok(&json(&task, &ids)?)
}

/// `GET /tasks`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let revisions: BTreeMap<String, u64> = match filters.values("_up-to-date") {
        Some(_) => {
            let services = client.services().list().await?;
            services.into_iter().map(|service| (service.id, service.revision)).collect()
        }
        None => BTreeMap::new(),
    };
    let tasks = of_services_and_nodes(client, &filters).await?;
    let ids = ObjectIds::read(client).await?;
    let mut shown = Vec::new();
    for task in &tasks {
        let labels = task.spec.as_ref().map(|spec| &spec.container_labels);
        let is_current = |wanted: &str| {
            let is_current = revisions.get(&task.service_id) == Some(&task.revision);
            is_current == matches!(wanted, "true" | "1")
        };
        let is_accepted = filters.any("id", |id| docker_id(&task.id).starts_with(id))
            && filters.any("name", |name| name_of(task).starts_with(name))
            && filters.any("desired-state", |state| state == desired_state(task))
            && filters.any("runtime", |runtime| runtime == "container")
            && filters.any("_up-to-date", is_current)
            && filters.labels("label", |key| labels?.get(key));
        if is_accepted {
            shown.push(json(task, &ids)?);
        }
    }
    ok(&shown.into())
}

/// The tasks of the services and nodes of the filters; a service or node that does not exist is an error, as in
/// Docker.
async fn of_services_and_nodes(client: &Client, filters: &Filters) -> Result<Vec<v1::Task>, DockerError> {
    let mut nodes = BTreeSet::new();
    for node in filters.values("node").into_iter().flatten() {
        nodes.insert(client.nodes().get(node).await?.id);
    }
    let mut tasks = match filters.values("service") {
        None => client.tasks().list(TaskFilter::default()).await?,
        Some(services) => {
            let mut tasks = Vec::new();
            for service in services {
                let service = client.services().get(service).await?.id;
                tasks.extend(client.tasks().list(TaskFilter { service, ..TaskFilter::default() }).await?);
            }
            tasks
        }
    };
    if !nodes.is_empty() {
        tasks.retain(|task| nodes.contains(&task.node_id));
    }
    Ok(tasks)
}

/// As Docker's CLI makes it: `web.2`, or the node of a task of a global service.
pub fn name_of(task: &v1::Task) -> String {
    match task.bound_to.as_str() {
        "" => format!("{}.{}", task.service_name, task.slot),
        node => format!("{}.{node}", task.service_name),
    }
}

fn desired_state(task: &v1::Task) -> &'static str {
    match task.desired() {
        v1::DesiredTaskState::Ready => "ready",
        v1::DesiredTaskState::Running | v1::DesiredTaskState::Unspecified => "running",
        v1::DesiredTaskState::Shutdown => "shutdown",
        v1::DesiredTaskState::Remove => "remove",
    }
}

/// A task whose node is lost is orphaned: nobody knows its state.
fn state(task: &v1::Task) -> &'static str {
    if task.lost_since.is_some() {
        return "orphaned";
    }
    match task.state() {
        v1::TaskState::New => "new",
        v1::TaskState::Pending => "pending",
        v1::TaskState::Assigned => "assigned",
        v1::TaskState::Accepted => "accepted",
        v1::TaskState::Preparing => "preparing",
        v1::TaskState::Ready => "ready",
        v1::TaskState::Starting => "starting",
        v1::TaskState::Running => "running",
        v1::TaskState::Complete => "complete",
        v1::TaskState::Shutdown => "shutdown",
        v1::TaskState::Failed => "failed",
        v1::TaskState::Rejected => "rejected",
    }
}

fn json(task: &v1::Task, ids: &ObjectIds) -> Result<Value, DockerError> {
    let spec = TaskSpec::try_from(task.spec.clone().unwrap_or_default())?;
    let is_failed = matches!(task.state(), v1::TaskState::Failed | v1::TaskState::Rejected);
    let exit_code = task.exit.as_ref().map_or(0, |exit| exit.code);
    let addresses: Vec<Value> = spec
        .network
        .attachments()
        .iter()
        .filter(|_| !task.address.is_empty())
        .map(|attachment| {
            let name = attachment.network.as_str();
            let network = json!({"ID": id_of(&ids.networks, name), "Spec": {"Name": name, "Scope": "swarm"}});
            json!({"Network": network, "Addresses": [format!("{}/32", task.address)]})
        })
        .collect();
    let status = json!({
        "Timestamp": time(task.state_since), "State": state(task), "Message": message(task),
        "Err": if is_failed { task.reason.as_str() } else { "" },
        "ContainerStatus": {"ContainerID": one_off::id_of_task(task), "PID": 0, "ExitCode": exit_code},
        "PortStatus": {"Ports": host_ports(task)},
    });
    let shown = json!({
        "ID": docker_id(&task.id), "Labels": {}, "Spec": to_value(&spec::task_to_docker(&spec, ids)),
        "ServiceID": task.service_id, "NodeID": task.node_id,
        "DesiredState": desired_state(task), "Status": status, "NetworksAttachments": addresses,
    });
    let meta = meta(task.state_since, task.created_at, task.state_since);
    let slot = if task.bound_to.is_empty() { json!({"Slot": task.slot}) } else { json!({}) };
    Ok(joined(joined(meta, shown), slot))
}

fn message(task: &v1::Task) -> &str {
    if task.reason.is_empty() { state(task) } else { &task.reason }
}

/// The ports that its node opens for its tasks.
pub fn host_ports(task: &v1::Task) -> Vec<Value> {
    let of_host = task.ports.iter().filter(|port| port.mode() == v1::PublishMode::Host);
    let shown = of_host.map(|port| {
        let protocol = match port.protocol() {
            v1::Protocol::Udp => "udp",
            v1::Protocol::Sctp => "sctp",
            v1::Protocol::Tcp | v1::Protocol::Unspecified => "tcp",
        };
        json!({
            "Protocol": protocol, "TargetPort": port.container_port, "PublishedPort": port.host_port,
            "PublishMode": "host",
        })
    });
    shown.collect()
}

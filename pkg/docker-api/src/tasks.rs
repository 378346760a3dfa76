//! `/tasks`.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryFutureExt;
use warren_client::{Client, TaskFilter};
use warren_proto::v1;
use warren_types::TaskSpec;

use crate::docker_error::DockerError;
use crate::filters::Filters;
use crate::object_ids::{ObjectIds, id_of};
use crate::request::DockerRequest;
use crate::response::{Answer, meta, ok, time};
use crate::spec::{self, DefaultFields};
use crate::task_ids::{NUMBER_DIGITS, docker_id, warren_id};
use crate::{model, objects, one_off};

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
    ok(&show(task, &ids)?)
}

/// `GET /tasks`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let tasks = of_services_and_nodes(client, &filters);
    let ids = ObjectIds::read(client).map_err(DockerError::from);
    let ((tasks, revisions), ids) = futures::try_join!(tasks, ids)?;
    let mut shown = Vec::new();
    for task in tasks {
        let labels = task.spec.as_ref().map(|spec| &spec.container_labels);
        let is_current = |wanted: &str| {
            let is_current = revisions.get(&task.service_id) == Some(&task.revision);
            is_current == matches!(wanted, "true" | "1")
        };
        let is_accepted = filters.any("id", |id| docker_id(&task.id).starts_with(id))
            && filters.any("name", |name| name_of(&task).starts_with(name))
            && filters.any("desired-state", |state| state == desired_state(&task))
            && filters.any("runtime", |runtime| runtime == "container")
            && filters.any("_up-to-date", is_current)
            && filters.labels("label", |key| labels?.get(key));
        if is_accepted {
            shown.push(show(task, &ids)?);
        }
    }
    ok(&shown)
}

/// The tasks of the services and nodes of the filters, and the revisions of these services if `_up-to-date` needs them;
/// a service or node that does not exist is an error, as in Docker.
async fn of_services_and_nodes(
    client: &Client,
    filters: &Filters,
) -> Result<(Vec<v1::Task>, BTreeMap<String, u64>), DockerError> {
    let mut nodes = BTreeSet::new();
    for node in filters.values("node").into_iter().flatten() {
        nodes.insert(client.nodes().get(node).await?.id);
    }
    let mut revisions = BTreeMap::new();
    let mut tasks = Vec::new();
    for service in filters.values("service").into_iter().flatten() {
        let service = client.services().get(service).await?;
        let filter = TaskFilter { service: service.id.clone(), ..TaskFilter::default() };
        tasks.extend(client.tasks().list(filter).await?);
        revisions.insert(service.id, service.revision);
    }
    if filters.values("service").is_none() {
        if filters.values("_up-to-date").is_some() {
            let all = client.services().summaries_as(|service| (service.id, service.revision)).await?;
            revisions.extend(all);
        }
        tasks = client.tasks().list(TaskFilter::default()).await?;
    }
    if !nodes.is_empty() {
        tasks.retain(|task| nodes.contains(&task.node_id));
    }
    Ok((tasks, revisions))
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

fn show(mut task: v1::Task, ids: &ObjectIds) -> Result<objects::Task, DockerError> {
    let container_id = one_off::id_of_task(&task);
    let spec = TaskSpec::try_from(task.spec.take().unwrap_or_default())?;
    let is_failed = matches!(task.state(), v1::TaskState::Failed | v1::TaskState::Rejected);
    let exit_code = task.exit.as_ref().map_or(0, |exit| exit.code);
    let attached = spec.network.attachments().iter().filter(|_| !task.address.is_empty());
    let attached = attached.map(|attachment| {
        let name = attachment.network.as_str();
        let spec = objects::NetworkSpec { name: name.to_owned(), scope: "swarm" };
        let network = objects::Network { id: id_of(&ids.networks, name), spec };
        objects::AttachedNetwork { network, addresses: [format!("{}/32", task.address)] }
    });
    let status = objects::TaskStatus {
        timestamp: time(task.state_since),
        state: state(&task),
        message: message(&task).to_owned(),
        err: if is_failed { task.reason.clone() } else { String::new() },
        container_status: objects::ContainerStatus { container_id, pid: 0, exit_code },
        port_status: objects::PortStatus { ports: host_ports(&task) },
    };
    Ok(objects::Task {
        id: docker_id(&task.id),
        meta: meta(task.state_since, task.created_at, task.state_since),
        labels: model::Empty {},
        spec: spec::task_to_docker(&spec, ids, DefaultFields::LeftOut),
        slot: task.bound_to.is_empty().then_some(task.slot),
        status,
        desired_state: desired_state(&task),
        networks_attachments: attached.collect(),
        service_id: task.service_id,
        node_id: task.node_id,
    })
}

fn message(task: &v1::Task) -> &str {
    if task.reason.is_empty() { state(task) } else { &task.reason }
}

/// The ports that its node opens for its tasks.
pub fn host_ports(task: &v1::Task) -> Vec<model::PortConfig> {
    let of_host = task.ports.iter().filter(|port| port.mode() == v1::PublishMode::Host);
    let shown = of_host.map(|port| {
        let protocol = match port.protocol() {
            v1::Protocol::Udp => "udp",
            v1::Protocol::Sctp => "sctp",
            v1::Protocol::Tcp | v1::Protocol::Unspecified => "tcp",
        };
        model::PortConfig {
            name: None,
            protocol: Some(protocol.to_owned()),
            target_port: Some(port.container_port),
            published_port: Some(port.host_port),
            publish_mode: Some("host".to_owned()),
        }
    });
    shown.collect()
}

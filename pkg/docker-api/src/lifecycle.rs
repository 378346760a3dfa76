//! `docker run` and what follows it: containers are created, started, stopped, waited for and removed.

mod create;

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use hyper::StatusCode;
use rand::RngExt;
use serde_json::json;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error};
use warren_proto::v1;
use warren_types::{ServiceId, Signal};

use crate::containers;
use crate::docker_error::DockerError;
use crate::exit_codes::ExitCodes;
use crate::object_ids::ObjectIds;
use crate::one_off::{self, OneOffContainer, find, has_started, id_of_service, is_ended, until};
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError, created, empty, ok};
use crate::services::{create_profiles, create_volumes, new_id, with_login_warning};
use crate::spec::ReceivedSpec;
use crate::system::ClusterView;
use create::ContainerCreateRequest;

/// A container that no node may run is given up after this.
const PLACEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the removal of a service may take beyond the stop grace period of its task.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(60);

/// The one with this name or id, for operations that tasks of other services do not have.
async fn get(client: &Client, reference: &str) -> Result<OneOffContainer, DockerError> {
    if let Some(container) = find(client, reference).await? {
        return Ok(container);
    }
    // Of a service, or there is none at all.
    let task = containers::find(client, reference).await?;
    let message = format!(
        "container {reference} is a task of service {}, which decides when it runs: use `docker service \
         update|scale|rm`, or `docker restart`",
        task.service_name
    );
    Err(DockerError::new(StatusCode::CONFLICT, message))
}

/// `POST /containers/create`.
pub async fn create(client: &Client, request: &DockerRequest) -> Answer {
    let body: ContainerCreateRequest = request.json()?;
    let name = match request.text("name") {
        Some(name) => name.trim_start_matches('/').to_owned(),
        None => format!("run-{:08x}", rand::rng().random::<u32>()),
    };
    let (ids, view) = futures::try_join!(ObjectIds::read(client), ClusterView::read(client))?;
    let own_node = view.own_node().map(|node| node.name.as_str());
    let received = create::service(&name, body, own_node, &ids)?;
    let ReceivedSpec { spec, volumes, profiles, warnings, force: _ } = received;
    create_volumes(client, volumes).await?;
    create_profiles(client, &profiles).await?;
    let service = client.services().create(ServiceId(new_id()), &spec).await?;
    created(&json!({"Id": id_of_service(&service.id), "Warnings": with_login_warning(warnings, request)}))
}

/// `POST /containers/ID/start`: returns when its program runs, or has ended already.
pub async fn start(client: &Client, exit_codes: &Arc<ExitCodes>, reference: &str) -> Answer {
    let container = get(client, reference).await?;
    let last = container.ended_id();
    if container.is_desired() {
        if last.is_none() {
            return empty(StatusCode::NOT_MODIFIED);
        }
        client.services().scale(&container.service.id, 0, None).await?;
    }
    client.services().scale(&container.service.id, 1, None).await?;
    let placed = until(client, &container, |now| {
        let task = now.task().filter(|task| Some(&task.id) != last.as_ref() && !task.node_id.is_empty());
        task.map(|task| task.id.clone())
    });
    let failure = match timeout(PLACEMENT_TIMEOUT, placed).await {
        Ok(placed) => {
            let placed = placed?;
            let over = until(client, &container, |now| {
                // Another task takes the place of one that a node rejected.
                let task = now.tasks.iter().find(|task| task.id == placed);
                let is_over = |task: &&v1::Task| has_started(task) || task.state() == v1::TaskState::Rejected;
                Some(task?).filter(is_over).cloned()
            });
            let task = over.await?;
            (task.state() == v1::TaskState::Rejected).then_some(task.reason)
        }
        Err(_) => {
            let now = find(client, &container.service.id).await?;
            let task = now.as_ref().and_then(OneOffContainer::task);
            Some(task.map_or_else(|| "it has no task yet".to_owned(), |task| task.reason.clone()))
        }
    };
    if let Some(reason) = failure {
        match container.is_removed_at_end() {
            true => client.services().remove(&container.service.id, None, false).await?,
            false => client.services().scale(&container.service.id, 0, None).await?,
        };
        let message = format!("container {} was not started: {reason}", container.name());
        return Err(DockerError::new(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    if container.is_removed_at_end() {
        let (client, container, exit_codes) = (client.clone(), container.clone(), Arc::clone(exit_codes));
        tokio::spawn(async move {
            let removed = async {
                let task = ended_task(&client, &container).await?;
                exit_codes.keep(&container.service.id, exit_code(&task));
                client.services().remove(&container.service.id, None, false).await?;
                Ok::<_, DockerError>(())
            };
            if let Err(error) = removed.await {
                tracing::warn!(
                    container = container.name(),
                    why = error.message,
                    "a container was not removed"
                );
            }
        });
    }
    empty(StatusCode::NO_CONTENT)
}

/// Its task when it has ended, the one that is started next if none runs.
async fn ended_task(client: &Client, container: &OneOffContainer) -> Result<v1::Task, DockerError> {
    until(client, container, |now| now.task().filter(|task| is_ended(task)).cloned()).await
}

/// `POST /containers/ID/stop`: returns when its program has ended. It is stopped as its service says.
pub async fn stop(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if request.text("signal").is_some() {
        let message =
            "signal: a container stops by the signal that it was created with; use `docker kill -s`";
        return Err(DockerError::unsupported(message));
    }
    let container = get(client, reference).await?;
    if !container.is_desired() && container.task().is_none_or(is_ended) {
        return empty(StatusCode::NOT_MODIFIED);
    }
    stop_for_good(client, &container).await?;
    empty(StatusCode::NO_CONTENT)
}

/// Takes the task away, and returns when it has ended. A container that is removed at its end may be gone then.
async fn stop_for_good(client: &Client, container: &OneOffContainer) -> Result<(), DockerError> {
    let stopped = async {
        client.services().scale(&container.service.id, 0, None).await?;
        until(client, container, |now| now.task().is_none_or(is_ended).then_some(())).await
    };
    match stopped.await {
        Err(error) if error.status == StatusCode::NOT_FOUND => Ok(()),
        Err(error) if find(client, &container.service.id).await?.is_none_or(|now| now.service.removing) => {
            tracing::debug!(why = error.message, "a container is removed while it stops");
            Ok(())
        }
        stopped => stopped,
    }
}

/// `POST /containers/ID/kill`: a signal for its first process. A container of its own that is killed is not started
/// again; the task of a service is restarted as that says.
pub async fn kill(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let text = request.text("signal").filter(|text| !text.is_empty()).unwrap_or("KILL");
    let signal: Signal = text.parse().map_err(|error| DockerError::invalid(format!("signal: {error}")))?;
    let task = containers::find(client, reference).await?;
    if !containers::is_running(&task) {
        let message = format!("container {reference} is not running");
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    client.tasks().signal(&task.id, signal).await?;
    if signal == Signal::KILL
        && let Some(container) = find(client, &task.service_id).await?
    {
        stop_for_good(client, &container).await?;
    }
    empty(StatusCode::NO_CONTENT)
}

/// `POST /containers/prune`: removes the containers of their own that do not run.
pub async fn prune(client: &Client, request: &DockerRequest) -> Answer {
    request.filters(&[])?;
    let mut deleted: Vec<OneOffContainer> = Vec::new();
    let tasks = containers::with_ended(client).await?;
    for task in tasks.iter().filter(|task| one_off::is_one_off(task)) {
        let Some(container) = find(client, &task.service_id).await? else { continue };
        // One that was started may have no task yet, or wait for its restart.
        let restarts = |task: &v1::Task| {
            let policy = task.spec.as_ref().and_then(|spec| spec.restart.as_ref());
            policy.is_none_or(|policy| policy.condition() != v1::RestartCondition::None)
        };
        let is_over = container.task().is_some_and(|task| is_ended(task) && !restarts(task));
        let is_stopped = !container.is_desired() && container.task().is_none_or(is_ended);
        if container.service.removing || !(is_stopped || is_over) {
            continue;
        }
        match client.services().remove(&container.service.id, Some(container.service.version), false).await {
            Ok(_) => deleted.push(container),
            // It was started or removed meanwhile.
            Err(Error::Refused { problem }) if matches!(problem.code, Code::NotFound | Code::Aborted) => {}
            Err(error) if deleted.is_empty() => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "a container was not removed"),
        }
    }
    let all_gone = futures::future::try_join_all(deleted.iter().map(|container| gone(client, container)));
    timeout(REMOVAL_TIMEOUT, all_gone).await.map_err(still_removed)??;
    let ids: Vec<String> = deleted.iter().map(|container| id_of_service(&container.service.id)).collect();
    ok(&json!({"ContainersDeleted": ids, "SpaceReclaimed": 0}))
}

/// `POST /containers/ID/wait`: the head of the response comes at once, so that the client knows that it waits.
pub async fn wait(
    client: &Client,
    exit_codes: &Arc<ExitCodes>,
    reference: &str,
    request: &DockerRequest,
) -> Answer {
    let condition = request.text("condition").unwrap_or("not-running").to_owned();
    if !matches!(condition.as_str(), "not-running" | "next-exit" | "removed") {
        return Err(DockerError::invalid(format!("invalid condition: {condition:?}")));
    }
    let container = get(client, reference).await?;
    let (client, exit_codes) = (client.clone(), Arc::clone(exit_codes));
    let line = async move {
        let answer = match exit_code_at(&client, &exit_codes, &container, &condition).await {
            Ok(code) => json!({"StatusCode": code}),
            Err(error) => json!({"StatusCode": 125, "Error": {"Message": error.message}}),
        };
        Ok::<_, BodyError>(bytes::Bytes::from(answer.to_string() + "\n"))
    };
    Ok(response::stream("application/json", stream::once(line)))
}

/// The exit code of a container when the condition holds.
async fn exit_code_at(
    client: &Client,
    exit_codes: &ExitCodes,
    container: &OneOffContainer,
    condition: &str,
) -> Result<i32, DockerError> {
    if condition == "not-running" && container.task().is_none_or(is_ended) {
        return Ok(container.task().map_or(0, exit_code));
    }
    let last = container.ended_id();
    let ended = until(client, container, |now| {
        now.task().filter(|task| is_ended(task) && Some(&task.id) != last.as_ref()).map(exit_code)
    });
    let code = match ended.await {
        // It is removed when it has ended.
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            let kept = exit_codes.get(&container.service.id);
            kept.or_else(|| container.task().filter(|task| is_ended(task)).map(exit_code)).ok_or(error)?
        }
        code => code?,
    };
    if condition == "removed" {
        gone(client, container).await?;
    }
    Ok(code)
}

fn exit_code(task: &v1::Task) -> i32 {
    task.exit.as_ref().map_or(0, |exit| exit.code)
}

fn still_removed(_: Elapsed) -> DockerError {
    DockerError::new(StatusCode::SERVICE_UNAVAILABLE, "a container is still being removed")
}

/// Returns when a service that is being removed does not exist any more.
async fn gone(client: &Client, container: &OneOffContainer) -> Result<(), DockerError> {
    match until(client, container, |_| None::<()>).await {
        Err(error) if error.status == StatusCode::NOT_FOUND => Ok(()),
        other => other,
    }
}

/// `DELETE /containers/ID`: its name is free when this returns.
pub async fn remove(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if request.flag("link") {
        return Err(DockerError::unsupported("there are no links"));
    }
    let container = get(client, reference).await?;
    if container.task().is_some_and(|task| !is_ended(task)) && !request.flag("force") {
        let message =
            format!("container {reference} is running: stop the container before removing or force remove");
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    client.services().remove(&container.service.id, None, false).await?;
    timeout(REMOVAL_TIMEOUT, gone(client, &container)).await.map_err(still_removed)??;
    empty(StatusCode::NO_CONTENT)
}

/// `POST /containers/ID/restart`: a new task takes the place of this one. Clients always send a time to stop in; that
/// of the service counts.
pub async fn restart(
    client: &Client,
    exit_codes: &Arc<ExitCodes>,
    reference: &str,
    request: &DockerRequest,
) -> Answer {
    if request.text("signal").is_some() {
        return Err(DockerError::invalid(
            "signal: a task stops as its service says: set `--stop-signal` there",
        ));
    }
    let task = containers::find(client, reference).await?;
    if one_off::is_one_off(&task) {
        if get(client, reference).await?.is_removed_at_end() {
            let message =
                format!("container {reference} is removed when it ends (--rm), and cannot be restarted");
            return Err(DockerError::new(StatusCode::CONFLICT, message));
        }
        stop(client, reference, request).await?;
        return start(client, exit_codes, reference).await;
    }
    client.tasks().restart(&task.id).await?;
    empty(StatusCode::NO_CONTENT)
}

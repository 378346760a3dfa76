//! Containers of their own, as `docker run` makes them. Each is a service with a label and at most one task: a
//! container that was created or stopped is a service without tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::Code;
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;
use warren_types::TaskId;

use crate::docker_error::DockerError;
use crate::task_ids::{container_id, task_of};

/// Marks the container of a service that is one for Docker's clients.
pub const ONE_OFF_LABEL: &str = "io.warren.container";
/// The value of [`ONE_OFF_LABEL`] of a container that is removed when it has ended.
pub const REMOVED_AT_END: &str = "removed-at-end";
/// The value of [`ONE_OFF_LABEL`] of any other container.
pub const KEPT: &str = "kept";
/// Marks the container whose standard input ends with that of the first client that attaches.
pub const STDIN_ONCE_LABEL: &str = "io.warren.stdin-once";
/// The longest time between two looks: a change may be missed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A container of its own.
#[derive(Debug, Clone)]
pub struct OneOffContainer {
    pub service: v1::Service,
    /// The newest one last.
    pub tasks: Vec<v1::Task>,
}

/// Whether a task is a container of its own.
pub fn is_one_off(task: &v1::Task) -> bool {
    task.spec.as_ref().is_some_and(|spec| spec.container_labels.contains_key(ONE_OFF_LABEL))
}

/// Whether the standard input of a task ends with that of the first client that attaches.
pub fn is_stdin_once(task: &v1::Task) -> bool {
    task.spec.as_ref().is_some_and(|spec| spec.container_labels.contains_key(STDIN_ONCE_LABEL))
}

/// Whether the service is a container of its own.
fn is_container(service: &v1::Service) -> bool {
    let spec = service.spec.as_ref().and_then(|spec| spec.task.as_ref());
    spec.is_some_and(|spec| spec.container_labels.contains_key(ONE_OFF_LABEL))
}

/// The id of the container of such a service, which stays the same when it is started again.
pub fn id_of_service(service_id: &str) -> String {
    container_id(&format!("{service_id}-1"))
}

/// The id of the container of any task.
pub fn id_of_task(task: &v1::Task) -> String {
    if is_one_off(task) { id_of_service(&task.service_id) } else { container_id(&task.id) }
}

impl OneOffContainer {
    /// `None` for the service of other tasks.
    async fn of_service(client: &Client, service: v1::Service) -> Result<Option<Self>, DockerError> {
        if !is_container(&service) {
            return Ok(None);
        }
        let filter = TaskFilter { service: service.id.clone(), ..TaskFilter::default() };
        let mut tasks = match client.tasks().list(filter).await {
            Err(Error::Refused { problem }) if problem.code == Code::NotFound => Vec::new(),
            tasks => tasks?,
        };
        let number = |task: &v1::Task| task.id.parse::<TaskId>().map_or(0, |id| id.number);
        tasks.sort_by_key(number);
        Ok(Some(Self { service, tasks }))
    }

    /// Its newest task.
    pub fn task(&self) -> Option<&v1::Task> {
        self.tasks.last()
    }

    /// The id of its task, if that has ended.
    pub fn ended_id(&self) -> Option<String> {
        self.task().filter(|task| is_ended(task)).map(|task| task.id.clone())
    }

    /// Its name, which is that of its service.
    pub fn name(&self) -> &str {
        self.service.spec.as_ref().map_or("", |spec| &spec.name)
    }

    /// It was started and not stopped.
    pub fn is_desired(&self) -> bool {
        match self.service.spec.as_ref().and_then(|spec| spec.mode.as_ref()) {
            Some(v1::service_spec::Mode::Replicated(mode)) => mode.replicas > 0,
            _ => false,
        }
    }

    /// It is removed when it has ended.
    pub fn is_removed_at_end(&self) -> bool {
        let task = self.service.spec.as_ref().and_then(|spec| spec.task.as_ref());
        task.and_then(|task| task.container_labels.get(ONE_OFF_LABEL))
            .is_some_and(|mark| mark == REMOVED_AT_END)
    }

    /// Its newest task, or what a task that was not started yet looks like.
    pub fn into_task(mut self) -> v1::Task {
        if let Some(task) = self.tasks.pop() {
            return task;
        }
        let v1::Service { id, spec, created_at, .. } = self.service;
        let spec = spec.unwrap_or_default();
        v1::Task {
            id: format!("{id}-1"),
            service_id: id,
            service_name: spec.name,
            slot: 1,
            spec: spec.task,
            created_at,
            state_since: created_at,
            ..v1::Task::default()
        }
    }
}

/// The container with this name or id; `None` if there is none of its own.
pub async fn find(client: &Client, reference: &str) -> Result<Option<OneOffContainer>, DockerError> {
    let reference = reference.trim_start_matches('/');
    let service = match task_of(reference) {
        Some(task) => task.service.to_string(),
        None => reference.to_owned(),
    };
    match client.services().get(&service).await {
        Ok(service) => OneOffContainer::of_service(client, service).await,
        Err(Error::Refused { problem }) if matches!(problem.code, Code::NotFound | Code::InvalidArgument) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Those without a task among all `tasks`, for lists.
pub async fn without_tasks(client: &Client, tasks: &[v1::Task]) -> Result<Vec<v1::Task>, DockerError> {
    let with_tasks: BTreeSet<&str> = tasks.iter().map(|task| task.service_id.as_str()).collect();
    let without_task = |service: v1::Service| {
        let is_found = is_container(&service) && !with_tasks.contains(service.id.as_str());
        is_found.then(|| OneOffContainer { service, tasks: Vec::new() }.into_task())
    };
    Ok(client.services().list_as(without_task).await?.into_iter().flatten().collect())
}

/// Whether a task does not run any more.
pub fn is_ended(task: &v1::Task) -> bool {
    let state = task.state();
    task.removed
        || matches!(
            state,
            v1::TaskState::Complete
                | v1::TaskState::Shutdown
                | v1::TaskState::Failed
                | v1::TaskState::Rejected
        )
}

/// Whether the program of a task has run.
pub fn has_started(task: &v1::Task) -> bool {
    matches!(
        task.state(),
        v1::TaskState::Running | v1::TaskState::Complete | v1::TaskState::Shutdown | v1::TaskState::Failed
    )
}

/// Looks at a container now and after each change of its service, until `check` finds something.
pub async fn until<T>(
    client: &Client,
    container: &OneOffContainer,
    check: impl Fn(&OneOffContainer) -> Option<T>,
) -> Result<T, DockerError> {
    let mut changes = client.cluster().watch(&container.service.id);
    loop {
        match timeout(LONGEST_PAUSE, changes.next()).await {
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "changes of a container cannot be watched");
                sleep(LONGEST_PAUSE).await;
            }
        }
        let Some(now) = find(client, &container.service.id).await? else {
            return Err(DockerError::not_found(format!("No such container: {}", container.name())));
        };
        if let Some(found) = check(&now) {
            return Ok(found);
        }
    }
}

/// The container of a task.
pub async fn of_task(client: &Client, task: &v1::Task) -> Result<OneOffContainer, DockerError> {
    let reference = id_of_task(task);
    let missing = || DockerError::not_found(format!("No such container: {reference}"));
    find(client, &reference).await?.ok_or_else(missing)
}

/// The id of the task of a container when it has started: of the one in `container`, unless that has ended.
pub async fn started_task(client: &Client, container: &OneOffContainer) -> Result<String, DockerError> {
    let last = container.ended_id();
    let started = until(client, container, |now| {
        // One that was stopped may never have run, and has no output then.
        let has_output = |task: &v1::Task| has_started(task) && task.state() != v1::TaskState::Shutdown;
        let task = now.task().filter(|task| has_output(task) && Some(&task.id) != last.as_ref());
        task.map(|task| task.id.clone())
    });
    started.await
}

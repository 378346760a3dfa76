//! `/containers/ID/attach` and `/containers/ID/resize`: the output of a container as it is written, input for its
//! program, and the size of its terminal.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use hyper::StatusCode;
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::time::timeout;
use warren_client::{Client, LogOptions, LogTarget, ProgramEvent, RunningProgram};
use warren_proto::v1;
use warren_types::Timestamp;

use crate::docker_error::DockerError;
use crate::logs::{self, LogFormat};
use crate::one_off::OneOffContainer;
use crate::request::{DockerRequest, UpgradedConnection, close};
use crate::response::{self, Answer, BodyError, empty};
use crate::system::now_ms;
use crate::{containers, one_off, programs};

/// How long a size waits for the start of its container.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the input of a client that hung up may take to reach its container.
const INPUT_TIMEOUT: Duration = Duration::from_secs(10);

/// `POST /containers/ID/attach`: answers at once; output comes when the container writes it, and ends with the
/// container. One that was not started yet is waited for, also by the input.
pub async fn attach(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let task = containers::find(client, reference).await?;
    let has_input = request.flag("stdin");
    if has_input && !task.spec.as_ref().is_some_and(|spec| spec.stdin) {
        let message = format!(
            "container {reference} has no open standard input: create it with --interactive, or use `docker exec -i`"
        );
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let is_raw = task.spec.as_ref().is_some_and(|spec| spec.tty);
    let format = LogFormat::of(request, is_raw)?;
    let is_new = !containers::is_running(&task);
    let since = (!is_new && !request.flag("logs")).then(|| Timestamp(now_ms()));
    let options = LogOptions { follow: true, tail: None, since, previous: false };
    let target = AttachTarget::of(client, &task).await?;
    let input = has_input.then(|| TaskInput {
        client: client.clone(),
        target: target.clone(),
        is_stdin_once: one_off::is_stdin_once(&task),
    });
    let output = output(client.clone(), target, format, options);
    let Some(upgrade) = request.take_upgrade() else {
        if has_input {
            return Err(DockerError::invalid("stdin: needs a connection of its own, by `Upgrade: tcp`"));
        }
        return Ok(response::stream(format.content_type(), output));
    };
    upgrade.then(move |connection| async move {
        let UpgradedConnection { input: mut client_input, output: mut client_output, hang_up } = connection;
        let shown = async {
            let copied = async {
                let mut frames = pin!(output);
                while let Some(frame) = frames.try_next().await? {
                    client_output.write_all(&frame).await?;
                }
                Ok::<_, BodyError>(())
            };
            tokio::select! {
                copied = copied => {
                    if let Err(error) = copied {
                        tracing::debug!(%error, "the output of a container ended");
                    }
                    false
                }
                () = hang_up.detect() => true,
            }
        };
        let fed = async {
            if let Some(input) = input {
                input.feed(&mut client_input).await;
            }
        };
        {
            let mut shown = pin!(shown);
            let mut fed = pin!(fed);
            tokio::select! {
                () = &mut fed => {
                    shown.await;
                }
                has_left = &mut shown => {
                    // What it sent before still reaches the container, and so does its end.
                    if has_left && timeout(INPUT_TIMEOUT, fed).await.is_err() {
                        tracing::debug!("the input of a client that left may not have ended");
                    }
                }
            }
        }
        close(client_input, client_output).await;
    });
    Ok(response::upgraded(is_raw))
}

/// `POST /containers/ID/resize`.
pub async fn resize(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let size = programs::terminal_size(request)?;
    let task = containers::find(client, reference).await?;
    let target = AttachTarget::of(client, &task).await?;
    let late = |_| DockerError::new(StatusCode::CONFLICT, format!("container {reference} is not running"));
    let id = timeout(START_TIMEOUT, target.started_id(client)).await.map_err(late)??;
    client.tasks().attach(&id, v1::AttachTask { input: false, terminal: Some(size) }).await?;
    empty(StatusCode::OK)
}

/// A task, or the one that a container of its own is started with.
#[derive(Clone)]
struct AttachTarget {
    task: String,
    /// As it was before the response, after which the client may start it.
    container: Option<OneOffContainer>,
}

impl AttachTarget {
    async fn of(client: &Client, task: &v1::Task) -> Result<Self, DockerError> {
        let container = match one_off::is_one_off(task) {
            true => Some(one_off::of_task(client, task).await?),
            false => None,
        };
        Ok(Self { task: task.id.clone(), container })
    }

    async fn started_id(&self, client: &Client) -> Result<String, DockerError> {
        match &self.container {
            Some(container) => one_off::started_task(client, container).await,
            None => Ok(self.task.clone()),
        }
    }
}

/// The output of a task.
fn output(
    client: Client,
    target: AttachTarget,
    format: LogFormat,
    options: LogOptions,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    let opened = async move {
        let id = target.started_id(&client).await.map_err(|error| BodyError::other(error.message))?;
        logs::frames(client, LogTarget::Task(id), format, options).await.map_err(BodyError::other)
    };
    futures::stream::once(opened).try_flatten().boxed()
}

/// The standard input of a task.
struct TaskInput {
    client: Client,
    target: AttachTarget,
    is_stdin_once: bool,
}

impl TaskInput {
    /// Passes on what a client sends, until the task has ended. The end of that is the end of the input if the
    /// container was created so.
    async fn feed(self, client_input: &mut (impl AsyncRead + Unpin)) {
        let Self { client, target, is_stdin_once } = self;
        let attached = async {
            let id = target.started_id(&client).await?;
            let request = v1::AttachTask { input: true, terminal: None };
            Ok::<_, DockerError>(client.tasks().attach(&id, request).await?)
        };
        let (RunningProgram { started: _, input, control: _control, mut output }, _) = match attached.await {
            Ok(attached) => attached,
            Err(error) => {
                // Usually it has ended already.
                tracing::info!(task = target.task, why = error.message, "a container gets no input");
                return;
            }
        };
        let passed = async {
            programs::feed(client_input, input, is_stdin_once).await;
            std::future::pending::<()>().await;
        };
        // The acknowledgements are part of the output.
        let ended = async { while !matches!(output.next().await, Ok(ProgramEvent::Exited(_)) | Err(_)) {} };
        tokio::select! {
            () = passed => {}
            () = ended => {}
        }
    }
}

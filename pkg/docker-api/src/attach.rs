//! `POST /containers/ID/attach`: the output of a container as it is written.

use std::pin::pin;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use tokio::io::AsyncWriteExt;
use warren_client::{Client, LogOptions, LogTarget};
use warren_proto::v1;
use warren_types::Timestamp;

use crate::docker_error::DockerError;
use crate::logs::{self, LogFormat};
use crate::request::{DockerRequest, UpgradedConnection, close};
use crate::response::{self, Answer, BodyError};
use crate::system::now_ms;
use crate::{containers, one_off};

/// Answers at once; output comes when the container writes it, and ends with the container. One that was not started
/// yet is waited for.
pub async fn attach(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    if request.flag("stdin") {
        let message = "containers have no standard input in this version: use `docker exec -i`";
        return Err(DockerError::unsupported(message));
    }
    let task = containers::find(client, reference).await?;
    let is_raw = task.spec.as_ref().is_some_and(|spec| spec.tty);
    let format = LogFormat::of(request, is_raw)?;
    let is_new = !containers::is_running(&task);
    let since = (!is_new && !request.flag("logs")).then(|| Timestamp(now_ms()));
    let options = LogOptions { follow: true, tail: None, since, previous: false };
    let output = output(client.clone(), task, format, options);
    let Some(upgrade) = request.take_upgrade() else {
        return Ok(response::stream(format.content_type(), output));
    };
    upgrade.then(move |connection| async move {
        let UpgradedConnection { input, output: mut client_output, hang_up } = connection;
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
            }
            () = hang_up.detect() => {}
        }
        close(input, client_output).await;
    });
    Ok(response::upgraded(is_raw))
}

/// The output of a task, or of the one that a container of its own is started with.
fn output(
    client: Client,
    task: v1::Task,
    format: LogFormat,
    options: LogOptions,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    let opened = async move {
        let id = match one_off::is_one_off(&task) {
            true => one_off::started_task(&client, &task)
                .await
                .map_err(|error| BodyError::other(error.message))?,
            false => task.id,
        };
        logs::frames(client, LogTarget::Task(id), format, options).await.map_err(BodyError::other)
    };
    futures::stream::once(opened).try_flatten().boxed()
}

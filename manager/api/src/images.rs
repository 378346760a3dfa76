//! Images on the nodes: import, copy, pull, list, prune. Each node does the work over a stream that it opens; this
//! module reports its progress to the client. What a name stands for in its registry is asked by the manager itself.

mod archive_images;
mod copy;
mod holders;
mod import;
mod pull;
mod query;
mod resolve;
mod signatures;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use warren_core::Command;
use warren_proto::Problem;
use warren_proto::v1::import_request::Message;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::{self, images_server};
use warren_registry::ResolvedName;
use warren_session::server::calling_worker;
use warren_store::problem::{manager_stopping, status_of};
use warren_types::{CanonicalImage, ImageReference, Violation};

pub use self::archive_images::{ArchiveImages, read_images};
pub use self::holders::ImportHolders;
pub use self::resolve::{Reachability, ResolveFailure};
pub use self::signatures::{matching_rules, unchecked_signature};
use super::Api;
use super::admission_policy::{check_import, user_role};
use super::audited_call::AuditedCall;
use super::open_stream::resolve_nodes;

/// Chunks that may be queued for one worker.
const MAX_QUEUED_CHUNKS: usize = 8;
/// How long a worker may take to open the stream.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of one step: a chunk from the client, a chunk to a worker, a progress message to the client.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a worker may send nothing: unpacking a large layer takes a while without progress to report.
const WORKER_REPLY_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of a worker's image list.
const LIST_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of image removal on a worker.
const PRUNE_TIMEOUT: Duration = Duration::from_secs(120);

#[tonic::async_trait]
impl images_server::Images for Api {
    type ImportStream = ReceiverStream<Result<v1::ImportProgress, Status>>;
    type CopyStream = ReceiverStream<Result<v1::ImportProgress, Status>>;
    type PullStream = ReceiverStream<Result<v1::PullProgress, Status>>;

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        let role = user_role(&request);
        let mut archive = request.into_inner();
        let first = tokio::time::timeout(STEP_TIMEOUT, archive.next())
            .await
            .map_err(|_| Status::deadline_exceeded("no import target arrived"))?;
        let Some(Message::Target(target)) = first.transpose()?.and_then(|m| m.message) else {
            return Err(Status::invalid_argument("the first message of an import must be the target"));
        };
        let published = self.read_latest().await?;
        check_import(role, &published.state)?;
        let nodes = resolve_nodes(&published.state, &target.nodes, "import an image")?;
        let (progress, stream) = mpsc::channel(MAX_QUEUED_CHUNKS * nodes.len());
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("import", async move {
            let broken = tokio::select! {
                passed = api.relay_archive(nodes, archive, &progress) => passed.err(),
                () = stop.cancelled() => Some(manager_stopping()),
            };
            if let Some(status) = broken {
                // Best effort: the client may have disconnected.
                let _ = progress.send_timeout(Err(status), STEP_TIMEOUT).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn copy(
        &self,
        request: Request<v1::CopyImageRequest>,
    ) -> Result<Response<Self::CopyStream>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::CopyImageRequest { reference, to, from } = request.into_inner();
        let image = parse_image(&reference)?;
        if to.is_empty() {
            return Err(status_of(Violation::new("to", "is empty; name the nodes that get the image")));
        }
        let published = self.read_latest().await?;
        let mut targets = resolve_nodes(&published.state, &to, "receive an image")?;
        let source = self.copy_source(&published.state, &CanonicalImage::of(&image), &from).await?;
        targets.remove(&source.node);
        tracing::info!(%caller, %image, digest = source.digest, from = source.name, to = targets.len(), "image copy");
        let (progress, stream) = mpsc::channel(MAX_QUEUED_CHUNKS * targets.len().max(1));
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("copy", async move {
            tokio::select! {
                () = api.copy_image(source, targets, &progress) => {}
                // The client disconnected: the streams to the workers are closed.
                () = progress.closed() => {}
                () = stop.cancelled() => {
                    let _ = progress.try_send(Err(manager_stopping()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn find_holders(
        &self,
        request: Request<v1::FindHoldersRequest>,
    ) -> Result<Response<v1::FindHoldersResponse>, Status> {
        let caller = calling_worker(&request)?;
        self.task_image_holders(caller, request.get_ref()).await.map(Response::new)
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::PullRequest { reference, nodes, always } = request.into_inner();
        let image = parse_image(&reference)?;
        let nodes = resolve_nodes(&self.read_latest().await?.state, &nodes, "pull an image")?;
        tracing::info!(%caller, %image, nodes = nodes.len(), "pulling an image");
        let (progress, stream) = mpsc::channel(MAX_QUEUED_CHUNKS * nodes.len());
        let (api, stop) = (self.clone(), self.shutdown.token());
        let pull = v1::PullImage { reference: image.to_string(), always };
        self.shutdown.spawn("pull", async move {
            tokio::select! {
                () = api.pull_on_nodes(nodes, &pull, &progress) => {}
                // The client disconnected: the streams to the workers are closed.
                () = progress.closed() => {}
                () = stop.cancelled() => {
                    let _ = progress.try_send(Err(manager_stopping()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn list(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let nodes =
            resolve_nodes(&self.read(&request).await?.state, &request.get_ref().nodes, "list its images")?;
        let purpose = Purpose::ListImages(v1::ListImages {});
        let nodes = self.query_images(nodes, purpose, LIST_TIMEOUT).await;
        Ok(Response::new(v1::ListImagesResponse { nodes }))
    }

    async fn prune(
        &self,
        request: Request<v1::PruneImagesRequest>,
    ) -> Result<Response<v1::PruneImagesResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::PruneImagesRequest { nodes, unused_for_ms, reference } = request.into_inner();
        let (image, unused_for_ms) = match reference.as_str() {
            "" => (None, unused_for_ms),
            // A node that does not know the reference removes nothing then.
            reference => (Some(parse_image(reference)?), u64::MAX),
        };
        let is_everywhere = nodes.is_empty();
        let nodes = resolve_nodes(&self.read_latest().await?.state, &nodes, "remove images")?;
        tracing::info!(%caller, nodes = nodes.len(), unused_for_ms, reference, "pruning images");
        let purpose = Purpose::PruneImages(v1::PruneImages { unused_for_ms, reference });
        let nodes = self.query_images(nodes, purpose, PRUNE_TIMEOUT).await;
        if let Some(image) = image.filter(|_| is_everywhere) {
            // Its registry is asked from now on.
            let command = Command::RecordImport { image, digest: None, at: self.clock.now() };
            self.propose(command).await.map_err(status_of)?;
        }
        Ok(Response::new(v1::PruneImagesResponse { nodes }))
    }

    async fn resolve(
        &self,
        request: Request<v1::ResolveImageRequest>,
    ) -> Result<Response<v1::ResolvedImage>, Status> {
        let image = parse_image(&request.get_ref().reference)?;
        let published = self.read_latest().await?;
        let resolved = self.resolve_image(&published.state, &image).await.map_err(|failure| {
            let message = format!("image {image} was not resolved: {}", failure.reason);
            Status::from(Problem::new(Code::FailedPrecondition, "IMAGE_NOT_RESOLVED", message))
        })?;
        let ResolvedName { digest, media_type, size } = resolved;
        Ok(Response::new(v1::ResolvedImage {
            reference: CanonicalImage::of(&image).to_string(),
            digest: digest.to_string(),
            media_type,
            size_bytes: size,
        }))
    }
}

fn parse_image(reference: &str) -> Result<ImageReference, Status> {
    reference.parse().map_err(|why| status_of(Violation::new("reference", why)))
}

//! Images on the nodes: import, pull, list, prune. Each node does it by itself, over a stream that it dials; here is
//! what the client hears of it.

mod ask;
mod import;
mod pull;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_proto::v1::import_request::Message;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::{self, images_server};
use warren_types::{ImageReference, Violation};

use self::import::CHUNKS;
use super::Api;
use super::access::caller_of;
use super::open::targets;
use super::problem::{status_of, stopping};

/// How long a worker may take to dial in.
const ATTACH: Duration = Duration::from_secs(10);
/// How long any one step (a chunk from the client, a chunk to a worker, a word to the client) may take.
const STEP: Duration = Duration::from_secs(120);
/// How long a worker may say nothing: unpacking a large layer takes a while without anything to tell.
const WORD: Duration = Duration::from_secs(300);
/// How long a worker may take for its list.
const LIST: Duration = Duration::from_secs(15);
/// How long a worker may take to remove images.
const PRUNE: Duration = Duration::from_secs(120);

#[tonic::async_trait]
impl images_server::Images for Api {
    type ImportStream = ReceiverStream<Result<v1::ImportProgress, Status>>;
    type PullStream = ReceiverStream<Result<v1::PullProgress, Status>>;

    async fn import(
        &self,
        request: Request<Streaming<v1::ImportRequest>>,
    ) -> Result<Response<Self::ImportStream>, Status> {
        let mut archive = request.into_inner();
        let first = tokio::time::timeout(STEP, archive.next())
            .await
            .map_err(|_| Status::deadline_exceeded("no import target arrived"))?;
        let Some(Message::Target(target)) = first.transpose()?.and_then(|m| m.message) else {
            return Err(Status::invalid_argument("the first message of an import says which nodes"));
        };
        let nodes = targets(&self.newest().await?.state, &target.nodes, "import an image")?;
        let (progress, stream) = mpsc::channel(CHUNKS * nodes.len());
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("import", async move {
            let broken = tokio::select! {
                passed = api.relay(nodes, archive, &progress) => passed.err(),
                () = stop.cancelled() => Some(stopping()),
            };
            if let Some(status) = broken {
                // The client learns why, if it is still there.
                let _ = progress.send_timeout(Err(status), STEP).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn pull(&self, request: Request<v1::PullRequest>) -> Result<Response<Self::PullStream>, Status> {
        let caller = caller_of(&request);
        let v1::PullRequest { reference, nodes, always } = request.into_inner();
        let image: ImageReference =
            reference.parse().map_err(|why| status_of(Violation::new("reference", why)))?;
        let nodes = targets(&self.newest().await?.state, &nodes, "pull an image")?;
        tracing::info!(%caller, %image, nodes = nodes.len(), "image pull");
        let (progress, stream) = mpsc::channel(CHUNKS * nodes.len());
        let (api, stop) = (self.clone(), self.shutdown.token());
        let pull = v1::PullImage { reference: image.to_string(), always };
        self.shutdown.spawn("pull", async move {
            tokio::select! {
                () = api.pull_on(nodes, &pull, &progress) => {}
                // Nobody wants it any more: the workers see their streams end.
                () = progress.closed() => {}
                () = stop.cancelled() => {
                    let _ = progress.try_send(Err(stopping()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn list(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let nodes = targets(&self.read(&request).await?.state, &request.get_ref().nodes, "list its images")?;
        let purpose = Purpose::ListImages(v1::ListImages {});
        let nodes = self.ask_images(nodes, purpose, LIST).await;
        Ok(Response::new(v1::ListImagesResponse { nodes }))
    }

    async fn prune(
        &self,
        request: Request<v1::PruneImagesRequest>,
    ) -> Result<Response<v1::PruneImagesResponse>, Status> {
        let caller = caller_of(&request);
        let v1::PruneImagesRequest { nodes, unused_for_ms } = request.into_inner();
        let nodes = targets(&self.newest().await?.state, &nodes, "remove images")?;
        tracing::info!(%caller, nodes = nodes.len(), unused_for_ms, "image prune");
        let purpose = Purpose::PruneImages(v1::PruneImages { unused_for_ms });
        let nodes = self.ask_images(nodes, purpose, PRUNE).await;
        Ok(Response::new(v1::PruneImagesResponse { nodes }))
    }
}

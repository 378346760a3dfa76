//! Pulls an image on nodes and reports their progress.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::pull_progress::Event;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeId;

use super::{ATTACH_TIMEOUT, Api, STEP_TIMEOUT, WORKER_REPLY_TIMEOUT};

type PullProgressSender = mpsc::Sender<Result<v1::PullProgress, Status>>;

impl Api {
    /// Returns when all nodes have finished.
    pub(super) async fn pull_on_nodes(
        &self,
        nodes: BTreeMap<NodeId, String>,
        pull: &v1::PullImage,
        progress: &PullProgressSender,
    ) {
        let mut pulls = JoinSet::new();
        for (node, name) in nodes {
            let one = NodePull { api: self.clone(), node, name, progress: progress.clone() };
            pulls.spawn(one.run(pull.clone()));
        }
        pulls.join_all().await;
    }
}

/// The pull on one node.
struct NodePull {
    api: Api,
    node: NodeId,
    name: String,
    progress: PullProgressSender,
}

impl NodePull {
    async fn run(self, pull: v1::PullImage) {
        if let Err(why) = self.pull(pull).await {
            self.send_progress(Event::Error(why)).await;
        }
    }

    fn progress_message(&self, event: Event) -> Result<v1::PullProgress, Status> {
        Ok(v1::PullProgress { node: self.name.clone(), event: Some(event) })
    }

    async fn send_progress(&self, event: Event) {
        // The client may have disconnected; then the pull is cancelled as a whole.
        let _ = self.progress.send_timeout(self.progress_message(event), STEP_TIMEOUT).await;
    }

    async fn pull(&self, pull: v1::PullImage) -> Result<(), String> {
        let mut stream = self.api.open_stream(self.node, Purpose::PullImage(pull), ATTACH_TIMEOUT).await?;
        loop {
            let message = timeout(WORKER_REPLY_TIMEOUT, stream.inbound.next()).await;
            let message = message.map_err(|_| "timeout: no response from worker")?;
            let message = message.transpose().map_err(|status| status.message().to_owned())?;
            match message.and_then(|frame| frame.frame) {
                // A slow client skips this update and receives the next one.
                Some(Frame::Progress(update)) => {
                    let _ = self.progress.try_send(self.progress_message(Event::Progress(update)));
                }
                Some(Frame::Imported(image)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = image;
                    self.send_progress(Event::Pulled(v1::ImportedImage { reference, digest, size_bytes }))
                        .await;
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(()),
                Some(_) | None => return Err("the worker closed the stream during the pull".into()),
            }
        }
    }
}

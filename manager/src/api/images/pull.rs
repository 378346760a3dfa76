//! Has nodes pull an image, and tells how they get on.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;
use warren_proto::v1;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::pull_progress::Event;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeId;

use super::{ATTACH, Api, STEP, WORD};

type Progress = mpsc::Sender<Result<v1::PullProgress, Status>>;

impl Api {
    /// Until all nodes are through.
    pub(super) async fn pull_on(
        &self,
        nodes: BTreeMap<NodeId, String>,
        pull: &v1::PullImage,
        progress: &Progress,
    ) {
        let mut pulls = JoinSet::new();
        for (node, name) in nodes {
            let one = Pull { api: self.clone(), node, name, progress: progress.clone() };
            pulls.spawn(one.run(pull.clone()));
        }
        pulls.join_all().await;
    }
}

/// One node's share.
struct Pull {
    api: Api,
    node: NodeId,
    name: String,
    progress: Progress,
}

impl Pull {
    async fn run(self, pull: v1::PullImage) {
        if let Err(why) = self.pull(pull).await {
            self.tell(Event::Failed(why)).await;
        }
    }

    fn progress(&self, event: Event) -> Result<v1::PullProgress, Status> {
        Ok(v1::PullProgress { node: self.name.clone(), event: Some(event) })
    }

    async fn tell(&self, event: Event) {
        // Whoever asked may have left; then all of this ends.
        let _ = self.progress.send_timeout(self.progress(event), STEP).await;
    }

    async fn pull(&self, pull: v1::PullImage) -> Result<(), String> {
        let mut stream = self.api.open(self.node, Purpose::PullImage(pull), ATTACH).await?;
        loop {
            let word = timeout(WORD, stream.inbound.next()).await;
            let word = word.map_err(|_| "the worker said nothing for too long")?;
            let word = word.transpose().map_err(|status| status.message().to_owned())?;
            match word.and_then(|frame| frame.frame) {
                // A client that does not keep up learns the next words.
                Some(Frame::Progress(words)) => {
                    let _ = self.progress.try_send(self.progress(Event::Progress(words)));
                }
                Some(Frame::Imported(found)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = found;
                    self.tell(Event::Pulled(v1::ImportedImage { reference, digest, size_bytes })).await;
                }
                Some(Frame::Failed(why)) => return Err(why),
                Some(Frame::Done(_)) => return Ok(()),
                Some(_) | None => return Err("the worker broke off the pull".into()),
            }
        }
    }
}

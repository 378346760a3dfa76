//! Copies an image from one node to others: the targets request blobs by digest, the source sends each of them
//! once, and every target checks what it receives. The slowest target sets the pace.

mod merge;

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use warren_core::State;
use warren_proto::status::Problem;
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::status_of;
use warren_types::{CanonicalImage, NodeId, Violation};

use self::merge::{BlobTransfer, merge_requests};
use super::holders::ImageHolders;
use super::{ATTACH_TIMEOUT, Api, LIST_TIMEOUT, STEP_TIMEOUT, WORKER_REPLY_TIMEOUT};

/// Most blobs that a target may request at once: the layers of an image.
const MAX_BLOBS: usize = 256;

pub(super) type CopyProgressSender = mpsc::Sender<Result<v1::ImportProgress, Status>>;

/// An image on its way: where it comes from, and which it is.
#[derive(Debug, Clone)]
pub(super) struct CopySource {
    pub node: NodeId,
    pub name: String,
    /// Its name on the targets.
    reference: String,
    /// What the targets check.
    pub digest: String,
}

/// A node that receives the image.
struct CopyTarget {
    name: String,
    stream: WorkerStream,
    progress: CopyProgressSender,
    received: u64,
}

impl Api {
    /// Where the image comes from. Nodes that have different images of this name are not chosen from.
    ///
    /// # Errors
    /// No node has it, or they have different ones.
    pub(super) async fn copy_source(
        &self,
        state: &State,
        image: &CanonicalImage,
        from: &str,
    ) -> Result<CopySource, Status> {
        let holders = match from {
            "" => {
                let reported = self.image_holders(state, image).await;
                // What arrived a moment ago is not reported yet.
                match reported.is_empty() {
                    true => self.listed_holders(state, image, "").await?,
                    false => reported,
                }
            }
            node => self.listed_holders(state, image, node).await?,
        };
        let name_of =
            |id: &NodeId| state.node(id).map_or_else(|| id.to_string(), |node| node.name.to_string());
        let digests: BTreeMap<&str, &NodeId> =
            holders.iter().map(|(node, held)| (held.digest.as_str(), node)).collect();
        if digests.len() > 1 {
            let named: Vec<String> =
                digests.iter().map(|(digest, node)| format!("{} has {digest}", name_of(node))).collect();
            let message = format!(
                "nodes have different images of the name {image}: {}; name the source with --from, or the image with \
                 its digest",
                named.join(", ")
            );
            return Err(Problem::new(Code::FailedPrecondition, "IMAGE_AMBIGUOUS", message).into());
        }
        let Some((node, held)) = holders.into_iter().next() else {
            let place = if from.is_empty() {
                "no READY node has".to_owned()
            } else {
                format!("{from} does not have")
            };
            let message =
                format!("{place} the image {image}; `warren image ls` lists the images of the nodes");
            return Err(Problem::new(Code::NotFound, "IMAGE_NOT_FOUND", message).into());
        };
        if held.digest.parse::<warren_types::ImageDigest>().is_err() {
            return Err(status_of(Violation::new("reference", "its node reports no valid digest of it")));
        }
        let name = name_of(&node);
        Ok(CopySource { node, name, reference: image.to_string(), digest: held.digest })
    }

    /// Asks nodes for their images: the named one, or all that are READY.
    async fn listed_holders(
        &self,
        state: &State,
        image: &CanonicalImage,
        from: &str,
    ) -> Result<ImageHolders, Status> {
        let names = Some(from.to_owned()).filter(|from| !from.is_empty());
        let names: Vec<String> = names.into_iter().collect();
        let nodes = super::resolve_nodes(state, &names, "list its images")?;
        let by_name: BTreeMap<String, NodeId> = nodes.iter().map(|(id, name)| (name.clone(), *id)).collect();
        let lists = self.query_images(nodes, Purpose::ListImages(v1::ListImages {}), LIST_TIMEOUT).await;
        if let Some(failed) = lists.iter().find(|list| !from.is_empty() && !list.error.is_empty()) {
            let message = format!("node {} did not list its images: {}", failed.node, failed.error);
            return Err(Problem::new(Code::Unavailable, "NODE_SILENT", message).into());
        }
        let held = lists.into_iter().filter_map(|list| {
            let found = list.images.into_iter().find(|held| image.matches(&held.reference, &held.digest))?;
            let held = v1::HeldImage { reference: found.reference, digest: found.digest };
            Some((*by_name.get(&list.node)?, held))
        });
        Ok(held.collect())
    }

    /// Copies the image to the targets. Each failure is reported for its node; without the source all fail.
    pub(super) async fn copy_image(
        &self,
        source: CopySource,
        targets: BTreeMap<NodeId, String>,
        progress: &CopyProgressSender,
    ) {
        let CopySource { node, name, reference, digest } = source;
        let mut opening = JoinSet::new();
        for (target, target_name) in targets {
            let (reference, digest) = (reference.clone(), digest.clone());
            let purpose = Purpose::ReceiveImage(v1::ReceiveImage { reference, digest });
            let (api, progress) = (self.clone(), progress.clone());
            opening.spawn(async move {
                match api.open_stream(target, purpose, ATTACH_TIMEOUT).await {
                    Ok(stream) => Some(CopyTarget { name: target_name, stream, progress, received: 0 }),
                    Err(why) => {
                        send_progress(&progress, &target_name, Event::Error(why)).await;
                        None
                    }
                }
            });
        }
        let mut targets: Vec<CopyTarget> = opening.join_all().await.into_iter().flatten().collect();
        targets.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if targets.is_empty() {
            return;
        }
        let purpose = Purpose::ExportImage(v1::ExportImage { reference, digest });
        let copied = match self.open_stream(node, purpose, ATTACH_TIMEOUT).await {
            Ok(mut source) => relay(&mut source, &mut targets).await,
            Err(why) => Err(why),
        };
        if let Err(why) = copied {
            for target in targets {
                target.report(Event::Error(format!("source {name}: {why}"))).await;
            }
        }
    }
}

/// Answers the requests of the targets until all of them have ended.
async fn relay(source: &mut WorkerStream, targets: &mut Vec<CopyTarget>) -> Result<(), String> {
    while !targets.is_empty() {
        // All targets request the same documents, so that each is sent once.
        let mut lists = Vec::new();
        let mut remaining = Vec::with_capacity(targets.len());
        for mut target in std::mem::take(targets) {
            match target.next_request().await {
                Ok(Some(wanted)) => {
                    lists.push(wanted);
                    remaining.push(target);
                }
                Ok(None) => target.report(Event::Done(v1::NodeDone {})).await,
                Err(why) => target.report(Event::Error(why)).await,
            }
        }
        *targets = remaining;
        let transfers = merge_requests(lists);
        if transfers.is_empty() {
            continue;
        }
        let digests = transfers.iter().map(|transfer| transfer.digest.clone()).collect();
        send(source, Frame::Wanted(v1::BlobRequest { digests })).await?;
        let mut alive: Vec<Option<CopyTarget>> = std::mem::take(targets).into_iter().map(Some).collect();
        let sent = relay_blobs(source, &mut alive, &transfers).await;
        targets.extend(alive.into_iter().flatten());
        sent?;
    }
    Ok(())
}

/// Passes each blob to the targets that requested it. A target that fails is dropped.
async fn relay_blobs(
    source: &mut WorkerStream,
    targets: &mut [Option<CopyTarget>],
    transfers: &[BlobTransfer],
) -> Result<(), String> {
    for BlobTransfer { digest, to } in transfers {
        loop {
            let frame = match next_frame(source, STEP_TIMEOUT).await? {
                Some(frame @ (Frame::Data(_) | Frame::End(_))) => frame,
                Some(Frame::Error(why)) => return Err(why),
                _ => return Err(format!("the worker closed the stream within the blob {digest}")),
            };
            let is_end = matches!(frame, Frame::End(_));
            for position in to {
                let Some(target) = &mut targets[*position] else { continue };
                if let Err(why) = target.pass_on(frame.clone()).await
                    && let Some(failed) = targets[*position].take()
                {
                    failed.report(Event::Error(why)).await;
                }
            }
            if is_end {
                break;
            }
        }
    }
    Ok(())
}

impl CopyTarget {
    /// The blobs that it requests next; `None` when it has the image.
    async fn next_request(&mut self) -> Result<Option<Vec<String>>, String> {
        loop {
            match next_frame(&mut self.stream, WORKER_REPLY_TIMEOUT).await? {
                Some(Frame::Wanted(v1::BlobRequest { digests })) if digests.len() <= MAX_BLOBS => {
                    return Ok(Some(digests));
                }
                Some(Frame::Wanted(_)) => return Err(format!("it requested more than {MAX_BLOBS} blobs")),
                Some(Frame::Imported(image)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = image;
                    self.report(Event::Imported(v1::ImportedImage { reference, digest, size_bytes })).await;
                }
                Some(Frame::Done(_)) => return Ok(None),
                Some(Frame::Error(why)) => return Err(why),
                Some(_) | None => return Err("the worker closed the stream during the copy".into()),
            }
        }
    }

    async fn pass_on(&mut self, frame: Frame) -> Result<(), String> {
        if let Frame::Data(data) = &frame {
            self.received += data.len() as u64;
            // A slow client skips this number and receives the next one.
            let update = Event::ReceivedBytes(self.received);
            let _ = self.progress.try_send(Ok(progress_message(&self.name, update)));
        }
        if let Err(why) = send(&self.stream, frame).await {
            // Its own reason is often sent before the stream closes.
            let reason = next_frame(&mut self.stream, super::import::CLOSE_REASON_TIMEOUT).await;
            return Err(match reason {
                Ok(Some(Frame::Error(reason))) => reason,
                _ => why,
            });
        }
        Ok(())
    }

    async fn report(&self, event: Event) {
        send_progress(&self.progress, &self.name, event).await;
    }
}

fn progress_message(node: &str, event: Event) -> v1::ImportProgress {
    v1::ImportProgress { node: node.to_owned(), event: Some(event) }
}

async fn send_progress(progress: &CopyProgressSender, node: &str, event: Event) {
    // The client may have disconnected; then the copy is cancelled as a whole.
    let _ = progress.send_timeout(Ok(progress_message(node, event)), STEP_TIMEOUT).await;
}

async fn next_frame(stream: &mut WorkerStream, within: std::time::Duration) -> Result<Option<Frame>, String> {
    let message = timeout(within, stream.inbound.next()).await;
    let message = message.map_err(|_| "timeout: no response from worker")?;
    let message = message.transpose().map_err(|status| status.message().to_owned())?;
    Ok(message.and_then(|frame| frame.frame))
}

async fn send(stream: &WorkerStream, frame: Frame) -> Result<(), String> {
    let frame = Ok(v1::StreamFrame { frame: Some(frame) });
    stream.outbound.send_timeout(frame, STEP_TIMEOUT).await.map_err(|error| match error {
        SendTimeoutError::Timeout(_) => "the worker reads too slowly".to_owned(),
        SendTimeoutError::Closed(_) => "the worker closed the stream".to_owned(),
    })
}

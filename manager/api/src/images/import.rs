//! Sends an image archive from the client to the target workers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Code, Status, Streaming};
use warren_core::Command;
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::import_request::Message;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::status_of;
use warren_types::{CanonicalImage, ImageDigest, ImageReference, NodeId, NodeRole};

use super::archive_images::{ArchiveImages, ArchiveReader, MAX_NAMES};
use super::{ATTACH_TIMEOUT, Api, MAX_QUEUED_CHUNKS, STEP_TIMEOUT, WORKER_REPLY_TIMEOUT};

/// How long to wait for the failure message of a worker that closed its stream.
pub(super) const CLOSE_REASON_TIMEOUT: Duration = Duration::from_secs(1);

type ImportProgressSender = mpsc::Sender<Result<v1::ImportProgress, Status>>;

impl Api {
    /// Sends the archive to all nodes in parallel, and records what its names stand for. A worker imports nothing
    /// before it has received the end.
    pub(super) async fn relay_archive(
        &self,
        nodes: BTreeMap<NodeId, String>,
        mut archive: Streaming<v1::ImportRequest>,
        progress: &ImportProgressSender,
    ) -> Result<(), Status> {
        let mut feeds = Vec::with_capacity(nodes.len());
        let mut relays = JoinSet::new();
        for (node, name) in nodes {
            let (feed, chunks) = mpsc::channel(MAX_QUEUED_CHUNKS);
            feeds.push(feed);
            relays.spawn(ImportRelay { node, name, progress: progress.clone() }.run(self.clone(), chunks));
        }
        let mut reader = ArchiveReader::start();
        let distributed = distribute(&mut archive, feeds, &mut reader).await;
        let mut imported = Vec::new();
        while let Some(relayed) = relays.join_next().await {
            imported.extend(relayed.ok().flatten());
        }
        distributed?;
        match reader.finish().await {
            Ok(images) => self.record_imports(&imported, &images).await,
            Err(error) => {
                tracing::warn!(%error, nodes = imported.len(), "names of the imported archive are not recorded");
                Ok(())
            }
        }
    }

    /// Records what the names of the archive stand for. Nodes of managers decide if there are any.
    async fn record_imports(&self, imported: &[NodeImport], images: &ArchiveImages) -> Result<(), Status> {
        let published = self.store.read();
        let digests = agreed_digests(imported, images, |id| {
            published.state.node(&id).is_some_and(|node| node.role == NodeRole::Manager)
        });
        for (image, digest) in digests.map_err(|message| {
            Status::from(Problem::new(Code::FailedPrecondition, "IMPORTS_DIFFER", message))
        })? {
            // The canonical form of a reference is one.
            let Ok(image) = image.to_string().parse::<ImageReference>() else { continue };
            let command = Command::RecordImport { image, digest: Some(digest), at: self.clock.now() };
            self.propose(command).await.map_err(status_of)?;
        }
        Ok(())
    }
}

/// What one node imported: names and digests, as it says.
struct NodeImport {
    node: NodeId,
    name: String,
    images: Vec<(String, String)>,
}

/// The digest of each name of the archive, which all nodes that decide reported.
///
/// # Errors
/// A node reported another digest than another node, one that the archive does not contain, or none.
fn agreed_digests(
    imported: &[NodeImport],
    images: &ArchiveImages,
    is_manager: impl Fn(NodeId) -> bool,
) -> Result<BTreeMap<CanonicalImage, ImageDigest>, String> {
    const ADVICE: &str = "services do not use it: import it again on nodes that you trust";
    let has_manager = imported.iter().any(|import| is_manager(import.node));
    let mut agreed: BTreeMap<CanonicalImage, ImageDigest> = BTreeMap::new();
    for NodeImport { name: node, images: reported, .. } in
        imported.iter().filter(|import| !has_manager || is_manager(import.node))
    {
        for (image, digests) in images {
            let Some(digest) = reported_digest(reported, image) else {
                return Err(format!("node {node} did not report the image {image} of the archive; {ADVICE}"));
            };
            if digests.as_ref().is_some_and(|digests| !digests.contains(&digest)) {
                return Err(format!(
                    "node {node} reported {image} as {digest}, which the archive does not contain; check who controls \
                     the node; {ADVICE}"
                ));
            }
            match agreed.get(image).filter(|other| **other != digest) {
                Some(other) => {
                    return Err(format!(
                        "node {node} reported {image} as {digest}, another node as {other}; {ADVICE}"
                    ));
                }
                None => drop(agreed.insert(image.clone(), digest)),
            }
        }
    }
    Ok(agreed)
}

/// The digest that a node reported for a name.
fn reported_digest(reported: &[(String, String)], image: &CanonicalImage) -> Option<ImageDigest> {
    let is_it =
        |name: &str| name.parse().is_ok_and(|name: ImageReference| CanonicalImage::of(&name) == *image);
    reported.iter().find(|(name, _)| is_it(name)).and_then(|(_, digest)| digest.parse().ok())
}

/// One chunk of the archive, or its end. A channel that closes without the end means that the client aborted.
enum ArchiveChunk {
    Data(Bytes),
    End,
}

/// The slowest worker sets the pace; workers whose stream closed are skipped.
async fn distribute(
    archive: &mut Streaming<v1::ImportRequest>,
    mut feeds: Vec<mpsc::Sender<ArchiveChunk>>,
    reader: &mut ArchiveReader,
) -> Result<(), Status> {
    loop {
        let late = |_| Status::deadline_exceeded("timeout: the client sent no more of the archive");
        match tokio::time::timeout(STEP_TIMEOUT, archive.next()).await.map_err(late)?.transpose()? {
            None => break,
            Some(v1::ImportRequest { message: Some(Message::Chunk(chunk)) }) => {
                reader.push(chunk.clone()).await;
                let mut alive = Vec::with_capacity(feeds.len());
                for feed in feeds {
                    if feed.send(ArchiveChunk::Data(chunk.clone())).await.is_ok() {
                        alive.push(feed);
                    }
                }
                if alive.is_empty() {
                    // Each worker has reported its own failure.
                    return Ok(());
                }
                feeds = alive;
            }
            Some(_) => return Err(Status::invalid_argument("only chunks follow the target")),
        }
    }
    for feed in feeds {
        // A failed worker has reported its failure itself.
        let _ = feed.send(ArchiveChunk::End).await;
    }
    Ok(())
}

/// The failure message of a worker that closed its stream; it is often sent before and not read yet.
async fn close_reason(stream: &mut WorkerStream) -> Option<String> {
    let failed = async {
        while let Some(Ok(message)) = stream.inbound.next().await {
            if let Some(Frame::Error(why)) = message.frame {
                return Some(why);
            }
        }
        None
    };
    tokio::time::timeout(CLOSE_REASON_TIMEOUT, failed).await.ok().flatten()
}

/// The import on one worker.
struct ImportRelay {
    node: NodeId,
    name: String,
    progress: ImportProgressSender,
}

impl ImportRelay {
    /// Returns what the node imported; `None` if it failed.
    async fn run(self, api: Api, mut chunks: mpsc::Receiver<ArchiveChunk>) -> Option<NodeImport> {
        match self.import(&api, &mut chunks).await {
            Ok(images) => Some(NodeImport { node: self.node, name: self.name, images }),
            Err(why) => {
                self.send_progress(Event::Error(why)).await;
                None
            }
        }
    }

    async fn send_progress(&self, event: Event) {
        // The client may have disconnected; the workers finish the import.
        let _ = self.progress.send_timeout(Ok(self.progress_message(event)), STEP_TIMEOUT).await;
    }

    fn try_send_progress(&self, event: Event) {
        let _ = self.progress.try_send(Ok(self.progress_message(event)));
    }

    fn progress_message(&self, event: Event) -> v1::ImportProgress {
        v1::ImportProgress { node: self.name.clone(), event: Some(event) }
    }

    async fn import(
        &self,
        api: &Api,
        chunks: &mut mpsc::Receiver<ArchiveChunk>,
    ) -> Result<Vec<(String, String)>, String> {
        let purpose = Purpose::ImportImage(v1::ImportImage {});
        let mut stream = api.open_stream(self.node, purpose, ATTACH_TIMEOUT).await?;
        let (mut complete, mut images) = (false, Vec::new());
        loop {
            let message = tokio::select! {
                piece = chunks.recv(), if !complete => {
                    complete = matches!(piece, Some(ArchiveChunk::End));
                    if let Err(why) = self.forward_chunk(&stream, piece).await {
                        return Err(close_reason(&mut stream).await.unwrap_or(why));
                    }
                    continue;
                }
                message = tokio::time::timeout(WORKER_REPLY_TIMEOUT, stream.inbound.next()) => message,
            };
            let message = message.map_err(|_| "timeout: no response from worker")?;
            let message = message.transpose().map_err(|status| status.message().to_string())?;
            match message.and_then(|frame| frame.frame) {
                // A slow client skips this number and receives the next one.
                Some(Frame::ReceivedBytes(bytes)) => self.try_send_progress(Event::ReceivedBytes(bytes)),
                Some(Frame::Imported(image)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = image;
                    if images.len() < MAX_NAMES {
                        images.push((reference.clone(), digest.clone()));
                    }
                    self.send_progress(Event::Imported(v1::ImportedImage { reference, digest, size_bytes }))
                        .await;
                }
                Some(Frame::Error(why)) => return Err(why),
                Some(Frame::Done(_)) => {
                    self.send_progress(Event::Done(v1::NodeDone {})).await;
                    return Ok(images);
                }
                Some(_) | None => return Err("the worker closed the stream during the import".into()),
            }
        }
    }

    async fn forward_chunk(&self, stream: &WorkerStream, piece: Option<ArchiveChunk>) -> Result<(), String> {
        let frame = match piece {
            Some(ArchiveChunk::Data(data)) => Frame::Data(data),
            Some(ArchiveChunk::End) => Frame::End(v1::EndOfData {}),
            None => return Err("the client closed the stream before the end of the archive".into()),
        };
        let frame = Ok(v1::StreamFrame { frame: Some(frame) });
        stream.outbound.send_timeout(frame, STEP_TIMEOUT).await.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => "the worker reads too slowly".to_string(),
            SendTimeoutError::Closed(_) => "the worker closed the stream".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use warren_types::Id;

    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    /// What a node says that it imported.
    fn import(number: u128, images: &[(&str, char)]) -> NodeImport {
        let images = images.iter().map(|(name, digit)| (format!("docker.io/library/{name}"), digest(*digit)));
        NodeImport { node: NodeId(Id(number)), name: format!("n{number}"), images: images.collect() }
    }

    /// An archive with the image `web:1`, for one platform, two, or as `docker save` writes it.
    fn archive(digits: Option<&str>) -> ArchiveImages {
        let digests: Option<BTreeSet<ImageDigest>> =
            digits.map(|digits| digits.chars().map(|it| digest(it).parse().unwrap()).collect());
        [(CanonicalImage::of(&"web:1".parse().unwrap()), digests)].into()
    }

    fn agreed(imported: &[NodeImport], digits: Option<&str>, manager: u128) -> Result<Vec<String>, String> {
        let digests = agreed_digests(imported, &archive(digits), |id| id == NodeId(Id(manager)))?;
        Ok(digests.into_iter().map(|(image, digest)| format!("{image} {}", &digest.as_str()[7..9])).collect())
    }

    #[test]
    fn nodes_of_managers_decide_what_an_import_gave_a_name() {
        let web = |number, digit| import(number, &[("web:1", digit)]);
        let of = |digit| Ok(vec![format!("docker.io/library/web:1 {digit}{digit}")]);
        assert_eq!(agreed(&[web(1, 'a'), web(2, 'a')], Some("a"), 9), of('a'));
        assert_eq!(agreed(&[web(1, 'a'), web(2, 'a')], None, 9), of('a'));
        assert_eq!(agreed(&[web(1, 'a'), web(2, 'b')], None, 2), of('b'));
        assert_eq!(agreed(&[], None, 9), Ok(Vec::new()));
        for (imported, digits) in
            [([web(1, 'a'), web(2, 'b')], None), ([web(1, 'a'), web(2, 'b')], Some("ab"))]
        {
            let refused = agreed(&imported, digits, 9).unwrap_err();
            assert!(refused.contains("node n2") && refused.contains(&digest('a')), "{refused}");
        }
    }

    #[test]
    fn node_adds_no_name_and_no_digest_to_an_archive() {
        let invented = import(1, &[("nginx:1", 'b'), ("web:1", 'a')]);
        assert_eq!(agreed(&[invented], Some("a"), 9), Ok(vec!["docker.io/library/web:1 aa".to_owned()]));
        let forged = agreed(&[import(1, &[("web:1", 'b')])], Some("a"), 9).unwrap_err();
        assert!(forged.contains("node n1") && forged.contains("does not contain"), "{forged}");
        let missing = agreed(&[import(1, &[("web:1", 'a')]), import(2, &[])], Some("a"), 9).unwrap_err();
        assert!(missing.contains("node n2 did not report"), "{missing}");
    }
}

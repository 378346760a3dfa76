//! An archive on its way from the client to the workers that shall have it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::import_request::Message;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_types::NodeId;

use super::{ATTACH, Api, STEP, WORD};
use crate::session::streams::Attached;

/// How long we look for why a worker closed its stream.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Chunks that may wait for one worker.
pub(super) const CHUNKS: usize = 8;

type Progress = mpsc::Sender<Result<v1::ImportProgress, Status>>;

impl Api {
    /// Passes the archive on to all nodes at once. Without its end no worker imports anything.
    pub(super) async fn relay(
        &self,
        nodes: BTreeMap<NodeId, String>,
        mut archive: Streaming<v1::ImportRequest>,
        progress: &Progress,
    ) -> Result<(), Status> {
        let mut feeds = Vec::with_capacity(nodes.len());
        let mut relays = JoinSet::new();
        for (node, name) in nodes {
            let (feed, chunks) = mpsc::channel(CHUNKS);
            feeds.push(feed);
            relays.spawn(Relay { node, name, progress: progress.clone() }.run(self.clone(), chunks));
        }
        let distributed = distribute(&mut archive, feeds).await;
        while relays.join_next().await.is_some() {}
        distributed
    }
}

/// One piece of the archive, or its end. A channel that closes without the end means that the client broke off.
enum Piece {
    Data(Bytes),
    End,
}

/// The slowest worker sets the pace; one that is gone no longer counts.
async fn distribute(
    archive: &mut Streaming<v1::ImportRequest>,
    mut feeds: Vec<mpsc::Sender<Piece>>,
) -> Result<(), Status> {
    loop {
        let late = |_| Status::deadline_exceeded("the archive stopped arriving");
        match tokio::time::timeout(STEP, archive.next()).await.map_err(late)?.transpose()? {
            None => break,
            Some(v1::ImportRequest { message: Some(Message::Chunk(chunk)) }) => {
                let mut alive = Vec::with_capacity(feeds.len());
                for feed in feeds {
                    if feed.send(Piece::Data(chunk.clone())).await.is_ok() {
                        alive.push(feed);
                    }
                }
                if alive.is_empty() {
                    // All of them said why.
                    return Ok(());
                }
                feeds = alive;
            }
            Some(_) => return Err(Status::invalid_argument("only chunks follow the target")),
        }
    }
    for feed in feeds {
        // A worker that failed has said so itself.
        let _ = feed.send(Piece::End).await;
    }
    Ok(())
}

/// A worker that closes its stream has often said why, and we have not read it yet.
async fn last_word(stream: &mut Attached) -> Option<String> {
    let failed = async {
        while let Some(Ok(word)) = stream.inbound.next().await {
            if let Some(Frame::Failed(why)) = word.frame {
                return Some(why);
            }
        }
        None
    };
    tokio::time::timeout(LAST_WORD, failed).await.ok().flatten()
}

/// One worker's share of an import.
struct Relay {
    node: NodeId,
    name: String,
    progress: Progress,
}

impl Relay {
    async fn run(self, api: Api, mut chunks: mpsc::Receiver<Piece>) {
        if let Err(why) = self.import(&api, &mut chunks).await {
            self.tell(Event::Failed(why)).await;
        }
    }

    async fn tell(&self, event: Event) {
        // The client may have left; the workers finish what they began.
        let _ = self.progress.send_timeout(Ok(self.progress(event)), STEP).await;
    }

    fn try_tell(&self, event: Event) {
        let _ = self.progress.try_send(Ok(self.progress(event)));
    }

    fn progress(&self, event: Event) -> v1::ImportProgress {
        v1::ImportProgress { node: self.name.clone(), event: Some(event) }
    }

    async fn import(&self, api: &Api, chunks: &mut mpsc::Receiver<Piece>) -> Result<(), String> {
        let purpose = Purpose::ImportImage(v1::ImportImage {});
        let mut stream = api.open(self.node, purpose, ATTACH).await?;
        let mut complete = false;
        loop {
            let word = tokio::select! {
                piece = chunks.recv(), if !complete => {
                    complete = matches!(piece, Some(Piece::End));
                    if let Err(why) = self.pass_on(&stream, piece).await {
                        return Err(last_word(&mut stream).await.unwrap_or(why));
                    }
                    continue;
                }
                word = tokio::time::timeout(WORD, stream.inbound.next()) => word,
            };
            let word = word.map_err(|_| "the worker said nothing for too long")?;
            let word = word.transpose().map_err(|status| status.message().to_string())?;
            match word.and_then(|frame| frame.frame) {
                // A client that does not keep up learns the next number.
                Some(Frame::ReceivedBytes(bytes)) => self.try_tell(Event::ReceivedBytes(bytes)),
                Some(Frame::Imported(found)) => {
                    let v1::ImportedImageFrame { reference, digest, size_bytes } = found;
                    self.tell(Event::Imported(v1::ImportedImage { reference, digest, size_bytes })).await;
                }
                Some(Frame::Failed(why)) => return Err(why),
                Some(Frame::Done(_)) => {
                    self.tell(Event::Done(v1::Done {})).await;
                    return Ok(());
                }
                Some(_) | None => return Err("the worker broke off the import".into()),
            }
        }
    }

    async fn pass_on(&self, stream: &Attached, piece: Option<Piece>) -> Result<(), String> {
        let frame = match piece {
            Some(Piece::Data(data)) => Frame::Data(data),
            Some(Piece::End) => Frame::End(v1::EndOfData {}),
            None => return Err("the client broke off before the end of the archive".into()),
        };
        let frame = Ok(v1::StreamFrame { frame: Some(frame) });
        stream.outbound.send_timeout(frame, STEP).await.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => "the worker reads too slowly".to_string(),
            SendTimeoutError::Closed(_) => "the worker closed the stream".to_string(),
        })
    }
}

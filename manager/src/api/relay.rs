//! Streams to workers whose sessions are with another manager: that one asks its worker to dial, and passes on what
//! both ends say.

use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use warren_proto::Problem;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::v1::relay_frame::Frame;
use warren_proto::v1::{self, StreamFrame};
use warren_types::NodeId;

use super::Api;
use super::problem::stopping;
use crate::session::streams::Attached;

/// Frames that may wait in either direction, as many as on a worker's own stream.
const FRAMES: usize = 8;
/// How long the first frame may take.
const HELLO: Duration = Duration::from_secs(5);
/// How long a worker may take to dial in; whoever asked may give up sooner.
const ATTACH: Duration = Duration::from_secs(10);
/// Reason of what the other manager hears when the node does not open the stream.
const NOT_OPENED: &str = "NOT_OPENED";

/// What a relayed stream says to who asked for it.
pub type Relayed = ReceiverStream<Result<StreamFrame, Status>>;

/// Has another manager open a stream to its worker, within `within`.
///
/// # Errors
/// In words for people, as if the node's session were here.
pub(super) async fn dial(
    (channel, place): (Channel, OwnedSemaphorePermit),
    node: NodeId,
    purpose: Purpose,
    within: Duration,
) -> Result<Attached, String> {
    let (outbound, frames) = mpsc::channel::<Result<StreamFrame, Status>>(FRAMES);
    let open = v1::Open { stream_id: String::new(), purpose: Some(purpose) };
    let first = Frame::Open(v1::RelayOpen { node_id: node.to_string(), open: Some(open) });
    let passed = ReceiverStream::new(frames).map_while(Result::ok).map(Frame::Passed);
    let request = tokio_stream::once(first).chain(passed).map(|frame| v1::RelayFrame { frame: Some(frame) });
    let late = |_| format!("the node did not open the stream within {} s", within.as_secs());
    let opened = timeout(within, PeersClient::new(channel).relay(request)).await.map_err(late)?;
    let inbound = opened.map_err(|status| refused(&status))?.into_inner();
    Ok(Attached { place: None, relayed: Some(place), inbound, outbound })
}

fn refused(status: &Status) -> String {
    match Problem::from(status) {
        problem if problem.reason == NOT_OPENED => problem.message,
        problem => {
            format!("the manager that the node is connected to cannot be reached: {}", problem.message)
        }
    }
}

impl Api {
    /// Opens a stream to a worker whose session is here for another manager, and passes on what both say.
    ///
    /// # Errors
    /// The first frame names no node and purpose, or the node does not open the stream.
    pub async fn relay_here(&self, mut frames: Streaming<v1::RelayFrame>) -> Result<Relayed, Status> {
        let late = |_| Status::deadline_exceeded(format!("no first frame within {HELLO:?}"));
        let first = timeout(HELLO, frames.next()).await.map_err(late)?.transpose()?;
        let Some(Frame::Open(v1::RelayOpen { node_id, open })) = first.and_then(|first| first.frame) else {
            return Err(Status::invalid_argument("the first frame of a relay says which node and what for"));
        };
        let node =
            node_id.parse().map_err(|error| Status::invalid_argument(format!("the node's id: {error}")))?;
        let purpose = open.and_then(|open| open.purpose);
        let purpose =
            purpose.ok_or_else(|| Status::unimplemented("a purpose that this manager does not know"))?;
        let opened = self.open_here(node, purpose, ATTACH).await;
        let refused = |why| Status::from(Problem::new(Code::FailedPrecondition, NOT_OPENED, why));
        let attached = opened.map_err(refused)?;
        let (out, stream) = mpsc::channel(FRAMES);
        let stop = self.shutdown.token();
        self.shutdown.spawn("relay", async move {
            tokio::select! {
                () = pass(attached, frames, &out) => {}
                // Who asked for it has left.
                () = out.closed() => {}
                () = stop.cancelled() => drop(out.try_send(Err(stopping()))),
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// Until the worker has said its last word.
async fn pass(
    attached: Attached,
    mut frames: Streaming<v1::RelayFrame>,
    out: &mpsc::Sender<Result<StreamFrame, Status>>,
) {
    let Attached { place: _place, relayed: _relayed, mut inbound, outbound } = attached;
    let forth = async move {
        while let Some(Ok(v1::RelayFrame { frame: Some(Frame::Passed(frame)) })) = frames.next().await {
            if outbound.send(Ok(frame)).await.is_err() {
                return;
            }
        }
        // The worker sees that nothing more comes, since `outbound` goes.
    };
    let back = async {
        while let Some(word) = inbound.next().await {
            if out.send(word).await.is_err() {
                return;
            }
        }
    };
    tokio::pin!(back);
    tokio::select! {
        () = forth => back.await,
        () = &mut back => {}
    }
}

//! Streams to workers whose sessions are with another manager: that manager asks its worker to open the
//! stream and forwards the frames in both directions.

use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use warren_proto::Problem;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::v1::relay_frame::Frame;
use warren_proto::v1::{self, StreamFrame};
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::manager_stopping;
use warren_types::NodeId;

use super::Api;

/// Frames that may be queued per direction, as many as on a worker's own stream.
const MAX_QUEUED_FRAMES: usize = 8;
/// Timeout of the first frame.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a worker may take to open the stream; the requesting manager may give up sooner.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Reason of the error when the node does not open the stream.
const NOT_OPENED: &str = "STREAM_NOT_OPENED";

/// Frames of the worker, for the requesting manager.
pub type RelayedFrames = ReceiverStream<Result<StreamFrame, Status>>;

/// Requests another manager to open a stream to its worker within `within`.
///
/// # Errors
/// A message for users, the same as for a local session.
pub(super) async fn open_remote_stream(
    (channel, permit): (Channel, OwnedSemaphorePermit),
    node: NodeId,
    purpose: Purpose,
    within: Duration,
) -> Result<WorkerStream, String> {
    let (outbound, frames) = mpsc::channel::<Result<StreamFrame, Status>>(MAX_QUEUED_FRAMES);
    let open = v1::OpenStream { stream_id: String::new(), purpose: Some(purpose) };
    let first = Frame::Open(v1::RelayOpen { node_id: node.to_string(), open: Some(open) });
    let passed = ReceiverStream::new(frames).map_while(Result::ok).map(Frame::FrameData);
    let request = tokio_stream::once(first).chain(passed).map(|frame| v1::RelayFrame { frame: Some(frame) });
    let late = |_| format!("the node did not open the stream within {} s", within.as_secs());
    let opened = timeout(within, PeersClient::new(channel).relay(request)).await.map_err(late)?;
    let inbound = opened.map_err(|status| refusal_message(&status))?.into_inner();
    Ok(WorkerStream { permit: None, relay_permit: Some(permit), inbound, outbound })
}

fn refusal_message(status: &Status) -> String {
    match Problem::from(status) {
        problem if problem.reason == NOT_OPENED => problem.message,
        problem => {
            format!("the manager that the node is connected to is unreachable: {}", problem.message)
        }
    }
}

impl Api {
    /// Opens a stream to a locally connected worker for another manager and forwards the frames in both
    /// directions.
    ///
    /// # Errors
    /// The first frame has no node and purpose, or the node does not open the stream.
    pub async fn serve_relay(&self, mut frames: Streaming<v1::RelayFrame>) -> Result<RelayedFrames, Status> {
        let late = |_| Status::deadline_exceeded(format!("no first frame within {HELLO_TIMEOUT:?}"));
        let first = timeout(HELLO_TIMEOUT, frames.next()).await.map_err(late)?.transpose()?;
        let Some(Frame::Open(v1::RelayOpen { node_id, open })) = first.and_then(|first| first.frame) else {
            return Err(Status::invalid_argument(
                "the first frame of a relay must have a node and a purpose",
            ));
        };
        let node =
            node_id.parse().map_err(|error| Status::invalid_argument(format!("the node's id: {error}")))?;
        let purpose = open.and_then(|open| open.purpose);
        let purpose =
            purpose.ok_or_else(|| Status::unimplemented("the purpose is unknown to this manager"))?;
        let opened = self.open_local_stream(node, purpose, ATTACH_TIMEOUT).await;
        let refused = |reason| Status::from(Problem::new(Code::FailedPrecondition, NOT_OPENED, reason));
        let attached = opened.map_err(refused)?;
        let (out, stream) = mpsc::channel(MAX_QUEUED_FRAMES);
        let stop = self.shutdown.token();
        self.shutdown.spawn("relay", async move {
            tokio::select! {
                () = relay_frames(attached, frames, &out) => {}
                // The requesting manager closed the stream.
                () = out.closed() => {}
                () = stop.cancelled() => drop(out.try_send(Err(manager_stopping()))),
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// Returns when the worker has sent its last frame.
async fn relay_frames(
    attached: WorkerStream,
    mut frames: Streaming<v1::RelayFrame>,
    out: &mpsc::Sender<Result<StreamFrame, Status>>,
) {
    let WorkerStream { permit: _permit, relay_permit: _relay_permit, mut inbound, outbound } = attached;
    let to_worker = async move {
        while let Some(Ok(v1::RelayFrame { frame: Some(Frame::FrameData(frame)) })) = frames.next().await {
            if outbound.send(Ok(frame)).await.is_err() {
                return;
            }
        }
        // Dropping `outbound` closes the stream to the worker.
    };
    let from_worker = async {
        while let Some(frame) = inbound.next().await {
            if out.send(frame).await.is_err() {
                return;
            }
        }
    };
    tokio::pin!(from_worker);
    tokio::select! {
        () = to_worker => from_worker.await,
        () = &mut from_worker => {}
    }
}

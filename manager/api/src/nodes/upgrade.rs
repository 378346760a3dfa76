//! Sends a new program from the client to the agent of a node, which checks it and puts it in place.

use std::time::Duration;

use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, Streaming};
use warren_core::state::ObjectKind;
use warren_proto::Problem;
use warren_proto::status::NODE_NOT_UPGRADED;
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::upgrade_node_request::Message;
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::{manager_stopping, status_of};
use warren_types::Violation;

use crate::Api;
use crate::audited_call::AuditedCall;

/// The largest program; agents have the same limit.
const MAX_PROGRAM_BYTES: u64 = 512 << 20;
/// How long the node may take to open the stream.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the client may take for one message, and the node to accept one chunk.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the node may take to check the program and to put it in place.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(120);

impl Api {
    /// Returns when the program is in place. The node restarts shortly after.
    pub(super) async fn upgrade_program(
        &self,
        request: Request<Streaming<v1::UpgradeNodeRequest>>,
    ) -> Result<v1::UpgradeNodeResponse, Status> {
        let caller = AuditedCall::of(&request);
        let mut messages = request.into_inner();
        let Some(Message::Target(target)) = next_message(&mut messages).await? else {
            return Err(Status::invalid_argument("the first message must be the target"));
        };
        let v1::UpgradeTarget { node, size_bytes, digest } = target;
        caller.named(ObjectKind::Node, &node);
        if !(1..=MAX_PROGRAM_BYTES).contains(&size_bytes) {
            let why = format!("a program has 1 to {MAX_PROGRAM_BYTES} bytes, not {size_bytes}");
            return Err(status_of(Violation::new("sizeBytes", why)));
        }
        let published = self.read_latest().await?;
        let node = published.state.find_node(&node).map_err(status_of)?;
        caller.identified(ObjectKind::Node, node.id, &node.name, node.version);
        caller.detail(&format!("program {digest}"));
        let refused = |why: String| not_upgraded(&format!("node {}: {why}", node.name));
        tracing::info!(%caller, node = %node.name, digest, "upgrading a node");
        let purpose = Purpose::UpgradeProgram(v1::UpgradeProgram { size_bytes, digest });
        let worker = self.open_stream(node.id, purpose, ATTACH_TIMEOUT).await.map_err(refused)?;
        let stop = self.shutdown.token();
        let relayed = tokio::select! {
            relayed = relay_program(worker, messages, size_bytes) => relayed?,
            () = stop.cancelled() => return Err(manager_stopping()),
        };
        relayed.map_err(refused)
    }
}

fn not_upgraded(message: &str) -> Status {
    Problem::new(Code::FailedPrecondition, NODE_NOT_UPGRADED, message).into()
}

async fn next_message(messages: &mut Streaming<v1::UpgradeNodeRequest>) -> Result<Option<Message>, Status> {
    let late = |_| Status::deadline_exceeded("timeout: the client sent no more of the program");
    let next = timeout(STEP_TIMEOUT, messages.next()).await.map_err(late)?.transpose()?;
    Ok(next.and_then(|next| next.message))
}

/// Passes chunks of `size` bytes together on, then waits for the node. The inner `Err` says why the node keeps its
/// program.
async fn relay_program(
    mut worker: WorkerStream,
    mut messages: Streaming<v1::UpgradeNodeRequest>,
    size: u64,
) -> Result<Result<v1::UpgradeNodeResponse, String>, Status> {
    let (mut sent, mut is_sent) = (0, false);
    let mut response = v1::UpgradeNodeResponse::default();
    loop {
        let frame = tokio::select! {
            message = next_message(&mut messages), if !is_sent => {
                let Some(Message::Chunk(chunk)) = message? else {
                    let message = format!("{sent} bytes of the program arrived, not {size}");
                    return Err(Status::invalid_argument(message));
                };
                sent += chunk.len() as u64;
                if sent > size {
                    return Err(Status::invalid_argument("more than the announced bytes arrived"));
                }
                is_sent = sent == size;
                let end = is_sent.then_some(Frame::End(v1::EndOfData {}));
                for frame in [Frame::Data(chunk)].into_iter().chain(end) {
                    // A node that closes the stream has sent the reason before.
                    is_sent |= !send(&worker, frame).await?;
                }
                continue;
            }
            frame = timeout(INSTALL_TIMEOUT, worker.inbound.next()) => frame,
        };
        let Ok(frame) = frame else {
            return Err(Status::unavailable(format!("the node did not answer within {INSTALL_TIMEOUT:?}")));
        };
        // Without an answer, the node may have the new program or not.
        let lost = |status: Status| {
            Status::unavailable(format!("the stream of the node broke: {}", status.message()))
        };
        match frame.transpose().map_err(lost)?.and_then(|frame| frame.frame) {
            Some(Frame::PreviousProgram(path)) => response.previous_program = path,
            Some(Frame::Done(_)) => return Ok(Ok(response)),
            Some(Frame::Error(why)) => return Ok(Err(why)),
            Some(_) => return Ok(Err("unexpected frame of the node".to_owned())),
            None => return Err(Status::unavailable("the node closed the stream without an answer")),
        }
    }
}

/// Whether the node accepts more.
async fn send(worker: &WorkerStream, frame: Frame) -> Result<bool, Status> {
    let frame = Ok(v1::StreamFrame { frame: Some(frame) });
    match worker.outbound.send_timeout(frame, STEP_TIMEOUT).await {
        Ok(()) => Ok(true),
        Err(SendTimeoutError::Closed(_)) => Ok(false),
        Err(SendTimeoutError::Timeout(_)) => Err(not_upgraded("the node reads too slowly")),
    }
}

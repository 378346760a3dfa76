//! Frames to a worker, and how they are queued.

use tonic::Status;
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_replica::SESSION_TIMEOUT;

use super::registry::FrameSender;

/// Sends a frame to the worker.
///
/// # Errors
/// As [`send_frame`].
pub async fn send(sender: &FrameSender, content: Frame) -> Result<(), Status> {
    send_frame(sender, manager_frame(content)).await
}

/// Sends a frame; waits for room in the queue up to the session timeout.
///
/// # Errors
/// The worker disconnected or does not read.
pub async fn send_frame(sender: &FrameSender, frame: v1::ManagerFrame) -> Result<(), Status> {
    let gone = |_| Status::cancelled("the worker closed the session");
    let slow = |_| Status::deadline_exceeded("the worker does not read its stream");
    tokio::time::timeout(SESSION_TIMEOUT, sender.send(Box::new(Ok(frame)))).await.map_err(slow)?.map_err(gone)
}

/// Wraps a frame for a worker.
pub fn manager_frame(frame: Frame) -> v1::ManagerFrame {
    v1::ManagerFrame { frame: Some(frame) }
}

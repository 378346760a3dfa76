//! Streams that workers dial on request: a manager sends `open`, the worker attaches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::NodeId;

/// The manager's end of an attached stream.
pub struct Attached {
    /// Frames from the worker.
    pub inbound: Streaming<v1::StreamFrame>,
    /// Frames to the worker; bounded, so that a slow worker slows the sender.
    pub outbound: mpsc::Sender<Result<v1::StreamFrame, Status>>,
}

type Waiting = oneshot::Sender<Result<Attached, String>>;

/// Streams that were asked for and are not attached yet. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Streams {
    waiting: Arc<Mutex<BTreeMap<String, (NodeId, Waiting)>>>,
}

/// A stream that was asked for. Dropping it withdraws the request.
pub struct Expected {
    streams: Streams,
    id: String,
    attached: oneshot::Receiver<Result<Attached, String>>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (NodeId, Waiting)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects `node` to attach a stream called `id`.
    pub fn expect(&self, id: String, node: NodeId) -> Expected {
        let (sender, attached) = oneshot::channel();
        self.lock().insert(id.clone(), (node, sender));
        Expected { streams: self.clone(), id, attached }
    }

    /// `node` attaches the stream called `id`.
    ///
    /// # Errors
    /// Nobody expects that stream of that node.
    pub fn attach(&self, id: &str, node: NodeId, stream: Attached) -> Result<(), Status> {
        let unknown = || Status::not_found(format!("no stream {id:?} is expected of this node"));
        let waiting = self.take(id, node).ok_or_else(unknown)?;
        waiting.send(Ok(stream)).map_err(|_| unknown())
    }

    /// `node` says why it does not attach the stream called `id`.
    pub fn refuse(&self, id: &str, node: NodeId, why: String) {
        if let Some(waiting) = self.take(id, node) {
            // The requester may have left in the meantime; then nobody is interested in why.
            let _ = waiting.send(Err(why));
        }
    }

    fn take(&self, id: &str, node: NodeId) -> Option<Waiting> {
        let mut waiting = self.lock();
        if waiting.get(id)?.0 != node {
            return None;
        }
        waiting.remove(id).map(|(_, sender)| sender)
    }
}

impl Expected {
    /// Name of the stream, for the `open` frame.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits until the worker attached.
    ///
    /// # Errors
    /// The worker's words when it refused.
    pub async fn attached(mut self) -> Result<Attached, String> {
        let gone = |_| Err("the worker's session ended".to_string());
        (&mut self.attached).await.unwrap_or_else(gone)
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.id);
    }
}

//! Streams that workers open on request: a manager sends `open`, the worker attaches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::{ImageReference, NodeId};

/// Maximum number of open streams per node. They share one connection with the node's session, which must
/// make progress even if they are not read: see the windows in `manager/src/server.rs`, which allows more calls on
/// one connection.
pub const MAX_STREAMS_PER_NODE: usize = 160;

/// The manager's end of an attached stream.
pub struct WorkerStream {
    /// Its permit of the node's stream limit, held until the stream ends.
    pub permit: Option<StreamPermit>,
    /// For a stream that another manager forwards: its permit of the relay limit, held until the stream ends.
    pub relay_permit: Option<OwnedSemaphorePermit>,
    /// Frames from the worker.
    pub inbound: Streaming<v1::StreamFrame>,
    /// Frames to the worker; bounded, so that a slow worker slows the sender.
    pub outbound: mpsc::Sender<Result<v1::StreamFrame, Status>>,
}

type StreamWaiter = oneshot::Sender<Result<WorkerStream, String>>;

/// Requested streams that are not attached yet. Cheap to clone; all clones share one table.
#[derive(Clone, Default)]
pub struct WorkerStreams {
    pending: Arc<Mutex<BTreeMap<String, (NodeId, StreamWaiter)>>>,
    open_counts: Arc<Mutex<BTreeMap<NodeId, usize>>>,
    /// The image pulled in each stream, until the stream ends.
    pulls: Arc<Mutex<BTreeMap<String, (NodeId, ImageReference)>>>,
}

/// One of a node's requested or attached streams.
pub struct StreamPermit {
    streams: WorkerStreams,
    id: String,
    node: NodeId,
}

/// A requested stream. Dropping it withdraws the request.
pub struct PendingStream {
    streams: WorkerStreams,
    id: String,
    permit: Option<StreamPermit>,
    attached: oneshot::Receiver<Result<WorkerStream, String>>,
}

impl WorkerStreams {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (NodeId, StreamWaiter)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_counts(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.open_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pulls(&self) -> MutexGuard<'_, BTreeMap<String, (NodeId, ImageReference)>> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects `node` to attach a stream with the id `id`, in which it pulls `image`, if any; `None` if the
    /// node has [`MAX_STREAMS_PER_NODE`] streams.
    pub fn request(&self, id: String, node: NodeId, image: Option<ImageReference>) -> Option<PendingStream> {
        let permit = self.acquire_permit(&id, node)?;
        if let Some(image) = image {
            self.pulls().insert(id.clone(), (node, image));
        }
        let (sender, attached) = oneshot::channel();
        self.lock().insert(id.clone(), (node, sender));
        Some(PendingStream { streams: self.clone(), id, permit: Some(permit), attached })
    }

    /// The image that `node` pulls in the stream `id`, from the request until the stream ends.
    pub fn image_of(&self, id: &str, node: NodeId) -> Option<ImageReference> {
        self.pulls().get(id).filter(|(owner, _)| *owner == node).map(|(_, image)| image.clone())
    }

    fn acquire_permit(&self, id: &str, node: NodeId) -> Option<StreamPermit> {
        let mut counts = self.open_counts();
        let count = counts.entry(node).or_default();
        if *count >= MAX_STREAMS_PER_NODE {
            return None;
        }
        *count += 1;
        Some(StreamPermit { streams: self.clone(), id: id.to_owned(), node })
    }

    /// Attaches the stream `id` of `node`.
    ///
    /// # Errors
    /// No such stream of the node is pending.
    pub fn attach(&self, id: &str, node: NodeId, stream: WorkerStream) -> Result<(), Status> {
        let unknown = || Status::not_found(format!("no stream {id:?} is expected of this node"));
        let waiting = self.take_waiter(id, node).ok_or_else(unknown)?;
        waiting.send(Ok(stream)).map_err(|_| unknown())
    }

    /// Ends the request for stream `id` with the reason for which `node` rejected it.
    pub fn reject(&self, id: &str, node: NodeId, why: String) {
        if let Some(waiting) = self.take_waiter(id, node) {
            // The requester may have given up.
            let _ = waiting.send(Err(why));
        }
    }

    fn take_waiter(&self, id: &str, node: NodeId) -> Option<StreamWaiter> {
        let mut waiting = self.lock();
        if waiting.get(id)?.0 != node {
            return None;
        }
        waiting.remove(id).map(|(_, sender)| sender)
    }
}

impl PendingStream {
    /// Id of the stream, for the `open` frame.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Waits until the worker attaches the stream.
    ///
    /// # Errors
    /// The worker's reason if it rejected the stream.
    pub async fn wait_attached(mut self) -> Result<WorkerStream, String> {
        let gone = |_| Err("the worker's session ended".to_string());
        let attached = (&mut self.attached).await.unwrap_or_else(gone)?;
        Ok(WorkerStream { permit: self.permit.take(), ..attached })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.streams.pulls().remove(&self.id);
        let mut counts = self.streams.open_counts();
        if let Some(count) = counts.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.node);
            }
        }
    }
}

impl Drop for PendingStream {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    #[test]
    fn streams_per_node_are_limited() {
        let (streams, node) = (WorkerStreams::default(), NodeId(Id(1)));
        let mut expected: Vec<PendingStream> =
            (0..MAX_STREAMS_PER_NODE).map(|n| streams.request(n.to_string(), node, None).unwrap()).collect();
        assert!(streams.request("one more".into(), node, None).is_none());
        assert!(streams.request("of another".into(), NodeId(Id(2)), None).is_some());
        expected.pop();
        assert!(streams.request("in its place".into(), node, None).is_some());
        drop(expected);
        assert!(streams.open_counts().is_empty() && streams.lock().is_empty());
    }

    #[test]
    fn pull_image_is_known_while_stream_is_open() {
        let (streams, node) = (WorkerStreams::default(), NodeId(Id(1)));
        let image: ImageReference = "registry.lan/app:1".parse().unwrap();
        let mut expected = streams.request("pull".into(), node, Some(image.clone())).unwrap();
        assert_eq!(streams.image_of("pull", node), Some(image.clone()));
        assert_eq!(streams.image_of("pull", NodeId(Id(2))), None);
        let place = expected.permit.take();
        drop(expected);
        assert_eq!(streams.image_of("pull", node), Some(image), "it is attached");
        drop(place);
        assert_eq!(streams.image_of("pull", node), None);
        assert!(streams.pulls().is_empty());
    }
}

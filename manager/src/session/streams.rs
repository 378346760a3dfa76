//! Streams that workers dial on request: a manager sends `open`, the worker attaches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_types::{ImageReference, NodeId};

/// Streams that one node may have at once. All of them share a connection with its session, which has to get through
/// also when nobody reads them: see the windows in [`crate::server`], which takes more calls on one connection.
pub const MAX_STREAMS: usize = 160;

/// The manager's end of an attached stream.
pub struct Attached {
    /// Its place among those of its node, held as long as the stream is.
    pub place: Option<Place>,
    /// Of one that another manager passes on: its place among those, held likewise.
    pub relayed: Option<OwnedSemaphorePermit>,
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
    places: Arc<Mutex<BTreeMap<NodeId, usize>>>,
    /// What is pulled in which stream, as long as the stream is.
    pulls: Arc<Mutex<BTreeMap<String, (NodeId, ImageReference)>>>,
}

/// One of a node's streams, asked for or attached.
pub struct Place {
    streams: Streams,
    id: String,
    node: NodeId,
}

/// A stream that was asked for. Dropping it withdraws the request.
pub struct Expected {
    streams: Streams,
    id: String,
    place: Option<Place>,
    attached: oneshot::Receiver<Result<Attached, String>>,
}

impl Streams {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (NodeId, Waiting)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pulls(&self) -> MutexGuard<'_, BTreeMap<String, (NodeId, ImageReference)>> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects `node` to attach a stream called `id`, in which it pulls `image`, if any; `None` when it has
    /// [`MAX_STREAMS`].
    pub fn expect(&self, id: String, node: NodeId, image: Option<ImageReference>) -> Option<Expected> {
        let place = self.take_place(&id, node)?;
        if let Some(image) = image {
            self.pulls().insert(id.clone(), (node, image));
        }
        let (sender, attached) = oneshot::channel();
        self.lock().insert(id.clone(), (node, sender));
        Some(Expected { streams: self.clone(), id, place: Some(place), attached })
    }

    /// The image that `node` was asked to pull in the stream called `id`, from when it was asked until the stream ends.
    pub fn image_of(&self, id: &str, node: NodeId) -> Option<ImageReference> {
        self.pulls().get(id).filter(|(asked, _)| *asked == node).map(|(_, image)| image.clone())
    }

    fn take_place(&self, id: &str, node: NodeId) -> Option<Place> {
        let mut places = self.places();
        let taken = places.entry(node).or_default();
        if *taken >= MAX_STREAMS {
            return None;
        }
        *taken += 1;
        Some(Place { streams: self.clone(), id: id.to_owned(), node })
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
        let attached = (&mut self.attached).await.unwrap_or_else(gone)?;
        Ok(Attached { place: self.place.take(), ..attached })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.pulls().remove(&self.id);
        let mut places = self.streams.places();
        if let Some(taken) = places.get_mut(&self.node) {
            *taken -= 1;
            if *taken == 0 {
                places.remove(&self.node);
            }
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.streams.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::Id;

    #[test]
    fn a_node_has_so_many_streams_and_no_more() {
        let (streams, node) = (Streams::default(), NodeId(Id(1)));
        let mut expected: Vec<Expected> =
            (0..MAX_STREAMS).map(|n| streams.expect(n.to_string(), node, None).unwrap()).collect();
        assert!(streams.expect("one more".into(), node, None).is_none());
        assert!(streams.expect("of another".into(), NodeId(Id(2)), None).is_some());
        expected.pop();
        assert!(streams.expect("in its place".into(), node, None).is_some());
        drop(expected);
        assert!(streams.places().is_empty() && streams.lock().is_empty());
    }

    #[test]
    fn what_is_pulled_in_a_stream_is_known_of_its_node_as_long_as_the_stream_is() {
        let (streams, node) = (Streams::default(), NodeId(Id(1)));
        let image: ImageReference = "registry.lan/app:1".parse().unwrap();
        let mut expected = streams.expect("pull".into(), node, Some(image.clone())).unwrap();
        assert_eq!(streams.image_of("pull", node), Some(image.clone()));
        assert_eq!(streams.image_of("pull", NodeId(Id(2))), None);
        let place = expected.place.take();
        drop(expected);
        assert_eq!(streams.image_of("pull", node), Some(image), "it is attached");
        drop(place);
        assert_eq!(streams.image_of("pull", node), None);
        assert!(streams.pulls().is_empty());
    }
}

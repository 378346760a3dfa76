//! Images that are received from another store.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use warren_image::{BlobSource, Digest, Error, ImageStore, Reference};
use warren_testkit::image::{ImageLayer, TestImage};

use crate::world::{ImageFixture, random_bytes};

const NAME: &str = "warren.local/copied:1";

/// The blobs of an image in another store.
pub struct StoreBlobs {
    store: ImageStore,
    image: Reference,
    requests: Vec<Vec<Digest>>,
    waiting: Vec<Digest>,
    current: Option<BoxStream<'static, Result<Bytes, Error>>>,
    /// Changes a byte of each layer.
    corrupts: bool,
}

impl StoreBlobs {
    pub fn new(store: &ImageStore, image: &Reference) -> Self {
        let (store, image) = (store.clone(), image.clone());
        Self { store, image, requests: Vec::new(), waiting: Vec::new(), current: None, corrupts: false }
    }
}

#[tonic::async_trait]
impl BlobSource for StoreBlobs {
    async fn request(&mut self, blobs: &[Digest]) -> Result<(), Error> {
        self.requests.push(blobs.to_vec());
        self.waiting = blobs.iter().rev().cloned().collect();
        Ok(())
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        if self.current.is_none() {
            let Some(blob) = self.waiting.pop() else { panic!("more than was requested") };
            self.current = Some(self.store.read_blob(&self.image, &blob).await?.boxed());
        }
        let Some(chunk) = self.current.as_mut().unwrap().next().await.transpose()? else {
            self.current = None;
            return Ok(None);
        };
        let is_layer = self.requests.len() > 2;
        let mut bytes = chunk.to_vec();
        if self.corrupts && is_layer {
            bytes[0] ^= 1;
        }
        Ok(Some(bytes.into()))
    }
}

fn image(name: &str, note: &str) -> TestImage {
    let large = ImageLayer::new().file("/large", random_bytes(3, 3 << 20), 0o644);
    TestImage::busybox(name).layer(large).layer(ImageLayer::new().file("/note", note, 0o644))
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_received_without_the_layers_that_are_here() {
    let (from, to) = (ImageFixture::start(), ImageFixture::start());
    let sent = from.import(&image(NAME, "one").oci_archive(), None).await.unwrap();
    let other = image("warren.local/other:1", "two");
    to.import(&other.oci_archive(), None).await.unwrap();
    let mut blobs = StoreBlobs::new(&from.images, &sent.reference);
    let received = to.images.receive(&sent.reference, &sent.digest, &mut blobs).await.unwrap();
    assert_eq!((&received.reference, &received.digest), (&sent.reference, &sent.digest));
    let counts: Vec<usize> = blobs.requests.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 1, 1], "manifest, configuration, and one of three layers");
    assert_eq!(to.run_output(NAME, &["cat", "/note"]), "one");
    // Its size means the same here, there, and in the list.
    let rows = to.images.list().await.unwrap();
    let row = rows.iter().find(|row| row.reference == NAME).unwrap();
    assert_eq!((row.size(), received.size), (sent.size, sent.size));
    // The second time nothing but the documents is requested.
    let mut blobs = StoreBlobs::new(&from.images, &sent.reference);
    assert_eq!(to.images.receive(&sent.reference, &sent.digest, &mut blobs).await.unwrap(), received);
    assert_eq!(blobs.requests.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0]);
    for name in [NAME, "warren.local/other:1"] {
        assert!(to.images.remove(&name.parse().unwrap()).await.unwrap());
    }
    to.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_layer_is_refused_and_leaves_nothing() {
    let (from, to) = (ImageFixture::start(), ImageFixture::start());
    let sent = from.import(&image(NAME, "one").oci_archive(), None).await.unwrap();
    // In a store without any blob containerd removes no partial one.
    to.import(&image("warren.local/other:1", "two").oci_archive(), None).await.unwrap();
    let mut blobs = StoreBlobs { corrupts: true, ..StoreBlobs::new(&from.images, &sent.reference) };
    let error = to.images.receive(&sent.reference, &sent.digest, &mut blobs).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(to.names().await, ["warren.local/other:1"]);
    assert!(to.images.remove(&"warren.local/other:1".parse().unwrap()).await.unwrap());
    to.assert_nothing().await;
    // A blob of another image is not sent.
    let foreign = Digest::of(b"of another image");
    let refused = from.images.read_blob(&sent.reference, &foreign).await.err().unwrap();
    assert!(refused.to_string().contains("has no blob"), "{refused}");
}

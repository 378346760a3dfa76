//! Digests of images that managers know without a registry.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use warren_api::Api;
use warren_core::{earlier_pin, known_pins};
use warren_store::PublishedState;
use warren_types::{CanonicalImage, ImageDigest, ImageReference, ServiceId, ServiceName};

use super::shared_values::SharedValues;

/// How long the pins of all services are used again after the state changed: reading them takes a while, and as many
/// services may ask for them as there are.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The most images for which other managers are asked at once what their nodes have.
const MAX_QUERIES: usize = 16;

type PinsByImage = Arc<BTreeMap<CanonicalImage, (ServiceName, ImageDigest)>>;

struct ReadPins {
    pins: PinsByImage,
    index: u64,
    at: Instant,
}

/// Finds them for all services.
pub(super) struct KnownDigests {
    read: Mutex<Option<ReadPins>>,
    queries: SharedValues<CanonicalImage, OnceCell<Option<ImageDigest>>>,
    slots: Semaphore,
}

impl KnownDigests {
    pub fn new() -> Self {
        Self { read: Mutex::default(), queries: SharedValues::new(), slots: Semaphore::new(MAX_QUERIES) }
    }

    /// A digest of the service's image that managers can vouch for, and where it is from.
    pub async fn find(
        &self,
        api: &Api,
        id: ServiceId,
        image: &ImageReference,
    ) -> Option<(ImageDigest, String)> {
        let image = CanonicalImage::of(image);
        if let Some(known) = self.find_pin(&api.store.read(), id, &image) {
            return Some(known);
        }
        let query = self.queries.get(image.clone(), OnceCell::new);
        let ask = || async {
            let _slot = self.slots.acquire().await.expect("it is never closed");
            let published = api.store.read();
            api.digest_on_managers(&published.state, &image).await
        };
        let digest = query.get_or_init(ask).await.clone();
        // Meanwhile another service may have a newer one.
        if let Some(known) = self.find_pin(&api.store.read(), id, &image) {
            return Some(known);
        }
        Some((digest?, "that nodes of managers have under this name".to_owned()))
    }

    fn find_pin(
        &self,
        published: &PublishedState,
        id: ServiceId,
        image: &CanonicalImage,
    ) -> Option<(ImageDigest, String)> {
        if let Some(digest) = earlier_pin(&published.state, &id) {
            return Some((digest, "that it had before".to_owned()));
        }
        let pins = self.pins(published, Instant::now());
        let (service, digest) = pins.get(image)?;
        Some((digest.clone(), format!("that service {service} has")))
    }

    fn pins(&self, published: &PublishedState, now: Instant) -> PinsByImage {
        let is_usable = |known: &&ReadPins| known.index == published.index || now < known.at + MAX_AGE;
        let known = self.read().as_ref().filter(is_usable).map(|known| Arc::clone(&known.pins));
        known.unwrap_or_else(|| {
            let pins = Arc::new(known_pins(&published.state));
            *self.read() = Some(ReadPins { pins: Arc::clone(&pins), index: published.index, at: now });
            pins
        })
    }

    fn read(&self) -> MutexGuard<'_, Option<ReadPins>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what was read.
    pub fn clear(&self) {
        *self.read() = None;
    }
}

#[cfg(test)]
mod tests {
    use warren_core::State;

    use super::*;

    #[test]
    fn pins_are_read_again_after_a_change_and_a_while() {
        let (known, began) = (KnownDigests::new(), Instant::now());
        let read = |index, millis| {
            let published = PublishedState { index, ..PublishedState::initial(State::new()) };
            known.pins(&published, began + Duration::from_millis(millis))
        };
        let first = read(1, 0);
        assert!(Arc::ptr_eq(&first, &read(2, 999)), "a moment ago");
        assert!(Arc::ptr_eq(&first, &read(1, 9000)), "nothing has changed");
        let second = read(2, 1000);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &read(3, 1999)));
    }
}

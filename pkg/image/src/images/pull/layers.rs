//! Downloads the layers of an image from the registry into the content store.

use std::collections::HashMap;

use futures::{Stream, StreamExt, stream};
use warren_registry::{AttemptFailure, Repository, RetryCounter};

use super::progress::ProgressSender;
use super::wait_for_retry;
use crate::document::Descriptor;
use crate::error::Error;
use crate::store::{ContentStore, Ingest, IngestTarget, Lease};

/// Concurrent layer downloads of one image.
const MAX_CONCURRENT_LAYERS: usize = 4;
/// Approximate size of the chunks written to the store.
const CHUNK_BYTES: usize = 256 << 10;

/// Fetches layers concurrently and yields for each, lowest first, when it is stored. A layer that the store
/// has is not fetched.
pub(super) fn fetch<'a>(
    store: &'a ContentStore,
    lease: &'a Lease,
    repository: &'a Repository,
    layers: &'a [Descriptor],
    reporter: &'a ProgressSender,
) -> impl Stream<Item = Result<(), Error>> + 'a {
    let one = move |(position, layer): (usize, &'a Descriptor)| async move {
        match store.ingest(lease, &layer.digest, layer.size).await? {
            IngestTarget::Present => reporter.add_received(position, layer.size),
            IngestTarget::Absent(ingest) => {
                let _permit = repository.transfers.acquire().await.expect("it is never closed");
                LayerFetch { repository, layer, position, reporter, ingest, received: 0 }.store().await?;
            }
        }
        reporter.set_fetched(position);
        Ok(())
    };
    // `buffered` starts layers in order and keeps later ones running while earlier ones are pending.
    stream::iter(layers.iter().enumerate()).map(one).buffered(MAX_CONCURRENT_LAYERS)
}

struct LayerFetch<'a> {
    repository: &'a Repository,
    layer: &'a Descriptor,
    position: usize,
    reporter: &'a ProgressSender,
    ingest: Box<Ingest>,
    /// Bytes written to the store.
    received: u64,
}

/// Why a layer could not be fetched.
enum LayerError {
    /// A registry failure, which another attempt may repair.
    Registry(AttemptFailure),
    /// A failure of this node or its store.
    Local(Error),
}

impl From<AttemptFailure> for LayerError {
    fn from(failure: AttemptFailure) -> Self {
        Self::Registry(failure)
    }
}

impl From<Error> for LayerError {
    fn from(error: Error) -> Self {
        Self::Local(error)
    }
}

impl LayerFetch<'_> {
    /// Fetches the whole layer, resumes after broken connections, and commits it.
    async fn store(mut self) -> Result<(), Error> {
        let mut tries = RetryCounter::new(&self.repository.policy);
        while self.received < self.layer.size {
            let before = self.received;
            match self.fetch_rest().await {
                Ok(()) => self.reporter.set_retry_reason(None),
                Err(LayerError::Local(error)) => return Err(error),
                Err(LayerError::Registry(failure)) => {
                    if self.received > before {
                        tries.reset();
                    }
                    wait_for_retry(&mut tries, failure, self.reporter).await?;
                }
            }
        }
        self.ingest.commit(HashMap::new()).await
    }

    /// Reads from one connection. The layer is complete when this returns `Ok`.
    async fn fetch_rest(&mut self) -> Result<(), LayerError> {
        let size = self.layer.size;
        let mut blob = self.repository.blob(&self.layer.digest, size, self.received).await?;
        let mut piece = Vec::with_capacity(CHUNK_BYTES);
        loop {
            let more = blob.read(&mut piece).await;
            let is_over = !matches!(more, Ok(true));
            let coming = self.received + piece.len() as u64;
            if coming > size {
                let reason = format!("it is longer than the {size} bytes in its manifest");
                return Err(AttemptFailure::from(self.repository.invalid_answer(blob.what(), reason)).into());
            }
            // Received bytes survive a broken connection.
            if !piece.is_empty() && (piece.len() >= CHUNK_BYTES || is_over || coming == size) {
                self.ingest.write(std::mem::replace(&mut piece, Vec::with_capacity(CHUNK_BYTES))).await?;
                self.received = coming;
                self.reporter.add_received(self.position, coming);
            }
            match more? {
                true => {}
                false if self.received == size => return Ok(()),
                false => return Err(blob.cut_short(self.received, size).into()),
            }
        }
    }
}

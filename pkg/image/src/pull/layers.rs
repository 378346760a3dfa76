//! The layers of an image on their way from the registry into the content store.

use std::collections::HashMap;

use futures::{Stream, StreamExt, stream};

use super::progress::Reporter;
use super::rest;
use crate::document::Descriptor;
use crate::error::Error;
use crate::registry::{Failure, Repository, Tries};
use crate::store::{Ingest, Lease, Opened, Store};

/// Layers of one image that are fetched at the same time.
const AT_ONCE: usize = 4;
/// Bytes are passed on in pieces of about this size.
const PIECE: usize = 256 << 10;

/// Fetches layers, several at a time, and yields for each, lowest first, when it is stored. A layer that
/// the store has is not fetched.
pub(super) fn fetch<'a>(
    store: &'a Store,
    lease: &'a Lease,
    repository: &'a Repository,
    layers: &'a [Descriptor],
    reporter: &'a Reporter,
) -> impl Stream<Item = Result<(), Error>> + 'a {
    let one = move |(position, layer): (usize, &'a Descriptor)| async move {
        match store.ingest(lease, &layer.digest, layer.size).await? {
            Opened::Present => reporter.received(position, layer.size),
            Opened::Absent(ingest) => {
                let _permit = repository.transfers.acquire().await.expect("it is never closed");
                Layer { repository, layer, position, reporter, ingest, received: 0 }.store().await?;
            }
        }
        reporter.fetched(position);
        Ok(())
    };
    // `buffered` begins them in order and lets a layer whose turn has not come yet go on.
    stream::iter(layers.iter().enumerate()).map(one).buffered(AT_ONCE)
}

/// A layer that is being fetched.
struct Layer<'a> {
    repository: &'a Repository,
    layer: &'a Descriptor,
    position: usize,
    reporter: &'a Reporter,
    ingest: Box<Ingest>,
    /// Bytes handed on to the store.
    received: u64,
}

/// Why a layer did not come.
enum Trouble {
    /// The registry's doing, which another attempt may mend.
    Registry(Failure),
    /// Ours or the store's.
    Own(Error),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Registry(failure)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl Layer<'_> {
    /// Fetches all of it, going on where a connection broke, and commits it.
    async fn store(mut self) -> Result<(), Error> {
        let mut tries = Tries::new(&self.repository.patience);
        while self.received < self.layer.size {
            let before = self.received;
            match self.stretch().await {
                Ok(()) => self.reporter.troubled(None),
                Err(Trouble::Own(error)) => return Err(error),
                Err(Trouble::Registry(failure)) => {
                    if self.received > before {
                        tries.progressed();
                    }
                    rest(&mut tries, failure, self.reporter).await?;
                }
            }
        }
        self.ingest.commit(HashMap::new()).await
    }

    /// Takes what one connection gives. All of the layer is there when it ends well.
    async fn stretch(&mut self) -> Result<(), Trouble> {
        let size = self.layer.size;
        let mut blob = self.repository.blob(self.layer, self.received).await?;
        let mut piece = Vec::with_capacity(PIECE);
        loop {
            let more = blob.read(&mut piece).await;
            let is_over = !matches!(more, Ok(true));
            let coming = self.received + piece.len() as u64;
            if coming > size {
                let reason = format!("it goes on after the {size} bytes that its manifest says");
                return Err(Failure::from(self.repository.nonsense(blob.what(), reason)).into());
            }
            // What came before the connection broke need not come again.
            if !piece.is_empty() && (piece.len() >= PIECE || is_over || coming == size) {
                self.ingest.write(std::mem::replace(&mut piece, Vec::with_capacity(PIECE))).await?;
                self.received = coming;
                self.reporter.received(self.position, coming);
            }
            match more? {
                true => {}
                false if self.received == size => return Ok(()),
                false => return Err(blob.cut_short(self.received, size).into()),
            }
        }
    }
}

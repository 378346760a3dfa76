//! What changes in the cluster, across broken connections, restarts of managers and from one to another.

use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::WatchEvent;
use warren_proto::v1::cluster_client::ClusterClient;
pub use warren_proto::v1::watch_event::Change;

use crate::client::{Client, error};
use crate::error::Error;
use crate::link::{Link, life_of};
use crate::retry::Trouble;

/// A stream of changes that goes on where it broke off.
///
/// The first change is `Resync`: list what you watch, then go on. It comes again whenever changes were
/// missed.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    /// The connection that the stream is of.
    link: Link,
    service: String,
    /// Of the last change that was given out; 0 before the first.
    index: u64,
    /// The life of the cluster that `index` is of: in another one the same index is another change.
    life: Option<u64>,
    /// The life that the stream is of.
    streamed_life: Option<u64>,
    stream: Option<Streaming<WatchEvent>>,
    /// The stream was opened and has not said anything yet.
    fresh: bool,
    trouble: Option<Trouble>,
}

impl Watch {
    pub(crate) fn new(client: Client, service: String) -> Self {
        let link = client.link();
        let (life, streamed_life) = (None, None);
        Self {
            client,
            link,
            service,
            index: 0,
            life,
            streamed_life,
            stream: None,
            fresh: true,
            trouble: None,
        }
    }

    /// The next change. May be dropped and called again without losing one. Fails when the manager refuses,
    /// or could not be reached for half a minute.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            let Some(stream) = self.stream.as_mut() else {
                self.open().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(WatchEvent { index, change: Some(change) })) => {
                    if let Some(change) = self.take(index, change) {
                        return Ok(change);
                    }
                }
                // A kind of change that this version does not know: look at everything again.
                Ok(Some(WatchEvent { index, change: None })) => {
                    (self.index, self.life) = (index, self.streamed_life);
                    return Ok(Change::Resync(v1::Resync {}));
                }
                Ok(None) => self.broke(&Status::unavailable("the manager ended the stream"))?,
                Err(status) => self.broke(&status)?,
            }
        }
    }

    /// Notes how far we are. `None` for what the caller need not know: a stream that goes on exactly where
    /// the last one broke off starts with a `Resync` that says only that.
    fn take(&mut self, index: u64, change: Change) -> Option<Change> {
        self.trouble = None;
        let here = (index, self.streamed_life);
        let resumed = self.fresh && self.index != 0 && here == (self.index, self.life);
        self.fresh = false;
        (self.index, self.life) = here;
        (!(resumed && matches!(change, Change::Resync(_)))).then_some(change)
    }

    async fn open(&mut self) -> Result<(), Error> {
        if let Some(trouble) = self.trouble {
            trouble.wait().await;
            self.client.follow(&self.link).await;
        }
        self.link = self.client.link();
        let message = v1::WatchRequest { service: self.service.clone(), resume_index: self.index };
        let mut cluster = ClusterClient::new(self.link.channel.clone());
        cluster = ClusterClient::<Channel>::max_decoding_message_size(cluster, crate::client::MAX_ANSWER);
        let opening = async {
            let answer = cluster.watch(self.client.request(message)).await?;
            let life = life_of(answer.metadata());
            Ok(answer.map(|stream| (life, stream)))
        };
        match self.client.open(opening).await {
            Ok((life, stream)) => {
                (self.streamed_life, self.stream) = (life, Some(stream));
                self.fresh = true;
                Ok(())
            }
            Err(status) => self.broke(&status),
        }
    }

    /// Notes that the stream is broken, or answers that it stays so.
    fn broke(&mut self, status: &Status) -> Result<(), Error> {
        self.stream = None;
        self.trouble = Trouble::after(self.trouble, status, self.client.count());
        if self.trouble.is_none() { Err(error(&self.link, status)) } else { Ok(()) }
    }
}

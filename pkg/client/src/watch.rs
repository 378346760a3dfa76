//! The watch of changes, which resumes after lost connections, restarts of managers and failover.

use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::WatchEvent;
use warren_proto::v1::cluster_client::ClusterClient;
pub use warren_proto::v1::watch_event::Change;

use crate::channel::{ManagerChannel, incarnation_of};
use crate::client::{Client, error_from_status};
use crate::error::Error;
use crate::retry::StreamFailure;

/// A stream of changes that resumes where it broke.
///
/// The first change is `Resync`: list the watched objects, then continue. It is repeated when changes were missed.
#[derive(Debug)]
pub struct ClusterWatch {
    client: Client,
    /// Connection of the stream.
    link: ManagerChannel,
    service: String,
    /// Index of the last returned change; 0 before the first.
    index: u64,
    /// Incarnation of `index`: in another one the same index is another change.
    incarnation: Option<u64>,
    /// Incarnation of the stream.
    stream_incarnation: Option<u64>,
    stream: Option<Streaming<WatchEvent>>,
    /// The stream was opened and has returned nothing yet.
    fresh: bool,
    failure: Option<StreamFailure>,
}

impl ClusterWatch {
    pub(crate) fn new(client: Client, service: String) -> Self {
        let link = client.current_channel();
        let (incarnation, stream_incarnation) = (None, None);
        Self {
            client,
            link,
            service,
            index: 0,
            incarnation,
            stream_incarnation,
            stream: None,
            fresh: true,
            failure: None,
        }
    }

    /// The next change. Cancel safe. Fails if the manager refuses, or was unreachable for 30 seconds.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            let Some(stream) = self.stream.as_mut() else {
                self.open().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(WatchEvent { index, change: Some(change) })) => {
                    if let Some(change) = self.accept(index, change) {
                        return Ok(change);
                    }
                }
                // An unknown kind of change: resync.
                Ok(Some(WatchEvent { index, change: None })) => {
                    (self.index, self.incarnation) = (index, self.stream_incarnation);
                    return Ok(Change::Resync(v1::Resync {}));
                }
                Ok(None) => self.handle_failure(&Status::unavailable("the manager ended the stream"))?,
                Err(status) => self.handle_failure(&status)?,
            }
        }
    }

    /// Records the position. `None` for the `Resync` of a stream that resumes without a gap.
    fn accept(&mut self, index: u64, change: Change) -> Option<Change> {
        self.failure = None;
        let here = (index, self.stream_incarnation);
        let resumed = self.fresh && self.index != 0 && here == (self.index, self.incarnation);
        self.fresh = false;
        (self.index, self.incarnation) = here;
        (!(resumed && matches!(change, Change::Resync(_)))).then_some(change)
    }

    async fn open(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure {
            failure.wait().await;
            self.client.switch_manager(&self.link).await;
        }
        self.link = self.client.current_channel();
        let message = v1::WatchRequest { service: self.service.clone(), resume_index: self.index };
        let mut cluster = ClusterClient::new(self.link.channel.clone());
        cluster = ClusterClient::<Channel>::max_decoding_message_size(cluster, crate::client::MAX_RESPONSE);
        let opening = async {
            let answer = cluster.watch(self.client.request(message)).await?;
            let incarnation = incarnation_of(answer.metadata());
            Ok(answer.map(|stream| (incarnation, stream)))
        };
        match self.client.open(opening).await {
            Ok((incarnation, stream)) => {
                (self.stream_incarnation, self.stream) = (incarnation, Some(stream));
                self.fresh = true;
                Ok(())
            }
            Err(status) => self.handle_failure(&status),
        }
    }

    /// Records the failure, or returns it if the stream cannot be resumed.
    fn handle_failure(&mut self, status: &Status) -> Result<(), Error> {
        self.stream = None;
        self.failure = StreamFailure::following(self.failure, status, self.client.manager_count());
        if self.failure.is_none() { Err(error_from_status(&self.link, status)) } else { Ok(()) }
    }
}

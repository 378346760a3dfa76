//! Imports an image archive on nodes, or copies an image to them, and streams their progress.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use warren_proto::v1;
use warren_proto::v1::import_request::Message;

use crate::api::{ARCHIVE_CHUNK, ImageApi, MAX_REQUEST};
use crate::channel::ManagerChannel;
use crate::client::error_from_status;
use crate::error::Error;

/// Chunks in the send queue.
const CHUNK_QUEUE: usize = 4;
/// Timeout between progress messages: unpacking a large layer reports no progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// An import or a copy in progress. Dropping it cancels it.
#[derive(Debug)]
pub struct ImageImport {
    link: ManagerChannel,
    progress: Streaming<v1::ImportProgress>,
    /// Receives an error of reading the archive; closed if there is none.
    unreadable: Option<oneshot::Receiver<std::io::Error>>,
}

impl ImageApi<'_> {
    /// Imports an archive on nodes (names or ids; none means every node that is READY).
    pub async fn import<A>(&self, nodes: Vec<String>, archive: A) -> Result<ImageImport, Error>
    where
        A: AsyncRead + Send + Unpin + 'static,
    {
        let (sender, receiver) = mpsc::channel(CHUNK_QUEUE);
        let (broken, mut unreadable) = oneshot::channel();
        tokio::spawn(send(nodes, archive, sender, broken));
        let requests = ReceiverStream::new(receiver);
        // Not repeated at another manager: the archive was partly consumed.
        let link = self.0.current_channel();
        let mut images = Self::client(link.channel.clone());
        let progress = self.0.open(images.import(self.0.request(requests))).await.map_err(|status| {
            // The call may have been cancelled here before a response.
            unreadable.try_recv().map_or_else(|_| error_from_status(&link, &status), Error::Input)
        })?;
        Ok(ImageImport { link, progress, unreadable: Some(unreadable) })
    }

    /// Copies an image to nodes: names, ids, `all`, or labels. It comes from the node `from`; empty means one that
    /// has it.
    pub async fn copy(&self, reference: String, to: Vec<String>, from: String) -> Result<ImageImport, Error> {
        let message = v1::CopyImageRequest { reference, to, from };
        let call = |channel, request| async move { Self::client(channel).copy(request).await };
        let (link, progress) = self.0.start_stream(message, call).await?;
        Ok(ImageImport { link, progress, unreadable: None })
    }
}

impl ImageImport {
    /// The next progress message; `None` when every node has finished. The error of a node is its `failed` message.
    pub async fn next(&mut self) -> Result<Option<v1::ImportProgress>, Error> {
        let unreadable = async {
            match self.unreadable.as_mut() {
                Some(receiver) => receiver.await.ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            error = unreadable => match error {
                Some(error) => return Err(Error::Input(error)),
                None => self.unreadable = None,
            },
            progress = timeout(PROGRESS_TIMEOUT, self.progress.message()) => return self.next_progress(progress),
        }
        let progress = timeout(PROGRESS_TIMEOUT, self.progress.message()).await;
        self.next_progress(progress)
    }

    fn next_progress<T>(
        &self,
        progress: Result<Result<Option<T>, tonic::Status>, tokio::time::error::Elapsed>,
    ) -> Result<Option<T>, Error> {
        let address = || self.link.address.to_string();
        let progress =
            progress.map_err(|_| Error::NoAnswer { address: address(), after: PROGRESS_TIMEOUT })?;
        progress.map_err(|status| error_from_status(&self.link, &status))
    }
}

/// Reads the archive into the request. A read error aborts the call with a message that is too large to be encoded:
/// just ending the request would make the sent part look complete.
async fn send<A: AsyncRead + Unpin>(
    nodes: Vec<String>,
    mut archive: A,
    sender: mpsc::Sender<v1::ImportRequest>,
    broken: oneshot::Sender<std::io::Error>,
) {
    let request = |message| v1::ImportRequest { message: Some(message) };
    let mut next = request(Message::Target(v1::ImportTarget { nodes }));
    // A closed channel means that the call has ended; its response has the reason.
    while sender.send(next).await.is_ok() {
        let mut chunk = Vec::with_capacity(ARCHIVE_CHUNK);
        match (&mut archive).take(ARCHIVE_CHUNK as u64).read_to_end(&mut chunk).await {
            Ok(0) => return,
            Ok(_) => next = request(Message::Chunk(chunk.into())),
            Err(error) => {
                // Sent first, so that it is known before the end of the call. A closed channel is ignored.
                let _ = broken.send(error);
                let _ = sender.send(request(Message::Chunk(vec![0; MAX_REQUEST].into()))).await;
                return;
            }
        }
    }
}

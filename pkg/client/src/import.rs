//! Sends an image archive and hears how the nodes get on with it.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use warren_proto::v1;
use warren_proto::v1::import_request::Message;

use crate::client::{Client, error};
use crate::error::Error;
use crate::handles::Images;
use crate::link::Link;

/// Size of the pieces an archive is sent in: far below the 4 MiB that a gRPC message may have.
const CHUNK: usize = 256 << 10;
/// Longest message that is sent: a piece, and its frame.
pub(crate) const MAX_REQUEST: usize = CHUNK + 1024;
/// Pieces that wait to be sent.
const QUEUE: usize = 4;
/// Longest silence of all nodes. Unpacking a large layer takes a while without anything to tell.
const SILENCE: Duration = Duration::from_secs(300);

/// An import that is under way. Dropping it ends it.
#[derive(Debug)]
pub struct Import {
    link: Link,
    progress: Streaming<v1::ImportProgress>,
    /// Tells that the archive could not be read; closed without a word when it could.
    unreadable: Option<oneshot::Receiver<std::io::Error>>,
}

impl Import {
    pub(crate) async fn start<A>(client: &Client, nodes: Vec<String>, archive: A) -> Result<Self, Error>
    where
        A: AsyncRead + Send + Unpin + 'static,
    {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (broken, mut unreadable) = oneshot::channel();
        tokio::spawn(send(nodes, archive, sender, broken));
        let requests = ReceiverStream::new(receiver);
        // Not repeated elsewhere: what was read of the archive is gone.
        let link = client.link();
        let mut images = Images::client(link.channel.clone());
        let progress = client.open(images.import(client.request(requests))).await.map_err(|status| {
            // The call may have been broken off by us before the manager said a word.
            unreadable.try_recv().map_or_else(|_| error(&link, &status), Error::Input)
        })?;
        Ok(Self { link, progress, unreadable: Some(unreadable) })
    }

    /// The next thing to tell; `None` when every node is through. An error of one node is not an error here:
    /// it comes as that node's `failed`.
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
            progress = timeout(SILENCE, self.progress.message()) => return self.told(progress),
        }
        let progress = timeout(SILENCE, self.progress.message()).await;
        self.told(progress)
    }

    fn told<T>(
        &self,
        progress: Result<Result<Option<T>, tonic::Status>, tokio::time::error::Elapsed>,
    ) -> Result<Option<T>, Error> {
        let address = || self.link.address.to_string();
        let progress = progress.map_err(|_| Error::NoAnswer { address: address(), after: SILENCE })?;
        progress.map_err(|status| error(&self.link, &status))
    }
}

/// Reads the archive into the request. When it cannot be read the call is broken off by a message that is too
/// large to be encoded: just ending the request would let the part that was sent pass for the whole.
async fn send<A: AsyncRead + Unpin>(
    nodes: Vec<String>,
    mut archive: A,
    sender: mpsc::Sender<v1::ImportRequest>,
    broken: oneshot::Sender<std::io::Error>,
) {
    let request = |message| v1::ImportRequest { message: Some(message) };
    let mut next = request(Message::Target(v1::ImportTarget { nodes }));
    // The receiver is gone when the call has ended; its answer says why.
    while sender.send(next).await.is_ok() {
        let mut chunk = Vec::with_capacity(CHUNK);
        match (&mut archive).take(CHUNK as u64).read_to_end(&mut chunk).await {
            Ok(0) => return,
            Ok(_) => next = request(Message::Chunk(chunk.into())),
            Err(error) => {
                // Told first, so that it is known before the call's end. When nobody listens, nobody need
                // know.
                let _ = broken.send(error);
                let _ = sender.send(request(Message::Chunk(vec![0; MAX_REQUEST].into()))).await;
                return;
            }
        }
    }
}

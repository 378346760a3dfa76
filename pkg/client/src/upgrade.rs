//! Sends a new program to a node.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use warren_proto::status::MANAGER_STOPPING;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::upgrade_node_request::Message;
use warren_proto::{Problem, v1};

use crate::api::{ARCHIVE_CHUNK, NodeApi};
use crate::client::error_from_status;
use crate::error::Error;
use crate::retry::is_retryable;

/// Chunks in the send queue.
const CHUNK_QUEUE: usize = 4;
/// How long the sender may take to notice the end of the call.
const SENDER_TIMEOUT: Duration = Duration::from_secs(1);

impl NodeApi<'_> {
    /// Has a node replace its program by `program` and restart with it. `None`: all of it was sent, and the connection
    /// broke before the answer, as when it is the program of the manager that relays it.
    pub async fn upgrade<P>(
        &self,
        target: v1::UpgradeTarget,
        program: P,
        within: Duration,
    ) -> Result<Option<v1::UpgradeNodeResponse>, Error>
    where
        P: AsyncRead + Send + Unpin + 'static,
    {
        let (sender, receiver) = mpsc::channel(CHUNK_QUEUE);
        let (report, sent) = oneshot::channel();
        tokio::spawn(async move {
            // The caller may have given up.
            let _ = report.send(send(target, program, sender).await);
        });
        // Not repeated at another manager: the program was partly consumed.
        let link = self.0.current_channel();
        let mut nodes = NodesClient::new(link.channel.clone());
        let answered = timeout(within, nodes.upgrade(self.0.request(ReceiverStream::new(receiver)))).await;
        let late = |_| Error::NoAnswer { address: link.address.to_string(), after: within };
        let status = match answered.map_err(late)? {
            Ok(answer) => return Ok(Some(answer.into_inner())),
            Err(status) => status,
        };
        match timeout(SENDER_TIMEOUT, sent).await {
            Ok(Ok(Err(unreadable))) => Err(Error::Input(unreadable)),
            Ok(Ok(Ok(true))) if is_lost(&status) => Ok(None),
            _ => Err(error_from_status(&link, &status)),
        }
    }
}

/// Whether the connection broke, rather than that a manager refused the call.
fn is_lost(status: &tonic::Status) -> bool {
    is_retryable(status) && ["", MANAGER_STOPPING].contains(&Problem::from(status).reason.as_str())
}

/// Whether everything was sent. A shorter request than announced is refused.
async fn send<P: AsyncRead + Unpin>(
    target: v1::UpgradeTarget,
    mut program: P,
    sender: mpsc::Sender<v1::UpgradeNodeRequest>,
) -> io::Result<bool> {
    let mut left = target.size_bytes;
    let mut next = Message::Target(target);
    // A closed channel means that the call has ended.
    while sender.send(v1::UpgradeNodeRequest { message: Some(next) }).await.is_ok() {
        let mut chunk = Vec::with_capacity(ARCHIVE_CHUNK);
        let wanted = left.min(ARCHIVE_CHUNK as u64);
        let read = (&mut program).take(wanted).read_to_end(&mut chunk).await?;
        if read == 0 {
            return Ok(left == 0);
        }
        left -= read as u64;
        next = Message::Chunk(chunk.into());
    }
    Ok(false)
}

//! Pulls an image on nodes and streams their progress.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use warren_proto::v1;

use crate::api::ImageApi;
use crate::channel::ManagerChannel;
use crate::client::error_from_status;
use crate::error::Error;

/// Timeout between progress messages: registries may be slow, and unpacking a large layer takes time.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// The image and the nodes of a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Image reference.
    pub reference: String,
    /// Names or ids of nodes; none means every node that is READY.
    pub nodes: Vec<String>,
    /// Ask the registry even if a node has the image.
    pub always: bool,
}

/// Pulls in progress. Dropping it cancels them.
#[derive(Debug)]
pub struct ImagePulls {
    link: ManagerChannel,
    progress: Streaming<v1::PullProgress>,
}

impl ImageApi<'_> {
    /// Pulls an image on nodes.
    pub async fn pull(&self, options: PullOptions) -> Result<ImagePulls, Error> {
        let PullOptions { reference, nodes, always } = options;
        let message = v1::PullRequest { reference, nodes, always };
        let call = |channel, request| async move { Self::client(channel).pull(request).await };
        let (link, progress) = self.0.start_stream(message, call).await?;
        Ok(ImagePulls { link, progress })
    }
}

impl ImagePulls {
    /// The next progress message; `None` when every node has finished. The error of a node is its `failed` message.
    pub async fn next(&mut self) -> Result<Option<v1::PullProgress>, Error> {
        let address = || self.link.address.to_string();
        let late = |_| Error::NoAnswer { address: address(), after: PROGRESS_TIMEOUT };
        let message = timeout(PROGRESS_TIMEOUT, self.progress.message()).await.map_err(late)?;
        message.map_err(|status| error_from_status(&self.link, &status))
    }
}

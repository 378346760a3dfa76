//! Has nodes pull an image and hears how they get on with it.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use warren_proto::v1;

use crate::client::{Client, error};
use crate::error::Error;
use crate::handles::Images;
use crate::link::Link;

/// Longest silence of all nodes: a registry may be slow, and unpacking a large layer takes a while.
const SILENCE: Duration = Duration::from_secs(300);

/// Which image, and where to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullWish {
    /// The image.
    pub reference: String,
    /// Names or ids of nodes; none means every node that is READY.
    pub nodes: Vec<String>,
    /// Ask the registry also where the image is there.
    pub always: bool,
}

/// Pulls that are under way. Dropping it ends them.
#[derive(Debug)]
pub struct Pulls {
    link: Link,
    progress: Streaming<v1::PullProgress>,
}

impl Pulls {
    pub(crate) async fn start(client: &Client, wish: PullWish) -> Result<Self, Error> {
        let PullWish { reference, nodes, always } = wish;
        let message = v1::PullRequest { reference, nodes, always };
        let call = |channel, request| async move { Images::client(channel).pull(request).await };
        let (link, progress) = client.start(message, call).await?;
        Ok(Self { link, progress })
    }

    /// The next thing to tell; `None` when every node is through. An error of one node is not an error here: it
    /// comes as that node's `failed`.
    pub async fn next(&mut self) -> Result<Option<v1::PullProgress>, Error> {
        let address = || self.link.address.to_string();
        let late = |_| Error::NoAnswer { address: address(), after: SILENCE };
        let told = timeout(SILENCE, self.progress.message()).await.map_err(late)?;
        told.map_err(|status| error(&self.link, &status))
    }
}

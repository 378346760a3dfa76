//! Asks the manager of the session which nodes have the image of a task.

use std::time::Duration;

use tokio::time::timeout;
use warren_proto::v1;
use warren_proto::v1::images_client::ImagesClient;
use warren_types::TaskId;

use super::secret_fetcher::ManagerChannelReceiver;
use crate::handlers::images::{FindImageHolders, ImageHolders};

/// Deadline of one call. Without an answer no node is known.
const DEADLINE: Duration = Duration::from_secs(3);

/// Asks the managers.
pub(crate) struct ManagerImageHolders {
    channel: ManagerChannelReceiver,
}

impl ManagerImageHolders {
    /// Asks over `channel`.
    pub fn new(channel: ManagerChannelReceiver) -> Self {
        Self { channel }
    }
}

#[tonic::async_trait]
impl FindImageHolders for ManagerImageHolders {
    async fn find(&self, task: TaskId) -> ImageHolders {
        let Some(channel) = self.channel.borrow().clone() else { return ImageHolders::default() };
        let request = v1::FindHoldersRequest { task_id: task.to_string() };
        let mut client = ImagesClient::new(channel);
        match timeout(DEADLINE, client.find_holders(request)).await {
            Ok(Ok(answer)) => {
                let v1::FindHoldersResponse { nodes, this_node } = answer.into_inner();
                ImageHolders { nodes, this_node }
            }
            Ok(Err(status)) => {
                tracing::debug!(%task, %status, "cannot find the nodes that have an image");
                ImageHolders::default()
            }
            Err(_) => ImageHolders::default(),
        }
    }
}

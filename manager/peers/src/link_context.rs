//! What the tasks of one link share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use warren_store::Store;
use warren_types::MemberId;

use super::PeersInner;

/// Shared by the tasks of a link.
#[derive(Clone)]
pub(super) struct LinkContext {
    pub peers: Arc<PeersInner>,
    pub store: Store,
    pub member: MemberId,
    pub closed: CancellationToken,
}

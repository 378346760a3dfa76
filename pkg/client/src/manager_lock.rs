//! Calls for a manager that is locked.

use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::manager_lock_client::ManagerLockClient;
use warren_security::UnlockKey;

use crate::client::Client;
use crate::error::Error;

/// Calls for a manager that is locked, by its socket. One that is not locked refuses them as unimplemented.
#[derive(Debug, Clone, Copy)]
pub struct ManagerLockApi<'a>(&'a Client);

impl Client {
    /// Calls for a manager that is locked.
    pub fn manager_lock(&self) -> ManagerLockApi<'_> {
        ManagerLockApi(self)
    }
}

impl ManagerLockApi<'_> {
    fn client(channel: Channel) -> ManagerLockClient<Channel> {
        ManagerLockClient::new(channel)
    }

    /// Which key unlocks it.
    pub async fn status(&self) -> Result<v1::LockStatus, Error> {
        let call = |channel, request| async move { Self::client(channel).get_status(request).await };
        self.0.unary(v1::LockStatusRequest {}, call).await
    }

    /// Unlocks it.
    pub async fn unlock(&self, key: &UnlockKey) -> Result<v1::UnlockResponse, Error> {
        let call = |channel, request| async move { Self::client(channel).unlock(request).await };
        self.0.unary(v1::UnlockRequest { key: key.reveal().to_string() }, call).await
    }
}

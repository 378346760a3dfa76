//! Calls for managers, and backups.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::managers_client::ManagersClient;
use warren_types::{ManagerAddress, Suffrage};
use zeroize::Zeroizing;

use crate::channel::ManagerChannel;
use crate::client::{Client, MAX_RESPONSE, error_from_status};
use crate::error::{Error, accept_absent};

/// Timeout between messages of a backup: the manager derives the key first, which is slow on a slow machine.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);

/// Calls for managers.
#[derive(Debug, Clone, Copy)]
pub struct ManagerApi<'a>(&'a Client);

/// A change of a manager.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagerChange {
    /// Expected version; `None` skips the check.
    pub version: Option<u64>,
    /// Desired suffrage; `None` keeps it.
    pub suffrage: Option<Suffrage>,
    /// Advertised address; `None` keeps it.
    pub address: Option<ManagerAddress>,
}

impl Client {
    /// Calls for managers and backups.
    pub fn managers(&self) -> ManagerApi<'_> {
        ManagerApi(self)
    }
}

impl ManagerApi<'_> {
    fn client(channel: Channel) -> ManagersClient<Channel> {
        ManagersClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// All managers, as known by the one that answers.
    pub async fn list(&self) -> Result<v1::ListManagersResponse, Error> {
        let call = |channel, request| async move { Self::client(channel).list(request).await };
        self.0.unary(v1::ListManagersRequest {}, call).await
    }

    /// Changes the manager with this name, address, id or id prefix, and returns it.
    pub async fn update(&self, text: &str, change: &ManagerChange) -> Result<v1::Manager, Error> {
        let ManagerChange { version, suffrage: wanted, address } = change.clone();
        let message = v1::UpdateManagerRequest {
            reference: text.to_owned(),
            version,
            desired_suffrage: wanted.map_or(v1::Suffrage::Unspecified, v1::Suffrage::from).into(),
            address: address.map(|address| address.to_string()).unwrap_or_default(),
        };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Removes a manager from the cluster and returns it. A manager that responds is refused unless `force`.
    pub async fn remove(&self, text: &str, force: bool) -> Result<v1::Manager, Error> {
        // By id, since the name of a removed manager is unknown.
        let known = ManagerApi(&self.0.linearizable()).list().await?.managers;
        let before = known.into_iter().find(|manager| manager.name == text || manager.id == text);
        let reference = before.as_ref().map_or(text, |manager| &manager.id).to_owned();
        let message = v1::RemoveManagerRequest { reference, force };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(message, call).await;
        match before {
            Some(before) => accept_absent(answer, v1::Manager { removing: true, ..before }),
            None => answer,
        }
    }

    /// Transfers leadership to `to`, or the most up-to-date voter. Returns the new leader.
    pub async fn transfer_leadership(&self, to: Option<&str>) -> Result<v1::Manager, Error> {
        let message = v1::TransferLeadershipRequest { to: to.unwrap_or_default().to_owned() };
        let call = |channel, request| async move { Self::client(channel).transfer_leadership(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Starts a backup that is encrypted with the passphrase.
    pub async fn backup(&self, passphrase: &str) -> Result<BackupDownload, Error> {
        let message = v1::BackupRequest { passphrase: passphrase.to_owned() };
        let call = |channel, request| async move { Self::client(channel).backup(request).await };
        let (link, chunks) = self.0.start_stream(message, call).await?;
        Ok(BackupDownload { link, chunks })
    }
}

/// A streamed backup. Complete once `next` returned `None`.
#[derive(Debug)]
pub struct BackupDownload {
    link: ManagerChannel,
    chunks: Streaming<v1::BackupChunk>,
}

impl BackupDownload {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let late = |_| Error::NoAnswer { address: self.link.address.to_string(), after: CHUNK_TIMEOUT };
        let next = timeout(CHUNK_TIMEOUT, self.chunks.message()).await.map_err(late)?;
        let chunk = next.map_err(|status| error_from_status(&self.link, &status))?;
        Ok(chunk.map(|chunk| Zeroizing::new(chunk.data.to_vec())))
    }
}

//! Managers: who they are, what they shall be, and a backup of what they keep.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::managers_client::ManagersClient;
use warren_types::{ManagerAddress, Suffrage};
use zeroize::Zeroizing;

use crate::client::{Client, MAX_ANSWER, error};
use crate::error::{Error, removed};
use crate::link::Link;

/// Longest silence of a manager that writes a backup: it finds the key first, which takes a slow machine a while.
const SILENCE: Duration = Duration::from_secs(60);

/// The cluster's managers.
#[derive(Debug, Clone, Copy)]
pub struct Managers<'a>(pub(crate) &'a Client);

/// What is to become of a manager.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagerChange {
    /// Only if it still has this version.
    pub version: Option<u64>,
    /// What it shall be; `None` leaves it.
    pub wanted: Option<Suffrage>,
    /// Where it is reached; `None` leaves it.
    pub address: Option<ManagerAddress>,
}

impl Managers<'_> {
    fn client(channel: Channel) -> ManagersClient<Channel> {
        ManagersClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// All of them, as the one that is asked sees them.
    pub async fn list(&self) -> Result<v1::ListManagersResponse, Error> {
        let call = |channel, request| async move { Self::client(channel).list(request).await };
        self.0.unary(v1::ListManagersRequest {}, call).await
    }

    /// Changes the manager with this name, address, id or beginning of an id, and answers what it is then.
    pub async fn update(&self, text: &str, change: &ManagerChange) -> Result<v1::Manager, Error> {
        let ManagerChange { version, wanted, address } = change.clone();
        let message = v1::UpdateManagerRequest {
            reference: text.to_owned(),
            version,
            wanted: wanted.map_or(v1::Suffrage::Unspecified, v1::Suffrage::from).into(),
            address: address.map(|address| address.to_string()).unwrap_or_default(),
        };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Has a manager leave the cluster, and answers what it was. One that answers stays, unless `force` says otherwise.
    pub async fn remove(&self, text: &str, force: bool) -> Result<v1::Manager, Error> {
        // By id, since a manager that is gone is not known by its name any more.
        let known = Managers(&self.0.linearizable()).list().await?.managers;
        let before = known.into_iter().find(|manager| manager.name == text || manager.id == text);
        let reference = before.as_ref().map_or(text, |manager| &manager.id).to_owned();
        let message = v1::RemoveManagerRequest { reference, force };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(message, call).await;
        match before {
            Some(before) => removed(answer, v1::Manager { removing: true, ..before }),
            None => answer,
        }
    }

    /// Has another manager lead: `to`, or whoever is furthest. Answers who leads then.
    pub async fn transfer_leadership(&self, to: Option<&str>) -> Result<v1::Manager, Error> {
        let message = v1::TransferLeadershipRequest { to: to.unwrap_or_default().to_owned() };
        let call = |channel, request| async move { Self::client(channel).transfer_leadership(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Has a backup written, encrypted with the passphrase.
    pub async fn backup(&self, passphrase: &str) -> Result<Backup, Error> {
        let message = v1::BackupRequest { passphrase: passphrase.to_owned() };
        let call = |channel, request| async move { Self::client(channel).backup(request).await };
        let (link, chunks) = self.0.start(message, call).await?;
        Ok(Backup { link, chunks })
    }
}

/// A backup on its way. Only when [`Backup::next`] answered `None` all of it is there.
#[derive(Debug)]
pub struct Backup {
    link: Link,
    chunks: Streaming<v1::BackupChunk>,
}

impl Backup {
    /// The next bytes; `None` after the last ones.
    pub async fn next(&mut self) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let late = |_| Error::NoAnswer { address: self.link.address.to_string(), after: SILENCE };
        let next = timeout(SILENCE, self.chunks.message()).await.map_err(late)?;
        let chunk = next.map_err(|status| error(&self.link, &status))?;
        Ok(chunk.map(|chunk| Zeroizing::new(chunk.data.to_vec())))
    }
}

//! Volumes: data that outlives tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::volumes_client::VolumesClient;
use warren_types::{VolumeId, VolumeName};

use crate::client::{Client, MAX_ANSWER};
use crate::error::{Error, removed};
use crate::handles::{PAGE_SIZE, is_id_prefix, reference};
use crate::pages;

/// What asking nodes for sizes may take: managers give each of them less, and ask all at once.
const SIZE_DEADLINE: Duration = Duration::from_secs(60);
/// What deleting a volume's data may take: managers give its node less.
const PURGE_DEADLINE: Duration = Duration::from_secs(150);

/// Places for data.
#[derive(Debug, Clone, Copy)]
pub struct Volumes<'a>(pub(crate) &'a Client);

/// A volume to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// Made once per intention by the caller: repeated with the same fields, the call answers as it did the first time.
    pub id: VolumeId,
    /// Unique in the cluster.
    pub name: VolumeName,
    /// How it is kept; empty is `local`.
    pub driver: String,
    /// What the driver is told.
    pub options: BTreeMap<String, String>,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// Name or id of the node with its data; empty: where its first task comes to.
    pub node: String,
}

impl Volumes<'_> {
    fn client(channel: Channel) -> VolumesClient<Channel> {
        VolumesClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// Makes one.
    pub async fn create(&self, wish: NewVolume) -> Result<v1::Volume, Error> {
        let NewVolume { id, name, driver, options, labels, node } = wish;
        let (id, name) = (id.to_string(), name.to_string());
        let message = v1::CreateVolumeRequest { id, name, driver, options, labels, node };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The volume with this name, id or beginning of an id, with its size if its node says it.
    pub async fn get(&self, text: &str) -> Result<v1::Volume, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary_within(SIZE_DEADLINE, reference(text), call).await
    }

    /// All volumes, a page at a time; their nodes are asked for their sizes if `sizes` says so.
    pub fn pages(&self, sizes: bool) -> impl Stream<Item = Result<Vec<v1::Volume>, Error>> + use<> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListVolumesRequest { page_size: PAGE_SIZE, page_token, sizes };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListVolumesResponse = client.unary_within(SIZE_DEADLINE, message, call).await?;
                Ok((page.volumes, page.next_page_token))
            }
        })
    }

    /// All volumes.
    pub async fn list(&self, sizes: bool) -> Result<Vec<v1::Volume>, Error> {
        pages::all(self.pages(sizes)).await
    }

    /// Forgets a volume, and answers what it was. Its data stays where it is, unless `purge` deletes it first. Refused
    /// while a service or a task uses it.
    pub async fn remove(&self, text: &str, purge: bool) -> Result<v1::Volume, Error> {
        // Without its size, for which its node would be asked.
        let mut before = Volumes(&self.0.linearizable()).list(false).await?;
        before.retain(|volume| volume.name == text || is_id_prefix(text, &volume.id));
        let before = (before.len() == 1).then(|| before.swap_remove(0));
        let reference = before.as_ref().map_or(text, |volume| &volume.id).to_owned();
        let message = v1::RemoveVolumeRequest { reference, purge };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary_within(PURGE_DEADLINE, message, call).await;
        // Of none or of several the manager says so.
        match before {
            Some(before) => removed(answer, before),
            None => answer,
        }
    }
}

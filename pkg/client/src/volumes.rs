//! Calls for volumes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::volumes_client::VolumesClient;
use warren_types::{VolumeId, VolumeName};

use crate::api::{PAGE_SIZE, is_id_prefix, reference};
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::pages;

/// Deadline for requesting sizes from nodes; managers give each node less and ask concurrently.
const SIZE_DEADLINE: Duration = Duration::from_secs(60);
/// Deadline for deleting the data of a volume; managers give its node less.
const PURGE_DEADLINE: Duration = Duration::from_secs(150);

/// Calls for volumes.
#[derive(Debug, Clone, Copy)]
pub struct VolumeApi<'a>(&'a Client);

/// A volume to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// Generated once per create by the caller: a repeated call with the same fields returns the same result.
    pub id: VolumeId,
    /// Unique in the cluster.
    pub name: VolumeName,
    /// Volume driver; empty means `local`.
    pub driver: String,
    /// Driver options.
    pub options: BTreeMap<String, String>,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// Name or id of the node for the data; empty means the node of the first task.
    pub node: String,
    /// Takes over the data of a released volume of that name.
    pub reuse: bool,
}

/// What a list of volumes contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeListOptions {
    /// Nodes are asked for the sizes.
    pub sizes: bool,
    /// Also released volumes; with `sizes`, also data on nodes that no volume has.
    pub all: bool,
}

impl Client {
    /// Calls for volumes.
    pub fn volumes(&self) -> VolumeApi<'_> {
        VolumeApi(self)
    }
}

impl VolumeApi<'_> {
    fn client(channel: Channel) -> VolumesClient<Channel> {
        VolumesClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// Creates a volume.
    pub async fn create(&self, volume: NewVolume) -> Result<v1::Volume, Error> {
        let NewVolume { id, name, driver, options, labels, node, reuse } = volume;
        let (id, name) = (id.to_string(), name.to_string());
        let message = v1::CreateVolumeRequest { id, name, driver, options, labels, node, reuse };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The volume with this name, id or id prefix, with its size if its node responds.
    pub async fn get(&self, text: &str) -> Result<v1::Volume, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary_within(SIZE_DEADLINE, reference(text), call).await
    }

    /// A page of volumes.
    pub fn pages(
        &self,
        options: VolumeListOptions,
    ) -> impl Stream<Item = Result<Vec<v1::Volume>, Error>> + use<> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let VolumeListOptions { sizes, all } = options;
                let message = v1::ListVolumesRequest { page_size: PAGE_SIZE, page_token, sizes, all };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListVolumesResponse = client.unary_within(SIZE_DEADLINE, message, call).await?;
                Ok((page.volumes, page.next_page_token))
            }
        })
    }

    /// The volumes of every page.
    pub async fn list(&self, options: VolumeListOptions) -> Result<Vec<v1::Volume>, Error> {
        pages::collect_all(self.pages(options)).await
    }

    /// Deletes the data of that name on a node, also if no volume has it.
    pub async fn purge_on(&self, name: &str, node: &str) -> Result<v1::Volume, Error> {
        let message =
            v1::RemoveVolumeRequest { reference: name.to_owned(), purge: true, node: node.to_owned() };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        self.0.writing().unary_within(PURGE_DEADLINE, message, call).await
    }

    /// Removes a volume and returns it. The data stays on the node unless `purge` deletes it first. Refused while a
    /// service or a task uses it.
    pub async fn remove(&self, text: &str, purge: bool) -> Result<v1::Volume, Error> {
        // Without the size, which would need a request to the node.
        let mut before =
            VolumeApi(&self.0.linearizable()).list(VolumeListOptions { sizes: false, all: true }).await?;
        before.retain(|volume| volume.name == text || is_id_prefix(text, &volume.id));
        let before = (before.len() == 1).then(|| before.swap_remove(0));
        let reference = before.as_ref().map_or(text, |volume| &volume.id).to_owned();
        let message = v1::RemoveVolumeRequest { reference, purge, node: String::new() };
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary_within(PURGE_DEADLINE, message, call).await;
        // For no match or several, the manager returns the error.
        match before {
            Some(before) => accept_absent(answer, before),
            None => answer,
        }
    }
}

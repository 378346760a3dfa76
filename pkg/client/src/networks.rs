//! Calls for networks.

use std::collections::BTreeMap;

use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::networks_client::NetworksClient;
use warren_types::{NetworkId, NetworkName};

use crate::api::{PAGE_SIZE, is_id_prefix, reference};
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::pages;

/// Calls for networks.
#[derive(Debug, Clone, Copy)]
pub struct NetworkApi<'a>(&'a Client);

/// A network to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNetwork {
    /// Generated once per create by the caller: a repeated call with the same fields returns the same result.
    pub id: NetworkId,
    /// Unique in the cluster.
    pub name: NetworkName,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// Its tasks reach nothing outside the cluster.
    pub internal: bool,
}

impl Client {
    /// Calls for networks.
    pub fn networks(&self) -> NetworkApi<'_> {
        NetworkApi(self)
    }
}

impl NetworkApi<'_> {
    fn client(channel: Channel) -> NetworksClient<Channel> {
        NetworksClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// Creates a network.
    pub async fn create(&self, network: NewNetwork) -> Result<v1::Network, Error> {
        let NewNetwork { id, name, labels, internal } = network;
        let message =
            v1::CreateNetworkRequest { id: id.to_string(), name: name.to_string(), labels, internal };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.0.writing().unary(message, call).await
    }

    /// The network with this name, id or id prefix.
    pub async fn get(&self, text: &str) -> Result<v1::Network, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(text), call).await
    }

    /// All networks.
    pub async fn list(&self) -> Result<Vec<v1::Network>, Error> {
        let client = self.0.clone();
        let pages = pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListNetworksRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListNetworksResponse = client.unary(message, call).await?;
                Ok((page.networks, page.next_page_token))
            }
        });
        pages::collect_all(pages).await
    }

    /// Removes a network and returns it. Refused while a service or a task is in it.
    pub async fn remove(&self, text: &str) -> Result<v1::Network, Error> {
        let mut before = NetworkApi(&self.0.linearizable()).list().await?;
        before.retain(|network| network.name == text || is_id_prefix(text, &network.id));
        let before = (before.len() == 1).then(|| before.swap_remove(0));
        let id = before.as_ref().map_or(text, |network| &network.id).to_owned();
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(reference(&id), call).await;
        // For no match or several, the manager returns the error.
        match before {
            Some(before) => accept_absent(answer, before),
            None => answer,
        }
    }
}

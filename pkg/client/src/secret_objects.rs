//! Calls for secrets, configs and registry credentials. Data is sent to the manager over mutual TLS or the local
//! socket; only the data of configs is returned.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::convert::check_secret_object_data;
use warren_proto::v1;
use warren_proto::v1::secret_objects_client::SecretObjectsClient;
use warren_types::{SecretObjectId, SecretObjectKind, SecretObjectName, Violation, Violations};
use zeroize::Zeroizing;

use crate::api::PAGE_SIZE;
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::pages;

/// Calls for secrets, configs or credentials.
#[derive(Debug, Clone, Copy)]
pub struct SecretObjectApi<'a> {
    client: &'a Client,
    kind: SecretObjectKind,
}

/// A secret, config or credential to create. `Debug` redacts the data.
#[derive(Clone, PartialEq, Eq)]
pub struct NewSecretObject {
    /// Generated once per create by the caller: a repeated call with the same data returns the same result.
    pub id: SecretObjectId,
    /// Unique per kind.
    pub name: SecretObjectName,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// At most [`warren_types::secret_object::MAX_SECRET_OBJECT_SIZE`] bytes; wiped when dropped.
    pub data: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for NewSecretObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, labels, data } = self;
        let data = format_args!("{} bytes", data.len());
        let mut shown = f.debug_struct("NewSecretObject");
        shown.field("id", id).field("name", name).field("labels", labels).field("data", &data).finish()
    }
}

impl Client {
    /// Calls for secrets, configs or registry credentials.
    pub fn secret_objects(&self, kind: SecretObjectKind) -> SecretObjectApi<'_> {
        SecretObjectApi { client: self, kind }
    }
}

impl SecretObjectApi<'_> {
    fn client(channel: Channel) -> SecretObjectsClient<Channel> {
        SecretObjectsClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    fn wire_kind(&self) -> i32 {
        v1::SecretObjectKind::from(self.kind).into()
    }

    fn reference(&self, text: &str) -> v1::SecretObjectReference {
        v1::SecretObjectReference { kind: self.wire_kind(), reference: text.to_owned() }
    }

    /// Validates the data before sending: a manager cannot read an oversized request.
    fn check_size(&self, data: &[u8]) -> Result<(), Error> {
        let refused = |wrong: Violation| Error::Refused { problem: Violations::from(wrong).into() };
        check_secret_object_data(Some(self.kind), data).map_err(refused)
    }

    /// Creates a secret, config or credential.
    pub async fn create(&self, object: NewSecretObject) -> Result<v1::SecretObject, Error> {
        let NewSecretObject { id, name, labels, data } = object;
        self.check_size(&data)?;
        let message = v1::CreateSecretObjectRequest {
            id: id.to_string(),
            kind: self.wire_kind(),
            name: name.to_string(),
            labels,
            data: Bytes::from_owner(data),
        };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Stores a new version; `version` is the expected version. Services that use it are updated.
    pub async fn update(
        &self,
        text: &str,
        data: Zeroizing<Vec<u8>>,
        version: Option<u64>,
    ) -> Result<v1::SecretObject, Error> {
        self.check_size(&data)?;
        let (kind, reference) = (self.wire_kind(), text.to_owned());
        let message =
            v1::UpdateSecretObjectRequest { kind, reference, version, data: Bytes::from_owner(data) };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.client.writing().unary(message, call).await
    }

    /// The object with this name, id or id prefix.
    pub async fn get(&self, text: &str) -> Result<v1::SecretObject, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.client.unary(self.reference(text), call).await
    }

    /// The data of a config in this version, or the current one. Refused for other kinds.
    pub async fn read(&self, text: &str, number: Option<u64>) -> Result<v1::SecretObjectData, Error> {
        let message = v1::ReadSecretObjectRequest {
            kind: self.wire_kind(),
            reference: text.to_owned(),
            version_number: number,
        };
        let call = |channel, request| async move { Self::client(channel).read(request).await };
        self.client.unary(message, call).await
    }

    /// A page of objects of this kind.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::SecretObject>, Error>> + use<> {
        let (client, kind) = (self.client.clone(), self.wire_kind());
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListSecretObjectsRequest { kind, page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListSecretObjectsResponse = client.unary(message, call).await?;
                Ok((page.secret_objects, page.next_page_token))
            }
        })
    }

    /// All objects of this kind.
    pub async fn list(&self) -> Result<Vec<v1::SecretObject>, Error> {
        pages::collect_all(self.pages()).await
    }

    /// Removes an object and returns it. Refused while a service or a task uses it.
    pub async fn remove(&self, text: &str) -> Result<v1::SecretObject, Error> {
        let before =
            SecretObjectApi { client: &self.client.linearizable(), kind: self.kind }.get(text).await?;
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        accept_absent(self.client.writing().unary(self.reference(&before.id), call).await, before)
    }
}

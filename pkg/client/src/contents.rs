//! Secrets, configs and credentials of registries. Their bytes go to the manager over the mutual TLS of the connection,
//! or the machine's socket, and come back only of configs.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::convert::content_data;
use warren_proto::v1;
use warren_proto::v1::contents_client::ContentsClient;
use warren_types::{ContentId, ContentKind, ContentName, Violation, Violations};
use zeroize::Zeroizing;

use crate::client::{Client, MAX_ANSWER};
use crate::error::{Error, removed};
use crate::handles::PAGE_SIZE;
use crate::pages;

/// Contents of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    pub(crate) client: &'a Client,
    pub(crate) kind: ContentKind,
}

/// A content to be made. `Debug` shows nothing of its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct NewContent {
    /// Made once per intention by the caller: repeated with the same bytes, the call answers as it did the first time.
    pub id: ContentId,
    /// Unique among those of its kind.
    pub name: ContentName,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// At most [`warren_types::content::MAX_CONTENT`]; overwritten when it is no longer needed.
    pub data: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for NewContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, labels, data } = self;
        let data = format_args!("{} bytes", data.len());
        let mut shown = f.debug_struct("NewContent");
        shown.field("id", id).field("name", name).field("labels", labels).field("data", &data).finish()
    }
}

impl Contents<'_> {
    fn client(channel: Channel) -> ContentsClient<Channel> {
        ContentsClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    fn wire_kind(&self) -> i32 {
        v1::ContentKind::from(self.kind).into()
    }

    fn reference(&self, text: &str) -> v1::ContentReference {
        v1::ContentReference { kind: self.wire_kind(), reference: text.to_owned() }
    }

    /// What a manager would say of the bytes, before they are sent: above some size it could not read the request.
    fn check(&self, data: &[u8]) -> Result<(), Error> {
        let refused = |wrong: Violation| Error::Refused { problem: Violations::from(wrong).into() };
        content_data(Some(self.kind), data).map_err(refused)
    }

    /// Makes one.
    pub async fn create(&self, wish: NewContent) -> Result<v1::Content, Error> {
        let NewContent { id, name, labels, data } = wish;
        self.check(&data)?;
        let message = v1::CreateContentRequest {
            id: id.to_string(),
            kind: self.wire_kind(),
            name: name.to_string(),
            labels,
            data: Bytes::from_owner(data),
        };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        self.client.writing().unary(message, call).await
    }

    /// Gives one new bytes, with `version` only if it still has it. Services that use it follow.
    pub async fn update(
        &self,
        text: &str,
        data: Zeroizing<Vec<u8>>,
        version: Option<u64>,
    ) -> Result<v1::Content, Error> {
        self.check(&data)?;
        let (kind, reference) = (self.wire_kind(), text.to_owned());
        let message = v1::UpdateContentRequest { kind, reference, version, data: Bytes::from_owner(data) };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        self.client.writing().unary(message, call).await
    }

    /// The one with this name, id or beginning of an id.
    pub async fn get(&self, text: &str) -> Result<v1::Content, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.client.unary(self.reference(text), call).await
    }

    /// The bytes of a config, of this version of it or the current one. Of other kinds nothing is shown.
    pub async fn read(&self, text: &str, number: Option<u64>) -> Result<v1::ContentBytes, Error> {
        let message = v1::ReadContentRequest { kind: self.wire_kind(), reference: text.to_owned(), number };
        let call = |channel, request| async move { Self::client(channel).read(request).await };
        self.client.unary(message, call).await
    }

    /// All of the kind, a page at a time.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::Content>, Error>> + use<> {
        let (client, kind) = (self.client.clone(), self.wire_kind());
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListContentsRequest { kind, page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListContentsResponse = client.unary(message, call).await?;
                Ok((page.contents, page.next_page_token))
            }
        })
    }

    /// All of the kind.
    pub async fn list(&self) -> Result<Vec<v1::Content>, Error> {
        pages::all(self.pages()).await
    }

    /// Removes one, and answers what it was. Refused while a service or a task uses it.
    pub async fn remove(&self, text: &str) -> Result<v1::Content, Error> {
        let before = Contents { client: &self.client.linearizable(), kind: self.kind }.get(text).await?;
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        removed(self.client.writing().unary(self.reference(&before.id), call).await, before)
    }
}

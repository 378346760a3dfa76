//! Calls for join tokens. The secret is generated here and never sent: the cluster stores its hash.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::Stream;
use tonic::Code;
use tonic::transport::Channel;
use warren_proto::v1::tokens_client::TokensClient;
use warren_proto::{Problem, v1};
use warren_security::CaDigest;
use warren_types::{NodeRole, TokenId};

use crate::api::{PAGE_SIZE, is_id_prefix, reference};
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::{JoinToken, pages};

/// Calls for join tokens.
#[derive(Debug, Clone, Copy)]
pub struct TokenApi<'a>(&'a Client);

/// Options of a new token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenOptions {
    /// Role of the joining machine.
    pub role: NodeRole,
    /// Lifetime; `None` is unlimited.
    pub ttl: Option<Duration>,
    /// Number of machines that may join; `None` is unlimited.
    pub max_uses: Option<u32>,
    /// Labels of each node that joins with it for the first time; empty for managers.
    pub labels: BTreeMap<String, String>,
}

/// A new token.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The stored token, without the secret.
    pub token: v1::Token,
    /// The token with its secret, which is not stored.
    pub secret: JoinToken,
}

impl Client {
    /// Calls for join tokens.
    pub fn tokens(&self) -> TokenApi<'_> {
        TokenApi(self)
    }
}

impl TokenApi<'_> {
    fn client(channel: Channel) -> TokensClient<Channel> {
        TokensClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// Creates a token. The caller generates `id` once per create.
    pub async fn create(&self, id: TokenId, options: &TokenOptions) -> Result<NewToken, Error> {
        let info = self.0.cluster().info().await?;
        let secret = JoinToken::generate(parse_digest(&info.ca_digest)?)
            .map_err(|error| Error::Identity { why: error.to_string() })?;
        let message = v1::CreateTokenRequest {
            id: id.to_string(),
            role: v1::NodeRole::from(options.role).into(),
            hash: secret.hash().0.to_vec().into(),
            // At least 1, since 0 means unlimited.
            ttl_ms: options.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
            max_uses: options.max_uses,
            labels: options.labels.clone(),
        };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        Ok(NewToken { token: self.0.writing().unary(message, call).await?, secret })
    }

    /// A page of tokens.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::Token>, Error>> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListTokensResponse = client.unary(message, call).await?;
                Ok((page.tokens, page.next_page_token))
            }
        })
    }

    /// All tokens.
    pub async fn list(&self) -> Result<Vec<v1::Token>, Error> {
        pages::collect_all(self.pages()).await
    }

    /// Revokes the token with this id or id prefix, and returns it.
    pub async fn remove(&self, text: &str) -> Result<v1::Token, Error> {
        let mut before = TokenApi(&self.0.linearizable()).list().await?;
        before.retain(|token| is_id_prefix(text, &token.id));
        let before = (before.len() == 1).then(|| before.swap_remove(0));
        let text = before.as_ref().map_or(text, |token| &token.id);
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(reference(text), call).await;
        // For no match or several, the manager returns the error.
        match before {
            Some(before) => accept_absent(answer, before),
            None => answer,
        }
    }
}

/// The digest of the cluster CA, as reported by managers.
pub(crate) fn parse_digest(text: &str) -> Result<CaDigest, Error> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> =
        text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let message = "the manager does not report the CA of its tokens; it is older than this program";
    let older = || Error::Refused { problem: Problem::new(Code::Unimplemented, "NO_CA_DIGEST", message) };
    bytes.map(CaDigest::from_bytes).ok_or_else(older)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_round_trips() {
        let digest = CaDigest::from_bytes(std::array::from_fn(|i| (i * 9) as u8));
        assert_eq!(parse_digest(&digest.to_string()).unwrap(), digest);
        for wrong in ["", "0", "zz", &digest.to_string()[1..], &format!("{digest}00")] {
            let error = parse_digest(wrong).unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{wrong:?}: {error}");
        }
    }
}

//! Tokens that machines join with. Their secret is made here and never sent: the cluster keeps its hash.

use std::time::Duration;

use futures::stream::Stream;
use tonic::Code;
use tonic::transport::Channel;
use warren_proto::v1::tokens_client::TokensClient;
use warren_proto::{Problem, v1};
use warren_security::CaDigest;
use warren_types::{NodeRole, TokenId};

use crate::client::{Client, MAX_ANSWER};
use crate::error::{Error, removed};
use crate::handles::{PAGE_SIZE, is_id_prefix, reference};
use crate::{JoinToken, pages};

/// What lets machines join.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a>(pub(crate) &'a Client);

/// What a token shall be good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenWish {
    /// What the machine becomes.
    pub role: NodeRole,
    /// How long it is taken; `None` is for ever.
    pub ttl: Option<Duration>,
    /// How many machines may join with it; `None` is any number.
    pub max_uses: Option<u32>,
}

/// A token that was just made.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// As the cluster keeps it.
    pub token: v1::Token,
    /// What the machine has to say. Nobody can show it again.
    pub secret: JoinToken,
}

impl Tokens<'_> {
    fn client(channel: Channel) -> TokensClient<Channel> {
        TokensClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// Makes a token. `id` is made once per intention by the caller.
    pub async fn create(&self, id: TokenId, wish: &TokenWish) -> Result<NewToken, Error> {
        let info = self.0.cluster().info().await?;
        let secret = JoinToken::generate(parse_digest(&info.ca_digest)?)
            .map_err(|error| Error::Identity { why: error.to_string() })?;
        let message = v1::CreateTokenRequest {
            id: id.to_string(),
            role: v1::NodeRole::from(wish.role).into(),
            hash: secret.hash().0.to_vec().into(),
            // The shortest there is, lest it be taken for none.
            ttl_ms: wish.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
            max_uses: wish.max_uses,
        };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        Ok(NewToken { token: self.0.writing().unary(message, call).await?, secret })
    }

    /// All tokens, a page at a time.
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
        pages::all(self.pages()).await
    }

    /// Makes the token with this id, or beginning of an id, useless; answers what it was.
    pub async fn remove(&self, text: &str) -> Result<v1::Token, Error> {
        let mut before = Tokens(&self.0.linearizable()).list().await?;
        before.retain(|token| is_id_prefix(text, &token.id));
        let before = (before.len() == 1).then(|| before.swap_remove(0));
        let text = before.as_ref().map_or(text, |token| &token.id);
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(reference(text), call).await;
        // Of none or of several the manager says so.
        match before {
            Some(before) => removed(answer, before),
            None => answer,
        }
    }
}

/// The digest of the cluster's authority, as managers say it.
fn parse_digest(text: &str) -> Result<CaDigest, Error> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> =
        text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let message = "the manager does not say which authority its tokens are of; it is older than this program";
    let older = || Error::Refused { problem: Problem::new(Code::Unimplemented, "NO_CA_DIGEST", message) };
    bytes.map(CaDigest::from_bytes).ok_or_else(older)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_shown() {
        let digest = CaDigest::from_bytes(std::array::from_fn(|i| (i * 9) as u8));
        assert_eq!(parse_digest(&digest.to_string()).unwrap(), digest);
        for wrong in ["", "0", "zz", &digest.to_string()[1..], &format!("{digest}00")] {
            let error = parse_digest(wrong).unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{wrong:?}: {error}");
        }
    }
}

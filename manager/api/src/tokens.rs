//! Join tokens: create, list, remove. The manager receives and stores only their hashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use warren_core::Command;
use warren_core::state::ObjectKind;
use warren_proto::convert::node_role;
use warren_proto::v1::{self, tokens_server};
use warren_store::problem::status_of;
use warren_types::{NodeRole, Timestamp, Token, TokenHash, TokenId, Violations, validate_token_labels};

use super::Api;
use super::audited_call::AuditedCall;
use super::paging::Page;

/// A longer lifetime is rejected as a typing error.
const MAX_TTL_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// A parsed create request.
struct TokenRequest {
    id: TokenId,
    role: NodeRole,
    hash: TokenHash,
    /// Milliseconds; `None`: the token never expires.
    ttl: Option<u64>,
    max_uses: Option<u32>,
    labels: BTreeMap<String, String>,
}

impl TokenRequest {
    fn parse(request: &v1::CreateTokenRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        let id = request.id.parse().inspect_err(|why| wrong.add("id", why)).ok();
        let role = node_role(request.role).map_err(|unknown| wrong.nest("role", unknown)).ok();
        let hash = <[u8; 32]>::try_from(&request.hash[..]).map(TokenHash).ok();
        if hash.is_none() {
            wrong.add("hash", format!("has {} bytes; a SHA-256 has 32", request.hash.len()));
        }
        if request.ttl_ms > MAX_TTL_MS {
            wrong.add("ttlMs", "is more than ten years; leave it out for a token that never expires");
        }
        if request.max_uses == Some(0) {
            wrong.add("maxUses", "0 uses are not allowed; leave it out for unlimited uses");
        }
        let labels = request.labels.clone();
        validate_token_labels(role.unwrap_or(NodeRole::Worker), &labels, &mut wrong);
        let ttl = (request.ttl_ms > 0).then_some(request.ttl_ms);
        let max_uses = request.max_uses;
        let parsed = || Some(Self { id: id?, role: role?, hash: hash?, ttl, max_uses, labels });
        let parsed = parsed();
        let parsed = wrong.into_result(parsed)?;
        Ok(parsed.expect("missing fields are violations"))
    }
}

fn show(token: &Token) -> v1::Token {
    v1::Token {
        id: token.id.to_string(),
        version: token.version,
        role: v1::NodeRole::from(token.role).into(),
        created_at: token.created_at.0,
        expires_at: token.expires_at.map(|at| at.0),
        uses: token.uses,
        max_uses: token.max_uses,
        labels: token.labels.clone(),
    }
}

#[tonic::async_trait]
impl tokens_server::Tokens for Api {
    async fn create(&self, request: Request<v1::CreateTokenRequest>) -> Result<Response<v1::Token>, Status> {
        let caller = AuditedCall::of(&request);
        let parsed = TokenRequest::parse(request.get_ref()).map_err(status_of)?;
        let TokenRequest { id, role, hash, ttl, max_uses, labels } = parsed;
        let at = self.clock.now();
        let expires_at = ttl.map(|ttl| Timestamp(at.0.saturating_add(ttl)));
        let command = Command::CreateToken { id, role, hash, expires_at, max_uses, labels, at };
        let token: Arc<Token> = self.write(command).await?;
        caller.identified(ObjectKind::Token, id, "", token.version);
        tracing::info!(%caller, token = %id, role = role.as_str(), "token created");
        Ok(Response::new(show(&token)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        let page = Page::<TokenId>::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.read(&request).await?;
        let later = published.state.tokens_after(page.after);
        let (tokens, next_page_token) = page.cut(later, |token| token.id);
        let tokens = tokens.into_iter().map(|token| show(token)).collect();
        Ok(Response::new(v1::ListTokensResponse { tokens, next_page_token }))
    }

    async fn remove(&self, request: Request<v1::Reference>) -> Result<Response<v1::Token>, Status> {
        let caller = AuditedCall::of(&request);
        caller.named(ObjectKind::Token, &request.get_ref().reference);
        let published = self.read_latest().await?;
        let token = published.state.find_token(&request.get_ref().reference).map_err(status_of)?;
        let command = Command::RemoveToken { id: token.id, at: self.clock.now() };
        let removed = self.delete(command, token).await?;
        caller.identified(ObjectKind::Token, removed.id, "", removed.version);
        tracing::info!(%caller, token = %removed.id, "token removed");
        Ok(Response::new(show(&removed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_with_invalid_fields_names_each() {
        let good = v1::CreateTokenRequest {
            id: "0".repeat(25),
            role: v1::NodeRole::Worker.into(),
            hash: vec![7; 32].into(),
            ttl_ms: 1000,
            max_uses: Some(1),
            labels: [("zone".to_owned(), "b".to_owned())].into(),
        };
        assert_eq!(TokenRequest::parse(&good).unwrap().ttl, Some(1000));
        let forever = TokenRequest::parse(&v1::CreateTokenRequest { ttl_ms: 0, ..good.clone() });
        assert_eq!(forever.unwrap().ttl, None);
        let wrong = v1::CreateTokenRequest {
            id: "!".into(),
            role: 9,
            hash: vec![7; 31].into(),
            ttl_ms: u64::MAX,
            max_uses: Some(0),
            labels: [("a b".to_owned(), String::new())].into(),
        };
        let wrong = TokenRequest::parse(&wrong).err().unwrap().0;
        let paths: Vec<&str> = wrong.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, ["id", "role", "hash", "ttlMs", "maxUses", "labels[\"a b\"]"]);
        let manager = v1::CreateTokenRequest { role: v1::NodeRole::Manager.into(), ..good };
        let labelled = TokenRequest::parse(&manager).err().unwrap().0;
        assert!(labelled[0].message.starts_with("only workers get labels from a token"), "{labelled:?}");
        let manager = v1::CreateTokenRequest { labels: BTreeMap::new(), ..manager };
        assert_eq!(TokenRequest::parse(&manager).unwrap().role, NodeRole::Manager);
    }
}

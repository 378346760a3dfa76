//! Tokens, as they were sent.

use tonic::{Request, Response, Status};
use warren_proto::v1;

use super::{FakeApi, missing};

#[tonic::async_trait]
impl v1::tokens_server::Tokens for FakeApi {
    async fn create(&self, request: Request<v1::CreateTokenRequest>) -> Result<Response<v1::Token>, Status> {
        let v1::CreateTokenRequest { id, role, hash, ttl_ms, max_uses, labels } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        // A clock of its own: it is the year 2100 there.
        let created_at = 4_107_542_400_000;
        let expires_at = (ttl_ms != 0).then_some(created_at + ttl_ms);
        let (version, uses, own) = (1, 0, id.clone());
        let token = v1::Token { id: own, version, role, created_at, expires_at, uses, max_uses, labels };
        state.hashes.push(hash.into());
        state.tokens.insert(id, token.clone());
        Ok(Response::new(token))
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListTokensResponse>, Status> {
        let tokens = self.0.lock().unwrap().tokens.values().cloned().collect();
        Ok(Response::new(v1::ListTokensResponse { tokens, next_page_token: String::new() }))
    }

    async fn remove(&self, request: Request<v1::Reference>) -> Result<Response<v1::Token>, Status> {
        let reference = request.into_inner().reference;
        let mut state = self.0.lock().unwrap();
        let id = state.tokens.keys().find(|id| id.starts_with(&reference)).cloned();
        let removed = id.and_then(|id| state.tokens.remove(&id));
        removed.map(Response::new).ok_or_else(|| missing("token", &reference))
    }
}

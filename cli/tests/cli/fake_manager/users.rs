//! Users: only the renewal of a certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tonic::{Request, Response, Status};
use warren_proto::v1;
use warren_security::{CertificateAuthority, CertificateRequest, Role};

use super::{FakeApi, FakeCliManager};

impl FakeCliManager {
    /// From now on answers say that this authority is the only one, and renewed certificates are by it.
    pub fn replace_authority(&self, authority: CertificateAuthority) {
        self.state.0.lock().unwrap().authority = Some(Arc::new(authority));
    }
}

fn unavailable<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("only certificates are renewed here"))
}

#[tonic::async_trait]
impl v1::users_server::Users for FakeApi {
    async fn create(&self, _: Request<v1::CreateUserRequest>) -> Result<Response<v1::User>, Status> {
        unavailable()
    }

    async fn get(&self, _: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        unavailable()
    }

    async fn list(&self, _: Request<v1::ListRequest>) -> Result<Response<v1::ListUsersResponse>, Status> {
        unavailable()
    }

    async fn update(&self, _: Request<v1::UpdateUserRequest>) -> Result<Response<v1::User>, Status> {
        unavailable()
    }

    async fn remove(&self, _: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        unavailable()
    }

    async fn login(&self, _: Request<v1::LoginRequest>) -> Result<Response<v1::LoginResponse>, Status> {
        unavailable()
    }

    async fn list_keys(
        &self,
        _: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListUserKeysResponse>, Status> {
        unavailable()
    }

    async fn revoke_key(&self, _: Request<v1::RevokeKeyRequest>) -> Result<Response<v1::UserKey>, Status> {
        unavailable()
    }

    async fn renew(
        &self,
        request: Request<v1::RenewUserRequest>,
    ) -> Result<Response<v1::RenewUserResponse>, Status> {
        let authority = self.0.lock().unwrap().authority.clone().expect("it was replaced");
        let v1::RenewUserRequest { certificate_request, ttl_ms, ca_digest: _ } = request.into_inner();
        let certificate = CertificateRequest::parse(&certificate_request).unwrap();
        let ttl = match ttl_ms {
            0 => Role::User.validity(),
            ttl_ms => Duration::from_millis(ttl_ms),
        };
        let certificate = authority.sign_user("ann", &certificate, SystemTime::now(), ttl).unwrap();
        let authorities = authority.roots().pem().to_owned();
        Ok(Response::new(v1::RenewUserResponse { certificate, authorities }))
    }
}

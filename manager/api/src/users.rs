//! Users: create, get, list, update, remove, and logging in with a token.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::{Code, Request, Response, Status};
use warren_core::state::ObjectKind;
use warren_core::{CaCommand, Command, State};
use warren_proto::convert::user_role;
use warren_proto::status::Problem;
use warren_proto::v1::{self, users_server};
use warren_security::{CaDigest, CertificateRequest, JoinToken, Role};
use warren_store::problem::status_of;
use warren_types::{
    CaHolder, MAX_USER_CERTIFICATE_LIFETIME, PublicKeyHash, Timestamp, TokenHash, User, UserId, UserName,
    UserRole, Violations,
};

use super::Api;
use super::audited_call::AuditedCall;
use super::authorization::{KEY_NOT_LISTED, check_own_key};
use super::membership::internal_error;
use super::paging::Page;

/// A longer lifetime is rejected as a typing error.
const MAX_TTL_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;
/// The longest lifetime of a login token: whoever finds it is the user.
const MAX_LOGIN_TTL_MS: u64 = 7 * 24 * 60 * 60 * 1000;

fn read_hash(hash: &[u8], wrong: &mut Violations) -> Option<TokenHash> {
    let parsed = <[u8; 32]>::try_from(hash).map(TokenHash).ok();
    if parsed.is_none() {
        wrong.add("loginHash", format!("has {} bytes; a SHA-256 has 32", hash.len()));
    }
    parsed
}

fn read_login_ttl(ttl: u64, wrong: &mut Violations) -> Option<u64> {
    let is_valid = (1..=MAX_LOGIN_TTL_MS).contains(&ttl);
    if !is_valid {
        wrong.add("loginTtlMs", "a login token is valid for at most seven days");
    }
    is_valid.then_some(ttl)
}

/// A parsed create request.
struct UserRequest {
    id: UserId,
    name: UserName,
    role: UserRole,
    hash: TokenHash,
    login_ttl: u64,
    ttl: Option<u64>,
}

impl UserRequest {
    fn parse(request: &v1::CreateUserRequest) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        let id = request.id.parse().inspect_err(|why| wrong.add("id", why)).ok();
        let name = request.name.parse().inspect_err(|why| wrong.add("name", why)).ok();
        let role = user_role(request.role).map_err(|unknown| wrong.nest("role", unknown)).ok();
        let hash = read_hash(&request.login_hash, &mut wrong);
        let login_ttl = read_login_ttl(request.login_ttl_ms, &mut wrong);
        if request.ttl_ms > MAX_TTL_MS {
            wrong.add("ttlMs", "is more than ten years; leave it out for a user that never expires");
        }
        let ttl = (request.ttl_ms > 0).then_some(request.ttl_ms);
        let parsed =
            || Some(Self { id: id?, name: name?, role: role?, hash: hash?, login_ttl: login_ttl?, ttl });
        let parsed = parsed();
        let parsed = wrong.into_result(parsed)?;
        Ok(parsed.expect("missing fields are violations"))
    }
}

/// A parsed request for a certificate.
struct CertificateRenewal {
    request: CertificateRequest,
    /// `None`: that of users.
    ttl: Option<Duration>,
    /// The only authority that the caller trusts from now on, if it changes.
    authority: Option<CaDigest>,
}

impl CertificateRenewal {
    fn parse(request: &v1::RenewUserRequest) -> Result<Self, Violations> {
        let v1::RenewUserRequest { certificate_request, ttl_ms, ca_digest } = request;
        let mut wrong = Violations::default();
        let request = CertificateRequest::parse(certificate_request);
        let request = request.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let ttl = (*ttl_ms > 0).then(|| Duration::from_millis(*ttl_ms));
        if ttl > Some(MAX_USER_CERTIFICATE_LIFETIME) {
            wrong.add("ttlMs", "a certificate is valid for at most 365 days");
        }
        let authority = match ca_digest.as_str() {
            "" => None,
            digest => digest.parse::<CaDigest>().map_err(|why| wrong.add("caDigest", why)).ok(),
        };
        let request = wrong.into_result(request)?.expect("missing fields are violations");
        Ok(Self { request, ttl, authority })
    }
}

/// How long a certificate of a user is valid from `at`: no longer than the user.
fn certificate_lifetime(ttl: Option<Duration>, user_ends: Option<Timestamp>, at: Timestamp) -> Duration {
    let ttl = ttl.unwrap_or_else(|| Role::User.validity());
    user_ends.map_or(ttl, |end| ttl.min(end.saturating_since(at)))
}

fn show(user: &User) -> v1::User {
    let unused = user.login.as_ref().filter(|login| login.used_by.is_none());
    let login = |(key, at): (&PublicKeyHash, &Timestamp)| v1::UserLogin { key: key.to_string(), at: at.0 };
    v1::User {
        id: user.id.to_string(),
        name: user.name.to_string(),
        role: v1::UserRole::from(user.role).into(),
        version: user.version,
        created_at: user.created_at.0,
        expires_at: user.expires_at.map(|at| at.0),
        login_expires_at: unused.map(|login| login.expires_at.0),
        logins: user.keys.iter().map(login).collect(),
    }
}

#[tonic::async_trait]
impl users_server::Users for Api {
    async fn create(&self, request: Request<v1::CreateUserRequest>) -> Result<Response<v1::User>, Status> {
        let caller = AuditedCall::of(&request);
        caller.named(ObjectKind::User, &request.get_ref().name);
        let parsed = UserRequest::parse(request.get_ref()).map_err(status_of)?;
        let UserRequest { id, name, role, hash: login_hash, login_ttl, ttl } = parsed;
        let at = self.clock.now();
        let login_expires_at = Timestamp(at.0.saturating_add(login_ttl));
        let expires_at = ttl.map(|ttl| Timestamp(at.0.saturating_add(ttl)));
        let command = Command::CreateUser { id, name, role, login_hash, login_expires_at, expires_at, at };
        let user: Arc<User> = self.write(command).await?;
        caller.identified(ObjectKind::User, user.id, &user.name, user.version);
        caller.detail(role.as_str());
        tracing::info!(%caller, user = %user.name, %role, "user created");
        Ok(Response::new(show(&user)))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        let published = self.read(&request).await?;
        let user = published.state.find_user(&request.get_ref().reference).map_err(status_of)?;
        Ok(Response::new(show(user)))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListUsersResponse>, Status> {
        let page = Page::<UserName>::parse(request.get_ref().page_size, &request.get_ref().page_token)?;
        let published = self.read(&request).await?;
        let later = published.state.users_after(page.after.as_ref());
        let (users, next_page_token) = page.cut(later, |user| user.name.clone());
        let users = users.into_iter().map(|user| show(user)).collect();
        Ok(Response::new(v1::ListUsersResponse { users, next_page_token }))
    }

    async fn update(&self, request: Request<v1::UpdateUserRequest>) -> Result<Response<v1::User>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::UpdateUserRequest { reference, version, role, login_hash, login_ttl_ms, logout } =
            request.into_inner();
        caller.named(ObjectKind::User, &reference);
        let mut wrong = Violations::default();
        let role = role.and_then(|role| user_role(role).map_err(|unknown| wrong.nest("role", unknown)).ok());
        let login_hash = login_hash.and_then(|hash| read_hash(&hash, &mut wrong));
        let login_ttl = login_hash.and_then(|_| read_login_ttl(login_ttl_ms, &mut wrong));
        wrong.into_result(()).map_err(status_of)?;
        let published = self.read_latest().await?;
        let (id, at) = (published.state.find_user(&reference).map_err(status_of)?.id, self.clock.now());
        let login_expires_at = login_ttl.map(|ttl| Timestamp(at.0.saturating_add(ttl)));
        let command =
            Command::UpdateUser { id, version, role, login_hash, login_expires_at, remove_keys: logout, at };
        let user: Arc<User> = self.write(command).await?;
        caller.identified(ObjectKind::User, user.id, &user.name, user.version);
        caller.detail(user.role.as_str());
        tracing::info!(%caller, user = %user.name, role = %user.role, logout, "user updated");
        Ok(Response::new(show(&user)))
    }

    async fn remove(&self, request: Request<v1::Reference>) -> Result<Response<v1::User>, Status> {
        let caller = AuditedCall::of(&request);
        caller.named(ObjectKind::User, &request.get_ref().reference);
        let published = self.read_latest().await?;
        let user = published.state.find_user(&request.get_ref().reference).map_err(status_of)?;
        let command = Command::RemoveUser { id: user.id, at: self.clock.now() };
        let removed = self.delete(command, user).await?;
        caller.identified(ObjectKind::User, removed.id, &removed.name, removed.version);
        tracing::info!(%caller, user = %removed.name, "user removed");
        Ok(Response::new(show(&removed)))
    }

    async fn login(&self, request: Request<v1::LoginRequest>) -> Result<Response<v1::LoginResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::LoginRequest { token, certificate_request } = request.into_inner();
        let mut wrong = Violations::default();
        // Its errors contain no part of the token.
        let token = JoinToken::parse(&token).map_err(|why| wrong.add("token", why)).ok();
        let certificate = CertificateRequest::parse(&certificate_request);
        let certificate = certificate.map_err(|why| wrong.add("certificateRequest", why)).ok();
        let parsed = wrong.into_result(token.zip(certificate)).map_err(status_of)?;
        let (token, certificate) = parsed.expect("missing fields are violations");
        self.check_token_cluster(&token)?;
        let (hash, at) = (token.hash(), self.clock.now());
        if self.store.read().state.user_by_login(&hash).is_none() {
            // A caller without a valid token must not cause writes; a follower may not have applied the token yet.
            let published = self.read_latest().await?;
            let known = published.state.user_by_login(&hash);
            known.ok_or_else(|| status_of(warren_core::Refusal::LoginTokenNotFound))?;
        }
        let command = Command::LoginUser { hash, key: certificate.key_hash(), at };
        let user: Arc<User> = self.write(command).await?;
        let authority = self.authority.load();
        let lifetime = certificate_lifetime(None, user.expires_at, at);
        let signed = authority.sign_user(user.name.as_str(), &certificate, self.machine_time(), lifetime);
        let signed = signed.map_err(internal_error)?;
        caller.identified(ObjectKind::User, user.id, &user.name, user.version);
        tracing::info!(%caller, user = %user.name, "user logged in");
        let state = &self.store.read().state;
        let members = state.members().filter(|member| !member.removing);
        Ok(Response::new(v1::LoginResponse {
            cluster_id: authority.cluster().to_owned(),
            name: user.name.to_string(),
            role: v1::UserRole::from(user.role).into(),
            certificate: signed,
            managers: members.map(|member| member.address.to_string()).collect(),
        }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewUserRequest>,
    ) -> Result<Response<v1::RenewUserResponse>, Status> {
        let caller = AuditedCall::of(&request);
        let CertificateRenewal { request: certificate, ttl, authority: adopted } =
            CertificateRenewal::parse(request.get_ref()).map_err(status_of)?;
        // The request was made with the key; the certificate is of use to nobody else.
        let (key, at) = (certificate.key_hash(), self.clock.now());
        check_own_key(&request, &key)?;
        // Without a leader as well, but then the key may be revoked: for no longer than a day.
        let is_short = ttl <= Some(Role::User.validity());
        let listed = self.store.read().state.key_holder(&key, at).filter(|_| is_short);
        let holder = match listed {
            Some(holder) => holder,
            // This manager may not have applied yet that the key is listed, or revoked.
            None => self.read_latest().await?.state.key_holder(&key, at).ok_or_else(key_not_listed)?,
        };
        caller.named(ObjectKind::User, &holder.name);
        let authority = self.authority.load();
        let lifetime = certificate_lifetime(ttl, holder.expires_at, at);
        let signed = authority.sign_user(&holder.name, &certificate, self.machine_time(), lifetime);
        let signed = signed.map_err(internal_error)?;
        let (digest, authorities) = (authority.digest(), authority.roots().pem().to_owned());
        let missing = |state: &State| {
            let rotation = state.ca_rotation().filter(|rotation| rotation.digest == digest);
            rotation.is_some_and(|rotation| rotation.keys.contains(&key))
        };
        let is_adopted = adopted == Some(digest) && !authority.trusts_predecessors();
        if is_adopted && missing(&self.store.read().state) {
            let holder = CaHolder::User(key);
            let renewal = CaCommand::RecordRenewal { digest, holder, at };
            self.propose(Command::Ca(renewal)).await.map_err(status_of)?;
        }
        tracing::debug!(%caller, user = %holder.name, "certificate renewed");
        Ok(Response::new(v1::RenewUserResponse { certificate: signed, authorities }))
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListUserKeysResponse>, Status> {
        self.list_user_keys(request).await
    }

    async fn revoke_key(
        &self,
        request: Request<v1::RevokeKeyRequest>,
    ) -> Result<Response<v1::UserKey>, Status> {
        self.revoke_user_key(request).await
    }
}

impl Api {
    /// The clock of this machine, by which peers judge certificates; the time of the cluster may be ahead of it.
    fn machine_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.clock.local_now().0)
    }
}

fn key_not_listed() -> Status {
    let message = "the cluster does not list this key: its user was removed or logged out, or has expired, or the key \
                   was revoked; an administrator makes a new login token with `warren user token NAME`";
    Problem::new(Code::Unauthenticated, KEY_NOT_LISTED, message).into()
}

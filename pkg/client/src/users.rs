//! Calls for users. Secrets of login tokens are generated here and never sent: the cluster stores their hashes.

use std::time::Duration;

use futures::stream::Stream;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::users_client::UsersClient;
use warren_types::{UserId, UserName, UserRole};

use crate::api::{PAGE_SIZE, reference};
use crate::client::{Client, MAX_RESPONSE};
use crate::error::{Error, accept_absent};
use crate::tokens::parse_digest;
use crate::{JoinToken, pages};

/// Calls for users.
#[derive(Debug, Clone, Copy)]
pub struct UserApi<'a>(&'a Client);

/// A user to create.
#[derive(Debug, Clone)]
pub struct NewUser {
    /// Unique in the cluster.
    pub name: UserName,
    /// What the user may do.
    pub role: UserRole,
    /// Lifetime of the user; `None` is unlimited.
    pub ttl: Option<Duration>,
    /// Lifetime of the login token.
    pub login_ttl: Duration,
}

/// A change of a user.
#[derive(Debug, Clone, Copy, Default)]
pub struct UserChange {
    /// `None`: as it is.
    pub role: Option<UserRole>,
    /// Lifetime of a new login token; `None`: no new one.
    pub login_ttl: Option<Duration>,
    /// Ends all logins.
    pub logout: bool,
}

impl Client {
    /// Calls for users.
    pub fn users(&self) -> UserApi<'_> {
        UserApi(self)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl UserApi<'_> {
    fn client(channel: Channel) -> UsersClient<Channel> {
        UsersClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    async fn new_login_token(&self) -> Result<JoinToken, Error> {
        let info = self.0.cluster().info().await?;
        let token = JoinToken::generate(parse_digest(&info.ca_digest)?);
        token.map_err(|error| Error::Identity { why: error.to_string() })
    }

    /// Creates a user with a login token. The caller generates `id` once per create.
    pub async fn create(&self, id: UserId, user: &NewUser) -> Result<(v1::User, JoinToken), Error> {
        let token = self.new_login_token().await?;
        let message = v1::CreateUserRequest {
            id: id.to_string(),
            name: user.name.to_string(),
            role: v1::UserRole::from(user.role).into(),
            login_hash: token.hash().0.to_vec().into(),
            login_ttl_ms: millis(user.login_ttl),
            ttl_ms: user.ttl.map_or(0, millis),
        };
        let call = |channel, request| async move { Self::client(channel).create(request).await };
        Ok((self.0.writing().unary(message, call).await?, token))
    }

    /// The user with this name, id, or id prefix.
    pub async fn get(&self, user: &str) -> Result<v1::User, Error> {
        let call = |channel, request| async move { Self::client(channel).get(request).await };
        self.0.unary(reference(user), call).await
    }

    /// A page of users.
    pub fn pages(&self) -> impl Stream<Item = Result<Vec<v1::User>, Error>> {
        let client = self.0.clone();
        pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list(request).await };
                let page: v1::ListUsersResponse = client.unary(message, call).await?;
                Ok((page.users, page.next_page_token))
            }
        })
    }

    /// All users.
    pub async fn list(&self) -> Result<Vec<v1::User>, Error> {
        pages::collect_all(self.pages()).await
    }

    /// Changes a user, and returns the new login token if one was asked for.
    pub async fn update(
        &self,
        user: &str,
        change: UserChange,
    ) -> Result<(v1::User, Option<JoinToken>), Error> {
        let token = match change.login_ttl {
            Some(_) => Some(self.new_login_token().await?),
            None => None,
        };
        let message = v1::UpdateUserRequest {
            reference: user.to_owned(),
            version: None,
            role: change.role.map(|role| v1::UserRole::from(role).into()),
            login_hash: token.as_ref().map(|token| token.hash().0.to_vec().into()),
            login_ttl_ms: change.login_ttl.map_or(0, millis),
            logout: change.logout,
        };
        let call = |channel, request| async move { Self::client(channel).update(request).await };
        Ok((self.0.writing().unary(message, call).await?, token))
    }

    /// All keys of users and administrators, and those that are revoked.
    pub async fn keys(&self) -> Result<Vec<v1::UserKey>, Error> {
        let client = self.0.clone();
        let keys = pages::pages(move |page_token| {
            let client = client.clone();
            async move {
                let message = v1::ListRequest { page_size: PAGE_SIZE, page_token };
                let call = |channel, request| async move { Self::client(channel).list_keys(request).await };
                let page: v1::ListUserKeysResponse = client.unary(message, call).await?;
                Ok((page.keys, page.next_page_token))
            }
        });
        pages::collect_all(keys).await
    }

    /// Revokes the key that begins with these digits, and returns it.
    pub async fn revoke_key(&self, digits: &str) -> Result<v1::UserKey, Error> {
        let message = v1::RevokeKeyRequest { key: digits.to_owned() };
        let call = |channel, request| async move { Self::client(channel).revoke_key(request).await };
        self.0.writing().unary(message, call).await
    }

    /// Removes the user, and returns it. Its keys are refused from then on.
    pub async fn remove(&self, user: &str) -> Result<v1::User, Error> {
        let before = UserApi(&self.0.linearizable()).get(user).await?;
        let call = |channel, request| async move { Self::client(channel).remove(request).await };
        let answer = self.0.writing().unary(reference(&before.id), call).await;
        accept_absent(answer, before)
    }
}

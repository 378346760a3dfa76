//! Access to a registry: as a user with a password, or by tokens that others request.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use warren_types::SecretObjectId;
use zeroize::Zeroize;

use crate::repository_token::RepositoryToken;

/// A user of a registry. The password is wiped from memory on drop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RegistryCredentials {
    /// User name.
    pub user: String,
    /// Password, or an access token used in its place.
    pub password: String,
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Drop for RegistryCredentials {
    fn drop(&mut self) {
        self.password.zeroize();
    }
}

/// How a registry is accessed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RegistryAccess {
    /// As a user, for everything that the user may do.
    Password(RegistryCredentials),
    /// By tokens for one repository.
    Tokens(DelegatedTokens),
}

impl RegistryAccess {
    /// The user, for messages.
    pub fn user(&self) -> &str {
        match self {
            Self::Password(RegistryCredentials { user, .. }) => user,
            Self::Tokens(DelegatedTokens { user, .. }) => user,
        }
    }
}

/// Tokens for one repository, requested by another process that has the password. Those of the same version of a
/// credential are equal: they give the same access.
#[derive(Clone, Debug)]
pub struct DelegatedTokens {
    /// The credential, and the number of its version.
    pub credential: (SecretObjectId, u64),
    /// The user of the credential, for messages.
    pub user: String,
    /// The first token.
    pub token: RepositoryToken,
    /// Gives the next ones.
    pub source: Arc<dyn RenewAccess>,
}

impl PartialEq for DelegatedTokens {
    fn eq(&self, other: &Self) -> bool {
        self.credential == other.credential
    }
}

impl Eq for DelegatedTokens {}

impl Hash for DelegatedTokens {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.credential.hash(state);
    }
}

/// Gives access again when a token has expired, or the registry refused it.
#[async_trait::async_trait]
pub trait RenewAccess: fmt::Debug + Send + Sync {
    /// The access from now on, in whichever form; `None` if the registry demands none any more.
    ///
    /// # Errors
    /// [`RenewalFailure`].
    async fn renew(&self) -> Result<Option<RegistryAccess>, RenewalFailure>;
}

/// No access was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalFailure {
    /// Why, as a sentence.
    pub reason: String,
    /// Whether another request may succeed.
    pub is_transient: bool,
}

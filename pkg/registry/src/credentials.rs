//! A user of a registry.

use std::fmt;

use zeroize::Zeroize;

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

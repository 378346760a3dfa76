//! The cluster that a command connected to, for the addresses that are stored in its context.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use warren_client::{Client, ClientIdentity, Contexts};
use warren_security::{CaDigest, Roots};

/// The cluster that a command connected to, if any. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConnectedCluster(Arc<Mutex<Option<ContextConnection>>>);

/// A connection that was made with a context of the contexts file.
#[derive(Debug)]
pub struct ContextConnection {
    pub client: Client,
    pub file: PathBuf,
    pub context: String,
    pub identity: ClientIdentity,
}

impl ConnectedCluster {
    pub fn set(&self, known: ContextConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// Stores in the contexts file what the managers reported, if it changed: their addresses, and the certificate
    /// authority, with a certificate of it. Runs after the command; if the file is in use or not writable, the next
    /// command tries again.
    pub async fn save(&self) {
        let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let ContextConnection { client, file, context, identity } = known;
        let identity = match renew(&client, &file, &identity).await {
            Ok(None) => identity,
            Ok(Some(renewed)) => {
                tracing::debug!(context, "the context has the new certificate authority");
                renewed
            }
            Err(error) => {
                tracing::warn!(context, %error, "the certificate authority was replaced, and the context not updated");
                identity
            }
        };
        match Contexts::update_addresses(
            &file,
            &context,
            &identity,
            (&client.manager_addresses(), client.incarnation()),
        ) {
            Ok(true) => tracing::debug!(context, "the context has the addresses of the managers"),
            Ok(false) => {}
            Err(error) => tracing::debug!(context, %error, "the addresses of the managers were not stored"),
        }
    }
}

/// Renews the certificate of the context if the managers report another certificate authority than it trusts. Returns
/// the new identity.
async fn renew(
    client: &Client,
    file: &Path,
    identity: &ClientIdentity,
) -> Result<Option<ClientIdentity>, warren_client::Error> {
    let trusts_only = |identity: &ClientIdentity, wanted: CaDigest| {
        Roots::parse(&identity.ca).is_ok_and(|roots| roots.digests() == [wanted])
    };
    let Some(wanted) = client.authority().filter(|wanted| !trusts_only(identity, *wanted)) else {
        return Ok(None);
    };
    let renewed = client.users().renew(identity).await?;
    // A manager that lags trusts an earlier authority as well: the next command tries again.
    if !trusts_only(&renewed, wanted) {
        return Ok(None);
    }
    Contexts::replace_identities(file, |known| known == identity, &renewed)?;
    Ok(Some(renewed))
}

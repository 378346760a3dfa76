//! The cluster that a command connected to, for what is stored in its context.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use warren_client::{CertificateOptions, Client, ClientIdentity, Contexts};
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

    /// Stores in the contexts file what changed: the certificate if it was renewed, the addresses of the managers, and
    /// their certificate authority, with a certificate of it. Runs after the command; if the file is in use or not
    /// writable, the next command tries again.
    pub async fn save(&self) {
        let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let ContextConnection { client, file, context, identity: stored } = known;
        let shown = client.identity().unwrap_or_else(|| stored.clone());
        let newest = match follow_authority(&client, &shown).await {
            Ok(followed) => followed.unwrap_or(shown),
            Err(error) => {
                tracing::warn!(context, %error, "the certificate authority was replaced, and the context not updated");
                shown
            }
        };
        if newest != stored {
            match Contexts::try_replace_identities(&file, |known| *known == stored, &newest) {
                Ok(0) => tracing::debug!(context, "another process changes the contexts"),
                Ok(_) => tracing::debug!(context, "the context has another certificate"),
                Err(error) => tracing::debug!(context, %error, "the certificate was not stored"),
            }
        }
        match Contexts::update_addresses(
            &file,
            &context,
            &newest,
            (&client.manager_addresses(), client.incarnation()),
        ) {
            Ok(true) => tracing::debug!(context, "the context has the addresses of the managers"),
            Ok(false) => {}
            Err(error) => tracing::debug!(context, %error, "the addresses of the managers were not stored"),
        }
    }
}

/// The identity with the certificate authority that the managers report, if it trusts another one.
async fn follow_authority(
    client: &Client,
    identity: &ClientIdentity,
) -> Result<Option<ClientIdentity>, warren_client::Error> {
    let trusts_only = |identity: &ClientIdentity, wanted: CaDigest| {
        Roots::parse(&identity.ca).is_ok_and(|roots| roots.digests() == [wanted])
    };
    let Some(wanted) = client.authority().filter(|wanted| !trusts_only(identity, *wanted)) else {
        return Ok(None);
    };
    let options = CertificateOptions { authority: Some(wanted), ..CertificateOptions::default() };
    let issued = client.issue_certificate(options).await?;
    // A manager that lags trusts an earlier authority as well: the next command tries again.
    Ok(trusts_only(&issued, wanted).then_some(issued))
}

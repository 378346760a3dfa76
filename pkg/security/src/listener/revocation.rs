//! Ends the connections of peers whose certificates are revoked after the handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use warren_types::PublicKeyHash;

use crate::trust::CurrentRevocations;
use crate::{Identity, Trust};

/// How long a connection lasts after that, so that its streams end with the reason before.
const GRACE: Duration = Duration::from_secs(3);

/// Compares one certificate with what is revoked. It has no timer: a connection with HTTP/2 pings is polled in time,
/// and on any other the next request ends it.
pub(super) struct RevocationCheck {
    trust: Arc<Trust>,
    identity: Identity,
    key: PublicKeyHash,
    /// What it was compared with last.
    compared: Arc<CurrentRevocations>,
    revoked_since: Option<Instant>,
}

impl RevocationCheck {
    pub(super) fn new(trust: Arc<Trust>, identity: Identity, key: PublicKeyHash) -> Self {
        let compared = Arc::clone(&*trust.revoked());
        // It may have been revoked between the handshake and this.
        let revoked_since = compared.revoked_since(&identity, &key);
        Self { trust, identity, key, compared, revoked_since }
    }

    /// Fails once the certificate has been revoked for a moment.
    pub(super) fn check(&mut self) -> io::Result<()> {
        let current = self.trust.revoked();
        if !Arc::ptr_eq(&*current, &self.compared) {
            let since = current.revoked_since(&self.identity, &self.key);
            self.revoked_since = since.map(|since| self.revoked_since.unwrap_or(since));
            self.compared = Arc::clone(&*current);
        }
        match self.revoked_since {
            Some(since) if since.elapsed() >= GRACE => {
                let message = format!("closed a connection: the certificate of {} is revoked", self.identity);
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, message))
            }
            _ => Ok(()),
        }
    }
}

//! The cluster that a command connected to, for the addresses that are stored in its context.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use warren_client::{Client, ClientIdentity, Contexts};

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

    /// Stores the addresses that the managers reported in the contexts file, if they changed. Runs after the command;
    /// if the file is in use or not writable, the next command tries again.
    pub fn save_addresses(&self) {
        let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let ContextConnection { client, file, context, identity } = known;
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

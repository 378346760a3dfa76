//! Asks a registry what a name stands for.

use std::time::Duration;

use tokio::time::timeout;
use warren_core::State;
use warren_registry::{Reference, RegistryCredentials, RegistryError, ResolvedName};
use warren_security::SecretObjectKey;
use warren_session::secret_delivery::{newest_credential, parse_login};
use warren_types::{ImageReference, Login};

use super::Api;

/// Timeout of the registry: that of a client that waits is longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why it is not known what a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveFailure {
    /// A sentence.
    pub reason: String,
    /// The registry may have an answer later.
    pub is_transient: bool,
    /// What it tells of the registry.
    pub registry: Reachability,
}

/// Whether a registry was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// It answered.
    Reached,
    /// It, or its token service, was not reached: this concerns all its images.
    Unreachable {
        /// Why, as a sentence that names no image.
        why: String,
        /// There was a connection, and no answer: it may be so for a single image.
        is_silent: bool,
    },
    /// It was not asked.
    Unknown,
}

impl From<RegistryError> for ResolveFailure {
    fn from(error: RegistryError) -> Self {
        use RegistryError as E;
        let reason = error.to_string();
        let unreachable = |is_silent: bool| Reachability::Unreachable { why: reason.clone(), is_silent };
        let registry = match &error {
            E::Unreachable { .. } | E::Tls { .. } => unreachable(false),
            E::Stalled { .. } | E::Broken { .. } => unreachable(true),
            E::Forbidden { .. } | E::NotRenewed { .. } => Reachability::Unknown,
            E::UnknownImage { .. }
            | E::UnknownBlob { .. }
            | E::NeedsCredentials { .. }
            | E::Denied { .. }
            | E::Busy { .. }
            | E::Refused { .. }
            | E::InvalidAnswer { .. } => Reachability::Reached,
        };
        Self { reason, is_transient: error.is_transient(), registry }
    }
}

impl Api {
    /// What the name of an image stands for in its registry now. This manager asks, with the credential of the cluster.
    ///
    /// # Errors
    /// [`ResolveFailure`].
    pub async fn resolve_image(
        &self,
        state: &State,
        image: &ImageReference,
    ) -> Result<ResolvedName, ResolveFailure> {
        let ask = |reference: Reference, credentials: Option<RegistryCredentials>| async move {
            self.registries.resolve(&reference, credentials).await
        };
        self.ask_registry(state, image, ask).await
    }

    /// The answer of the image's registry to `ask`, with the credential of the cluster.
    ///
    /// # Errors
    /// [`ResolveFailure`].
    pub(super) async fn ask_registry<T, F>(
        &self,
        state: &State,
        image: &ImageReference,
        ask: impl FnOnce(Reference, Option<RegistryCredentials>) -> F,
    ) -> Result<T, ResolveFailure>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        let permanent = |reason: String| {
            let registry = Reachability::Unknown;
            ResolveFailure { reason, is_transient: false, registry }
        };
        let reference = Reference::parse(image.as_str()).map_err(|error| permanent(error.to_string()))?;
        let credentials = registry_credentials(state, &self.secret_object_key, image).map_err(permanent)?;
        let late = |_| {
            let reason = format!("its registry has no answer after {} s", RESOLVE_TIMEOUT.as_secs());
            let registry = Reachability::Unreachable { why: reason.clone(), is_silent: true };
            ResolveFailure { reason, is_transient: true, registry }
        };
        let answer = timeout(RESOLVE_TIMEOUT, ask(reference, credentials)).await;
        answer.map_err(late)?.map_err(ResolveFailure::from)
    }
}

/// The credential of the image's registry, if the cluster has one.
fn registry_credentials(
    state: &State,
    secret_object_key: &SecretObjectKey,
    image: &ImageReference,
) -> Result<Option<RegistryCredentials>, String> {
    let Some((object, _, sealed)) = newest_credential(state, image) else { return Ok(None) };
    let plain = secret_object_key.open(object.id, sealed).map_err(|error| error.to_string())?;
    let Login { user, password, .. } = parse_login(&object.name, &plain)?;
    Ok(Some(RegistryCredentials { user, password }))
}

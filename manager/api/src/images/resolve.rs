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
    /// No connection to its own host was established: this concerns all its images.
    Unreachable {
        /// Why, as a sentence that names no image.
        why: String,
    },
    /// A gateway answered in its place (502, 503 or 504).
    Gateway,
    /// It was not asked, or this may concern a single image.
    Unknown,
}

impl From<RegistryError> for ResolveFailure {
    fn from(error: RegistryError) -> Self {
        use RegistryError as E;
        let reason = error.to_string();
        let registry = match &error {
            E::Unreachable { is_own_host: true, .. } | E::Tls { is_own_host: true, .. } => {
                Reachability::Unreachable { why: reason.clone() }
            }
            E::Busy { status, .. } if (502..=504).contains(&status.as_u16()) => Reachability::Gateway,
            E::Unreachable { .. }
            | E::Tls { .. }
            | E::Stalled { .. }
            | E::Broken { .. }
            | E::Forbidden { .. }
            | E::NotRenewed { .. } => Reachability::Unknown,
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
        let late = |_| ResolveFailure {
            reason: format!("its registry has no answer after {} s", RESOLVE_TIMEOUT.as_secs()),
            is_transient: true,
            registry: Reachability::Unknown,
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

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use warren_registry::Digest;

    use super::*;

    #[test]
    fn only_a_failed_connection_to_its_own_host_means_that_a_registry_is_not_reached() {
        use RegistryError as E;
        let text = String::new;
        let unreachable = |is_own_host| {
            let (registry, reason) = ("r.lan".to_owned(), "no route".to_owned());
            E::Unreachable { registry, reason, is_own_host }
        };
        let tls = |is_own_host| E::Tls { registry: text(), reason: text(), advice: "", is_own_host };
        let busy = |status| E::Busy { registry: text(), what: text(), status, message: text() };
        let cases = [
            (tls(false), Reachability::Unknown),
            (unreachable(false), Reachability::Unknown),
            (E::Stalled { registry: text(), what: text(), silence: Duration::ZERO }, Reachability::Unknown),
            (E::Broken { registry: text(), what: text(), reason: text() }, Reachability::Unknown),
            (E::Forbidden { registry: text(), reason: text() }, Reachability::Unknown),
            (E::NotRenewed { registry: text(), reason: text(), is_transient: true }, Reachability::Unknown),
            (busy(StatusCode::BAD_GATEWAY), Reachability::Gateway),
            (busy(StatusCode::SERVICE_UNAVAILABLE), Reachability::Gateway),
            (busy(StatusCode::GATEWAY_TIMEOUT), Reachability::Gateway),
            (busy(StatusCode::INTERNAL_SERVER_ERROR), Reachability::Reached),
            (busy(StatusCode::TOO_MANY_REQUESTS), Reachability::Reached),
            (E::UnknownImage { registry: text(), image: text() }, Reachability::Reached),
            (
                E::UnknownBlob { registry: text(), image: text(), digest: Digest::of(b"x") },
                Reachability::Reached,
            ),
            (E::NeedsCredentials { registry: text(), image: text(), message: text() }, Reachability::Reached),
            (
                E::Denied { registry: text(), image: text(), user: text(), message: text() },
                Reachability::Reached,
            ),
            (
                E::Refused {
                    registry: text(),
                    what: text(),
                    status: StatusCode::BAD_REQUEST,
                    message: text(),
                },
                Reachability::Reached,
            ),
            (E::InvalidAnswer { registry: text(), what: text(), reason: text() }, Reachability::Reached),
        ];
        for (error, expected) in cases {
            assert_eq!(ResolveFailure::from(error.clone()).registry, expected, "{error:?}");
        }
        for error in [unreachable(true), tls(true)] {
            let failure = ResolveFailure::from(error.clone());
            let why = error.to_string();
            assert_eq!(failure.registry, Reachability::Unreachable { why: why.clone() });
            assert_eq!((failure.reason, failure.is_transient), (why, error.is_transient()));
        }
    }
}

//! Checks the signatures of images that the admission policy demands, for the digest that runs.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_core::{State, usable_import};
use warren_proto::Problem;
use warren_registry::{Digest, ImageSignature, Reference, RegistryCredentials};
use warren_types::{
    ImageDigest, ImageReference, ImageResolver, ServiceName, SignatureRule, TaskSpec, Violation,
};

use super::Api;
use super::resolve::{Reachability, ResolveFailure};

/// How long a call that starts tasks may wait for registries: its client waits longer.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The rules of the admission policy that demand a signature of the image, with their numbers.
pub fn matching_rules<'s>(state: &'s State, image: &ImageReference) -> Vec<(usize, &'s SignatureRule)> {
    let policy = state.cluster().map(|cluster| &cluster.settings.admission_policy);
    policy.into_iter().flat_map(|policy| policy.signature_rules(image)).collect()
}

/// The failure to ask for the signature of `digest` that the rule with this number demands.
pub fn unchecked_signature(digest: &ImageDigest, rule: usize, failure: ResolveFailure) -> ResolveFailure {
    let reason = format!(
        "the signature of {digest} that signatures[{rule}] demands was not checked: {}",
        failure.reason
    );
    ResolveFailure { reason, ..failure }
}

impl Api {
    /// Checks that the registry has each signature of `digest` that the admission policy demands of the image.
    ///
    /// # Errors
    /// [`ResolveFailure`]; the reason names the rule.
    pub async fn check_signatures(
        &self,
        state: &State,
        image: &ImageReference,
        digest: &ImageDigest,
    ) -> Result<(), ResolveFailure> {
        let rules = matching_rules(state, image);
        let Some((first, _)) = rules.first() else { return Ok(()) };
        let signed = Digest::from(digest);
        let signatures = self.signatures(state, image, &signed).await;
        let signatures = signatures.map_err(|failure| unchecked_signature(digest, *first, failure))?;
        let is_signed = |rule: &SignatureRule| signatures.iter().any(|it| it.is_valid(&signed, &rule.keys));
        let Some((number, _)) = rules.iter().find(|(_, rule)| !is_signed(rule)) else { return Ok(()) };
        let reason = match signatures.is_empty() {
            true => format!(
                "its registry has no cosign signature of {digest}, which signatures[{number}] demands"
            ),
            false => format!("its registry has no signature of {digest} by a key of signatures[{number}]"),
        };
        Err(ResolveFailure { reason, is_transient: false, registry: Reachability::Reached })
    }

    async fn signatures(
        &self,
        state: &State,
        image: &ImageReference,
        digest: &Digest,
    ) -> Result<Vec<ImageSignature>, ResolveFailure> {
        let ask = |reference: Reference, credentials: Option<RegistryCredentials>| async move {
            self.registries.signatures(&reference, digest, credentials).await
        };
        self.ask_registry(state, image, ask).await
    }

    /// Refuses a task of the service whose image lacks a signature that the admission policy demands. `known` is the
    /// digest that the image has already. A digest that is pinned later is checked again.
    ///
    /// # Errors
    /// `PermissionDenied`, reason `NOT_ADMITTED`.
    pub(crate) async fn admit_image(
        &self,
        state: &State,
        service: &ServiceName,
        task: &TaskSpec,
        known: Option<&ImageDigest>,
    ) -> Result<(), Problem> {
        let Some(number) = matching_rules(state, &task.image).first().map(|(number, _)| *number) else {
            return Ok(());
        };
        let unchecked =
            |why: String| format!("the signature that signatures[{number}] demands was not checked: {why}");
        let reason = match task.image_resolver() {
            ImageResolver::Worker => unchecked(
                "nodes resolve the image (resolveImage: worker, pull: never, or a registry on loopback)"
                    .to_owned(),
            ),
            ImageResolver::Manager => {
                match timeout(ADMISSION_TIMEOUT, self.check_next_digest(state, task, known)).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(NextDigestFailure::Unresolved(why))) => unchecked(why),
                    Ok(Err(NextDigestFailure::Unsigned(reason))) => reason,
                    Err(_) => unchecked(format!(
                        "its registry has no answer after {} s",
                        ADMISSION_TIMEOUT.as_secs()
                    )),
                }
            }
        };
        let refused = Violation::new("task.image", format!("is {}, and {reason}", task.image));
        let message = format!("service {service}: {refused}; see `warren cluster policy show`");
        let problem = Problem::new(Code::PermissionDenied, "NOT_ADMITTED", message);
        Err(Problem { violations: refused.into(), ..problem })
    }

    /// Checks the digest that the image of the task has, or that managers would give it now.
    async fn check_next_digest(
        &self,
        state: &State,
        task: &TaskSpec,
        known: Option<&ImageDigest>,
    ) -> Result<(), NextDigestFailure> {
        let image = &task.image;
        let named = known.cloned().or_else(|| image.digest());
        let (digest, is_imported) = match (named, usable_import(state, task).cloned()) {
            (Some(digest), _) => (digest, false),
            (None, Some(digest)) => (digest, true),
            (None, None) => {
                let resolved = self.resolve_image(state, image).await;
                let resolved = resolved.map_err(|failure| NextDigestFailure::Unresolved(failure.reason))?;
                (ImageDigest::from(&resolved.digest), false)
            }
        };
        self.check_signatures(state, image, &digest).await.map_err(|ResolveFailure { reason, .. }| {
            NextDigestFailure::Unsigned(match is_imported {
                true => {
                    format!("{reason}; it was imported, and `warren image rm` has managers ask the registry")
                }
                false => reason,
            })
        })
    }
}

/// Why an image is not admitted.
enum NextDigestFailure {
    /// Managers do not know its digest.
    Unresolved(String),
    /// Its digest is not signed, or that is not known. A sentence that names the rule.
    Unsigned(String),
}

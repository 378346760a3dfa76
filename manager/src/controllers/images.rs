//! Asks registries what the images of services are while this manager leads. [`image_step`] decides.

mod known_digests;
mod registry_backoff;
mod registry_queue;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use warren_api::Api;
use warren_api::images::{ImportHolders, ResolveFailure, matching_rules};
use warren_control::RunOutcome;
use warren_core::{Command, ImageStep, State, image_step, is_refresh, pin_command, unresolved_command};
use warren_session::secret_delivery::newest_credential;
use warren_store::PublishedState;
use warren_types::secret_object::registry_host;
use warren_types::spec::{IMAGE_NOT_ADMITTED, IMAGE_NOT_RESOLVED};
use warren_types::{CanonicalImage, ImageDigest, ImageReference, ServiceId, SignatureRule};

use self::known_digests::KnownDigests;
use self::registry_queue::{RegistryAnswer, RegistryQuestion, RegistryQueue};

/// The wait after the first failure; doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(2);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Attempts after which a known digest is used for an image that the service did not have before.
const MIN_ATTEMPTS: u32 = 2;
/// How long the registry is asked before a known digest is used although a user wants that of the registry.
const REFRESH_TIME: Duration = Duration::from_secs(180);
/// The most writes at once: those of users must not wait for those of all services.
const MAX_WRITES: usize = 256;

/// Pins the images of services. Clones share which are being resolved.
#[derive(Clone)]
pub struct ImagePinner {
    api: Api,
    running: Arc<Mutex<BTreeMap<ServiceId, RunningStep>>>,
    queue: Arc<RegistryQueue>,
    known: Arc<KnownDigests>,
    writes: Arc<Semaphore>,
    /// An import was recorded.
    imported: Arc<Notify>,
}

/// What is being done for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RunningStep {
    revision: u64,
    /// What an import gave its image.
    import: Option<ImageDigest>,
}

/// Why an image is not resolved.
struct Unresolved {
    reason: String,
    /// A digest that is known is better than none.
    may_fall_back: bool,
}

impl ImagePinner {
    /// Asks registries as `api` does.
    pub fn new(api: Api) -> Self {
        Self {
            api,
            running: Arc::default(),
            queue: Arc::new(RegistryQueue::new()),
            known: Arc::new(KnownDigests::new()),
            writes: Arc::new(Semaphore::new(MAX_WRITES)),
            imported: Arc::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<ServiceId, RunningStep>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to resolve the image of the service. `published` is the leader's state.
    pub fn reconcile(&self, published: &PublishedState, id: ServiceId) -> RunOutcome {
        let Some(ImageStep { revision, import, .. }) = image_step(&published.state, &id) else {
            self.running().remove(&id);
            return RunOutcome::Done;
        };
        let step = RunningStep { revision, import };
        let before = self.running().insert(id, step.clone());
        match before {
            Some(before) if before == step => {}
            Some(before) if before.revision == revision => self.imported.notify_waiters(),
            _ => {
                let pinner = self.clone();
                self.api.shutdown.spawn_cancellable("image-pin", async move {
                    pinner.resolve(id, revision).await;
                    pinner.end(id, revision);
                });
            }
        }
        RunOutcome::Done
    }

    /// Asks until the image is pinned, or need not be asked for any more.
    async fn resolve(&self, id: ServiceId, revision: u64) {
        let Some(ImageStep { image, .. }) = self.next_step(id, revision) else { return };
        let registry = self.queue.registry(&registry_host(&image));
        let (began, mut attempts) = (Instant::now(), 0);
        loop {
            let mut imported = pin!(self.imported.notified());
            imported.as_mut().enable();
            let mut reached = pin!(registry.reached.notified());
            reached.as_mut().enable();
            let Some(step) = self.next_step(id, revision) else { return };
            attempts += 1;
            let is_pinned = match self.digest_of(&step).await {
                Ok(digest) => self.pin(id, revision, &step.image, digest).await,
                Err(unresolved) => {
                    let known = match self.may_use_known(&unresolved, id, attempts, began.elapsed()) {
                        true => self.known.find(&self.api, id, &step.image).await,
                        false => None,
                    };
                    self.pin_known(id, revision, &step.image, known, &unresolved).await
                }
            };
            if is_pinned {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(retry_delay(attempts)) => {}
                () = imported => {}
                () = reached => {}
            }
        }
    }

    /// The next step, as long as this manager leads and the image of this revision is to be resolved.
    fn next_step(&self, id: ServiceId, revision: u64) -> Option<ImageStep> {
        let is_newest = self.running().get(&id).is_some_and(|running| running.revision == revision);
        let published = self.api.store.read();
        let step = image_step(&published.state, &id)?;
        (is_newest && published.role.can_plan && step.revision == revision).then_some(step)
    }

    async fn digest_of(&self, step: &ImageStep) -> Result<ImageDigest, Unresolved> {
        let ImageStep { image, import: imported, .. } = step;
        if let Some(digest) = imported {
            let published = self.api.store.read();
            match self.api.import_holders(&published.state, &CanonicalImage::of(image), digest).await {
                ImportHolders::Held => return Ok(digest.clone()),
                ImportHolders::Gone => {}
                ImportHolders::Silent(nodes) => {
                    let nodes = nodes.join(", ");
                    let reason = format!(
                        "it was imported as {digest}, and nodes that may have it do not say so: {nodes}"
                    );
                    return Err(Unresolved { reason, may_fall_back: false });
                }
            }
        }
        self.ask(image).await.map_err(|ResolveFailure { reason, is_transient, .. }| match imported {
            None => Unresolved { reason, may_fall_back: is_transient },
            Some(digest) => Unresolved {
                reason: format!("no node that is READY has its import {digest} any more, and {reason}"),
                may_fall_back: is_transient,
            },
        })
    }

    async fn ask(&self, image: &ImageReference) -> RegistryAnswer {
        let question = question(&self.api.store.read().state, image);
        let request = || async {
            let published = self.api.store.read();
            let resolved = self.api.resolve_image(&published.state, image).await?;
            Ok(ImageDigest::from(&resolved.digest))
        };
        self.queue.ask(question, request).await
    }

    /// The digest, if it is signed as the admission policy demands.
    async fn signed(&self, image: &ImageReference, digest: ImageDigest) -> RegistryAnswer {
        let question = {
            let published = self.api.store.read();
            let rules = matching_rules(&published.state, image);
            if rules.is_empty() {
                return Ok(digest);
            }
            signature_question(&published.state, image, &digest, &rules)
        };
        let request = || async {
            let published = self.api.store.read();
            self.api.check_signatures(&published.state, image, &digest).await?;
            Ok(digest.clone())
        };
        self.queue.ask(question, request).await
    }

    /// A digest that a user wants to be replaced is used only after a while.
    fn may_use_known(&self, why: &Unresolved, id: ServiceId, attempts: u32, elapsed: Duration) -> bool {
        why.may_fall_back
            && match is_refresh(&self.api.store.read().state, &id) {
                true => elapsed >= REFRESH_TIME,
                false => attempts >= MIN_ATTEMPTS,
            }
    }

    /// Pins the known digest, if there is one, and records why. Returns whether the image is pinned.
    async fn pin_known(
        &self,
        id: ServiceId,
        revision: u64,
        image: &ImageReference,
        known: Option<(ImageDigest, String)>,
        Unresolved { reason, .. }: &Unresolved,
    ) -> bool {
        let Some((digest, origin)) = known else {
            self.record(id, revision, &failure_text(image, reason)).await;
            return false;
        };
        tracing::warn!(service = %id, %image, %digest, origin, reason, "using a known digest");
        let text = format!(
            "{IMAGE_NOT_RESOLVED} {image}: {reason}; the service uses {digest}, {origin}; `warren service update \
             --force` asks again"
        );
        if !self.pin(id, revision, image, digest).await {
            return false;
        }
        self.record(id, revision, &text).await;
        true
    }

    /// Pins the digest, which must be signed if the admission policy demands it: this is the one way to a pin that
    /// managers resolve. Returns whether the image is pinned.
    async fn pin(&self, id: ServiceId, revision: u64, image: &ImageReference, digest: ImageDigest) -> bool {
        let digest = match self.signed(image, digest).await {
            Ok(digest) => digest,
            Err(ResolveFailure { reason, .. }) => {
                self.record(id, revision, &refusal_text(image, &reason)).await;
                return false;
            }
        };
        let now = self.api.clock.now();
        self.propose(id, |state| Some(pin_command(state, id, revision, digest, now))).await
    }

    /// Records the reason for users of all managers, unless the state has it.
    async fn record(&self, id: ServiceId, revision: u64, reason: &str) {
        let now = self.api.clock.now();
        let command = |state: &State| {
            let command = unresolved_command(state, id, revision, reason, now)?;
            tracing::info!(service = %id, reason, "reason of an image has changed");
            Some(command)
        };
        self.propose(id, command).await;
    }

    /// Proposes what is to be written in the newest state. Returns whether it has that then.
    async fn propose(&self, id: ServiceId, command: impl FnOnce(&State) -> Option<Command>) -> bool {
        let _write = self.writes.acquire().await.expect("it is never closed");
        let Some(command) = command(&self.api.store.read().state) else { return true };
        let written = self.api.store.propose_locally(command).await;
        if let Err(error) = &written {
            tracing::debug!(service = %id, %error, "image not recorded; retrying");
        }
        written.is_ok()
    }

    fn end(&self, id: ServiceId, revision: u64) {
        let mut running = self.running();
        if running.get(&id).is_some_and(|running| running.revision == revision) {
            running.remove(&id);
        }
    }
}

fn failure_text(image: &ImageReference, reason: &str) -> String {
    format!(
        "{IMAGE_NOT_RESOLVED} {image}: {reason}; import it with `warren image import`, or let nodes resolve \
         it with --resolve-image worker"
    )
}

fn refusal_text(image: &ImageReference, reason: &str) -> String {
    format!("{IMAGE_NOT_ADMITTED} {image}: {reason}; see `warren cluster policy show`")
}

/// What the image stands for.
fn question(state: &State, image: &ImageReference) -> RegistryQuestion {
    let credential = newest_credential(state, image);
    RegistryQuestion {
        registry: registry_host(image),
        image: CanonicalImage::of(image).to_string(),
        signed: None,
        rules: Vec::new(),
        credential: credential.map(|(object, number, _)| (object.id, number)),
    }
}

/// Whether this digest of the image is signed as the rules demand. After a change of the rules it is another question.
fn signature_question(
    state: &State,
    image: &ImageReference,
    digest: &ImageDigest,
    rules: &[(usize, &SignatureRule)],
) -> RegistryQuestion {
    let rules = rules.iter().map(|(number, rule)| (*number, (*rule).clone())).collect();
    RegistryQuestion { signed: Some(digest.clone()), rules, ..question(state, image) }
}

fn retry_delay(attempts: u32) -> Duration {
    MIN_RETRY_DELAY.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
}

#[cfg(test)]
mod tests {
    use warren_types::SignatureKey;

    use super::*;

    #[test]
    fn retries_become_rare() {
        let delays = [1, 2, 5, 6, u32::MAX].map(|attempts| retry_delay(attempts).as_secs());
        assert_eq!(delays, [2, 4, 32, 60, 60]);
    }

    #[test]
    fn answer_is_of_the_rules_that_were_asked_for() {
        let (state, image) = (State::default(), "web:1".parse().unwrap());
        let digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let rule = |key| SignatureRule {
            registry: "docker.io".to_owned(),
            keys: vec![SignatureKey::Ed25519([key; 32])],
        };
        let (before, after) = (rule(1), rule(2));
        let asked = |rule| signature_question(&state, &image, &digest, &[(0, rule)]);
        assert_eq!(asked(&before), asked(&before));
        assert_ne!(asked(&before), asked(&after));
        assert_ne!(asked(&before), question(&state, &image));
    }

    #[test]
    fn failure_says_what_to_do() {
        let image = "web:1".parse().unwrap();
        let text = failure_text(&image, "cannot reach registry docker.io: no route");
        for part in ["web:1", "no route", "warren image import", "--resolve-image worker"] {
            assert!(text.contains(part), "{text}");
        }
        let text = refusal_text(&image, "no signature");
        assert_eq!(text, "managers do not admit image web:1: no signature; see `warren cluster policy show`");
    }
}

//! Asks registries what the images of services are while this manager leads. [`image_step`] decides.

mod attempts;
mod known_digests;
mod registry_backoff;
mod registry_queue;
mod shared_values;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use warren_api::Api;
use warren_api::images::{ImportHolders, Reachability, ResolveFailure, matching_rules};
use warren_control::RunOutcome;
use warren_core::{Command, ImageStep, State, image_step, is_refresh, pin_command, unresolved_command};
use warren_session::secret_delivery::newest_credential;
use warren_store::PublishedState;
use warren_types::secret_object::registry_host;
use warren_types::spec::{IMAGE_NOT_ADMITTED, IMAGE_NOT_RESOLVED};
use warren_types::{CanonicalImage, ImageDigest, ImageReference, ServiceId, SignatureRule};

use self::attempts::{Unresolved, repeat};
use self::known_digests::KnownDigests;
use self::registry_queue::{RegistryAnswer, RegistryQuestion, RegistryQueue};

/// Attempts after which a known digest is used for an image that the service did not have before.
const MIN_ATTEMPTS: u32 = 2;
/// How long the registry is asked before a known digest is used although a user wants that of the registry.
const REFRESH_TIME: Duration = Duration::from_secs(180);
/// The most writes of pins at once, and of reasons: those of users must not wait for those of all services.
const MAX_WRITES: usize = 256;

/// Pins the images of services. Clones share which are being resolved.
#[derive(Clone)]
pub struct ImagePinner {
    api: Api,
    running: Arc<Mutex<BTreeMap<ServiceId, RunningStep>>>,
    queue: Arc<RegistryQueue>,
    known: Arc<KnownDigests>,
    pin_writes: Arc<Semaphore>,
    reason_writes: Arc<Semaphore>,
}

/// What is being done for a service.
#[derive(Debug)]
struct RunningStep {
    revision: u64,
    /// What an import gave its image.
    import: Option<ImageDigest>,
    /// Notified when that has changed.
    imported: Arc<Notify>,
}

impl ImagePinner {
    /// Asks registries as `api` does.
    pub fn new(api: Api) -> Self {
        Self {
            api,
            running: Arc::default(),
            queue: Arc::new(RegistryQueue::new()),
            known: Arc::new(KnownDigests::new()),
            pin_writes: Arc::new(Semaphore::new(MAX_WRITES)),
            reason_writes: Arc::new(Semaphore::new(MAX_WRITES)),
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
        let mut running = self.running();
        match running.get_mut(&id).filter(|step| step.revision == revision) {
            Some(step) if step.import == import => {}
            Some(step) => {
                step.import = import;
                step.imported.notify_waiters();
            }
            None => {
                let imported = Arc::<Notify>::default();
                running.insert(id, RunningStep { revision, import, imported: imported.clone() });
                let pinner = self.clone();
                self.api.shutdown.spawn_cancellable("image-pin", async move {
                    pinner.resolve(id, revision, &imported).await;
                    pinner.end(id, revision);
                });
            }
        }
        RunOutcome::Done
    }

    /// Asks until the image is pinned, or need not be asked for any more.
    async fn resolve(&self, id: ServiceId, revision: u64, imported: &Notify) {
        let Some(ImageStep { image, .. }) = self.next_step(id, revision) else { return };
        let (image, registry) = (&image, &self.queue.registry(&registry_host(&image)));
        let began = Instant::now();
        let attempt = || self.attempt(id, revision);
        let find = |attempts: u32, unresolved: Unresolved| {
            let may_use_known = self.may_use_known(&unresolved, id, attempts, began.elapsed());
            let failed_at = Instant::now();
            async move {
                let known = match may_use_known {
                    true => self.known.find(&self.api, id, image).await,
                    false => None,
                };
                (known, unresolved, failed_at)
            }
        };
        let settle = |(known, unresolved, failed_at): (_, Unresolved, _)| {
            let is_unreachable = unresolved.is_unreachable;
            let is_outdated = move || is_unreachable && registry.has_answered_since(failed_at);
            self.pin_known(id, revision, image, known, unresolved, is_outdated)
        };
        repeat(imported, &registry.reached, attempt, find, settle).await;
    }

    /// Pins what an import or the registry says, unless nothing is to be done any more.
    async fn attempt(&self, id: ServiceId, revision: u64) -> Result<(), Unresolved> {
        let Some(step) = self.next_step(id, revision) else { return Ok(()) };
        let digest = self.digest_of(&step).await?;
        self.pin(id, revision, &step.image, digest, || false).await
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
                    return Err(Unresolved {
                        reason: Some(reason),
                        may_fall_back: false,
                        is_unreachable: false,
                    });
                }
            }
        }
        self.ask(image).await.map_err(|failure| {
            let (is_unreachable, reason) = (is_unreachable(&failure), failure.reason);
            let reason = match imported {
                None => reason,
                Some(digest) => {
                    format!("no node that is READY has its import {digest} any more, and {reason}")
                }
            };
            Unresolved { reason: Some(reason), may_fall_back: failure.is_transient, is_unreachable }
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

    /// Asks whether the digest is signed as these rules demand, which were those of the admission policy a moment ago.
    async fn check_signed(
        &self,
        image: &ImageReference,
        digest: &ImageDigest,
        rules: &[(usize, SignatureRule)],
    ) -> Result<(), ResolveFailure> {
        if rules.is_empty() {
            return Ok(());
        }
        let question = signature_question(&self.api.store.read().state, image, digest, rules);
        let request = || async {
            let published = self.api.store.read();
            if signature_rules(&published.state, image) != *rules {
                let reason = "the admission policy was changed meanwhile".to_owned();
                let registry = Reachability::Unknown;
                return Err(ResolveFailure { reason, is_transient: true, registry });
            }
            self.api.check_signatures(&published.state, image, digest).await?;
            Ok(digest.clone())
        };
        self.queue.ask(question, request).await.map(drop)
    }

    /// A digest that a user wants to be replaced is used only after a while.
    fn may_use_known(&self, why: &Unresolved, id: ServiceId, attempts: u32, elapsed: Duration) -> bool {
        why.may_fall_back
            && match is_refresh(&self.api.store.read().state, &id) {
                true => elapsed >= REFRESH_TIME,
                false => attempts >= MIN_ATTEMPTS,
            }
    }

    /// Pins the known digest, if there is one and it is not outdated when it is written, and records why. Returns
    /// whether the image is pinned.
    async fn pin_known(
        &self,
        id: ServiceId,
        revision: u64,
        image: &ImageReference,
        known: Option<(ImageDigest, String)>,
        Unresolved { reason, .. }: Unresolved,
        is_outdated: impl Fn() -> bool,
    ) -> bool {
        let Some(reason) = reason else { return false };
        let Some((digest, origin)) = known else {
            self.record(id, revision, &failure_text(image, &reason)).await;
            return false;
        };
        if self.pin(id, revision, image, digest.clone(), is_outdated).await.is_err() {
            return false;
        }
        tracing::warn!(service = %id, %image, %digest, origin, reason, "using a known digest");
        let text = format!(
            "{IMAGE_NOT_RESOLVED} {image}: {reason}; the service uses {digest}, {origin}; `warren service update \
             --force` asks again"
        );
        self.record(id, revision, &text).await;
        true
    }

    /// Pins the digest, which must be signed if the admission policy demands it: this is the one way to a pin that
    /// managers resolve. A refusal is recorded.
    async fn pin(
        &self,
        id: ServiceId,
        revision: u64,
        image: &ImageReference,
        digest: ImageDigest,
        is_outdated: impl Fn() -> bool,
    ) -> Result<(), Unresolved> {
        let rules = signature_rules(&self.api.store.read().state, image);
        let not_pinned =
            |is_unreachable: bool| Unresolved { reason: None, may_fall_back: false, is_unreachable };
        if let Err(failure) = self.check_signed(image, &digest, &rules).await {
            self.record(id, revision, &refusal_text(image, &failure.reason)).await;
            return Err(not_pinned(is_unreachable(&failure)));
        }
        let now = self.api.clock.now();
        let command = |state: &State| {
            let is_checked = signature_rules(state, image) == rules && !is_outdated();
            is_checked.then(|| pin_command(state, id, revision, digest, now))
        };
        match self.propose(id, &self.pin_writes, command).await {
            true => Ok(()),
            false => Err(not_pinned(false)),
        }
    }

    /// Records the reason for users of all managers, unless the state has it.
    async fn record(&self, id: ServiceId, revision: u64, reason: &str) {
        let now = self.api.clock.now();
        let command = |state: &State| unresolved_command(state, id, revision, reason, now);
        if self.propose(id, &self.reason_writes, command).await {
            tracing::info!(service = %id, reason, "reason of an image has changed");
        }
    }

    /// Proposes what is to be written in the newest state, if anything is. Returns whether that was written.
    async fn propose(
        &self,
        id: ServiceId,
        writes: &Semaphore,
        command: impl FnOnce(&State) -> Option<Command>,
    ) -> bool {
        let _write = writes.acquire().await.expect("it is never closed");
        let Some(command) = command(&self.api.store.read().state) else { return false };
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
        if running.is_empty() {
            self.known.clear();
        }
    }
}

/// What the admission policy demands of the image now: the numbers of its rules, and the rules.
fn signature_rules(state: &State, image: &ImageReference) -> Vec<(usize, SignatureRule)> {
    matching_rules(state, image).into_iter().map(|(number, rule)| (number, rule.clone())).collect()
}

fn is_unreachable(failure: &ResolveFailure) -> bool {
    matches!(failure.registry, Reachability::Unreachable { .. })
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
    rules: &[(usize, SignatureRule)],
) -> RegistryQuestion {
    RegistryQuestion { signed: Some(digest.clone()), rules: rules.to_vec(), ..question(state, image) }
}

#[cfg(test)]
mod tests {
    use warren_types::SignatureKey;

    use super::*;

    #[test]
    fn answer_is_of_the_rules_that_were_asked_for() {
        let (state, image) = (State::default(), "web:1".parse().unwrap());
        let digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let rule = |key| SignatureRule {
            registry: "docker.io".to_owned(),
            keys: vec![SignatureKey::Ed25519([key; 32])],
        };
        let (before, after) = (rule(1), rule(2));
        let asked = |rule: &SignatureRule| signature_question(&state, &image, &digest, &[(0, rule.clone())]);
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

//! Limits how many registries are asked at once, asks once for what several services wait for, and asks a registry that
//! is not reached for all of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio::time::Instant;
use warren_api::images::{ResolveFailure, unchecked_signature};
use warren_control::{RandomSource, system_random};
use warren_types::{ImageDigest, SecretObjectId, SignatureRule};

use super::registry_backoff::{Admission, RegistryBackoff};
use super::shared_values::SharedValues;

/// The most requests at once, to registries that were reached or not asked before.
const MAX_CONCURRENT: usize = 16;
/// The most requests at once to registries that were not reached, one for each: they must not delay the others.
const MAX_PROBES: usize = 64;
/// The most requests to one registry at once: one that does not answer must not delay the others.
const MAX_PER_REGISTRY: usize = 2;

/// What a registry is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegistryQuestion {
    /// Host and port.
    pub registry: String,
    /// The canonical name of the image.
    pub image: String,
    /// The digest whose signatures are asked for; `None`: what the name stands for.
    pub signed: Option<ImageDigest>,
    /// What the signatures are compared with: the numbers of rules in the admission policy, and the rules.
    pub rules: Vec<(usize, SignatureRule)>,
    /// The credential, with the number of its version.
    pub credential: Option<(SecretObjectId, u64)>,
}

impl RegistryQuestion {
    /// What the caller gets instead of an answer if the registry has this failure.
    fn refusal(&self, failure: ResolveFailure) -> ResolveFailure {
        match (&self.signed, self.rules.first()) {
            (Some(digest), Some((rule, _))) => unchecked_signature(digest, *rule, failure),
            _ => failure,
        }
    }
}

pub(super) type RegistryAnswer = Result<ImageDigest, ResolveFailure>;

/// What the questions to one registry share.
pub(super) struct Registry {
    slots: Semaphore,
    backoff: Mutex<RegistryBackoff>,
    /// Notified when it is reached after it was not.
    pub reached: Notify,
}

impl Registry {
    fn new() -> Self {
        Self { slots: Semaphore::new(MAX_PER_REGISTRY), backoff: Mutex::default(), reached: Notify::new() }
    }

    fn backoff(&self) -> MutexGuard<'_, RegistryBackoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has answered a question after this moment.
    pub fn has_answered_since(&self, moment: Instant) -> bool {
        self.backoff().answered_at().is_some_and(|answered_at| answered_at > moment)
    }

    /// # Errors
    /// The failure that all questions have now.
    fn check_reachable(&self) -> Result<(), ResolveFailure> {
        self.backoff().failure(Instant::now()).cloned().map_or(Ok(()), Err)
    }
}

/// Abandons the probe when it is dropped before the answer.
struct ProbeGuard<'a>(&'a Registry);

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        self.0.backoff().abandon_probe(Instant::now());
    }
}

/// Requests that run or wait.
pub(super) struct RegistryQueue {
    slots: Semaphore,
    probes: Semaphore,
    registries: SharedValues<String, Registry>,
    running: SharedValues<RegistryQuestion, OnceCell<RegistryAnswer>>,
    chance: RandomSource,
}

impl RegistryQueue {
    pub fn new() -> Self {
        Self {
            slots: Semaphore::new(MAX_CONCURRENT),
            probes: Semaphore::new(MAX_PROBES),
            registries: SharedValues::new(),
            running: SharedValues::new(),
            chance: system_random(),
        }
    }

    /// The registry with this host and port. What is known of it is forgotten when nobody has it any more.
    pub fn registry(&self, host: &str) -> Arc<Registry> {
        self.registries.get(host.to_owned(), Registry::new)
    }

    /// The answer to the question, by `request` unless the same question is being asked, or the failure of a registry
    /// that was not reached a moment ago. Dropping the future ends the request, or leaves it to others.
    pub async fn ask<F>(&self, question: RegistryQuestion, request: impl FnOnce() -> F) -> RegistryAnswer
    where
        F: Future<Output = RegistryAnswer>,
    {
        let registry = self.registry(&question.registry);
        registry.check_reachable().map_err(|failure| question.refusal(failure))?;
        let answer = self.running.get(question.clone(), OnceCell::new);
        let limited = || async {
            let _registry = registry.slots.acquire().await.expect("it is never closed");
            registry.check_reachable()?;
            let is_off = registry.backoff().is_off();
            let slots = if is_off { &self.probes } else { &self.slots };
            let _slot = slots.acquire().await.expect("it is never closed");
            let began = Instant::now();
            let admission = registry.backoff().admit(began);
            let is_probe = match admission {
                Admission::Request => false,
                Admission::Probe => true,
                Admission::Refused(failure) => return Err(failure),
            };
            let guard = is_probe.then(|| ProbeGuard(&registry));
            let answer = request().await;
            std::mem::forget(guard);
            let (asked, now, chance) = (answer.as_ref().map(|_| ()), Instant::now(), (self.chance)());
            let is_reached_again = registry.backoff().record(is_probe, asked, began, now, chance);
            if is_reached_again {
                registry.reached.notify_waiters();
            }
            Ok::<RegistryAnswer, ResolveFailure>(answer)
        };
        // A refusal is not kept: whoever shares the question may come after the end of the outage.
        match answer.get_or_try_init(limited).await {
            Ok(answer) => answer.clone(),
            Err(failure) => Err(question.refusal(failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::{advance, timeout};
    use warren_api::images::Reachability;

    use super::super::shared_values::MIN_SHARED;
    use super::*;

    fn question(registry: &str, image: u32) -> RegistryQuestion {
        RegistryQuestion {
            registry: registry.to_owned(),
            image: format!("{registry}/{image}"),
            signed: None,
            rules: Vec::new(),
            credential: None,
        }
    }

    fn answer() -> RegistryAnswer {
        Ok(format!("sha256:{}", "a".repeat(64)).parse().unwrap())
    }

    #[tokio::test]
    async fn silent_registry_does_not_block_others() {
        let (queue, asked) = (Arc::new(RegistryQueue::new()), Arc::new(AtomicUsize::new(0)));
        let mut silent = JoinSet::new();
        for image in 0..40 {
            let (queue, asked) = (queue.clone(), asked.clone());
            silent.spawn(async move {
                let request = || async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::future::pending().await
                };
                queue.ask(question("silent.example", image), request).await
            });
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.ask(question("other.example", 1), || async { answer() }).await, answer());
        assert_eq!(asked.load(Ordering::Relaxed), MAX_PER_REGISTRY);
    }

    #[tokio::test]
    async fn services_with_the_same_image_share_a_request() {
        let (queue, asked) = (Arc::new(RegistryQueue::new()), Arc::new(AtomicUsize::new(0)));
        let gate = Arc::new(Notify::new());
        let mut waiting = JoinSet::new();
        for _ in 0..5 {
            let (queue, asked, gate) = (queue.clone(), asked.clone(), gate.clone());
            waiting.spawn(async move {
                let request = || async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    gate.notified().await;
                    answer()
                };
                queue.ask(question("r.example", 1), request).await
            });
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        gate.notify_one();
        assert!(waiting.join_all().await.iter().all(Result::is_ok));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // Later, the registry may have another answer.
        let again = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            answer()
        };
        queue.ask(question("r.example", 1), again).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    /// A registry that may be off, and the number of requests to it.
    #[derive(Default)]
    struct FakeRegistry {
        is_on: AtomicBool,
        asked: AtomicUsize,
    }

    impl FakeRegistry {
        async fn request(&self) -> RegistryAnswer {
            self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if self.is_on.load(Ordering::Relaxed) {
                return answer();
            }
            let why = "no route".to_owned();
            let registry = Reachability::Unreachable { why: why.clone() };
            Err(ResolveFailure { reason: why, is_transient: true, registry })
        }

        /// The answers to questions about that many images, which are asked at once.
        async fn ask(self: &Arc<Self>, queue: &Arc<RegistryQueue>, images: u32) -> Vec<RegistryAnswer> {
            let mut asking = JoinSet::new();
            for image in 0..images {
                let (queue, registry) = (queue.clone(), self.clone());
                asking.spawn(async move {
                    queue.ask(question("off.example", image), || registry.request()).await
                });
            }
            asking.join_all().await
        }

        fn asked(&self) -> usize {
            self.asked.swap(0, Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn registry_that_is_not_reached_is_asked_for_all_services() {
        let (queue, fake) = (Arc::new(RegistryQueue::new()), Arc::new(FakeRegistry::default()));
        let registry = queue.registry("off.example");
        let is_refused = |answer: &RegistryAnswer| {
            answer.as_ref().is_err_and(|failure| failure.reason == "no route" && failure.is_transient)
        };
        assert!(fake.ask(&queue, 500).await.iter().all(is_refused));
        assert!((1..=MAX_PER_REGISTRY).contains(&fake.asked()));
        assert_eq!(queue.ask(question("other.example", 1), || async { answer() }).await, answer());
        for _ in 0..3 {
            // The longest back-off.
            advance(Duration::from_secs(60)).await;
            assert!(fake.ask(&queue, 500).await.iter().all(is_refused));
            assert_eq!(fake.asked(), 1);
        }

        let mut reached = pin!(registry.reached.notified());
        assert!(!reached.as_mut().enable());
        fake.is_on.store(true, Ordering::Relaxed);
        assert!(fake.ask(&queue, 500).await.iter().all(is_refused));
        assert_eq!(fake.asked(), 0, "before the end of the back-off");
        advance(Duration::from_secs(60)).await;
        assert!(fake.ask(&queue, 1).await.iter().all(Result::is_ok));
        timeout(Duration::from_secs(1), reached).await.expect("whoever waits for the registry goes on");
        assert!(fake.ask(&queue, 500).await.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_of_a_registry_is_forgotten_with_its_services() {
        let (queue, fake) = (Arc::new(RegistryQueue::new()), Arc::new(FakeRegistry::default()));
        for _ in 0..2 {
            fake.ask(&queue, 1).await;
            assert_eq!(fake.asked(), 1);
        }
        for image in 0..1000 {
            queue.ask(question(&format!("r{image}.example"), image), || async { answer() }).await.unwrap();
        }
        assert!(queue.registries.count() <= MIN_SHARED);
        assert!(queue.running.count() <= MIN_SHARED);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_question_that_is_shared_is_asked_when_it_may_be() {
        let (queue, fake) = (Arc::new(RegistryQueue::new()), Arc::new(FakeRegistry::default()));
        let shared = queue.running.get(question("off.example", 7), OnceCell::new);
        let registry = queue.registry("off.example");
        // Both slots are taken, so that the question waits until the registry is known to be off.
        let slots = registry.slots.acquire_many(2).await.unwrap();
        let mut asking = pin!(queue.ask(question("off.example", 7), || fake.request()));
        assert!(timeout(Duration::from_secs(1), asking.as_mut()).await.is_err());
        let failure = fake.request().await.unwrap_err();
        let now = Instant::now();
        registry.backoff().record(false, Err(&failure), now, now, 0);
        drop(slots);
        assert_eq!(asking.await, Err(failure));
        assert_eq!((fake.asked(), shared.get()), (1, None));
        fake.is_on.store(true, Ordering::Relaxed);
        advance(Duration::from_secs(60)).await;
        assert_eq!(queue.ask(question("off.example", 7), || fake.request()).await, answer());
    }

    #[tokio::test(start_paused = true)]
    async fn question_after_a_back_off_that_is_abandoned_leaves_the_next_one_to_others() {
        let (queue, fake) = (Arc::new(RegistryQueue::new()), Arc::new(FakeRegistry::default()));
        let registry = queue.registry("off.example");
        fake.ask(&queue, 1).await;
        advance(Duration::from_secs(60)).await;
        let silent = queue.ask(question("off.example", 7), std::future::pending);
        assert!(timeout(Duration::from_secs(1), silent).await.is_err());
        fake.is_on.store(true, Ordering::Relaxed);
        assert!(fake.ask(&queue, 1).await.iter().all(Result::is_ok));
        assert!(!registry.backoff().is_off());
    }

    #[tokio::test(start_paused = true)]
    async fn registries_that_are_not_reached_leave_requests_to_the_others() {
        let (queue, fake) = (Arc::new(RegistryQueue::new()), FakeRegistry::default());
        let hosts: Vec<_> = (0..2 * MAX_PROBES).map(|number| format!("off{number}.example")).collect();
        let registries: Vec<_> = hosts.iter().map(|host| queue.registry(host)).collect();
        for host in &hosts {
            queue.ask(question(host, 1), || fake.request()).await.unwrap_err();
        }
        advance(Duration::from_secs(60)).await;
        let mut silent = JoinSet::new();
        for host in hosts {
            let queue = queue.clone();
            silent.spawn(async move { queue.ask(question(&host, 1), std::future::pending).await });
        }
        assert!(timeout(Duration::from_secs(1), silent.join_next()).await.is_err());
        let probed = registries.iter().filter(|registry| registry.check_reachable().is_err()).count();
        assert_eq!(probed, MAX_PROBES);
        let asked = queue.ask(question("other.example", 2), || async { answer() });
        assert_eq!(timeout(Duration::from_secs(1), asked).await.expect("it does not wait"), answer());
    }

    #[test]
    fn refusal_says_what_was_asked() {
        let registry = Reachability::Unknown;
        let failure = ResolveFailure { reason: "no route".to_owned(), is_transient: true, registry };
        assert_eq!(question("r.example", 1).refusal(failure.clone()), failure);
        let digest: ImageDigest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let rule = SignatureRule { registry: "r.example".to_owned(), keys: Vec::new() };
        let signed = RegistryQuestion {
            signed: Some(digest.clone()),
            rules: vec![(3, rule)],
            ..question("r.example", 1)
        };
        let expected =
            format!("the signature of {digest} that signatures[3] demands was not checked: no route");
        assert_eq!(signed.refusal(failure).reason, expected);
    }
}

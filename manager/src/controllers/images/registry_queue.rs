//! Limits how many registries are asked at once, and asks once for what several services wait for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OnceCell, Semaphore};
use warren_api::images::ResolveFailure;
use warren_types::{ImageDigest, SecretObjectId, SignatureRule};

/// The most requests at once.
const MAX_CONCURRENT: usize = 16;
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

pub(super) type RegistryAnswer = Result<ImageDigest, ResolveFailure>;

/// Requests that run or wait.
pub(super) struct RegistryQueue {
    slots: Semaphore,
    registries: Mutex<BTreeMap<String, Weak<Semaphore>>>,
    running: Mutex<BTreeMap<RegistryQuestion, Weak<OnceCell<RegistryAnswer>>>>,
}

impl RegistryQueue {
    pub fn new() -> Self {
        Self {
            slots: Semaphore::new(MAX_CONCURRENT),
            registries: Mutex::default(),
            running: Mutex::default(),
        }
    }

    /// The answer to the question, by `request` unless the same question is being asked.
    pub async fn ask<F>(&self, question: RegistryQuestion, request: impl FnOnce() -> F) -> RegistryAnswer
    where
        F: Future<Output = RegistryAnswer>,
    {
        let registry =
            shared(&self.registries, question.registry.clone(), || Semaphore::new(MAX_PER_REGISTRY));
        let answer = shared(&self.running, question, OnceCell::new);
        let limited = || async {
            let _registry = registry.acquire().await.expect("it is never closed");
            let _slot = self.slots.acquire().await.expect("it is never closed");
            request().await
        };
        answer.get_or_init(limited).await.clone()
    }
}

/// The value of the key, which exists as long as someone uses it.
fn shared<K: Ord, V>(values: &Mutex<BTreeMap<K, Weak<V>>>, key: K, make: impl FnOnce() -> V) -> Arc<V> {
    let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(existing) = values.get(&key).and_then(Weak::upgrade) {
        return existing;
    }
    values.retain(|_, value| value.strong_count() > 0);
    let made = Arc::new(make());
    values.insert(key, Arc::downgrade(&made));
    made
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::task::JoinSet;

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
}

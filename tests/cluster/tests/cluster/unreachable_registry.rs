//! Registries that managers do not reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use warren_client::Client;
use warren_proto::v1;
use warren_registry::{
    Digest, ImageSignature, PullGrant, Reference, RegistryCredentials, RegistryError, ResolveNames,
    ResolvedName,
};
use warren_testkit::soak;
use warren_testkit::wait::eventually_async;
use warren_types::{ImageResolver, ServiceSpec};

use crate::fake_registry::{DIGEST, FakeRegistry};
use crate::fixture::{ManagerFixture, new_id, spec};

/// Longer than the longest back-off.
const WAIT_DEADLINE: Duration = Duration::from_secs(90);

/// `off.lan` is not reached until it is on. The others are as [`FakeRegistry`] says.
#[derive(Debug, Default)]
struct InterruptedRegistry {
    is_on: AtomicBool,
    asked: AtomicUsize,
}

#[tonic::async_trait]
impl ResolveNames for InterruptedRegistry {
    async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, RegistryError> {
        if reference.domain() == "off.lan" {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if !self.is_on.load(Ordering::Relaxed) {
                let (registry, reason) = ("off.lan".to_owned(), "connection refused".to_owned());
                return Err(RegistryError::Unreachable { registry, reason, is_own_host: true });
            }
        }
        FakeRegistry.resolve(reference, credentials).await
    }

    async fn signatures(
        &self,
        reference: &Reference,
        image: &Digest,
        credentials: Option<RegistryCredentials>,
    ) -> Result<Vec<ImageSignature>, RegistryError> {
        FakeRegistry.signatures(reference, image, credentials).await
    }

    async fn pull_grant(
        &self,
        reference: &Reference,
        credentials: RegistryCredentials,
    ) -> Result<PullGrant, RegistryError> {
        FakeRegistry.pull_grant(reference, credentials).await
    }
}

/// A service without tasks, whose image managers resolve.
fn of_image(name: &str, image: &str) -> ServiceSpec {
    let mut spec = spec(name, 0);
    spec.task.image = image.parse().unwrap();
    spec.task.resolve_image = ImageResolver::Manager;
    spec
}

/// Waits until so many services are as `is_expected` says.
async fn await_services(
    client: &Client,
    count: usize,
    what: &str,
    is_expected: impl Fn(&v1::Service) -> bool,
) {
    eventually_async(WAIT_DEADLINE, what, || async {
        let services = client.services().list().await.map_err(|error| error.to_string())?;
        let found = services.iter().filter(|service| is_expected(service)).count();
        if found == count { Ok(()) } else { Err(format!("{found} of {}", services.len())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_that_is_not_reached_is_asked_for_all_services_at_once() {
    let registry = Arc::new(InterruptedRegistry::default());
    let world = ManagerFixture::with_registries(registry.clone()).await;
    let client = world.admin().await;
    let count = soak::count(200, 500);
    let began = Instant::now();
    let create = |number: usize| {
        let client = &client;
        async move {
            let service = of_image(&format!("off-{number}"), &format!("off.lan/app:{number}"));
            client.services().create(new_id(), &service).await.unwrap();
        }
    };
    futures::stream::iter(0..count).for_each_concurrent(32, create).await;
    let has_reason = |service: &v1::Service| {
        let reason = service.rollout.as_ref().map(|rollout| rollout.waiting_reason.as_str());
        reason.is_some_and(|it| it.contains("cannot reach registry off.lan: connection refused"))
    };
    await_services(&client, count, "all reasons", has_reason).await;
    let other = of_image("other", "other.lan/app:1");
    client.services().create(new_id(), &other).await.unwrap();
    await_services(&client, 1, "the digest of the other registry", |it| it.digest == DIGEST).await;
    // Two at first, and one after each back-off, which is a second or longer.
    let (asked, seconds) = (registry.asked.load(Ordering::Relaxed), began.elapsed().as_secs() as usize);
    assert!(asked <= 2 + seconds, "{asked} questions in {seconds} s");

    registry.is_on.store(true, Ordering::Relaxed);
    await_services(&client, count + 1, "all digests", |it| it.digest == DIGEST).await;
}

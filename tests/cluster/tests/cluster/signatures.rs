//! Images that the admission policy wants to be signed.

use warren_client::Client;
use warren_proto::v1;
use warren_proto::v1::forecast_write::Write;
use warren_testkit::wait::eventually_async;
use warren_types::{
    AdmissionPolicy, ClusterSettingsChange, ImageResolver, PullPolicy, ServiceMode, ServiceSpec,
    SignatureRule, UserRole,
};

use crate::fake_registry::{DIGEST, signer};
use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::users::reason;
use crate::worker::ScriptedWorker;

/// Images of `registry.example` must be signed by [`signer`].
pub async fn demand_signatures(admin: &Client) {
    let signatures = vec![SignatureRule { registry: "registry.example".to_owned(), keys: vec![signer()] }];
    let admission_policy = Some(AdmissionPolicy { signatures, ..Default::default() });
    let change = ClusterSettingsChange { admission_policy, ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();
}

/// A service whose image managers resolve.
fn of_image(name: &str, image: &str) -> ServiceSpec {
    let mut spec = spec(name, 1);
    spec.task.image = image.parse().unwrap();
    spec.task.resolve_image = ImageResolver::Manager;
    spec
}

/// The spec with another replica.
fn grown(spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec { mode: ServiceMode::Replicated { replicas: 2 }, ..spec }
}

/// Waits until the image of the service is resolved.
async fn pinned(client: &Client, service: &str) {
    eventually_async(WAIT_DEADLINE, "the digest", || async {
        let service = client.services().get(service).await.map_err(|error| error.to_string())?;
        if service.digest == DIGEST { Ok(()) } else { Err(format!("{:?}", service.rollout)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_images_with_a_signature_of_their_digest_are_admitted() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    demand_signatures(&admin).await;

    let mut by_worker = of_image("by-worker", "registry.example/signed:1");
    by_worker.task.resolve_image = ImageResolver::Worker;
    let mut never = of_image("never", "registry.example/signed:1");
    never.task.pull = PullPolicy::Never;
    let other = format!("registry.example/signed@{}", DIGEST.replace("00", "ff"));
    let refused = [
        (of_image("unsigned", "registry.example/unsigned:1"), "no cosign signature of sha256:0011"),
        (of_image("foreign", "registry.example/foreign:1"), "has no signature of sha256:0011"),
        (of_image("copied", "registry.example/copied:1"), "has no signature of sha256:0011"),
        (of_image("other", &other), "no cosign signature of sha256:ff11"),
        (of_image("offline", "registry.example/offline:1"), "was not checked: cannot reach registry"),
        (by_worker, "was not checked: nodes resolve the image"),
        (never, "was not checked: nodes resolve the image"),
    ];
    // The rule is about images, not about users.
    for client in [&admin, &operator] {
        for (spec, expected) in &refused {
            let why = reason(client.services().create(new_id(), spec).await);
            assert!(why.contains(expected), "{expected}: {why}");
            assert!(
                why.contains("task.image: is registry.example/") && why.contains("signatures[0]"),
                "{why}"
            );
        }
    }
    assert!(admin.services().list().await.unwrap().is_empty());

    let services = operator.services();
    services.create(new_id(), &of_image("web", "registry.example/signed:1")).await.unwrap();
    worker.has("the digest", |tasks| tasks.values().any(|task| task.digest == DIGEST)).await;
    services
        .create(new_id(), &of_image("pinned", &format!("registry.example/signed@{DIGEST}")))
        .await
        .unwrap();
    // Of another registry.
    services.create(new_id(), &of_image("free", "unsigned:1")).await.unwrap();
    services.scale("web", 2, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_service_has_without_a_signature_is_not_started_again() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let services = admin.services();
    let (unsigned, signed) = ("registry.example/unsigned:1", "registry.example/signed:1");
    for name in ["web", "moved", "waiting"] {
        services.create(new_id(), &of_image(name, unsigned)).await.unwrap();
        pinned(&admin, name).await;
    }
    // No rule is about its new image, which cannot be resolved: new tasks have the earlier one meanwhile.
    services.update("waiting", &of_image("waiting", "missing:1"), None, false).await.unwrap();
    services.update("moved", &of_image("moved", signed), None, false).await.unwrap();
    pinned(&admin, "moved").await;
    demand_signatures(&admin).await;

    let mut changed = of_image("web", unsigned);
    changed.task.hostname = Some("other".into());
    for refused in [
        services.update("web", &changed, None, false).await,
        services.update("web", &changed, None, true).await,
        services.update("moved", &of_image("moved", unsigned), None, false).await,
        services.scale("web", 2, None).await,
        services.rollback("moved", None, None).await,
        services.rollback("moved", Some(1), None).await,
        services.resume("web", None).await,
        services.scale("waiting", 2, None).await,
        services.update("waiting", &grown(of_image("waiting", "missing:2")), None, false).await,
        services.update("web", &grown(of_image("web", unsigned)), None, false).await,
    ] {
        let why = reason(refused);
        assert!(why.contains("task.image: is registry.example/unsigned:1"), "{why}");
        assert!(why.contains("which signatures[0] demands; see `warren cluster policy show`"), "{why}");
    }
    let create = v1::CreateServiceRequest {
        id: new_id().to_string(),
        spec: Some((&of_image("new", unsigned)).into()),
        allow_many_replicas: false,
    };
    let (reference, spec) = ("web".to_owned(), Some((&changed).into()));
    let update = v1::UpdateServiceRequest { reference, spec, ..Default::default() };
    let (reference, spec) = ("moved".to_owned(), Some((&of_image("moved", signed)).into()));
    let admitted = v1::UpdateServiceRequest { reference, spec, ..Default::default() };
    let (reference, spec) = ("web".to_owned(), Some((&of_image("web", unsigned)).into()));
    let unchanged = v1::UpdateServiceRequest { reference, spec, ..Default::default() };
    let writes = [
        Write::CreateService(create),
        Write::UpdateService(update),
        Write::UpdateService(admitted),
        Write::UpdateService(unchanged),
    ];
    let writes = writes.map(|write| v1::ForecastWrite { write: Some(write) });
    let outcomes = services.forecast(writes.into(), true).await.unwrap().outcomes;
    let refusals: Vec<&str> = outcomes.iter().map(|outcome| outcome.refusal_reason.as_str()).collect();
    assert_eq!(refusals, ["NOT_ADMITTED", "NOT_ADMITTED", "", ""], "{outcomes:?}");
    assert!(outcomes[0].violations[0].starts_with("task.image: is"), "{outcomes:?}");

    // They start nothing.
    let mut none = of_image("web", unsigned);
    none.mode = ServiceMode::Replicated { replicas: 0 };
    for spec in [of_image("web", unsigned), none] {
        services.update("web", &spec, None, false).await.unwrap();
    }
    services.update("waiting", &of_image("waiting", "missing:2"), None, false).await.unwrap();
    services.scale("web", 0, None).await.unwrap();
    services.scale("moved", 2, None).await.unwrap();
    let mut stopped = of_image("web", signed);
    stopped.mode = ServiceMode::Replicated { replicas: 0 };
    services.update("web", &stopped, None, false).await.unwrap();
    pinned(&admin, "web").await;
    services.scale("web", 1, None).await.unwrap();
    services.remove("web", None, false).await.unwrap();
}

//! Seccomp profiles of services, in configs: which are valid, and who may give them.

use warren_client::{NewSecretObject, SeccompConfig};
use warren_types::{
    AdmissionPolicy, AdmissionRules, ClusterSettingsChange, NoNewPrivileges, SecretObjectId,
    SecretObjectKind, ServiceSpec, UserRole,
};

use crate::fixture::{ManagerFixture, new_id, spec};
use crate::updates::problem;
use crate::users::reason;

const STRICT: &[u8] = br#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
    {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}
]}"#;
const OPEN: &[u8] = br#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;

fn new_config(name: &str, data: &[u8]) -> NewSecretObject {
    NewSecretObject {
        id: SecretObjectId(new_id().0),
        name: name.parse().unwrap(),
        labels: Default::default(),
        data: data.to_vec().into(),
    }
}

fn with_profile(name: &str, config: &str) -> ServiceSpec {
    let mut spec = spec(name, 0);
    spec.task.seccomp = format!("config/{config}").parse().unwrap();
    spec
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_name_only_configs_with_a_profile() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let configs = admin.secret_objects(SecretObjectKind::Config);
    configs.create(new_config("strict", STRICT)).await.unwrap();
    configs.create(new_config("motd", b"hello")).await.unwrap();
    let services = admin.services();
    let refused = problem(services.create(new_id(), &with_profile("web", "motd")).await.unwrap_err());
    let why = refused.violations.to_string();
    assert!(
        why.starts_with("spec.task.seccomp: the seccomp profile in config motd: is not a seccomp profile")
    );
    let refused = problem(services.create(new_id(), &with_profile("web", "none")).await.unwrap_err());
    let why = refused.violations.to_string();
    assert!(why.starts_with("spec.task.seccomp: there is no config none"), "{why}");

    let created = services.create(new_id(), &with_profile("web", "strict")).await.unwrap();
    let refused = services.update("web", &with_profile("web", "motd"), Some(created.version), false).await;
    let why = problem(refused.unwrap_err()).violations.to_string();
    assert!(why.contains("the seccomp profile in config motd"), "{why}");
    let removed = configs.remove("strict").await.unwrap_err();
    assert_eq!(problem(removed).reason, "SECRET_OBJECT_IN_USE");

    // A new version must be a profile too, and its services get it.
    let refused = problem(configs.update("strict", b"{}".to_vec().into(), None).await.unwrap_err());
    let why = refused.violations.to_string();
    assert_eq!(
        why,
        "data: the seccomp profile in config strict: defaultAction: is missing; give an action like SCMP_ACT_ERRNO"
    );
    configs.update("strict", OPEN.to_vec().into(), None).await.unwrap();
    let revisions = services.history("web").await.unwrap();
    assert_eq!(revisions[0].secret_objects[0].version_number, 2);
    configs.update("motd", b"{}".to_vec().into(), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_with_one_profile_do_not_conflict() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let config = SeccompConfig::new(STRICT).unwrap();
    let ensure = || admin.ensure_seccomp_config(SecretObjectId(new_id().0), &config);
    let (first, second, third, fourth) = tokio::join!(ensure(), ensure(), ensure(), ensure());
    for ensured in [first, second, third, fourth] {
        ensured.unwrap();
    }
    // Of that name, but another profile.
    let configs = admin.secret_objects(SecretObjectKind::Config);
    configs.update(config.name.as_str(), OPEN.to_vec().into(), None).await.unwrap();
    let why = problem(ensure().await.unwrap_err()).violations.to_string();
    assert!(why.contains("has other data"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_need_rules_for_profiles() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let configs = operator.secret_objects(SecretObjectKind::Config);
    configs.create(new_config("strict", STRICT)).await.unwrap();
    let held = |name| {
        let mut spec = with_profile(name, "strict");
        spec.task.no_new_privileges = NoNewPrivileges::On;
        spec
    };
    let unconfined = "task.seccomp: is config/strict, which operator.unconfinedSeccomp does not allow";
    let privileged =
        "task.seccomp: is config/strict without noNewPrivileges, which operator.privileged does not allow";
    for (spec, expected) in [(held("web"), unconfined), (with_profile("web", "strict"), privileged)] {
        let why = reason(operator.services().create(new_id(), &spec).await);
        assert!(why.contains(expected), "{why}");
    }

    // The profile of a service that they may not change is not theirs to weaken.
    admin.services().create(new_id(), &held("web")).await.unwrap();
    let why = reason(configs.update("strict", OPEN.to_vec().into(), None).await);
    assert!(why.contains(unconfined), "{why}");

    let operator_rules = AdmissionRules { unconfined_seccomp: true, ..AdmissionRules::default() };
    let admission_policy = Some(AdmissionPolicy { operator: operator_rules, ..Default::default() });
    let change = ClusterSettingsChange { admission_policy, ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();
    configs.update("strict", OPEN.to_vec().into(), None).await.unwrap();
    operator.services().create(new_id(), &held("api")).await.unwrap();

    // Nor do they take no_new_privileges away, by any way, whatever the default of the cluster is.
    let change = ClusterSettingsChange { no_new_privileges: Some(true), ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();
    for refused in [
        operator.services().create(new_id(), &with_profile("new", "strict")).await.map(|_| ()),
        operator.services().update("api", &with_profile("api", "strict"), None, false).await.map(|_| ()),
    ] {
        let why = reason(refused);
        assert!(why.contains(privileged), "{why}");
    }
    admin.services().update("api", &with_profile("api", "strict"), None, false).await.unwrap();
    for refused in [
        operator.services().rollback("api", Some(1), None).await.map(|_| ()),
        operator.services().scale("api", 1, None).await.map(|_| ()),
        configs.update("strict", STRICT.to_vec().into(), None).await.map(|_| ()),
    ] {
        let why = reason(refused);
        assert!(why.contains(privileged), "{why}");
    }
    // Also while only an earlier revision is without it.
    admin.services().update("api", &held("api"), None, false).await.unwrap();
    let why = reason(operator.services().scale("api", 1, None).await);
    assert!(why.contains(privileged), "{why}");
}

//! Users over the API: logins, roles, admission, and the end of access.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tonic::Status;
use warren_client::{Client, Error, JoinToken, UserChange};
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::forecast_write::Write;
use warren_proto::v1::users_client::UsersClient;
use warren_proto::{Problem, v1};
use warren_security::{
    CertificateRequest, Credentials, PrivateKey, ReloadableCertificate, client_config, connect,
};
use warren_types::{
    AdmissionPolicy, AdmissionRules, Bytes, ClusterSettingsChange, Limits, Mount, MountSource,
    NoNewPrivileges, Propagation, UserNamespace, UserRole,
};

use crate::dial::{assert_access_ended, handshake, until_accepted};
use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a call was refused.
pub fn reason<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer.unwrap_err() {
        Error::Refused { problem } => problem.reason,
        Error::Denied { why, .. } => why,
        other => other.to_string(),
    }
}

async fn token_of(admin: &Client, name: &str) -> JoinToken {
    let change = UserChange { login_ttl: Some(MINUTE), ..UserChange::default() };
    admin.users().update(name, change).await.unwrap().1.expect("there is a new token")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_logs_one_machine_in() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    world.user("ann", UserRole::Viewer).await;
    let token = token_of(&admin, "ann").await;
    let mut anonymous = UsersClient::new(world.channel_as(None).await);
    let key = PrivateKey::generate().unwrap();
    let certificate_request = CertificateRequest::create(&key).unwrap();
    let message = v1::LoginRequest { token: token.reveal().to_string(), certificate_request };
    let first = anonymous.login(message.clone()).await.unwrap().into_inner();
    assert_eq!((first.name.as_str(), first.role()), ("ann", v1::UserRole::Viewer));
    // The answer may be lost: the same machine asks again.
    anonymous.login(message).await.unwrap();
    let other = world.login(&token).await.unwrap_err();
    assert_eq!(Problem::from(&other).reason, "LOGIN_TOKEN_NOT_FOUND", "{other}");
    let logins = admin.users().get("ann").await.unwrap().logins;
    let own = key.public_hash().unwrap().to_string();
    assert_eq!((logins.len(), logins.iter().filter(|login| login.key == own).count()), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_of_a_user_is_effective_at_once() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let ann = world.user("ann", UserRole::Operator).await;
    let client = world.client_as(&ann).await;
    client.services().create(new_id(), &spec("web", 0)).await.unwrap();

    let role = |role| UserChange { role: Some(role), ..UserChange::default() };
    admin.users().update("ann", role(UserRole::Viewer)).await.unwrap();
    let why = reason(client.services().create(new_id(), &spec("api", 0)).await);
    assert!(why.contains("needs the role operator"), "{why}");
    client.services().get("web").await.unwrap();

    admin.users().update("ann", UserChange { logout: true, ..UserChange::default() }).await.unwrap();
    assert_ends(client.services().get("web").await);
    let again = world.login(&token_of(&admin, "ann").await).await.unwrap();
    world.client_as(&again).await.services().get("web").await.unwrap();

    admin.users().remove("ann").await.unwrap();
    assert_ends(reads_as(&world, &again).await);
    // Another user of that name is not the former one.
    world.user("ann", UserRole::Operator).await;
    assert_ends(reads_as(&world, &again).await);
}

async fn reads_as(world: &ManagerFixture, user: &Credentials) -> Result<(), Error> {
    world.connect_as(user).await?.services().get("web").await.map(drop)
}

fn assert_ends<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let why = reason(answer);
    // The former after the handshake, the latter in it, once the manager has applied it there.
    assert!(why.contains("does not list this key") || why.contains("is revoked"), "{why}");
}

/// A certificate for the key, or the refusal.
async fn renew(world: &ManagerFixture, key: &PrivateKey, ttl: Duration) -> Result<Credentials, Status> {
    let certificate_request = CertificateRequest::create(key).unwrap();
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap();
    let request = v1::RenewUserRequest { certificate_request, ttl_ms, ..Default::default() };
    let answer = UsersClient::new(world.channel_as(None).await).renew(request).await?.into_inner();
    Ok(Credentials::new(answer.certificate, key.clone()).unwrap())
}

fn lifetime(credentials: &Credentials) -> Duration {
    credentials.expires_at().duration_since(credentials.issued_at()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_certificate_may_do_nothing_but_renew() {
    let world = ManagerFixture::new().await;
    let ann = world.user("ann", UserRole::Operator).await;
    assert_eq!(lifetime(&ann), DAY);
    // TLS refuses it, whatever it would call.
    let expired = world.issued_ago(&ann, 2 * DAY);
    let shown = Some(ReloadableCertificate::new(&expired));
    let config = client_config(&world.manager().roots(), shown).unwrap();
    let attempt = |stream| connect(stream, Arc::clone(&config), WAIT_DEADLINE);
    let mut secure = handshake(world.manager().address(), attempt).await.unwrap();
    let refused = timeout(WAIT_DEADLINE, secure.read_u8()).await.expect("it is refused").unwrap_err();
    assert!(refused.to_string().contains("CertificateExpired"), "{refused}");

    // The key without a certificate is enough, and only for a certificate.
    let renewed = renew(&world, ann.key(), Duration::ZERO).await.unwrap();
    assert_eq!((renewed.identity(), lifetime(&renewed)), (ann.identity(), DAY));
    world.client_as(&renewed).await.services().create(new_id(), &spec("web", 0)).await.unwrap();
    let refused = renew(&world, &PrivateKey::generate().unwrap(), Duration::ZERO).await.unwrap_err();
    assert_eq!(Problem::from(&refused).reason, "KEY_NOT_LISTED", "{refused}");
    // The client does it by itself, also as the administrator of the manager's machine.
    for user in [&ann, &world.manager().admin()] {
        let expired = world.issued_ago(user, 100 * DAY);
        let client = world.client_as(&expired).await;
        client.services().get("web").await.unwrap();
        assert_ne!(client.identity().unwrap().certificate, expired.certificate_pem());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_certificate_renews_its_own_key_only() {
    let world = ManagerFixture::new().await;
    let (ann, bob) = (world.user("ann", UserRole::Viewer).await, world.user("bob", UserRole::Viewer).await);
    let mut users = UsersClient::new(world.channel_as(Some(&ann)).await);
    let request = |user: &Credentials| {
        let certificate_request = CertificateRequest::create(user.key()).unwrap();
        v1::RenewUserRequest { certificate_request, ..Default::default() }
    };
    let answer = users.renew(request(&ann)).await.unwrap().into_inner();
    let renewed = Credentials::new(answer.certificate, ann.key().clone()).unwrap();
    assert_eq!((renewed.identity(), lifetime(&renewed)), (ann.identity(), DAY));
    let refused = users.renew(request(&bob)).await.unwrap_err();
    assert_eq!(Problem::from(&refused).violations.0[0].path, "certificateRequest", "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_a_listed_key_renews_nothing() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let ann = world.user("ann", UserRole::Operator).await;
    let refused = async |user: &Credentials| {
        let refused = renew(&world, user.key(), Duration::ZERO).await.unwrap_err();
        assert_eq!(Problem::from(&refused).reason, "KEY_NOT_LISTED", "{refused}");
        // The client tries to renew first, without its certificate.
        let why = reason(world.connect_as(&world.issued_ago(user, 2 * DAY)).await);
        assert!(why.contains("does not list this key"), "{why}");
        // Nor is a certificate of use that has not expired.
        until_accepted(world.manager().address(), &world.manager().roots(), user, false).await;
    };
    let login = async || {
        let user = world.login(&token_of(&admin, "ann").await).await.unwrap();
        renew(&world, user.key(), Duration::ZERO).await.unwrap();
        user
    };
    renew(&world, ann.key(), Duration::ZERO).await.unwrap();
    admin.users().update("ann", UserChange { logout: true, ..UserChange::default() }).await.unwrap();
    refused(&ann).await;
    let (again, other) = (login().await, login().await);
    admin.users().revoke_key(&again.key().public_hash().unwrap().to_string()).await.unwrap();
    refused(&again).await;
    renew(&world, other.key(), Duration::ZERO).await.unwrap();
    admin.users().remove("ann").await.unwrap();
    refused(&other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_ends_with_its_user_and_after_a_year() {
    let world = ManagerFixture::new().await;
    let ci = world.user_for("ci", UserRole::Operator, Some(60 * MINUTE)).await;
    for ttl in [Duration::ZERO, 365 * DAY] {
        let renewed = renew(&world, ci.key(), ttl).await.unwrap();
        for issued in [&ci, &renewed] {
            let lifetime = lifetime(issued);
            assert!(lifetime > 50 * MINUTE && lifetime <= 60 * MINUTE, "{lifetime:?}");
        }
    }
    let ann = world.user("ann", UserRole::Viewer).await;
    assert_eq!(lifetime(&renew(&world, ann.key(), 365 * DAY).await.unwrap()), 365 * DAY);
    let refused = renew(&world, ann.key(), 365 * DAY + MINUTE).await.unwrap_err();
    assert_eq!(Problem::from(&refused).violations.0[0].path, "ttlMs", "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_ends_with_the_permission() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let ann = world.user("ann", UserRole::Viewer).await;
    let mut cluster = ClusterClient::new(world.channel_as(Some(&ann)).await);
    let mut watch = cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    admin.services().create(new_id(), &spec("web", 0)).await.unwrap();
    watch.message().await.unwrap().expect("the watch goes on");
    admin.users().remove("ann").await.unwrap();
    let ended = async {
        while watch.message().await?.is_some() {}
        Ok::<(), tonic::Status>(())
    };
    let ended = timeout(WAIT_DEADLINE, ended).await.expect("the watch ends").unwrap_err();
    assert_access_ended(&ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_have_no_power_over_nodes() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let mut privileged = spec("root", 0);
    privileged.task.privileged = true;
    let why = reason(operator.services().create(new_id(), &privileged).await);
    assert!(why.contains("task.privileged: is true, which operator.privileged does not allow"), "{why}");

    admin.services().create(new_id(), &privileged).await.unwrap();
    let version = admin.services().get("root").await.unwrap().version;
    let plain = spec("root", 1);
    for refused in [
        operator.services().update("root", &plain, Some(version), false).await.map(|_| ()),
        operator.services().scale("root", 1, Some(version)).await.map(|_| ()),
        operator.services().rollback("root", None, Some(version)).await.map(|_| ()),
    ] {
        let why = reason(refused);
        assert!(why.contains("only administrators may run, change or enter"), "{why}");
    }
    // A rollback would run it again.
    admin.services().update("root", &plain, Some(version), false).await.unwrap();
    let why = reason(operator.services().rollback("root", Some(1), None).await);
    assert!(why.contains("task.privileged"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_policy_decides_what_operators_run() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let set = async |operator: AdmissionRules| {
        let admission_policy = Some(AdmissionPolicy { operator, ..Default::default() });
        let change = ClusterSettingsChange { admission_policy, ..Default::default() };
        admin.cluster().update(&change, None, None).await.unwrap().settings
    };
    let mut bound = spec("bound", 0);
    let (path, propagation) = ("/srv/data".to_owned(), Propagation::default());
    let source = MountSource::Bind { path, propagation, recursive: true };
    bound.task.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    let why = reason(operator.services().create(new_id(), &bound).await);
    assert!(why.contains("task.mounts[0]: is /srv/data of the node, which operator.hostBinds"), "{why}");
    let settings = set(AdmissionRules { host_binds: vec!["/srv".into()], ..Default::default() }).await;
    operator.services().create(new_id(), &bound).await.unwrap();
    // Everybody may read it, only administrators set it.
    assert_eq!(operator.cluster().info().await.unwrap().settings, settings);
    let why = reason(operator.cluster().update(&ClusterSettingsChange::default(), None, None).await);
    assert!(why.contains("needs the role admin"), "{why}");

    // What exists stays, and is for administrators alone.
    set(AdmissionRules::default()).await;
    for refused in [
        operator.services().update("bound", &spec("bound", 1), None, false).await.map(|_| ()),
        operator.services().scale("bound", 0, None).await.map(|_| ()),
        operator.services().remove("bound", None, false).await.map(|_| ()),
    ] {
        let why = reason(refused);
        assert!(why.contains("operator.hostBinds") && why.contains("change or enter"), "{why}");
    }
    assert!(!admin.services().get("bound").await.unwrap().removing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_do_not_leave_a_private_default() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let of_node = |name| {
        let mut spec = spec(name, 0);
        spec.task.user_namespace = Some(UserNamespace::Host);
        spec
    };
    operator.services().create(new_id(), &of_node("old")).await.unwrap();
    operator.services().create(new_id(), &spec("kept", 0)).await.unwrap();
    let default_user_namespace = Some(UserNamespace::Private);
    let change = ClusterSettingsChange { default_user_namespace, ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();
    for refused in [
        operator.services().create(new_id(), &of_node("new")).await.map(|_| ()),
        operator.services().update("old", &spec("old", 1), None, false).await.map(|_| ()),
    ] {
        let why = reason(refused);
        assert!(
            why.contains("task.userNamespace: is host, and the default of the cluster is private"),
            "{why}"
        );
    }
    operator.services().create(new_id(), &spec("api", 0)).await.unwrap();
    admin.services().create(new_id(), &of_node("new")).await.unwrap();
    // Its first revision has the users of the node, since that was the default then.
    let mut changed = spec("kept", 0);
    changed.task.limits.memory = Some(Bytes(1 << 29));
    operator.services().update("kept", &changed, None, false).await.unwrap();
    let why = reason(operator.services().rollback("kept", Some(1), None).await);
    assert!(why.contains("task.userNamespace: is host"), "{why}");
    admin.services().rollback("kept", Some(1), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_do_not_leave_a_default_without_new_privileges() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let mut allowing = spec("web", 0);
    allowing.task.no_new_privileges = NoNewPrivileges::Off;
    operator.services().create(new_id(), &allowing).await.unwrap();
    let change = ClusterSettingsChange { no_new_privileges: Some(true), ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();
    let why = reason(operator.services().scale("web", 1, None).await);
    assert!(why.contains("task.noNewPrivileges: is false, and the default of the cluster is on"), "{why}");
    operator.services().create(new_id(), &spec("api", 0)).await.unwrap();
    admin.services().update("web", &spec("web", 0), None, false).await.unwrap();
    // The earlier revision has it still.
    let why = reason(operator.services().scale("web", 1, None).await);
    assert!(why.contains("task.noNewPrivileges: is false"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registries_and_amounts_bound_what_operators_start() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let services = operator.services();
    services.create(new_id(), &spec("web", 2)).await.unwrap();
    let rules = AdmissionRules {
        limits: Limits { memory: Some(Bytes(1 << 30)), ..Limits::default() },
        registries: vec!["docker.io/library".into()],
        max_replicas: Some(3),
        ..AdmissionRules::default()
    };
    let admission_policy = Some(AdmissionPolicy { operator: rules, ..Default::default() });
    let change = ClusterSettingsChange { admission_policy, ..Default::default() };
    admin.cluster().update(&change, None, None).await.unwrap();

    let mut limited = spec("web", 3);
    limited.task.limits.memory = Some(Bytes(1 << 29));
    let mut other = limited.clone();
    other.task.image = "ghcr.io/acme/web:1".parse().unwrap();
    let mut archive = spec("archive", 1);
    archive.task.image = other.task.image.clone();
    archive.task.limits = limited.task.limits;
    for (refused, rule) in [
        (services.create(new_id(), &spec("api", 1)).await.map(|_| ()), "operator.limits.memory"),
        (services.create(new_id(), &archive).await.map(|_| ()), "operator.registries"),
        (services.update("web", &spec("web", 2), None, false).await.map(|_| ()), "operator.limits.memory"),
        (services.update("web", &other, None, false).await.map(|_| ()), "operator.registries"),
        (services.scale("web", 3, None).await.map(|_| ()), "operator.limits.memory"),
    ] {
        let why = reason(refused);
        assert!(why.contains(rule), "{rule}: {why}");
    }
    let create = v1::CreateServiceRequest {
        id: new_id().to_string(),
        spec: Some((&archive).into()),
        allow_many_replicas: false,
    };
    let (reference, spec_of_other) = ("web".to_owned(), Some((&other).into()));
    let update = v1::UpdateServiceRequest { reference, spec: spec_of_other, ..Default::default() };
    let writes = [Write::CreateService(create), Write::UpdateService(update)];
    let writes = writes.map(|write| v1::ForecastWrite { write: Some(write) });
    for outcome in services.forecast(writes.into(), true).await.unwrap().outcomes {
        assert_eq!(outcome.refusal_reason, "NOT_ADMITTED", "{outcome:?}");
        assert!(outcome.refusal.contains("operator.registries"), "{outcome:?}");
    }
    let images = operator.images();
    let import = images.import(Vec::new(), std::io::Cursor::new(b"archive".to_vec())).await;
    let why = reason(import.map(|_| ()));
    assert!(why.contains("operator.registries"), "{why}");
    // Their services are theirs, and become as the policy says.
    services.scale("web", 1, None).await.unwrap();
    services.update("web", &limited, None, false).await.unwrap();
    for (refused, rule) in [
        (services.scale("web", 4, None).await.map(|_| ()), "operator.maxReplicas"),
        (services.rollback("web", Some(1), None).await.map(|_| ()), "operator.limits.memory"),
        (services.rollback("web", None, None).await.map(|_| ()), "operator.limits.memory"),
    ] {
        let why = reason(refused);
        assert!(why.contains(rule), "{rule}: {why}");
    }
    admin.services().rollback("web", Some(1), None).await.unwrap();
    services.remove("web", None, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_is_revoked_and_the_other_logins_stay() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let stolen = world.user("ann", UserRole::Operator).await;
    let other = world.login(&token_of(&admin, "ann").await).await.unwrap();
    let (stolen_key, other_key) =
        (stolen.key().public_hash().unwrap().to_string(), other.key().public_hash().unwrap().to_string());
    let keys = admin.users().keys().await.unwrap();
    let own = keys.iter().find(|key| key.user == "admin").expect("the administrator has a key");
    assert!(!own.manager.is_empty() && own.listed_at.is_none(), "{own:?}");
    let of_ann = |keys: &[v1::UserKey]| -> Vec<(String, bool)> {
        let keys = keys.iter().filter(|key| key.user == "ann");
        keys.map(|key| (key.key.clone(), key.revoked_at.is_some())).collect()
    };
    let mut expected = vec![(stolen_key.clone(), false), (other_key.clone(), false)];
    expected.sort();
    assert_eq!(of_ann(&keys), expected);

    for short in ["", &stolen_key[..7], "zz"] {
        assert!(matches!(admin.users().revoke_key(short).await, Err(Error::Refused { .. })), "{short:?}");
    }
    assert_eq!(reason(admin.users().revoke_key(&"0".repeat(64)).await), "KEY_NOT_FOUND");
    for _ in 0..2 {
        let revoked = admin.users().revoke_key(&stolen_key[..8]).await.unwrap();
        assert_eq!(revoked.key, stolen_key);
        assert!(revoked.revoked_at < revoked.ends_at && revoked.user == "ann", "{revoked:?}");
    }
    let mut expected = vec![(stolen_key, true), (other_key, false)];
    expected.sort();
    assert_eq!(of_ann(&admin.users().keys().await.unwrap()), expected);
    assert_eq!(admin.users().get("ann").await.unwrap().logins.len(), 1);
    let (address, roots) = (world.manager().address(), world.manager().roots());
    until_accepted(address, &roots, &stolen, false).await;
    until_accepted(address, &roots, &other, true).await;
    let why = reason(world.client_as(&other).await.users().keys().await);
    assert!(why.contains("needs the role admin"), "{why}");
}

//! Users over the API: logins, roles, admission, and the end of access.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error, JoinToken, UserChange};
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::users_client::UsersClient;
use warren_proto::{Problem, v1};
use warren_security::{CertificateRequest, PrivateKey};
use warren_types::UserRole;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};

const MINUTE: Duration = Duration::from_secs(60);

fn reason<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
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
    assert_ends(world.client_as(&again).await.services().get("web").await);
    // Another user of that name is not the former one.
    world.user("ann", UserRole::Operator).await;
    assert_ends(world.client_as(&again).await.services().get("web").await);
}

fn assert_ends<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let why = reason(answer);
    assert!(why.contains("does not list this key"), "{why}");
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
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_have_no_power_over_nodes() {
    let world = ManagerFixture::new().await;
    let admin = world.admin().await;
    let operator = world.client_as(&world.user("ann", UserRole::Operator).await).await;
    let mut privileged = spec("root", 0);
    privileged.task.privileged = true;
    let why = reason(operator.services().create(new_id(), &privileged).await);
    assert!(why.contains("task.privileged"), "{why}");

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

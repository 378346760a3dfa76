//! What nodes get for pulls from private registries.

use std::net::Ipv4Addr;

use tonic::{Code, Status};
use warren_client::{Client, PullOptions, TaskFilter};
use warren_proto::Problem;
use warren_proto::status::NO_REGISTRY_ACCESS;
use warren_proto::v1;
use warren_proto::v1::fetch_secret_objects_request::Purpose;
use warren_proto::v1::registry_access::Access;
use warren_testkit::registry::{PASSWORD, USER};
use warren_testkit::token_registry::{BASIC, TokenRegistry};
use warren_types::{Placement, ServiceSpec};

use crate::fake_registry::token_of;
use crate::fixture::{ManagerFixture, new_id, spec};
use crate::joining::joined;
use crate::secrets::{CREDENTIAL, create, only_task};
use crate::worker::ScriptedWorker;

/// A service with one task of this image, on the node if one is named.
fn private(name: &str, image: &str, node: Option<&str>) -> ServiceSpec {
    let constraints = node.map(|node| format!("node.name == {node}").parse().unwrap()).into_iter().collect();
    let mut spec =
        ServiceSpec { placement: Placement { constraints, ..Placement::default() }, ..spec(name, 1) };
    spec.task.image = image.parse().unwrap();
    spec
}

/// The id of the service's only task.
async fn task_of(client: &Client, service: &str) -> String {
    let filter = TaskFilter { service: service.into(), ..TaskFilter::default() };
    client.tasks().list(filter).await.unwrap().remove(0).id
}

fn refusal(refused: &Status) -> (Code, String) {
    let Problem { code, reason, message, .. } = Problem::from(refused);
    assert_eq!(reason, NO_REGISTRY_ACCESS, "{message}");
    (code, message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_goes_where_an_image_of_its_registry_is_pulled() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let made = create(&client, CREDENTIAL, "registry.lan:5000", b"ann\nhunter2").await;
    assert_eq!((made.user.as_str(), made.name.as_str()), ("ann", "registry.lan:5000"));
    let login = v1::RegistryLogin { user: "ann".to_owned(), password: "hunter2".to_owned() };
    let login = Some(Access::Login(login));
    let image = "Registry.lan:5000/app:1";
    client.services().create(new_id(), &private("web", image, None)).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only_task(&worker);
    let foreign = ScriptedWorker::dial_as(&world, &joined(&world, "n2").await).await;
    let need = Purpose::TaskCredential(task);
    let fetched = worker.fetch(need.clone()).await.unwrap();
    assert_eq!((fetched[0].0.as_str(), fetched[0].1), ("registry.lan:5000", 1));
    assert_eq!(worker.registry_access(need.clone()).await.unwrap(), login);
    let refused = foreign.fetch(need).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    let new_object =
        |image: &str| PullOptions { reference: image.into(), nodes: vec!["n1".into()], always: true };
    let pulls = client.images().pull(new_object("registry.lan:5000/other:2")).await.unwrap();
    let id = worker.next_stream_request().await.stream_id;
    let need = || Purpose::StreamCredential(id.clone());
    assert_eq!(worker.registry_access(need()).await.unwrap(), login, "also before it attaches");
    let stream = worker.attach_to(id.clone()).await;
    assert_eq!(worker.registry_access(need()).await.unwrap(), login);
    assert_eq!(foreign.fetch(need()).await.unwrap_err().code(), Code::PermissionDenied);
    drop(pulls);
    stream.wait_closed().await;
    let refused = worker.fetch(need()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "pulls are refused");

    let _pulls = client.images().pull(new_object("other.lan/app:1")).await.unwrap();
    let id = worker.next_stream_request().await.stream_id;
    assert_eq!(worker.fetch(Purpose::StreamCredential(id)).await.unwrap(), [], "no credential is no error");
}

/// Where the registry has tokens, the key of a node is not worth more than the images of its own tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thief_of_the_key_of_a_node_gets_tokens_of_the_repositories_of_its_tasks() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, CREDENTIAL, "tokens.lan", b"ann\nhunter2").await;
    let mut honest = ScriptedWorker::dial(&world).await;
    let other = joined(&world, "n2").await;
    let mut elsewhere = ScriptedWorker::dial_as(&world, &other).await;
    let services = client.services();
    services.create(new_id(), &private("shop", "tokens.lan/shop/app:1", Some("n1"))).await.unwrap();
    services.create(new_id(), &private("bank", "tokens.lan/bank/app:1", Some("n2"))).await.unwrap();
    honest.has("its task", |tasks| tasks.len() == 1).await;
    elsewhere.has("its task", |tasks| tasks.len() == 1).await;
    let (shop, bank) = (task_of(&client, "shop").await, task_of(&client, "bank").await);

    let thief = ScriptedWorker::dial(&world).await;
    let own = Purpose::TaskCredential(shop);
    let fetched = thief.fetch(own.clone()).await.unwrap();
    assert!(!fetched[0].2.windows(7).any(|bytes| bytes == b"hunter2"), "it has the password");
    let Some(Access::Token(token)) = thief.registry_access(own).await.unwrap() else { panic!("no token") };
    assert!((290_000..=300_000).contains(&token.valid_for_ms), "{token:?}");
    assert_eq!(
        (token.registry.as_str(), token.repository.as_str(), token.user.as_str()),
        ("tokens.lan", "shop/app", "ann")
    );
    assert_eq!(token.token, token_of("shop/app"));
    let foreign = Purpose::TaskCredential(bank);
    assert_eq!(thief.fetch(foreign.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    let Some(Access::Token(token)) = elsewhere.registry_access(foreign).await.unwrap() else {
        panic!("no token")
    };
    assert_eq!((token.repository.as_str(), token.token), ("bank/app", token_of("bank/app")));
}

/// The same with a registry that is asked by its protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thief_of_the_key_of_a_node_gets_what_the_token_service_gives() {
    let registry = TokenRegistry::start((Ipv4Addr::LOCALHOST, 0).into(), None, None);
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let (host, login) = (registry.host(), format!("{USER}\n{PASSWORD}"));
    create(&client, CREDENTIAL, &host, login.as_bytes()).await;
    let image = format!("{host}/shop/app:1");
    client.services().create(new_id(), &private("shop", &image, None)).await.unwrap();
    let mut thief = ScriptedWorker::dial(&world).await;
    thief.has("a task", |tasks| tasks.len() == 1).await;
    let need = Purpose::TaskCredential(only_task(&thief));
    let fetched = thief.fetch(need.clone()).await.unwrap();
    let password = PASSWORD.as_bytes();
    assert!(!fetched[0].2.windows(password.len()).any(|bytes| bytes == password), "it has the password");
    let Some(Access::Token(token)) = thief.registry_access(need).await.unwrap() else { panic!("no token") };
    assert_eq!((&token.registry, token.repository.as_str()), (&host, "shop/app"));
    assert!(registry.accepts("shop/app", &token.token) && !registry.accepts("bank/app", &token.token));
    let requests = registry.requests();
    let [asked, fetched] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((asked.target.as_str(), asked.authorization.as_deref()), ("/v2/shop/app/manifests/1", None));
    assert_eq!(fetched.target, "/token?service=test&scope=repository%3Ashop%2Fapp%3Apull");
    assert_eq!(fetched.authorization.as_deref(), Some(BASIC));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_access_to_a_registry_says_what_to_do() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let credentials = client.secret_objects(CREDENTIAL);
    create(&client, CREDENTIAL, "tokens.lan", b"ann\nwrong").await;
    let made = create(&client, CREDENTIAL, "basic.lan", b":token-only\nann\nhunter2").await;
    assert!(made.token_only && made.user == "ann", "{made:?}");
    let mut worker = ScriptedWorker::dial(&world).await;
    let images =
        [("denied", "tokens.lan/app:1"), ("basic", "basic.lan/app:1"), ("offline", "basic.lan/offline:1")];
    for (name, image) in images {
        client.services().create(new_id(), &private(name, image, None)).await.unwrap();
    }
    worker.has("its tasks", |tasks| tasks.len() == 3).await;
    let mut needs = Vec::new();
    for (name, _) in images {
        needs.push(Purpose::TaskCredential(task_of(&client, name).await));
    }
    for (need, code, words) in [
        (
            &needs[0],
            Code::FailedPrecondition,
            "denies app to user \"ann\": bad password; correct the credentials",
        ),
        (&needs[1], Code::FailedPrecondition, "registry basic.lan has no tokens for single repositories"),
        (&needs[2], Code::Unavailable, "managers get no token for registry basic.lan"),
    ] {
        let (found, message) = refusal(&worker.fetch(need.clone()).await.unwrap_err());
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words) && message.contains("`warren registry login "), "{message}");
        assert!(!message.contains("hunter2") && !message.contains("wrong"), "{message}");
    }
    // Without the restriction, and with the right password.
    let login = |password: &str| {
        let (user, password) = ("ann".to_owned(), password.to_owned());
        Some(Access::Login(v1::RegistryLogin { user, password }))
    };
    let updated = credentials.update("basic.lan", b"ann\nhunter3".to_vec().into(), None).await.unwrap();
    assert!(!updated.token_only);
    credentials.update("tokens.lan", b"ann\nright".to_vec().into(), None).await.unwrap();
    for need in &needs[1..] {
        assert_eq!(worker.registry_access(need.clone()).await.unwrap(), login("hunter3"));
    }
    let access = worker.registry_access(needs[0].clone()).await.unwrap();
    assert!(matches!(access, Some(Access::Token(_))), "{access:?}");
}

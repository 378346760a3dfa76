//! Secrets, configs and credentials: storage, delivery, and access to their data.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tonic::Code;
use tracing_subscriber::fmt::MakeWriter;
use warren_client::{Client, Error, NewSecretObject, TaskFilter, TokenOptions};
use warren_manager::ManagerTuning;
use warren_proto::v1;
use warren_proto::v1::fetch_secret_objects_request::Purpose;
use warren_proto::v1::registry_access::Access;
use warren_types::{NodeRole, Placement, SecretObjectId, SecretObjectKind, SecretObjectMount, ServiceSpec};

use crate::encryption_at_rest::{PLAINTEXT_MARK, files_with_mark};
use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::{JoiningMachine, joined, new_token, token};
use crate::restart::refuses;
use crate::updates::problem;
use crate::worker::ScriptedWorker;

const SECRET: SecretObjectKind = SecretObjectKind::Secret;
const CONFIG: SecretObjectKind = SecretObjectKind::Config;
pub const CREDENTIAL: SecretObjectKind = SecretObjectKind::Credential;

fn new_secret(name: &str, data: &[u8]) -> NewSecretObject {
    let id = SecretObjectId(new_id().0);
    NewSecretObject {
        id,
        name: name.parse().unwrap(),
        labels: Default::default(),
        data: data.to_vec().into(),
    }
}

pub async fn create(client: &Client, kind: SecretObjectKind, name: &str, data: &[u8]) -> v1::SecretObject {
    client.secret_objects(kind).create(new_secret(name, data)).await.unwrap()
}

/// A service called `web` whose tasks use these secrets.
fn spec_with_secrets(secrets: &[&str]) -> ServiceSpec {
    let mut spec = spec("web", 1);
    spec.task.secrets = secrets.iter().map(|name| SecretObjectMount::new(name.parse().unwrap())).collect();
    spec
}

/// The only task that the worker has.
pub fn only_task(worker: &ScriptedWorker) -> String {
    assert_eq!(worker.tasks.len(), 1);
    worker.tasks.keys().next().unwrap().clone()
}

fn secrets_of_task(id: &str) -> Purpose {
    Purpose::TaskSecretObjects(id.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_goes_to_the_node_of_its_task_and_to_no_other() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"hunter2").await;
    create(&client, CONFIG, "motd", b"hello").await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let mut expected = spec_with_secrets(&["db"]);
    expected.task.configs = vec![SecretObjectMount::new("motd".parse().unwrap())];
    client.services().create(new_id(), &expected).await.unwrap();
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only_task(&worker);
    let mut fetched = worker.fetch(secrets_of_task(&task)).await.unwrap();
    fetched.sort();
    assert_eq!(fetched, [("db".into(), 1, b"hunter2".to_vec()), ("motd".into(), 1, b"hello".to_vec())]);
    assert_eq!(worker.fetch(secrets_of_task(&task)).await.unwrap().len(), 2, "as often as it needs them");

    let foreign = ScriptedWorker::dial_as(&world, &joined(&world, "n2").await).await;
    let refused = foreign.fetch(secrets_of_task(&task)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // The task's id is of random letters.
    assert!(!refused.message().replace(&task, "").contains("db"), "{refused}");
    let unknown = format!("{}-1", new_id());
    let refused = worker.fetch(secrets_of_task(&unknown)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let none = worker.fetch(secrets_of_task("task")).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);

    worker.run_all().await;
    client.services().remove("web", None, false).await.unwrap();
    worker
        .has("it to be stopped", |tasks| {
            tasks.values().all(|it| it.desired() > v1::DesiredTaskState::Running)
        })
        .await;
    let refused = worker.fetch(secrets_of_task(&task)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "it is not to run any more");
}

/// Only what users have set attracts tasks and their secrets: on the node, or on the token with which it joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn label_that_an_agent_reports_attracts_no_secret() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, SECRET, "card", b"hunter2").await;
    let with_label = BTreeMap::from([("pci".to_owned(), "true".to_owned())]);
    let by_hand = token(&world, None, None).await;
    let (role, labels) = (NodeRole::Worker, with_label.clone());
    let labelled = new_token(&world, TokenOptions { role, ttl: None, max_uses: None, labels }).await;
    assert_eq!(labelled.token.labels, with_label);

    let constrained = |name: &str, test: &str| {
        let constraints = vec![test.parse().unwrap()];
        let placement = Placement { constraints, ..Placement::default() };
        ServiceSpec { name: name.parse().unwrap(), placement, ..spec_with_secrets(&["card"]) }
    };
    client.services().create(new_id(), &constrained("web", "node.labels.pci == true")).await.unwrap();
    client.services().create(new_id(), &constrained("any", "engine.labels.pci == true")).await.unwrap();
    let reporting = |name| JoiningMachine { labels: with_label.clone(), ..JoiningMachine::new(name) };
    let machine = reporting("n2");
    let credentials = machine.join(&world, &by_hand.secret).await.unwrap();
    let mut self_labelled = ScriptedWorker::dial_with_labels(&world, &credentials, &with_label).await;
    self_labelled.has("the task by the agent's label", |tasks| tasks.len() == 1).await;
    let filter = TaskFilter { service: "any".into(), ..TaskFilter::default() };
    assert_eq!(client.tasks().list(filter).await.unwrap()[0].node_name, "n2");
    // Not by another token either: the node is known.
    machine.join(&world, &labelled.secret).await.unwrap();
    let node = client.nodes().get("n2").await.unwrap();
    assert_eq!((&node.labels, &node.description.unwrap().labels), (&BTreeMap::new(), &with_label));

    let credentials = JoiningMachine::new("n3").join(&world, &labelled.secret).await.unwrap();
    assert_eq!(client.nodes().get("n3").await.unwrap().labels, with_label);
    let mut worker = ScriptedWorker::dial_as(&world, &credentials).await;
    worker.has("the task by the token's label", |tasks| tasks.len() == 1).await;
    let task = only_task(&worker);
    assert_eq!(worker.fetch(secrets_of_task(&task)).await.unwrap().len(), 1);
    self_labelled.sync().await;
    assert_eq!(self_labelled.tasks.len(), 1, "{:?}", self_labelled.tasks);
    assert_eq!(self_labelled.fetch(secrets_of_task(&task)).await.unwrap_err().code(), Code::PermissionDenied);

    let many = (0..65).map(|number| (format!("l{number}"), String::new())).collect();
    let with_many_labels = JoiningMachine { labels: many, ..JoiningMachine::new("n4") };
    let refused =
        warren_proto::Problem::from(&with_many_labels.join(&world, &by_hand.secret).await.unwrap_err());
    let violation = &refused.violations.0[0];
    assert_eq!((refused.code, violation.path.as_str()), (Code::InvalidArgument, "description.labels"));
    assert_eq!(violation.message, "65 labels are more than 64");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weak_key_gets_no_secret() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"hunter2").await;
    client.services().create(new_id(), &spec_with_secrets(&["db"])).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let channel = world.channel(CallerKind::Certified(warren_security::Role::Worker)).await;
    let mut sessions = v1::sessions_client::SessionsClient::new(channel);
    for (key, purpose, path) in [
        (vec![0; 32], Some(secrets_of_task(&only_task(&worker))), "key"),
        (vec![9; 31], Some(secrets_of_task(&only_task(&worker))), "key"),
        (vec![9; 32], None, "purpose"),
    ] {
        let request = v1::FetchSecretObjectsRequest { key: key.into(), purpose, is_renewal: false };
        let refused = warren_proto::Problem::from(&sessions.fetch_secret_objects(request).await.unwrap_err());
        assert_eq!((refused.code, refused.violations.0[0].path.as_str()), (Code::InvalidArgument, path));
    }
}

/// What a manager has received of a message takes memory until the rest arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_request_for_secrets_is_refused_by_its_length() {
    let world = ManagerFixture::new().await;
    let channel = world.channel(CallerKind::Certified(warren_security::Role::Worker)).await;
    let mut sessions = v1::sessions_client::SessionsClient::new(channel);
    let request = v1::FetchSecretObjectsRequest { key: vec![9; 2 << 10].into(), ..Default::default() };
    let refused = sessions.fetch_secret_objects(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_reaches_the_services_that_follow_it() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let secrets = client.secret_objects(SECRET);
    let made = create(&client, SECRET, "db", b"one").await;
    assert_eq!((made.version_number, made.size, made.stored_versions.as_slice()), (1, 3, &[1][..]));
    client.services().create(new_id(), &spec_with_secrets(&["db"])).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    worker.apply_assignment().await;
    worker.apply_assignment().await;
    let old = only_task(&worker);

    let updated = secrets.update("db", b"two".to_vec().into(), Some(made.version)).await.unwrap();
    assert_eq!((updated.version_number, updated.services.as_slice()), (2, &["web".to_owned()][..]));
    let same = secrets.update("db", b"two".to_vec().into(), None).await.unwrap();
    assert_eq!((same.version_number, same.version), (2, updated.version), "the same bytes change nothing");
    let stale =
        problem(secrets.update("db", b"three".to_vec().into(), Some(made.version)).await.unwrap_err());
    assert_eq!(stale.reason, "VERSION_CONFLICT");
    let history = client.services().history("web").await.unwrap();
    let numbers =
        history.iter().map(|it| (it.number, it.secret_objects[0].version_number)).collect::<Vec<_>>();
    assert_eq!(numbers, [(2, 2), (1, 1)]);

    let kept = worker.fetch(secrets_of_task(&old)).await.unwrap();
    assert_eq!(
        kept,
        [("db".into(), 1, b"one".to_vec())],
        "the task that is being replaced keeps its version"
    );

    let replaced = async {
        loop {
            worker.apply_assignment().await;
            let (mut tasks, running) = (worker.tasks.values(), v1::DesiredTaskState::Running);
            if worker.tasks.len() == 1 && tasks.all(|task| task.revision == 2 && task.desired() == running) {
                return;
            }
        }
    };
    tokio::time::timeout(WAIT_DEADLINE, replaced).await.expect("the task is replaced");
    let new = only_task(&worker);
    assert_eq!(worker.fetch(secrets_of_task(&new)).await.unwrap(), [("db".into(), 2, b"two".to_vec())]);
    let shown = client.tasks().get(&new).await.unwrap();
    assert_eq!((shown.secret_objects[0].name.as_str(), shown.secret_objects[0].version_number), ("db", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_secret_version_fails_the_fetch() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"1").await;
    create(&client, SECRET, "key", b"kept").await;
    client.services().create(new_id(), &spec_with_secrets(&["db", "key"])).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    worker.apply_assignment().await;
    let old = only_task(&worker);
    for number in 2..=6 {
        assert_eq!(
            worker.fetch(secrets_of_task(&old)).await.unwrap().len(),
            2,
            "version {number} is not there yet"
        );
        let updated =
            client.secret_objects(SECRET).update("db", number.to_string().into_bytes().into(), None).await;
        assert_eq!(updated.unwrap().version_number, number);
    }
    // The worker has done nothing since, so its task is still desired.
    let removed = warren_proto::Problem::from(&worker.fetch(secrets_of_task(&old)).await.unwrap_err());
    assert_eq!(
        (removed.code, removed.reason.as_str()),
        (Code::FailedPrecondition, "SECRET_OBJECT_VERSION_GONE")
    );
    assert!(removed.message.contains("version 1 of secret db, used by revision 1"), "{removed}");
    let back = problem(client.services().rollback("web", Some(1), None).await.unwrap_err());
    assert_eq!(back.reason, "SECRET_OBJECT_VERSION_GONE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_secrets_open_after_restart_with_their_key_only() {
    let mut world = ManagerFixture::new().await;
    let client = world.local().await;
    create(&client, CONFIG, "motd", b"hello").await;
    create(&client, SECRET, "db", &vec![7; 1 << 20]).await;
    client.services().create(new_id(), &spec_with_secrets(&["db"])).await.unwrap();
    world.stop().await;
    world.start(false).await.unwrap();
    let client = world.local().await;
    assert_eq!(&client.secret_objects(CONFIG).read("motd", None).await.unwrap().data[..], b"hello");
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let fetched = worker.fetch(secrets_of_task(&only_task(&worker))).await.unwrap();
    assert_eq!(fetched, [("db".into(), 1, vec![7; 1 << 20])], "the largest there may be");
    drop(worker);
    world.stop().await;

    let key = world.data_dir().join("manager/secret-objects.key");
    let good = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    refuses(&world, false, "secret-objects.key is missing").await;
    assert!(!key.exists(), "no new key is created");
    let mut foreign = ManagerFixture::new().await;
    foreign.stop().await;
    std::fs::copy(foreign.data_dir().join("manager/secret-objects.key"), &key).unwrap();
    refuses(&world, false, "is not the key that the cluster's secrets").await;
    std::fs::write(&key, &good).unwrap();
    world.start(false).await.unwrap();
    assert!(world.local().await.secret_objects(CONFIG).read("motd", Some(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_secret_is_refused() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let (secrets, configs) = (client.secret_objects(SECRET), client.secret_objects(CONFIG));
    let missing = problem(client.services().create(new_id(), &spec_with_secrets(&["db"])).await.unwrap_err());
    assert_eq!(missing.violations.0[0].path, "spec.task.secrets[0].source");
    assert!(missing.violations.0[0].message.contains("warren secret create db FILE"), "{missing:?}");

    let new_object = new_secret("db", b"hunter2");
    secrets.create(new_object.clone()).await.unwrap();
    assert_eq!(
        secrets.create(new_object.clone()).await.unwrap().version_number,
        1,
        "a repeated request gets the same answer"
    );
    let other = NewSecretObject { data: b"other".to_vec().into(), ..new_object };
    assert_eq!(problem(secrets.create(other).await.unwrap_err()).reason, "ALREADY_EXISTS");
    let taken = problem(secrets.create(new_secret("db", b"x")).await.unwrap_err());
    assert_eq!(taken.code, Code::AlreadyExists);
    configs.create(new_secret("db", b"a config may have the name of a secret")).await.unwrap();

    let hidden = secrets.read("db", None).await.unwrap_err();
    assert!(matches!(&hidden, Error::Denied { why, .. } if why.contains("cannot be read back")), "{hidden}");
    let removed = problem(configs.read("db", Some(9)).await.unwrap_err());
    assert!(removed.message.contains("has no version 9; available: 1"), "{removed}");

    client.services().create(new_id(), &spec_with_secrets(&["db"])).await.unwrap();
    let used = problem(secrets.remove("db").await.unwrap_err());
    assert_eq!((used.code, used.reason.as_str()), (Code::FailedPrecondition, "SECRET_OBJECT_IN_USE"));
    assert!(used.message.contains("secret db is used by web"), "{used}");
    assert_eq!(configs.remove("db").await.unwrap().name, "db");
    assert!(configs.remove("db").await.unwrap_err().is_not_found());
    assert!(secrets.get("nothing").await.unwrap_err().is_not_found());
    assert_eq!(secrets.list().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_secret_is_refused() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let large = new_secret("db", &vec![7; (1 << 20) + 1]);
    let refused = problem(client.secret_objects(SECRET).create(large.clone()).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "data");
    // A client that skips its own checks.
    let mut bare =
        v1::secret_objects_client::SecretObjectsClient::new(world.channel(CallerKind::Local).await);
    let request = v1::CreateSecretObjectRequest {
        id: large.id.to_string(),
        kind: v1::SecretObjectKind::Secret.into(),
        name: "db".into(),
        data: large.data.to_vec().into(),
        ..Default::default()
    };
    let refused = warren_proto::Problem::from(&bare.create(request).await.unwrap_err());
    assert!(refused.violations.0[0].message.contains("at most 1048576"), "{refused:?}");
    let exact = new_secret("db", &vec![7; 1 << 20]);
    assert_eq!(client.secret_objects(SECRET).create(exact).await.unwrap().size, 1 << 20);
}

/// All log output of one thread.
#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for CapturedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// One thread, so that the test captures all its log output; the raft driver has its own thread.
#[tokio::test]
async fn secrets_are_not_logged_or_stored_in_clear() {
    let logged = CapturedLog::default();
    let everything = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    // With a single subscriber, tracing caches the interest of the first thread at each call site for all
    // threads, and other tests have no subscriber.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(everything.with_writer(logged.clone()).finish());
    let mut world = ManagerFixture::tuned(ManagerTuning::default()).await;
    let client = world.local().await;
    let (hidden, login) = (format!("{PLAINTEXT_MARK}-secret"), format!("ann\n{PLAINTEXT_MARK}-password"));
    let made = create(&client, SECRET, "db", hidden.as_bytes()).await;
    let credential = create(&client, CREDENTIAL, "registry.lan", login.as_bytes()).await;
    create(&client, CREDENTIAL, "tokens.lan", login.as_bytes()).await;
    client
        .secret_objects(SECRET)
        .update("db", format!("{hidden}-2").into_bytes().into(), None)
        .await
        .unwrap();
    let mut errors = Vec::new();
    let wrong =
        client.secret_objects(CREDENTIAL).update("registry.lan", hidden.into_bytes().into(), None).await;
    errors.push(wrong.unwrap_err().to_string());
    let taken = client.secret_objects(SECRET).create(new_secret("db", login.as_bytes())).await;
    errors.push(taken.unwrap_err().to_string());
    let mut private = spec_with_secrets(&["db"]);
    private.task.image = "tokens.lan/web:1".parse().unwrap();
    client.services().create(new_id(), &private).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only_task(&worker);
    worker.fetch(secrets_of_task(&task)).await.unwrap();
    let access = worker.registry_access(Purpose::TaskCredential(task.clone())).await.unwrap();
    assert!(matches!(access, Some(Access::Token(token)) if token.token.contains(PLAINTEXT_MARK)));
    errors.push(worker.fetch(secrets_of_task(&format!("{}-1", new_id()))).await.unwrap_err().to_string());
    let shown = (made, credential, client.tasks().get(&task).await.unwrap(), worker.tasks.clone(), errors);
    drop(worker);
    world.stop().await;
    world.start(false).await.unwrap();

    let shown = format!("{shown:?}");
    assert!(!shown.contains(PLAINTEXT_MARK), "{shown}");
    assert_eq!(files_with_mark(&world.data_dir()), Vec::<PathBuf>::new());
    let log = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    // As text, and as the numbers of the `{:?}` format of bytes.
    let numbers = format!("{:?}", PLAINTEXT_MARK.as_bytes());
    let has_secret =
        |line: &&str| line.contains(PLAINTEXT_MARK) || line.contains(numbers.trim_matches(['[', ']']));
    let lines = log.lines().filter(has_secret).collect::<Vec<_>>();
    assert_eq!(lines, Vec::<&str>::new());
    for audit in ["secret created caller=", "registry credential created caller=", "secret updated caller="] {
        assert!(log.contains(audit), "the log has no {audit:?}, so the search proves nothing");
    }
    assert!(log.lines().any(|line| line.contains("TRACE")), "everything was logged");
}

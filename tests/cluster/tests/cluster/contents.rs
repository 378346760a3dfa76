//! Secrets, configs and credentials: how they are kept, who gets them, and that nobody else sees a byte of them.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tonic::Code;
use tracing_subscriber::fmt::MakeWriter;
use warren_client::{Client, Error, NewContent, PullWish};
use warren_manager::Tuning;
use warren_proto::v1;
use warren_proto::v1::fetch_request::Need;
use warren_types::{ContentId, ContentKind, ContentMount, ServiceSpec};

use crate::joining::joined;
use crate::restart::refuses;
use crate::sealed::{TELLS, telling_files};
use crate::updates::problem;
use crate::worker::Worker;
use crate::world::{Caller, PATIENCE, World, new_id, spec};

const SECRET: ContentKind = ContentKind::Secret;
const CONFIG: ContentKind = ContentKind::Config;
const CREDENTIAL: ContentKind = ContentKind::Credential;

fn content(name: &str, data: &[u8]) -> NewContent {
    let id = ContentId(new_id().0);
    NewContent { id, name: name.parse().unwrap(), labels: Default::default(), data: data.to_vec().into() }
}

async fn create(client: &Client, kind: ContentKind, name: &str, data: &[u8]) -> v1::Content {
    client.contents(kind).create(content(name, data)).await.unwrap()
}

/// A service called `web` whose tasks see these secrets.
fn seeing(secrets: &[&str]) -> ServiceSpec {
    let mut spec = spec("web", 1);
    spec.task.secrets = secrets.iter().map(|name| ContentMount::new(name.parse().unwrap())).collect();
    spec
}

/// The only task that the worker has.
fn only(worker: &Worker) -> String {
    assert_eq!(worker.tasks.len(), 1);
    worker.tasks.keys().next().unwrap().clone()
}

fn contents(id: &str) -> Need {
    Need::TaskContents(id.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_goes_to_the_node_of_its_task_and_to_no_other() {
    let world = World::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"hunter2").await;
    create(&client, CONFIG, "motd", b"hello").await;
    let mut worker = Worker::dial(&world).await;
    let mut wanted = seeing(&["db"]);
    wanted.task.configs = vec![ContentMount::new("motd".parse().unwrap())];
    client.services().create(new_id(), &wanted).await.unwrap();
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only(&worker);
    let mut fetched = worker.fetch(contents(&task)).await.unwrap();
    fetched.sort();
    assert_eq!(fetched, [("db".into(), 1, b"hunter2".to_vec()), ("motd".into(), 1, b"hello".to_vec())]);
    assert_eq!(worker.fetch(contents(&task)).await.unwrap().len(), 2, "as often as it needs them");

    let stranger = Worker::dial_as(&world, &joined(&world, "n2").await).await;
    let refused = stranger.fetch(contents(&task)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // The task's id is of random letters.
    assert!(!refused.message().replace(&task, "").contains("db"), "{refused}");
    let unknown = format!("{}-1", new_id());
    let refused = worker.fetch(contents(&unknown)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let none = worker.fetch(contents("task")).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);

    worker.run_all().await;
    client.services().remove("web", None).await.unwrap();
    worker
        .has("it to be stopped", |tasks| tasks.values().all(|it| it.desired() > v1::Desired::Running))
        .await;
    let refused = worker.fetch(contents(&task)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "it is not to run any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_keeps_nothing_secret_is_answered_with_nothing() {
    let world = World::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"hunter2").await;
    client.services().create(new_id(), &seeing(&["db"])).await.unwrap();
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let channel = world.channel(Caller::Certified(warren_security::Role::Worker)).await;
    let mut sessions = v1::sessions_client::SessionsClient::new(channel);
    for (key, need, path) in [
        (vec![0; 32], Some(contents(&only(&worker))), "key"),
        (vec![9; 31], Some(contents(&only(&worker))), "key"),
        (vec![9; 32], None, "need"),
    ] {
        let request = v1::FetchRequest { key: key.into(), need };
        let refused = warren_proto::Problem::from(&sessions.fetch(request).await.unwrap_err());
        assert_eq!((refused.code, refused.violations.0[0].path.as_str()), (Code::InvalidArgument, path));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_reaches_the_services_that_follow_it() {
    let world = World::new().await;
    let client = world.local().await;
    let secrets = client.contents(SECRET);
    let made = create(&client, SECRET, "db", b"one").await;
    assert_eq!((made.number, made.size, made.kept.as_slice()), (1, 3, &[1][..]));
    client.services().create(new_id(), &seeing(&["db"])).await.unwrap();
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    worker.obey().await;
    worker.obey().await;
    let old = only(&worker);

    let updated = secrets.update("db", b"two".to_vec().into(), Some(made.version)).await.unwrap();
    assert_eq!((updated.number, updated.services.as_slice()), (2, &["web".to_owned()][..]));
    let same = secrets.update("db", b"two".to_vec().into(), None).await.unwrap();
    assert_eq!((same.number, same.version), (2, updated.version), "the same bytes change nothing");
    let stale =
        problem(secrets.update("db", b"three".to_vec().into(), Some(made.version)).await.unwrap_err());
    assert_eq!(stale.reason, "VERSION_CONFLICT");
    let history = client.services().history("web").await.unwrap();
    let numbers = history.iter().map(|it| (it.number, it.contents[0].number)).collect::<Vec<_>>();
    assert_eq!(numbers, [(2, 2), (1, 1)]);

    let kept = worker.fetch(contents(&old)).await.unwrap();
    assert_eq!(kept, [("db".into(), 1, b"one".to_vec())], "the task that is to be replaced sees what it saw");

    let replaced = async {
        loop {
            worker.obey().await;
            let (mut tasks, running) = (worker.tasks.values(), v1::Desired::Running);
            if worker.tasks.len() == 1 && tasks.all(|task| task.revision == 2 && task.desired() == running) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, replaced).await.expect("the task is replaced");
    let new = only(&worker);
    assert_eq!(worker.fetch(contents(&new)).await.unwrap(), [("db".into(), 2, b"two".to_vec())]);
    let shown = client.tasks().get(&new).await.unwrap();
    assert_eq!((shown.contents[0].name.as_str(), shown.contents[0].number), ("db", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_not_kept_any_more_is_an_error_and_nothing_is_left_out() {
    let world = World::new().await;
    let client = world.local().await;
    create(&client, SECRET, "db", b"1").await;
    create(&client, SECRET, "key", b"kept").await;
    client.services().create(new_id(), &seeing(&["db", "key"])).await.unwrap();
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    worker.obey().await;
    let old = only(&worker);
    for number in 2..=6 {
        assert_eq!(worker.fetch(contents(&old)).await.unwrap().len(), 2, "version {number} is not there yet");
        let updated =
            client.contents(SECRET).update("db", number.to_string().into_bytes().into(), None).await;
        assert_eq!(updated.unwrap().number, number);
    }
    // The worker has done nothing since, so its task is still wanted.
    let gone = warren_proto::Problem::from(&worker.fetch(contents(&old)).await.unwrap_err());
    assert_eq!((gone.code, gone.reason.as_str()), (Code::FailedPrecondition, "CONTENT_GONE"));
    assert!(gone.message.contains("version 1 of secret db, which revision 1"), "{gone}");
    let back = problem(client.services().rollback("web", Some(1), None).await.unwrap_err());
    assert_eq!(back.reason, "CONTENT_GONE");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sealed_opens_after_a_restart_and_only_with_its_key() {
    let mut world = World::new().await;
    let client = world.local().await;
    create(&client, CONFIG, "motd", b"hello").await;
    create(&client, SECRET, "db", &vec![7; 1 << 20]).await;
    client.services().create(new_id(), &seeing(&["db"])).await.unwrap();
    world.stop().await;
    world.start(false).await.unwrap();
    let client = world.local().await;
    assert_eq!(&client.contents(CONFIG).read("motd", None).await.unwrap().data[..], b"hello");
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let fetched = worker.fetch(contents(&only(&worker))).await.unwrap();
    assert_eq!(fetched, [("db".into(), 1, vec![7; 1 << 20])], "the largest there may be");
    drop(worker);
    world.stop().await;

    let key = world.data_dir().join("manager/content.key");
    let good = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    refuses(&world, false, "content.key is missing").await;
    assert!(!key.exists(), "no other is made in its place");
    let mut stranger = World::new().await;
    stranger.stop().await;
    std::fs::copy(stranger.data_dir().join("manager/content.key"), &key).unwrap();
    refuses(&world, false, "is not the key that the cluster's secrets").await;
    std::fs::write(&key, &good).unwrap();
    world.start(false).await.unwrap();
    assert!(world.local().await.contents(CONFIG).read("motd", Some(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_and_named() {
    let world = World::new().await;
    let client = world.local().await;
    let (secrets, configs) = (client.contents(SECRET), client.contents(CONFIG));
    let missing = problem(client.services().create(new_id(), &seeing(&["db"])).await.unwrap_err());
    assert_eq!(missing.violations.0[0].path, "spec.task.secrets[0].source");
    assert!(missing.violations.0[0].message.contains("warren secret create db FILE"), "{missing:?}");

    let wish = content("db", b"hunter2");
    secrets.create(wish.clone()).await.unwrap();
    assert_eq!(secrets.create(wish.clone()).await.unwrap().number, 1, "repeated, it answers as before");
    let other = NewContent { data: b"other".to_vec().into(), ..wish };
    assert_eq!(problem(secrets.create(other).await.unwrap_err()).reason, "ALREADY_EXISTS");
    let taken = problem(secrets.create(content("db", b"x")).await.unwrap_err());
    assert_eq!(taken.code, Code::AlreadyExists);
    configs.create(content("db", b"a config may have the name of a secret")).await.unwrap();

    let hidden = secrets.read("db", None).await.unwrap_err();
    assert!(matches!(&hidden, Error::Denied { why, .. } if why.contains("is never shown")), "{hidden}");
    let gone = problem(configs.read("db", Some(9)).await.unwrap_err());
    assert!(gone.message.contains("has no version 9; kept are 1"), "{gone}");

    client.services().create(new_id(), &seeing(&["db"])).await.unwrap();
    let used = problem(secrets.remove("db").await.unwrap_err());
    assert_eq!((used.code, used.reason.as_str()), (Code::FailedPrecondition, "CONTENT_IN_USE"));
    assert!(used.message.contains("secret db is used by web"), "{used}");
    assert_eq!(configs.remove("db").await.unwrap().name, "db");
    assert!(configs.remove("db").await.unwrap_err().is_not_found());
    assert!(secrets.get("nothing").await.unwrap_err().is_not_found());
    assert_eq!(secrets.list().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_whoever_sends_it() {
    let world = World::new().await;
    let client = world.local().await;
    let large = content("db", &vec![7; (1 << 20) + 1]);
    let refused = problem(client.contents(SECRET).create(large.clone()).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "data");
    // A client that does not look before it sends.
    let mut bare = v1::contents_client::ContentsClient::new(world.channel(Caller::Local).await);
    let request = v1::CreateContentRequest {
        id: large.id.to_string(),
        kind: v1::ContentKind::Secret.into(),
        name: "db".into(),
        data: large.data.to_vec().into(),
        ..Default::default()
    };
    let refused = warren_proto::Problem::from(&bare.create(request).await.unwrap_err());
    assert!(refused.violations.0[0].message.contains("at most 1048576"), "{refused:?}");
    let exact = content("db", &vec![7; 1 << 20]);
    assert_eq!(client.contents(SECRET).create(exact).await.unwrap().size, 1 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_goes_where_an_image_of_its_registry_is_pulled() {
    let world = World::new().await;
    let client = world.local().await;
    let made = create(&client, CREDENTIAL, "registry.lan:5000", b"ann\nhunter2").await;
    assert_eq!((made.user.as_str(), made.name.as_str()), ("ann", "registry.lan:5000"));
    let login = [("registry.lan:5000".to_owned(), 1, b"ann\nhunter2".to_vec())];
    let mut private = spec("web", 1);
    private.task.image = "Registry.lan:5000/app:1".parse().unwrap();
    client.services().create(new_id(), &private).await.unwrap();
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only(&worker);
    let stranger = Worker::dial_as(&world, &joined(&world, "n2").await).await;
    assert_eq!(worker.fetch(Need::TaskCredential(task.clone())).await.unwrap(), login);
    let refused = stranger.fetch(Need::TaskCredential(task)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    let wish = |image: &str| PullWish { reference: image.into(), nodes: vec!["n1".into()], always: true };
    let pulls = client.images().pull(wish("registry.lan:5000/other:2")).await.unwrap();
    let id = worker.asked().await.stream_id;
    let need = || Need::StreamCredential(id.clone());
    assert_eq!(worker.fetch(need()).await.unwrap(), login, "also before it attaches");
    let stream = worker.attach_to(id.clone()).await;
    assert_eq!(worker.fetch(need()).await.unwrap(), login);
    assert_eq!(stranger.fetch(need()).await.unwrap_err().code(), Code::PermissionDenied);
    drop(pulls);
    stream.ended().await;
    let refused = worker.fetch(need()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "nothing is pulled any more");

    let _pulls = client.images().pull(wish("other.lan/app:1")).await.unwrap();
    let id = worker.asked().await.stream_id;
    assert_eq!(worker.fetch(Need::StreamCredential(id)).await.unwrap(), [], "no credential is no error");
}

/// Everything that is logged on one thread.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logged {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// One thread, so that all of it is logged where the test can see it; the raft driver has its own.
#[tokio::test]
async fn no_byte_of_them_is_logged_answered_or_on_the_disk() {
    let logged = Logged::default();
    let everything = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    // While there is only one subscriber, whoever is first to come by a place in the code says for all threads whether
    // anybody listens, and other tests have nobody who does.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(everything.with_writer(logged.clone()).finish());
    let mut world = World::tuned(Tuning::default()).await;
    let client = world.local().await;
    let (hidden, login) = (format!("{TELLS}-secret"), format!("ann\n{TELLS}-password"));
    let made = create(&client, SECRET, "db", hidden.as_bytes()).await;
    let credential = create(&client, CREDENTIAL, "registry.lan", login.as_bytes()).await;
    client.contents(SECRET).update("db", format!("{hidden}-2").into_bytes().into(), None).await.unwrap();
    let mut errors = Vec::new();
    let wrong = client.contents(CREDENTIAL).update("registry.lan", hidden.into_bytes().into(), None).await;
    errors.push(wrong.unwrap_err().to_string());
    let taken = client.contents(SECRET).create(content("db", login.as_bytes())).await;
    errors.push(taken.unwrap_err().to_string());
    client.services().create(new_id(), &seeing(&["db"])).await.unwrap();
    let mut worker = Worker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = only(&worker);
    worker.fetch(contents(&task)).await.unwrap();
    worker.fetch(Need::TaskCredential(task.clone())).await.unwrap();
    errors.push(worker.fetch(contents(&format!("{}-1", new_id()))).await.unwrap_err().to_string());
    let shown = (made, credential, client.tasks().get(&task).await.unwrap(), worker.tasks.clone(), errors);
    drop(worker);
    world.stop().await;
    world.start(false).await.unwrap();

    let shown = format!("{shown:?}");
    assert!(!shown.contains(TELLS), "{shown}");
    assert_eq!(telling_files(&world.data_dir()), Vec::<PathBuf>::new());
    let log = String::from_utf8(logged.0.lock().unwrap().clone()).unwrap();
    // As text, and as the numbers that `{:?}` makes of bytes.
    let numbers = format!("{:?}", TELLS.as_bytes());
    let told = |line: &&str| line.contains(TELLS) || line.contains(numbers.trim_matches(['[', ']']));
    let lines = log.lines().filter(told).collect::<Vec<_>>();
    assert_eq!(lines, Vec::<&str>::new());
    for audit in ["secret created caller=", "registry credential created caller=", "secret updated caller="] {
        assert!(log.contains(audit), "the log has no {audit:?}, so nothing was searched");
    }
    assert!(log.lines().any(|line| line.contains("TRACE")), "everything was logged");
}

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warren_runtime::fake::Fake;
use warren_task::Severity;

use super::courier::fake::FakeCourier;
use super::*;
use crate::samples::{image, settings, task, task_id};

const WAITING: &str = "waiting for a manager: its secrets are not on this node";

/// A node's contents in a plain directory, and the manager that gives them.
struct World {
    files: ContentFiles,
    courier: FakeCourier,
    dir: TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Fake::new();
        runtime.add_image(&image());
        let etc = dir.path().join("image/etc");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("passwd"), "web:x:33:44::/:/bin/false\n").unwrap();
        runtime.add_image_files(&image(), dir.path().join("image"));
        let courier = FakeCourier::default();
        let memory = Memory::plain(dir.path().join("secrets"));
        let files = ContentFiles { memory, courier: Arc::new(courier.clone()), runtime: Arc::new(runtime) };
        Self { files, courier, dir }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("secrets")
    }

    /// What is in the memory, as paths.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    async fn ensure(&self, task: &TaskAssignment) -> Result<Vec<Mount>, Failure> {
        self.files.ensure(task, &settings()).await
    }
}

fn sent(kind: ContentKind, name: &str, text: &[u8]) -> Delivered {
    Delivered { kind, name: name.parse().unwrap(), number: 2, bytes: Zeroizing::new(text.to_vec()) }
}

fn secret(name: &str, text: &str) -> Delivered {
    sent(ContentKind::Secret, name, text.as_bytes())
}

fn mount(name: &str) -> ContentMount {
    ContentMount::new(name.parse().unwrap())
}

fn with_secrets(number: u64, secrets: Vec<ContentMount>) -> TaskAssignment {
    let mut task = task(number);
    task.spec.secrets = secrets;
    task
}

fn source(mount: &Mount) -> &Path {
    match &mount.source {
        MountSource::File { path } => path,
        other => panic!("{other:?}"),
    }
}

/// Text, owner and mode of what is mounted.
fn seen(mount: &Mount) -> (String, u32, u32, u32) {
    let path = source(mount);
    let found = fs::metadata(path).unwrap();
    (fs::read_to_string(path).unwrap(), found.uid(), found.gid(), found.mode() & 0o7777)
}

#[tokio::test]
async fn contents_are_files_as_the_spec_says_and_are_got_once() {
    let world = World::new();
    let text = "{{.Task.Name}} on {{.Node.Hostname}}";
    world.courier.answers(Ok(vec![
        secret("db", "hush"),
        sent(ContentKind::Config, "db", text.as_bytes()),
        secret("other", "not asked for"),
    ]));
    let at = |target: &str| Some(target.to_owned());
    let mut task = with_secrets(
        1,
        vec![
            mount("db"),
            ContentMount {
                target: at("/etc/pw"),
                uid: Some(7),
                gid: Some(8),
                mode: Some(0o440),
                ..mount("db")
            },
        ],
    );
    task.spec.configs = vec![mount("db"), ContentMount { target: at("/t"), template: true, ..mount("db") }];
    task.spec.user = Some("web".into());
    let mounts = world.ensure(&task).await.unwrap();
    let targets: Vec<&str> = mounts.iter().map(|mount| mount.target.to_str().unwrap()).collect();
    assert_eq!(targets, ["/run/secrets/db", "/etc/pw", "/db", "/t"]);
    assert!(mounts.iter().all(|mount| mount.read_only));
    let files: Vec<_> = mounts.iter().map(seen).collect();
    assert_eq!(files[0], ("hush".into(), 33, 44, 0o400));
    assert_eq!(files[1], ("hush".into(), 7, 8, 0o440));
    assert_eq!(files[2], (text.into(), 33, 44, 0o444));
    assert_eq!(files[3], ("web.1 on n1".into(), 33, 44, 0o444));
    // Again, by this agent and by another, without a manager.
    world.courier.answers(Err(FetchError::Away("none".into())));
    assert_eq!(world.ensure(&task).await.unwrap(), mounts);
    let again = ContentFiles { memory: Memory::plain(world.root()), ..world.files };
    assert_eq!(again.ensure(&task, &settings()).await.unwrap(), mounts);
    assert_eq!(world.courier.asked(), [Need::Contents(task.id)]);
}

#[tokio::test]
async fn no_name_becomes_a_path_on_the_node() {
    let world = World::new();
    world.courier.answers(Ok(vec![secret("a.b", "x")]));
    let mounts = world.ensure(&with_secrets(1, vec![mount("a.b")])).await.unwrap();
    assert_eq!(source(&mounts[0]), world.root().join(task_id(1).to_string()).join("secret-0"));
}

#[tokio::test]
async fn without_a_manager_it_is_said_what_is_waited_for() {
    let world = World::new();
    world.courier.answers(Err(FetchError::Away("there is no session with one".into())));
    let failure = world.ensure(&with_secrets(1, vec![mount("db")])).await.unwrap_err();
    assert_eq!(failure.severity, Severity::Transient);
    assert!(failure.reason.starts_with(WAITING), "{}", failure.reason);
    assert!(world.left().is_empty());
}

#[tokio::test]
async fn what_cannot_be_had_is_said_and_leaves_nothing() {
    let template = || vec![ContentMount { template: true, ..mount("db") }];
    let (transient, permanent) = (Severity::Transient, Severity::Permanent);
    let cases = [
        (
            Err(FetchError::Gone("version 1 of secret db is not kept".into())),
            mount("db"),
            permanent,
            "is not kept",
        ),
        (Err(FetchError::Refused("not yours".into())), mount("db"), transient, "not yours"),
        (Ok(vec![]), mount("db"), transient, "did not send secret db"),
        (
            Ok(vec![secret("db", "hush {{.Node.Labels.rack}}")]),
            template().remove(0),
            permanent,
            "task.secrets[0]: version 2 of secret db asks for what is not there in line 1: the node has no label rack",
        ),
        (
            Ok(vec![secret("db", "hush {{.Task")]),
            template().remove(0),
            permanent,
            "line 1 that are not closed",
        ),
        (Ok(vec![sent(ContentKind::Secret, "db", b"hush\xff")]), template().remove(0), permanent, "UTF-8"),
    ];
    for (answer, wanted, severity, words) in cases {
        let world = World::new();
        world.courier.answers(answer);
        let failure = world.ensure(&with_secrets(1, vec![wanted])).await.unwrap_err();
        assert_eq!(failure.severity, severity, "{}", failure.reason);
        assert!(failure.reason.contains(words) && !failure.reason.contains("hush"), "{}", failure.reason);
        assert!(world.left().is_empty());
    }
}

#[tokio::test]
async fn a_user_that_the_image_does_not_have_is_refused_by_its_field_unless_nobody_asks_for_it() {
    let world = World::new();
    world.courier.answers(Ok(vec![secret("db", "hush")]));
    let mut task = with_secrets(1, vec![mount("db")]);
    task.spec.user = Some("stranger".into());
    let failure = world.ensure(&task).await.unwrap_err();
    assert!(failure.reason.starts_with("task.user: \"stranger\""), "{}", failure.reason);
    assert_eq!(failure.severity, Severity::Permanent);
    task.spec.secrets[0].uid = Some(1);
    task.spec.secrets[0].gid = Some(2);
    assert_eq!(seen(&world.ensure(&task).await.unwrap()[0]).1, 1);
}

#[tokio::test]
async fn files_go_with_their_task_and_those_of_none_are_swept() {
    let world = World::new();
    world.files.remove(&task_id(1)).await.unwrap();
    assert_eq!(world.files.sweep(&|_| false).await, Ok(0));
    assert!(!world.root().exists(), "nothing is made to remove something");
    world.courier.answers(Ok(vec![secret("db", "hush")]));
    for number in 1..=3 {
        world.ensure(&with_secrets(number, vec![mount("db")])).await.unwrap();
    }
    for _ in 0..2 {
        world.files.remove(&task_id(1)).await.unwrap();
    }
    assert_eq!(world.files.sweep(&|task| task.number == 3).await, Ok(1));
    assert_eq!(world.left(), [task_id(3).to_string()]);
}

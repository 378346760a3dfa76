use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use warren_runtime::fake::FakeRuntime;
use warren_task::FailureKind;
use warren_types::{Id, SecretObjectId, UserNamespace};

use super::*;
use crate::fixtures::{image, settings, task, task_id};
use crate::handlers::secret_fetcher::fake::FakeSecretFetcher;
use crate::tasks::failure::ActionFailure;
use crate::tasks::templates::template_values;

const WAITING: &str = "waiting for a manager to send secrets";

/// A node's secret objects in a plain directory, and the manager that has them.
struct Fixture {
    files: TmpfsSecretObjects,
    fetcher: FakeSecretFetcher,
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = FakeRuntime::new();
        runtime.add_image(&image());
        let etc = dir.path().join("image/etc");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("passwd"), "web:x:33:44::/:/bin/false\n").unwrap();
        runtime.add_image_files(&image(), dir.path().join("image"));
        let secret_fetcher = FakeSecretFetcher::default();
        let memory = SecretTmpfs::plain_dir(dir.path().join("secrets"));
        let files = TmpfsSecretObjects {
            tmpfs: memory,
            fetcher: Arc::new(secret_fetcher.clone()),
            runtime: Arc::new(runtime),
            user_namespaces: Arc::new(UserNamespaces::new(
                dir.path().join("users"),
                "1000000-2000000".parse().unwrap(),
                "/none".into(),
            )),
        };
        Self { files, fetcher: secret_fetcher, dir }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("secrets")
    }

    /// The files in memory, as paths.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    async fn ensure(&self, task: &TaskAssignment) -> Result<Vec<ContainerMount>, ActionFailure> {
        Ok(self.files.ensure(task, &template_values(task, &settings())).await?)
    }
}

fn sent(kind: SecretObjectKind, name: &str, text: &[u8]) -> FetchedObject {
    let (id, bytes) = (SecretObjectId(Id(9)), Zeroizing::new(text.to_vec()));
    FetchedObject { kind, name: name.parse().unwrap(), id, version: 2, bytes }
}

fn secret(name: &str, text: &str) -> FetchedObject {
    sent(SecretObjectKind::Secret, name, text.as_bytes())
}

fn mount(name: &str) -> SecretObjectMount {
    SecretObjectMount::new(name.parse().unwrap())
}

fn with_secrets(number: u64, secrets: Vec<SecretObjectMount>) -> TaskAssignment {
    let mut task = task(number);
    task.spec.secrets = secrets;
    task
}

fn source(mount: &ContainerMount) -> &Path {
    match &mount.source {
        ContainerMountSource::File { path } => path,
        other => panic!("{other:?}"),
    }
}

/// Text, owner and mode of a mounted file.
fn seen(mount: &ContainerMount) -> (String, u32, u32, u32) {
    let path = source(mount);
    let found = fs::metadata(path).unwrap();
    (fs::read_to_string(path).unwrap(), found.uid(), found.gid(), found.mode() & 0o7777)
}

#[tokio::test]
async fn secret_objects_become_files_and_are_fetched_once() {
    let world = Fixture::new();
    let text = "{{.Task.Name}} on {{.Node.Hostname}}";
    world.fetcher.set_answer(Ok(vec![
        secret("db", "hush"),
        sent(SecretObjectKind::Config, "db", text.as_bytes()),
        secret("other", "not asked for"),
    ]));
    let at = |target: &str| Some(target.to_owned());
    let mut task = with_secrets(
        1,
        vec![
            mount("db"),
            SecretObjectMount {
                target: at("/etc/pw"),
                uid: Some(7),
                gid: Some(8),
                mode: Some(0o440),
                ..mount("db")
            },
        ],
    );
    task.spec.configs =
        vec![mount("db"), SecretObjectMount { target: at("/t"), template: true, ..mount("db") }];
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
    world.fetcher.set_answer(Err(SecretFetchError::NoManager("none".into())));
    assert_eq!(world.ensure(&task).await.unwrap(), mounts);
    let again = TmpfsSecretObjects { tmpfs: SecretTmpfs::plain_dir(world.root()), ..world.files };
    assert_eq!(again.ensure(&task, &template_values(&task, &settings())).await.unwrap(), mounts);
    assert_eq!(world.fetcher.requests(), [FetchPurpose::TaskSecretObjects(task.id)]);
}

#[tokio::test]
async fn object_name_never_becomes_host_path() {
    let world = Fixture::new();
    world.fetcher.set_answer(Ok(vec![secret("a.b", "x")]));
    let mounts = world.ensure(&with_secrets(1, vec![mount("a.b")])).await.unwrap();
    assert_eq!(source(&mounts[0]), world.root().join(task_id(1).to_string()).join("secret-0"));
}

#[tokio::test]
async fn missing_manager_is_reported_as_waiting() {
    let world = Fixture::new();
    world.fetcher.set_answer(Err(SecretFetchError::NoManager("not connected to a manager".into())));
    let failure = world.ensure(&with_secrets(1, vec![mount("db")])).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Transient);
    assert!(failure.reason.starts_with(WAITING), "{}", failure.reason);
    assert!(world.left().is_empty());
}

#[tokio::test]
async fn fetch_error_is_reported_and_leaves_nothing() {
    let template = || vec![SecretObjectMount { template: true, ..mount("db") }];
    let (transient, permanent) = (FailureKind::Transient, FailureKind::Permanent);
    let cases = [
        (
            Err(SecretFetchError::VersionGone("version 1 of secret db is not kept".into())),
            mount("db"),
            permanent,
            "is not kept",
        ),
        (Err(SecretFetchError::Refused("not yours".into())), mount("db"), transient, "not yours"),
        (Ok(vec![]), mount("db"), transient, "did not send secret db"),
        (
            Ok(vec![secret("db", "hush {{.Node.Labels.rack}}")]),
            template().remove(0),
            permanent,
            "task.secrets[0]: version 2 of secret db: line 1: field has no value: the node has no label rack",
        ),
        (Ok(vec![secret("db", "hush {{.Task")]), template().remove(0), permanent, "line 1: unclosed"),
        (
            Ok(vec![sent(SecretObjectKind::Secret, "db", b"hush\xff")]),
            template().remove(0),
            permanent,
            "UTF-8",
        ),
    ];
    for (answer, expected, kind, words) in cases {
        let world = Fixture::new();
        world.fetcher.set_answer(answer);
        let failure = world.ensure(&with_secrets(1, vec![expected])).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{}", failure.reason);
        assert!(failure.reason.contains(words) && !failure.reason.contains("hush"), "{}", failure.reason);
        assert!(world.left().is_empty());
    }
}

#[tokio::test]
async fn unknown_owner_is_rejected_by_field_only_if_requested() {
    let world = Fixture::new();
    world.fetcher.set_answer(Ok(vec![secret("db", "hush")]));
    let mut task = with_secrets(1, vec![mount("db")]);
    task.spec.user = Some("stranger".into());
    let failure = world.ensure(&task).await.unwrap_err();
    assert!(failure.reason.starts_with("task.user: \"stranger\""), "{}", failure.reason);
    assert_eq!(failure.kind, FailureKind::Permanent);
    task.spec.secrets[0].uid = Some(1);
    task.spec.secrets[0].gid = Some(2);
    assert_eq!(seen(&world.ensure(&task).await.unwrap()[0]).1, 1);
}

#[tokio::test]
async fn owners_are_those_of_the_user_namespace() {
    let world = Fixture::new();
    world.fetcher.set_answer(Ok(vec![secret("db", "hush")]));
    let mut task = with_secrets(1, vec![mount("db"), SecretObjectMount { uid: Some(7), ..mount("db") }]);
    task.spec.user = Some("web".into());
    task.spec.user_namespace = Some(UserNamespace::Private);
    let owners: Vec<_> = world.ensure(&task).await.unwrap().iter().map(seen).collect();
    assert_eq!(owners[0], ("hush".into(), 1_000_033, 1_000_044, 0o400));
    assert_eq!(owners[1], ("hush".into(), 1_000_007, 1_000_044, 0o400));
    let mut other = TaskAssignment { id: task_id(2), ..task };
    other.spec.secrets[1].gid = Some(65_536);
    let failure = world.ensure(&other).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Permanent);
    assert!(failure.reason.starts_with("task.secrets[1]: user and group must"), "{}", failure.reason);
    other.spec.secrets[1].gid = None;
    assert_eq!(seen(&world.ensure(&other).await.unwrap()[0]).1, 1_065_569);
}

#[tokio::test]
async fn files_are_removed_with_task_and_orphans_are_swept() {
    let world = Fixture::new();
    world.files.remove(&task_id(1)).await.unwrap();
    assert_eq!(world.files.sweep(&|_| false).await.unwrap(), 0);
    assert!(!world.root().exists(), "nothing is made to remove something");
    world.fetcher.set_answer(Ok(vec![secret("db", "hush")]));
    for number in 1..=3 {
        world.ensure(&with_secrets(number, vec![mount("db")])).await.unwrap();
    }
    for _ in 0..2 {
        world.files.remove(&task_id(1)).await.unwrap();
    }
    assert_eq!(world.files.sweep(&|task| task.number == 3).await.unwrap(), 1);
    assert_eq!(world.left(), [task_id(3).to_string()]);
}

#[tokio::test]
async fn seccomp_profile_is_read_from_its_config_and_not_mounted() {
    let world = Fixture::new();
    let mut task = task(1);
    assert!(world.files.seccomp_profile(&task).await.unwrap().is_none());
    task.spec.seccomp = "config/strict".parse().unwrap();
    let json = br#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;
    world.fetcher.set_answer(Ok(vec![sent(SecretObjectKind::Config, "strict", json)]));
    assert!(world.ensure(&task).await.unwrap().is_empty());
    let profile = world.files.seccomp_profile(&task).await.unwrap().unwrap();
    assert_eq!(profile, SeccompProfile::parse(json).unwrap());
    let found = fs::metadata(world.root().join(task.id.to_string()).join(SECCOMP_FILE)).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o400));

    let mut other = with_secrets(2, Vec::new());
    other.spec.seccomp = task.spec.seccomp.clone();
    world.fetcher.set_answer(Ok(vec![sent(SecretObjectKind::Config, "strict", b"{}")]));
    world.ensure(&other).await.unwrap();
    let failure: ActionFailure = world.files.seccomp_profile(&other).await.unwrap_err().into();
    assert_eq!(failure.kind, FailureKind::Permanent);
    let reason = "task.seccomp: config strict: defaultAction: is missing; give an action like SCMP_ACT_ERRNO";
    assert_eq!(failure.reason, reason);
}

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;
use warren_runtime::fake::{FakeFailure, FakeRuntime, FaultPoint, RuntimeOperation};
use warren_runtime::{ContainerId, ContainerOwner, ContainerSpec};
use warren_types::spec::Mount;
use warren_types::template::TemplateNodeValues;
use warren_volume::LocalVolumeDriver;

use super::*;
use crate::fixtures::{image, task, task_id};

struct Fixture {
    volumes: TaskVolumes,
    runtime: FakeRuntime,
    desired_state: watch::Sender<DesiredState>,
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let (runtime, dir) = (FakeRuntime::new(), tempfile::tempdir().unwrap());
        let files = dir.path().join("image");
        fs::create_dir_all(files.join("var/lib/db")).unwrap();
        fs::write(files.join("var/lib/db/first"), "from the image").unwrap();
        std::os::unix::fs::chown(files.join("var/lib/db"), Some(70), Some(71)).unwrap();
        runtime.add_image_files(&image(), &files);
        let (desired_state, expected) =
            watch::channel(DesiredState { is_confirmed: true, ..DesiredState::default() });
        let driver = Arc::new(LocalVolumeDriver::new(dir.path().join("volumes")));
        let pins = SubpathMounts::new(dir.path().join("pins"));
        let volumes = TaskVolumes::new(driver, pins, Arc::new(runtime.clone()), expected);
        Self { volumes, runtime, desired_state, dir }
    }

    async fn ensure(&self, task: &TaskAssignment) -> Result<MountSources, MountSourceError> {
        let labels = BTreeMap::from([("disk".to_owned(), "fast".to_owned())]);
        let values = TemplateValues {
            service_id: task.id.service.to_string(),
            service_name: task.service.as_str(),
            service_labels: &task.service_labels,
            task_id: task.id.to_string(),
            slot: task.slot,
            node: Some(TemplateNodeValues { id: "n".into(), hostname: "n1", labels: &labels }),
        };
        self.volumes.ensure(task, &values).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("volumes").join(name)
    }

    fn add_container(&self, number: u64, record: impl FnOnce(&mut ContainerSpec)) -> ContainerId {
        let id = ContainerId::parse(&task_id(number).to_string()).unwrap();
        let owner = ContainerOwner { task: task_id(number).to_string(), attempt: 1, spec_hash: "h".into() };
        let mut spec = ContainerSpec::new(id.clone(), owner, image());
        record(&mut spec);
        futures::executor::block_on(self.runtime.ensure_created(&spec)).unwrap();
        id
    }
}

fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

pub(super) fn volume(name: &str, target: &str) -> (Mount, VolumeAssignment) {
    let source = MountSource::Volume { name: name.into(), subpath: None, no_copy: false };
    let assigned = VolumeAssignment { name: name.parse().unwrap(), options: BTreeMap::new() };
    (Mount { target: target.into(), source, read_only: false }, assigned)
}

pub(super) fn with(mounts: impl IntoIterator<Item = (Mount, VolumeAssignment)>) -> TaskAssignment {
    let mut task = task(1);
    (task.spec.mounts, task.volumes) = mounts.into_iter().unzip();
    task
}

pub(super) fn subpath_mount(name: &str, target: &str, path: &str) -> (Mount, VolumeAssignment) {
    let (mut mount, assigned) = volume(name, target);
    mount.source = MountSource::Volume { name: name.into(), subpath: Some(path.into()), no_copy: false };
    (mount, assigned)
}

fn bind(path: &str) -> Mount {
    let source = MountSource::Bind { path: path.into(), propagation: Default::default(), recursive: true };
    Mount { target: "/bound".into(), source, read_only: true }
}

#[tokio::test]
async fn empty_volume_is_filled_from_image_once() {
    let node = Fixture::new();
    let task = with([volume("data", "/var/lib/db"), volume("empty", "/nowhere")]);
    for _twice in 0..2 {
        let sources = node.ensure(&task).await.unwrap();
        assert_eq!(sources.paths, [Some(node.path("data")), Some(node.path("empty"))]);
    }
    assert_eq!(fs::read_to_string(node.path("data/first")).unwrap(), "from the image");
    assert_eq!(fs::metadata(node.path("data")).unwrap().uid(), 70);
    assert_eq!(fs::read_dir(node.path("empty")).unwrap().count(), 0);
    // One call for the filled volume, and one each time for the empty one.
    assert_eq!(node.runtime.call_count(RuntimeOperation::ImageFiles), 3);
}

#[tokio::test]
async fn no_copy_when_disabled() {
    let node = Fixture::new();
    let (mut mount, mut assigned) = volume("bare", "/var/lib/db");
    mount.source = MountSource::Volume { name: "bare".into(), subpath: None, no_copy: true };
    assigned.options = [("uid".to_owned(), "9".to_owned()), ("mode".to_owned(), "700".to_owned())].into();
    let task = with([(mount, assigned), subpath_mount("parts", "/var/lib/db", "sub/dir")]);
    let sources = node.ensure(&task).await.unwrap();
    let bare = fs::metadata(node.path("bare")).unwrap();
    assert_eq!((bare.uid(), bare.gid(), bare.mode() & 0o7777), (9, 0, 0o700));
    assert_eq!(fs::read_dir(node.path("bare")).unwrap().count(), 0);
    assert_eq!(node.runtime.call_count(RuntimeOperation::ImageFiles), 0);
    let shown = sources.paths[1].clone().unwrap();
    assert!(shown.starts_with(node.dir.path().join("pins")), "{}", shown.display());
    fs::write(shown.join("file"), "").unwrap();
    assert!(node.path("parts/sub/dir/file").exists());
    drop(sources);
    assert!(!shown.exists() && node.path("parts/sub/dir/file").exists());
}

#[tokio::test]
async fn templates_use_values_of_task_and_node() {
    let node = Fixture::new();
    let mut task =
        with([subpath_mount("data", "/a", "{{.Node.Hostname}}/{{.Task.Slot}}"), volume("data", "/b")]);
    task.spec.mounts.insert(1, bind("/srv/{{.Node.Labels.disk}}/{{.Service.Name}}"));
    let tmpfs = MountSource::Tmpfs { size: None, mode: None, exec: false };
    task.spec.mounts.push(Mount { target: "/tmp".into(), source: tmpfs, read_only: false });
    let sources = node.ensure(&task).await.unwrap();
    assert!(node.path("data/n1/1").is_dir());
    assert_eq!(sources.paths[1..], [Some("/srv/fast/web".into()), Some(node.path("data")), None]);
}

#[tokio::test]
async fn template_error_is_permanent_and_names_field() {
    let node = Fixture::new();
    let refused = async |task: TaskAssignment, words: &str| {
        let error = node.ensure(&task).await.unwrap_err();
        assert!(error.to_string().contains(words) && !error.is_transient(), "{error}");
    };
    let bound = |path: &str| {
        let mut bound = task(1);
        bound.spec.mounts = vec![bind(path)];
        bound
    };
    refused(bound("/{{.Node.Labels.rack}}"), "task.mounts[0].source.bind.path: the node has no label rack")
        .await;
    refused(bound("/{{.Task"), "task.mounts[0].source.bind.path").await;
    let mut labelled = bound("/srv/{{.Service.Labels.dir}}");
    labelled.service_labels.insert("dir".into(), "../etc".into());
    refused(labelled.clone(), "expands to \"/srv/../etc\" on this node; expected an absolute path").await;
    let mut escaping = with([subpath_mount("data", "/a", "{{.Service.Labels.dir}}")]);
    escaping.service_labels = labelled.service_labels;
    refused(escaping, "task.mounts[0].source.volume.subpath expands to \"../etc\"").await;
    let mut wrong = with([volume("data", "/a")]);
    wrong.volumes[0].options.insert("size".into(), "1".into());
    refused(wrong, "options[\"size\"]").await;
    let mut older = with([volume("data", "/a")]);
    older.volumes.clear();
    let error = node.ensure(&older).await.unwrap_err();
    assert!(matches!(error, MountSourceError::Unassigned { .. }) && error.is_transient(), "{error}");
    assert!(!node.path("data").exists());
}

#[tokio::test]
async fn unreadable_image_is_transient() {
    let node = Fixture::new();
    let task = with([volume("data", "/var/lib/db")]);
    node.runtime.fail_next(RuntimeOperation::ImageFiles, FaultPoint::Before(FakeFailure::Unavailable));
    let error = node.ensure(&task).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    node.runtime.remove_image(&image());
    let error = node.ensure(&task).await.unwrap_err();
    assert!(error.is_transient(), "it is brought again: {error}");
    node.runtime.add_image(&image());
    node.ensure(&task).await.unwrap();
    assert!(node.path("data/first").exists());
}

#[tokio::test]
async fn volume_in_use_is_not_purged() {
    let node = Fixture::new();
    let user = with([volume("data", "/a")]);
    node.ensure(&user).await.unwrap();
    fs::write(node.path("data/file"), "kept").unwrap();
    let in_use = async || {
        let error = node.volumes.purge(&name("data")).await.unwrap_err();
        let by = task_id(1).to_string();
        assert!(matches!(&error, PurgeError::InUse { by: found, .. } if *found == by), "{error}");
        assert!(node.path("data/file").exists());
    };
    node.desired_state.send_modify(|desired_state| desired_state.is_confirmed = false);
    let error = node.volumes.purge(&name("data")).await.unwrap_err();
    assert!(matches!(error, PurgeError::Unconfirmed), "{error}");
    let expected = BTreeMap::from([(user.id, Arc::new(user.clone()))]);
    node.desired_state.send_replace(DesiredState {
        tasks: expected,
        is_confirmed: true,
        ..DesiredState::default()
    });
    in_use().await;
    let container = node.add_container(1, |spec| spec.assignment = serde_json::to_vec(&user).unwrap());
    in_use().await;
    node.desired_state.send_modify(|desired_state| desired_state.tasks.clear());
    in_use().await;
    node.runtime.remove(&container).await.unwrap();
    let torn = node.add_container(2, |spec| spec.assignment = b"{".to_vec());
    let error = node.volumes.purge(&name("data")).await.unwrap_err();
    assert!(
        matches!(&error, PurgeError::Unreadable { container } if *container == torn.to_string()),
        "{error}"
    );
    node.runtime.remove(&torn).await.unwrap();
    node.add_container(3, |spec| spec.assignment = serde_json::to_vec(&task(3)).unwrap());
    for _twice in 0..2 {
        node.volumes.purge(&name("data")).await.unwrap();
        assert!(!node.path("data").exists());
    }
}

#[test]
fn named_users_are_bounded() {
    let tasks = |count: u32| (1..=count).map(|number| format!("t{number}")).collect();
    assert_eq!(list_users(&tasks(2)), "t1, t2");
    assert_eq!(list_users(&tasks(7)), "t1, t2, t3, t4, t5 and 2 others");
}

#[tokio::test]
async fn sweep_removes_leftovers_of_killed_agent() {
    let node = Fixture::new();
    std::mem::forget(node.ensure(&with([subpath_mount("data", "/a", "sub")])).await.unwrap());
    fs::create_dir(node.path(".copy-data")).unwrap();
    let (driver, pins) = (
        LocalVolumeDriver::new(node.dir.path().join("volumes")),
        SubpathMounts::new(node.dir.path().join("pins")),
    );
    let next = TaskVolumes::new(
        Arc::new(driver),
        pins,
        Arc::new(node.runtime.clone()),
        node.desired_state.subscribe(),
    );
    for _twice in 0..2 {
        next.sweep().await.unwrap();
    }
    assert_eq!(fs::read_dir(node.dir.path().join("pins")).unwrap().count(), 0);
    assert!(!node.path(".copy-data").exists() && node.path("data/sub").exists());
    assert_eq!(next.list(&BTreeSet::new()).await.unwrap(), [name("data")]);
    assert_eq!(next.list(&BTreeSet::from([name("other")])).await.unwrap(), []);
}

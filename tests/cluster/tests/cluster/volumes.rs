//! Volumes: creation, inspection, and removal with or without their data.

use tonic::Code;
use warren_client::{Client, NewVolume, VolumeListOptions};
use warren_proto::v1;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_testkit::wait::eventually_async;
use warren_types::{Mount, MountSource, ServiceSpec, VolumeId};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::updates::problem;
use crate::worker::ScriptedWorker;

/// Nodes are asked for the sizes.
const SIZES: VolumeListOptions = VolumeListOptions { sizes: true, all: false };
/// Everything is listed.
const ALL: VolumeListOptions = VolumeListOptions { sizes: true, all: true };

fn volume(name: &str, node: &str) -> NewVolume {
    NewVolume {
        id: VolumeId(new_id().0),
        name: name.parse().unwrap(),
        driver: String::new(),
        options: Default::default(),
        labels: Default::default(),
        node: node.to_owned(),
        reuse: false,
    }
}

/// A service called `web` whose task has the volume.
fn spec_with_volume(name: &str) -> ServiceSpec {
    let mut spec = spec("web", 1);
    let source = MountSource::Volume { name: name.to_owned(), subpath: None, no_copy: false };
    spec.task.mounts = vec![Mount { target: "/data".into(), source, read_only: false }];
    spec
}

/// The worker gets a request, and answers it.
async fn answer_volume_request(worker: &mut ScriptedWorker, frames: Vec<Frame>) -> Purpose {
    let open = worker.next_stream_request().await;
    let stream = worker.attach_to(open.stream_id).await;
    for frame in frames {
        stream.send(frame).await;
    }
    stream.wait_closed().await;
    open.purpose.expect("it is asked for something")
}

fn size(name: &str, size_bytes: u64) -> Frame {
    Frame::Volumes(v1::VolumeList {
        volumes: vec![v1::LocalVolume { name: name.into(), size_bytes: Some(size_bytes) }],
    })
}

fn done() -> Frame {
    Frame::Done(v1::StreamDone {})
}

async fn down(client: &Client) {
    eventually_async(WAIT_DEADLINE, "the node to be down", || async {
        let node = client.nodes().get("n1").await.map_err(|error| error.to_string())?;
        if node.status() == v1::NodeStatus::Down { Ok(()) } else { Err(format!("{:?}", node.status())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_binds_to_the_first_task_node() {
    let world = ManagerFixture::new().await;
    let (client, mut worker) = (world.local().await, ScriptedWorker::dial(&world).await);
    let volumes = client.volumes();
    let made = volumes.create(volume("data", "")).await.unwrap();
    assert_eq!((made.driver.as_str(), made.node_name.as_str(), made.users.len()), ("local", "", 0));
    client.services().create(new_id(), &spec_with_volume("data")).await.unwrap();
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let assigned = worker.tasks.values().next().unwrap();
    assert_eq!(assigned.volumes.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["data"]);

    let [listed] = &volumes.list(VolumeListOptions::default()).await.unwrap()[..] else {
        panic!("one volume")
    };
    assert_eq!((listed.node_name.as_str(), listed.users.as_slice()), ("n1", &["web.1".to_owned()][..]));
    assert_eq!(listed.size_bytes, None, "no worker was asked");
    let serve = answer_volume_request(&mut worker, vec![size("data", 7), size("another", 9), done()]);
    let (shown, purpose) = tokio::join!(volumes.get("data"), serve);
    assert_eq!(shown.unwrap().size_bytes, Some(7));
    assert_eq!(purpose, Purpose::ListVolumes(v1::ListVolumes { names: vec!["data".into()] }));
    let (listed, _) =
        tokio::join!(volumes.list(SIZES), answer_volume_request(&mut worker, vec![size("data", 8), done()]));
    assert_eq!(listed.unwrap()[0].size_bytes, Some(8));
    let silent = answer_volume_request(&mut worker, vec![Frame::Error("the disk does not work".into())]);
    let (shown, _) = tokio::join!(volumes.get("data"), silent);
    assert_eq!(shown.unwrap().size_bytes, None, "an unknown size is omitted");

    for purge in [false, true] {
        let used = problem(volumes.remove("data", purge).await.unwrap_err());
        assert_eq!((used.code, used.reason.as_str()), (Code::FailedPrecondition, "VOLUME_IN_USE"));
        assert!(used.message.contains("volume data is used by web.1"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_goes_with_its_data_when_its_node_has_deleted_that() {
    let world = ManagerFixture::new().await;
    let (client, mut worker) = (world.local().await, ScriptedWorker::dial(&world).await);
    let volumes = client.volumes();
    volumes.create(volume("data", "n1")).await.unwrap();
    let fails = answer_volume_request(&mut worker, vec![Frame::Error("it is busy".into())]);
    let (refused, purpose) = tokio::join!(volumes.remove("data", true), fails);
    assert_eq!(purpose, Purpose::PurgeVolume(v1::PurgeVolume { name: "data".into() }));
    let refused = problem(refused.unwrap_err());
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::FailedPrecondition, "VOLUME_DATA_NOT_DELETED")
    );
    assert!(refused.message.contains("it is busy") && refused.message.contains("--purge data"), "{refused}");
    let marked = &volumes.list(VolumeListOptions::default()).await.unwrap()[0];
    assert!(marked.removing);
    let users = problem(client.services().create(new_id(), &spec_with_volume("data")).await.unwrap_err());
    assert_eq!(users.reason, "VOLUME_REMOVING", "it gets no new users");

    let (removed, _) =
        tokio::join!(volumes.remove("data", true), answer_volume_request(&mut worker, vec![done()]));
    assert_eq!(removed.unwrap().name, "data");
    assert!(volumes.get("data").await.unwrap_err().is_not_found());
    assert!(volumes.remove("data", true).await.unwrap_err().is_not_found());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_of_down_node_is_removed_but_not_purged() {
    let world = ManagerFixture::new().await;
    let (client, worker) = (world.local().await, ScriptedWorker::dial(&world).await);
    let volumes = client.volumes();
    volumes.create(volume("data", "n1")).await.unwrap();
    volumes.create(volume("empty", "")).await.unwrap();
    drop(worker);
    down(&client).await;
    let refused = problem(volumes.remove("data", true).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (Code::FailedPrecondition, "VOLUME_UNREACHABLE"));
    assert!(!volumes.list(SIZES).await.unwrap()[0].removing, "nothing was changed");
    assert_eq!(volumes.remove("empty", true).await.unwrap().name, "empty", "it never had data");
    volumes.remove("data", false).await.unwrap();
    assert_eq!(volumes.list(VolumeListOptions::default()).await.unwrap(), [], "only its data remains");
}

/// The volumes as `ls --all` shows them: name, node, size, whether it was removed, and whether it has no record.
async fn listed(client: &Client, options: VolumeListOptions) -> Vec<(String, Option<u64>, bool, bool)> {
    let volumes = client.volumes().list(options).await.unwrap();
    let row = |volume: v1::Volume| {
        assert_eq!(volume.node_name, "n1");
        (volume.name, volume.size_bytes, volume.released_at.is_some(), volume.unrecorded)
    };
    volumes.into_iter().map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_volume_is_listed_with_its_data_also_while_its_node_is_down() {
    let world = ManagerFixture::new().await;
    let (client, mut worker) = (world.local().await, ScriptedWorker::dial(&world).await);
    let volumes = client.volumes();
    volumes.create(volume("data", "n1")).await.unwrap();
    let answer = answer_volume_request(&mut worker, vec![size("data", 7), done()]);
    let (removed, _) = tokio::join!(volumes.remove("data", false), answer);
    assert!(removed.unwrap().released_at.is_some());
    assert_eq!(listed(&client, VolumeListOptions::default()).await, []);
    let frames = vec![size("data", 8), size("found", 9), done()];
    let (shown, purpose) = tokio::join!(listed(&client, ALL), answer_volume_request(&mut worker, frames));
    assert_eq!(purpose, Purpose::ListVolumes(v1::ListVolumes { names: Vec::new() }));
    let found = ("found".to_owned(), Some(9), false, true);
    assert_eq!(shown, [("data".to_owned(), Some(8), true, false), found]);

    let refused = problem(client.services().create(new_id(), &spec_with_volume("data")).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (Code::FailedPrecondition, "VOLUME_RELEASED"));
    let expected = "volume data was removed, and its data (7B) is still on n1";
    assert!(refused.message.starts_with(expected), "{refused}");
    let refused = problem(volumes.create(volume("data", "")).await.unwrap_err());
    assert_eq!(refused.reason, "VOLUME_RELEASED");

    drop(worker);
    down(&client).await;
    assert_eq!(listed(&client, ALL).await, [("data".to_owned(), Some(7), true, false)]);
    volumes.create(NewVolume { reuse: true, ..volume("data", "") }).await.unwrap();
    client.services().create(new_id(), &spec_with_volume("data")).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_without_a_volume_is_recorded_and_purged() {
    let world = ManagerFixture::new().await;
    let (client, mut worker) = (world.local().await, ScriptedWorker::dial(&world).await);
    let volumes = client.volumes();
    let inventory = v1::NodeInventory { volumes: vec!["old".into()], ..Default::default() };
    worker.send(Say::Inventory(inventory)).await;
    let records = VolumeListOptions { sizes: false, all: true };
    eventually_async(WAIT_DEADLINE, "a record of the data", || async {
        let shown = listed(&client, records).await;
        let expected = [("old".to_owned(), None, true, false)];
        if shown == expected { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
    let refused = problem(client.services().create(new_id(), &spec_with_volume("old")).await.unwrap_err());
    assert_eq!(refused.reason, "VOLUME_RELEASED");
    let (purged, purpose) =
        tokio::join!(volumes.remove("old", true), answer_volume_request(&mut worker, vec![done()]));
    assert_eq!(purged.unwrap().name, "old");
    assert_eq!(purpose, Purpose::PurgeVolume(v1::PurgeVolume { name: "old".into() }));
    assert_eq!(listed(&client, records).await, []);
    // Data of a name that a volume on no or another node has.
    volumes.create(volume("old", "")).await.unwrap();
    let (purged, purpose) =
        tokio::join!(volumes.purge_on("old", "n1"), answer_volume_request(&mut worker, vec![done()]));
    assert!(purged.unwrap().unrecorded);
    assert_eq!(purpose, Purpose::PurgeVolume(v1::PurgeVolume { name: "old".into() }));
    assert_eq!(volumes.list(records).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_volume_is_refused() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let volumes = client.volumes();
    let path = |refused: warren_client::Error| problem(refused).violations.0[0].path.clone();
    let nfs = NewVolume { driver: "nfs".into(), ..volume("data", "") };
    assert_eq!(path(volumes.create(nfs).await.unwrap_err()), "driver");
    let options = [("size".to_owned(), "1G".to_owned())].into();
    let sized = NewVolume { options, ..volume("data", "") };
    assert_eq!(path(volumes.create(sized).await.unwrap_err()), "options[\"size\"]");
    assert!(volumes.create(volume("data", "n7")).await.unwrap_err().is_not_found());
    let good = volume("data", "n1");
    volumes.create(good.clone()).await.unwrap();
    volumes.create(good).await.unwrap();
    assert_eq!(problem(volumes.create(volume("data", "")).await.unwrap_err()).code, Code::AlreadyExists);
}

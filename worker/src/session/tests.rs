mod failover;
mod network;

use std::net::Ipv4Addr;
use std::sync::Mutex;

use tokio::io::AsyncReadExt;
use tokio::time::Instant;
use warren_control::{Clock, Shutdown, SystemClock};
use warren_image::{Digest, Reference};
use warren_proto::status::{NODE_REMOVED, NODE_UNKNOWN, Problem};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::stream_frame::Frame as StreamFrame;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_runtime::fake::FakeRuntime;
use warren_types::fixtures::task_report;
use warren_types::{AssignmentVersion, TaskReport, TaskState, Timestamp, WireGuardKey};
use warren_volume::SubpathMounts;

use super::*;
use crate::fake_manager::{FakeManager, FakeSession, at};
use crate::fixtures::{
    certificate, check_context, image, images, settings, tag, task, task_id, trust, verifier,
};
use crate::handlers::files::TaskDirs;
use crate::handlers::images::ImageArrivals;
use crate::handlers::images::fake::FakeImages;
use crate::handlers::volumes::TaskVolumes;
use crate::image_gc::{self, ImageGc};
use crate::node::stats::TaskStats;

/// Where other nodes would send packets.
const DATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// The node's end of sessions, without tasks.
pub(in crate::session) struct TestNode {
    pub context: Arc<SessionContext>,
    /// What the kernel would have.
    pub applied_network: watch::Sender<AssignmentVersion>,
    shutdown: Shutdown,
    imported: Arc<Mutex<Vec<u8>>>,
    pub images: FakeImages,
    pub fake_runtime: FakeRuntime,
    pub volumes: warren_volume::fake::FakeVolumeDriver,
    pub directories: TaskDirs,
    dir: tempfile::TempDir,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.shutdown.token().cancel();
    }
}

impl TestNode {
    pub fn start(desired_state: DesiredState) -> (Self, FakeManager) {
        Self::start_with(desired_state, true)
    }

    /// As [`Node::start`]; a manager's own node cannot be removed.
    fn start_with(desired_state: DesiredState, can_be_removed: bool) -> (Self, FakeManager) {
        let (manager, dial) = FakeManager::in_memory();
        (Self::with_dialer(desired_state, can_be_removed, dial, trust()), manager)
    }

    /// With another dialer.
    fn with_dialer(
        desired_state: DesiredState,
        can_be_removed: bool,
        dial: SharedDialer,
        trust: Arc<Trust>,
    ) -> Self {
        let shutdown = Shutdown::new();
        let imported = Arc::<Mutex<Vec<u8>>>::default();
        let random: RandomSource = Arc::new(|| 0);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let dir = tempfile::tempdir().unwrap();
        let directories = TaskDirs::new(dir.path().to_owned());
        let (runtime, images) = (FakeRuntime::new(), images());
        // A file system without a size: images must not be collected because the machine's disk is nearly full.
        let (reporter, meter) = (Arc::<TaskReporter>::default(), Arc::new(NodeMeter::new("/proc".into())));
        let desired_state = watch::Sender::new(desired_state);
        let expected = desired_state.subscribe();
        let network_view = watch::Sender::new(NetworkView::default());
        let applied_network = watch::Sender::new(AssignmentVersion::default());
        let view = network_view.subscribe();
        let data_address = Arc::new(DataAddress::new(Some(DATA_ADDRESS), None, expected.clone(), view));
        let image_gc = Arc::new(ImageGc {
            source: Arc::new(images.clone()),
            runtime: Arc::new(runtime.clone()),
            desired_state: expected.clone(),
            clock: Arc::clone(&clock),
        });
        let background_tasks = BackgroundTasks::new(shutdown.clone(), clock, Arc::clone(&random));
        let (kept, pins) =
            (warren_volume::fake::FakeVolumeDriver::new(), SubpathMounts::new(dir.path().join("pins")));
        let volumes = Arc::new(kept.clone());
        let volumes = TaskVolumes::new(volumes, pins, Arc::new(runtime.clone()), expected.clone());
        let (to_manager, manager_line) = watch::channel(None);
        let services = StreamServices {
            verifier: Arc::new(verifier(dir.path(), &runtime, network_view.subscribe())),
            import: recording_import(Arc::clone(&imported)),
            logs: TaskLogs {
                task_dirs: directories.clone(),
                reporter: Arc::clone(&reporter),
                desired_state: expected,
            },
            image_gc: Arc::clone(&image_gc),
            image_arrivals: ImageArrivals::default(),
            secret_fetcher: Arc::new(ManagerSecretFetcher::new(settings().node, manager_line)),
            volumes: Arc::new(volumes),
            runtime: Arc::new(runtime.clone()),
            sockets: warren_health::SocketFactory::default(),
        };
        let stats = TaskStats::new(Arc::new(runtime.clone()), desired_state.subscribe());
        let vitals = HeartbeatStats::new(Arc::new(stats), check_context());
        let context = Arc::new(SessionContext {
            cluster: settings().cluster,
            node: settings().node,
            certificate: certificate(),
            trust,
            desired_state,
            network_view,
            applied_network: applied_network.subscribe(),
            data_address,
            wireguard_key: WireGuardKey([7; 32]),
            reporter,
            runtime: Arc::new(runtime.clone()),
            overrides: NodeOverrides::default(),
            meter: Arc::clone(&meter),
            conditions: Arc::default(),
            heartbeat_stats: Arc::new(vitals),
            stream_services: Arc::new(services),
            disk_pressure: image_gc::start(image_gc, meter, &background_tasks, shutdown.token()),
            background_tasks,
            random,
            connectivity: Arc::new(ConnectivityMonitor::resume(dir.path())),
            is_connected: watch::Sender::new(false),
            manager_channel: to_manager,
            certificate_expired: watch::Sender::new(false),
            rejection: watch::Sender::new(None),
            removal_record: can_be_removed.then(|| removal_record(&dir)),
        });
        shutdown.spawn("session", run(Arc::clone(&context), dial, shutdown.token()));
        Self {
            context,
            applied_network,
            shutdown,
            imported,
            images,
            fake_runtime: runtime,
            volumes: kept,
            directories,
            dir,
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.context.desired_state.borrow().tasks.keys().map(|id| id.number).collect()
    }
}

fn removal_record(dir: &tempfile::TempDir) -> RemovalRecord {
    RemovalRecord::new(dir.path(), settings().cluster, settings().node)
}

/// An import that keeps the bytes and rejects those that start with `bad`.
fn recording_import(kept: Arc<Mutex<Vec<u8>>>) -> ImportFn {
    Arc::new(move |mut archive| {
        let kept = Arc::clone(&kept);
        Box::pin(async move {
            let mut start = [0; 3];
            let read = archive.read_exact(&mut start).await;
            let interrupted = |error: std::io::Error| warren_image::Error::Interrupted {
                received: 0,
                reason: error.to_string(),
            };
            read.map_err(interrupted)?;
            if &start == b"bad" {
                return Err(warren_image::Error::NotAnArchive { found: "bad bytes".into() });
            }
            let mut all = start.to_vec();
            archive.read_to_end(&mut all).await.map_err(interrupted)?;
            *kept.lock().unwrap() = all;
            let digest = Digest::parse(&format!("sha256:{}", "0".repeat(64))).unwrap();
            Ok(vec![ImportedName { reference: Reference::parse("demo:1").unwrap(), digest, size: 7 }])
        })
    })
}

pub(in crate::session) fn report(number: u64) -> TaskReport {
    let (since, ready) = (Timestamp(1), true);
    TaskReport { since, ready, ..task_report(task_id(number), 1, TaskState::Running) }
}

async fn ack(session: &mut FakeSession) -> AssignmentVersion {
    let ack = |frame: &FromWorker| match frame {
        FromWorker::Ack(ack) => Some(ack.version.unwrap().into()),
        _ => None,
    };
    session.next_matching(ack).await
}

async fn sync(session: &mut FakeSession) -> AssignmentVersion {
    let sync = |frame: &FromWorker| match frame {
        FromWorker::Sync(sync) => Some(sync.version.unwrap().into()),
        _ => None,
    };
    let version = session.next_matching(sync).await;
    session.send(Frame::Current(v1::AssignmentCurrent::default())).await;
    version
}

#[tokio::test(start_paused = true)]
async fn assignments_are_applied_and_acknowledged() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    session.assign(5, vec![task(1), task(2)]).await;
    assert_eq!(ack(&mut session).await, at(5));
    assert_eq!(node.numbers(), [1, 2]);
    session.assign_update(5, 6, &[task(3)], &[task_id(1)]).await;
    assert_eq!(ack(&mut session).await, at(6));
    assert_eq!(node.numbers(), [2, 3]);
    // A repeated assignment changes nothing and needs no answer; an older one is ignored.
    session.assign_update(5, 6, &[task(3)], &[task_id(1)]).await;
    session.assign(4, vec![task(9)]).await;
    session.assign_update(6, 7, &[], &[task_id(2)]).await;
    assert_eq!(ack(&mut session).await, at(7));
    assert_eq!(node.numbers(), [3]);
    let desired_state = node.context.desired_state.borrow().clone();
    assert_eq!((desired_state.settings, desired_state.is_confirmed), (Some(settings()), true));
}

#[tokio::test(start_paused = true)]
async fn version_gap_requests_full_assignment() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    assert_eq!(sync(&mut session).await, initial_version());
    session.assign_update(8, 9, &[task(1)], &[]).await;
    let asked = Instant::now();
    assert_eq!(sync(&mut session).await, initial_version());
    assert!(asked.elapsed() < settings().sync, "at once, not at the next sync");
    assert!(node.numbers().is_empty());
    session.assign(9, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(9));
    assert_eq!(sync(&mut session).await, at(9));
}

fn initial_version() -> AssignmentVersion {
    AssignmentVersion::default()
}

#[tokio::test(start_paused = true)]
async fn cached_version_is_sent_and_confirmed() {
    let known = DesiredState {
        version: at(7),
        tasks: [(task_id(1), Arc::new(task(1)))].into(),
        ..DesiredState::default()
    };
    let (node, mut manager) = TestNode::start(known);
    let (mut session, hello) = manager.next_session().await;
    assert_eq!(hello.version.unwrap(), at(7).into());
    assert_eq!(hello.description.unwrap().runtime.split(' ').next(), Some("fake"));
    session.welcome(&settings()).await;
    assert_eq!(sync(&mut session).await, at(7));
    let mut desired_state = node.context.desired_state.subscribe();
    let confirmed = desired_state.wait_for(|desired_state| desired_state.is_confirmed);
    assert_eq!(confirmed.await.unwrap().tasks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_and_syncs_keep_their_periods_and_inventories_are_sent_when_changed() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    let (mut beats, mut syncs, mut inventories) = (Vec::new(), Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(31) {
        match session.next_frame().await {
            FromWorker::Heartbeat(beat) => {
                let usage = beat.usage.unwrap();
                assert!(usage.memory_bytes > 0);
                let certificate = node.context.certificate.validity();
                let reported = (usage.certificate_issued_at, usage.certificate_expires_at);
                assert_eq!(reported, (Some(certificate.start.0), Some(certificate.end.0)));
                beats.push(began.elapsed().as_secs());
            }
            FromWorker::Sync(_) => {
                syncs.push(began.elapsed().as_secs());
                session.send(Frame::Current(v1::AssignmentCurrent::default())).await;
            }
            FromWorker::Inventory(inventory) => {
                assert_eq!(inventory.images[0].reference, tag().record_name());
                inventories.push((began.elapsed().as_secs(), inventory.images.len()));
            }
            other => panic!("{other:?}"),
        }
        if began.elapsed().as_secs() == 15 {
            node.images.add(&Reference::parse("other:1").unwrap(), image().digest().unwrap().clone());
        }
    }
    assert_eq!(beats, [0, 5, 10, 15, 20, 25, 30]);
    assert!(syncs.starts_with(&[0, 3, 6, 9]), "{syncs:?}");
    assert_eq!(inventories, [(0, 1), (20, 2)]);
    let background_tasks: Vec<&str> =
        node.context.background_tasks.snapshot().iter().map(|status| status.name).collect();
    assert_eq!(background_tasks, ["worker.heartbeat", "worker.image-gc", "worker.inventory", "worker.sync"]);
    drop(session);
    let mut session = manager.next_welcomed_session().await;
    let images = |frame: &FromWorker| match frame {
        FromWorker::Inventory(inventory) => Some(inventory.images.len()),
        _ => None,
    };
    assert_eq!(session.next_matching(images).await, 2, "a new session gets what an earlier one got");
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_reports_are_resent_in_next_session() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    node.context.reporter.report(report(1));
    let mut session = manager.next_welcomed_session().await;
    let batch = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    let first = session.next_matching(batch).await;
    assert_eq!(first.reports, [(&report(1)).into()]);
    let again = session.next_matching(batch).await;
    assert_eq!(again.reports, first.reports);
    drop(session);
    let mut session = manager.next_welcomed_session().await;
    let third = session.next_matching(batch).await;
    assert_eq!(third.reports, first.reports);
    session.send(Frame::Stored(v1::ReportBatchAck { number: third.number })).await;
    node.context.reporter.report(report(2));
    let other = session.next_matching(batch).await;
    assert_eq!(other.reports, [(&report(2)).into()]);
}

#[tokio::test(start_paused = true)]
async fn new_incarnation_gets_all_reports_again() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let batch = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    node.context.reporter.report(report(1));
    let mut session = manager.next_welcomed_session().await;
    let first = session.next_matching(batch).await;
    session.send(Frame::Stored(v1::ReportBatchAck { number: first.number })).await;
    session.assign(9, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(9));
    // It was restored from before that report. A new incarnation begins with new managers, and so with a new
    // session.
    drop(session);
    let mut session = manager.next_welcomed_session().await;
    let assignment = warren_types::Assignment {
        version: AssignmentVersion { incarnation: 2, index: 3 },
        tasks: vec![task(1)],
        retained: Vec::new(),
    };
    session.send(Frame::Assignment((&assignment).into())).await;
    let again = session.next_matching(batch).await;
    assert_eq!(again.reports, first.reports);
    // A late report of the last incarnation does not count in this one.
    session.send(Frame::Stored(v1::ReportBatchAck { number: first.number })).await;
    let unconfirmed = session.next_matching(batch).await;
    assert_eq!(unconfirmed.reports, first.reports);
}

#[tokio::test(start_paused = true)]
async fn removed_report_is_withheld_while_task_is_desired() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let removed = |number| TaskReport { removed: true, ..report(number) };
    node.context.reporter.report(removed(1));
    let mut session = manager.next_welcomed_session().await;
    session.assign(9, vec![task(1)]).await;
    // An actor that has not received that yet completes its action of the last incarnation.
    node.context.reporter.report(removed(2));
    node.context.reporter.report(removed(1));
    let output = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) if !reports.reports.is_empty() => Some(reports.reports.clone()),
        _ => None,
    };
    assert_eq!(session.next_matching(output).await, [(&removed(2)).into()]);
    node.context.reporter.forget_removal(&task_id(1));
    node.context.reporter.report(report(1));
    assert_eq!(session.next_matching(output).await, [(&report(1)).into()]);
}

fn refusal(word: &str) -> tonic::Status {
    Problem::new(tonic::Code::FailedPrecondition, word, "the manager's words").into()
}

async fn rejection(node: &TestNode) -> SessionRejection {
    let mut rejection = node.context.rejection.subscribe();
    let output = rejection.wait_for(Option::is_some).await.unwrap().clone();
    output.expect("it was waited for")
}

#[tokio::test(start_paused = true)]
async fn removed_node_clears_desired_state_and_stops_dialling() {
    for welcomed in [true, false] {
        let known = DesiredState {
            version: at(7),
            tasks: [(task_id(1), Arc::new(task(1)))].into(),
            ..DesiredState::default()
        };
        let (node, mut manager) = TestNode::start(known.clone());
        match welcomed {
            // In the middle of a session, or instead of a welcome.
            true => manager.next_welcomed_session().await.refuse(refusal(NODE_REMOVED)).await,
            false => manager.next_session().await.0.refuse(refusal(NODE_REMOVED)).await,
        }
        let reason = "the manager's words".to_owned();
        let never_connected = !welcomed;
        assert_eq!(
            rejection(&node).await,
            SessionRejection::Removed { reason: reason.clone(), never_connected }
        );
        assert_eq!(removal_record(&node.dir).load(), Some(Removal { reason, containers: 0, cleared: false }));
        let settings = welcomed.then(settings);
        let nothing = DesiredState { settings, tasks: Default::default(), is_confirmed: true, ..known };
        assert_eq!(*node.context.desired_state.borrow(), nothing);
        assert!(manager.has_no_session_for(3 * REJECTED_BACKOFF).await, "it asks no more");
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_node_keeps_tasks_and_retries_slowly() {
    // A manager's rejection of its own node is never more than that.
    for (word, can_be_removed) in [(NODE_UNKNOWN, true), (NODE_REMOVED, false)] {
        let known = DesiredState {
            version: at(7),
            tasks: [(task_id(1), Arc::new(task(1)))].into(),
            ..DesiredState::default()
        };
        let (node, mut manager) = TestNode::start_with(known.clone(), can_be_removed);
        manager.next_session().await.0.refuse(refusal(word)).await;
        let reason = "the manager's words".to_owned();
        assert_eq!(rejection(&node).await, SessionRejection::Unknown { reason, before: true });
        for _ in 0..2 {
            let before = Instant::now();
            let (session, _) = manager.next_session().await;
            assert_eq!(before.elapsed().as_secs(), REJECTED_BACKOFF.as_secs());
            session.refuse(refusal(word)).await;
        }
        assert_eq!((&*node.context.desired_state.borrow(), removal_record(&node.dir).load()), (&known, None));
        let session = manager.next_welcomed_session().await;
        node.context.rejection.subscribe().wait_for(Option::is_none).await.unwrap();
        session.refuse(tonic::Status::unavailable("another leader")).await;
        let before = Instant::now();
        drop(manager.next_welcomed_session().await);
        assert!(before.elapsed() < Duration::from_secs(1), "as usual again");
    }
}

/// A manager that was restored from before the node joined answers "unknown" until its log has grown past
/// what the node has seen, which the node's own requests cause. From then on it answers "removed".
#[tokio::test(start_paused = true)]
async fn manager_without_record_of_node_cannot_remove_it() {
    let known = DesiredState {
        version: at(7),
        tasks: [(task_id(1), Arc::new(task(1)))].into(),
        ..DesiredState::default()
    };
    let (node, mut manager) = TestNode::start(known.clone());
    for word in [NODE_UNKNOWN, NODE_REMOVED, NODE_REMOVED] {
        manager.next_session().await.0.refuse(refusal(word)).await;
        let reason = "the manager's words".to_owned();
        assert_eq!(rejection(&node).await, SessionRejection::Unknown { reason, before: true });
    }
    // A restart meanwhile changes nothing of that.
    manager.next_session().await.0.refuse(tonic::Status::unavailable("this manager stops")).await;
    manager.next_session().await.0.refuse(refusal(NODE_REMOVED)).await;
    let (session, _) = manager.next_session().await;
    assert_eq!((&*node.context.desired_state.borrow(), removal_record(&node.dir).load()), (&known, None));
    session.refuse(refusal(NODE_UNKNOWN)).await;
    manager.next_welcomed_session().await.refuse(refusal(NODE_REMOVED)).await;
    let mut rejection = node.context.rejection.subscribe();
    rejection.wait_for(|output| matches!(output, Some(SessionRejection::Removed { .. }))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_errors_remove_no_node() {
    let known = DesiredState {
        version: at(7),
        tasks: [(task_id(1), Arc::new(task(1)))].into(),
        ..DesiredState::default()
    };
    let (node, mut manager) = TestNode::start(known.clone());
    for status in [
        tonic::Status::unavailable("this manager stops"),
        tonic::Status::failed_precondition("this node was removed from the cluster"),
        tonic::Status::not_found(NODE_REMOVED),
        refusal("NODE_IN_USE"),
    ] {
        manager.next_session().await.0.refuse(status).await;
    }
    drop(manager);
    tokio::time::sleep(3 * REJECTED_BACKOFF).await;
    assert_eq!(*node.context.rejection.borrow(), None);
    assert_eq!((&*node.context.desired_state.borrow(), removal_record(&node.dir).load()), (&known, None));
}

#[tokio::test(start_paused = true)]
async fn settings_for_other_node_end_session() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let (session, _) = manager.next_session().await;
    let other = warren_types::NodeSettings { node: NodeId(warren_types::Id(9)), ..settings() };
    session.welcome(&other).await;
    session.wait_until_ended().await;
    assert_eq!(node.context.desired_state.borrow().settings, None);
    drop(manager.next_welcomed_session().await);
}

async fn open(session: &FakeSession, purpose: Option<v1::open_stream::Purpose>) {
    session.send(Frame::Open(v1::OpenStream { stream_id: "s1".into(), purpose })).await;
}

#[tokio::test(start_paused = true)]
async fn stream_with_unknown_purpose_is_refused() {
    let (_node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    open(&session, None).await;
    let opened = |frame: &FromWorker| match frame {
        FromWorker::Opened(opened) => Some(opened.clone()),
        _ => None,
    };
    let refused = session.next_matching(opened).await;
    assert_eq!(refused.stream_id, "s1");
    assert!(refused.error.contains("upgrade"), "{}", refused.error);
}

/// Sends an archive in pieces and returns the node's frames, without progress.
async fn import(pieces: &[StreamFrame]) -> (Vec<StreamFrame>, Vec<u8>) {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    open(&session, Some(v1::open_stream::Purpose::ImportImage(v1::ImportImage {}))).await;
    let mut attached = manager.next_stream().await;
    // The session continues meanwhile.
    let living = tokio::spawn(async move { session.next_matching(|_| None::<()>).await });
    let mut output = Vec::new();
    for piece in pieces {
        let frame = v1::StreamFrame { frame: Some(piece.clone()) };
        attached.to_worker.send(Ok(frame)).await.unwrap();
    }
    while let Some(frame) = attached.from_worker.recv().await {
        let frame = frame.frame.unwrap();
        let last = matches!(frame, StreamFrame::Done(_) | StreamFrame::Error(_));
        if !matches!(frame, StreamFrame::ReceivedBytes(_)) {
            output.push(frame);
        }
        if last {
            break;
        }
    }
    living.abort();
    let kept = node.imported.lock().unwrap().clone();
    (output, kept)
}

fn data(bytes: &'static [u8]) -> StreamFrame {
    StreamFrame::Data(bytes.into())
}

#[tokio::test(start_paused = true)]
async fn an_archive_is_imported() {
    let (output, kept) = import(&[data(b"arch"), data(b"ive"), StreamFrame::End(v1::EndOfData {})]).await;
    assert_eq!(kept, b"archive");
    let imported = v1::ImportedImageFrame {
        reference: Reference::parse("demo:1").unwrap().to_string(),
        digest: format!("sha256:{}", "0".repeat(64)),
        size_bytes: 7,
    };
    let id = StreamFrame::StreamId("s1".into());
    assert_eq!(output, [id, StreamFrame::Imported(imported), StreamFrame::Done(v1::StreamDone {})]);
}

#[tokio::test(start_paused = true)]
async fn failed_archive_import_reports_reason() {
    let (output, kept) = import(&[data(b"bad"), data(b"rest")]).await;
    assert!(matches!(&output[1], StreamFrame::Error(why) if why.contains("bad bytes")), "{output:?}");
    assert!(kept.is_empty());
    let (text, kept) = import(&[data(b"arch"), StreamFrame::Error("disk gone".into())]).await;
    assert!(matches!(&text[1], StreamFrame::Error(why) if why.contains("disk gone")), "{text:?}");
    assert!(kept.is_empty(), "an archive that was cut off is not imported");
    let (printed, _) = import(&[data(b"arch")]).await;
    assert!(
        matches!(&printed[1], StreamFrame::Error(why) if why.contains("no data from the manager for 30s")),
        "{printed:?}"
    );
}

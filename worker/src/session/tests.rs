mod following;

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
use warren_runtime::fake::Fake;
use warren_types::{AssignmentVersion, TaskReport, TaskState, Timestamp};
use warren_volume::Pins;

use super::*;
use crate::garbage::{self, Shelf};
use crate::handlers::files::Directories;
use crate::handlers::images::fake::FakeImages;
use crate::handlers::volumes::Volumes;
use crate::node::stats::Stats;
use crate::node::vitals::Vitals;
use crate::samples::{checking, images, settings, task, task_id};
use crate::scripted::{Manager, Session, at};

/// The node's end of sessions, without tasks.
pub(in crate::session) struct Node {
    pub context: Arc<Context>,
    shutdown: Shutdown,
    imported: Arc<Mutex<Vec<u8>>>,
    pub images: FakeImages,
    pub volumes: warren_volume::fake::Fake,
    pub directories: Directories,
    dir: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shutdown.token().cancel();
    }
}

impl Node {
    pub fn start(wishes: Wishes) -> (Self, Manager) {
        Self::start_as(wishes, true)
    }

    /// As [`Node::start`]; a manager's own node cannot be removed.
    fn start_as(wishes: Wishes, can_be_removed: bool) -> (Self, Manager) {
        let (manager, dial) = Manager::in_memory();
        (Self::with(wishes, can_be_removed, dial), manager)
    }

    /// With another way to managers.
    fn with(wishes: Wishes, can_be_removed: bool, dial: Dial) -> Self {
        let shutdown = Shutdown::new();
        let imported = Arc::<Mutex<Vec<u8>>>::default();
        let chance: Chance = Arc::new(|| 0);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories::new(dir.path().to_owned());
        let (runtime, images) = (Fake::new(), images());
        let (reporter, meter) = (Arc::<Reporter>::default(), Arc::new(Meter::new("/".into())));
        let wishes = watch::Sender::new(wishes);
        let wanted = wishes.subscribe();
        let shelf = Arc::new(Shelf {
            source: Arc::new(images.clone()),
            runtime: Arc::new(runtime.clone()),
            wishes: wanted.clone(),
            clock: Arc::clone(&clock),
        });
        let loops = Loops::new(shutdown.clone(), clock, Arc::clone(&chance));
        let (kept, pins) = (warren_volume::fake::Fake::new(), Pins::new(dir.path().join("pins")));
        let volumes = Arc::new(kept.clone());
        let volumes = Volumes::new(volumes, pins, Arc::new(runtime.clone()), wanted.clone());
        let (to_manager, manager_line) = watch::channel(None);
        let services = Services {
            import: keep(Arc::clone(&imported)),
            logs: TaskLogs {
                directories: directories.clone(),
                reporter: Arc::clone(&reporter),
                wishes: wanted,
            },
            shelf: Arc::clone(&shelf),
            courier: Arc::new(Fetcher::new(settings().node, manager_line)),
            volumes: Arc::new(volumes),
        };
        let stats = Stats::new(Arc::new(runtime.clone()), wishes.subscribe());
        let vitals = Vitals::new(Arc::new(stats), checking());
        let context = Arc::new(Context {
            cluster: settings().cluster,
            node: settings().node,
            wishes,
            reporter,
            runtime: Arc::new(runtime),
            overrides: NodeOverrides::default(),
            meter: Arc::clone(&meter),
            health: Arc::default(),
            vitals: Arc::new(vitals),
            services: Arc::new(services),
            pressure: garbage::start(shelf, meter, &loops, shutdown.token()),
            loops,
            chance,
            contact: Arc::new(Contact::resume(dir.path())),
            connected: watch::Sender::new(false),
            manager: to_manager,
            outcast: watch::Sender::new(None),
            note: can_be_removed.then(|| note(&dir)),
        });
        shutdown.spawn("session", run(Arc::clone(&context), dial, shutdown.token()));
        Self { context, shutdown, imported, images, volumes: kept, directories, dir }
    }

    fn numbers(&self) -> Vec<u64> {
        self.context.wishes.borrow().tasks.keys().map(|id| id.number).collect()
    }
}

fn note(dir: &tempfile::TempDir) -> RemovalNote {
    RemovalNote::new(dir.path(), settings().cluster, settings().node)
}

/// An import that keeps the bytes and refuses those that begin with `bad`.
fn keep(kept: Arc<Mutex<Vec<u8>>>) -> Import {
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
            Ok(vec![Imported { reference: Reference::parse("demo:1").unwrap(), digest, size: 7 }])
        })
    })
}

pub(in crate::session) fn report(number: u64) -> TaskReport {
    TaskReport {
        task: task_id(number),
        attempt: 1,
        state: TaskState::Running,
        since: Timestamp(1),
        reason: String::new(),
        ready: true,
        exit: None,
        removed: false,
        next_attempt: None,
        image: None,
        health: warren_types::Health::None,
    }
}

async fn ack(session: &mut Session) -> AssignmentVersion {
    let ack = |frame: &FromWorker| match frame {
        FromWorker::Ack(ack) => Some(ack.version.unwrap().into()),
        _ => None,
    };
    session.hear_until(ack).await
}

async fn sync(session: &mut Session) -> AssignmentVersion {
    let sync = |frame: &FromWorker| match frame {
        FromWorker::Sync(sync) => Some(sync.version.unwrap().into()),
        _ => None,
    };
    let version = session.hear_until(sync).await;
    session.say(Frame::Current(v1::SyncCurrent::default())).await;
    version
}

#[tokio::test(start_paused = true)]
async fn assignments_are_taken_over_and_acknowledged() {
    let (node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    session.assign(5, vec![task(1), task(2)]).await;
    assert_eq!(ack(&mut session).await, at(5));
    assert_eq!(node.numbers(), [1, 2]);
    session.diff(5, 6, &[task(3)], &[task_id(1)]).await;
    assert_eq!(ack(&mut session).await, at(6));
    assert_eq!(node.numbers(), [2, 3]);
    // The same again changes nothing and needs no answer; something older is ignored.
    session.diff(5, 6, &[task(3)], &[task_id(1)]).await;
    session.assign(4, vec![task(9)]).await;
    session.diff(6, 7, &[], &[task_id(2)]).await;
    assert_eq!(ack(&mut session).await, at(7));
    assert_eq!(node.numbers(), [3]);
    let wishes = node.context.wishes.borrow().clone();
    assert_eq!((wishes.settings, wishes.confirmed), (Some(settings()), true));
}

#[tokio::test(start_paused = true)]
async fn a_gap_asks_for_everything() {
    let (node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    assert_eq!(sync(&mut session).await, at_nothing());
    session.diff(8, 9, &[task(1)], &[]).await;
    let asked = Instant::now();
    assert_eq!(sync(&mut session).await, at_nothing());
    assert!(asked.elapsed() < settings().sync, "at once, not at the next sync");
    assert!(node.numbers().is_empty());
    session.assign(9, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(9));
    assert_eq!(sync(&mut session).await, at(9));
}

fn at_nothing() -> AssignmentVersion {
    AssignmentVersion::default()
}

#[tokio::test(start_paused = true)]
async fn what_the_cache_knew_is_said_and_confirmed() {
    let known =
        Wishes { version: at(7), tasks: [(task_id(1), Arc::new(task(1)))].into(), ..Wishes::default() };
    let (node, mut manager) = Node::start(known);
    let (mut session, hello) = manager.session().await;
    assert_eq!(hello.version.unwrap(), at(7).into());
    assert_eq!(hello.description.unwrap().runtime.split(' ').next(), Some("fake"));
    session.welcome(&settings()).await;
    assert_eq!(sync(&mut session).await, at(7));
    let mut wishes = node.context.wishes.subscribe();
    let confirmed = wishes.wait_for(|wishes| wishes.confirmed);
    assert_eq!(confirmed.await.unwrap().tasks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_and_syncs_keep_their_periods() {
    let (node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    let (mut beats, mut syncs) = (Vec::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(31) {
        match session.hear().await {
            FromWorker::Heartbeat(beat) => {
                assert!(beat.usage.unwrap().memory_bytes > 0);
                beats.push(began.elapsed().as_secs());
            }
            FromWorker::Sync(_) => {
                syncs.push(began.elapsed().as_secs());
                session.say(Frame::Current(v1::SyncCurrent::default())).await;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(beats, [0, 5, 10, 15, 20, 25, 30]);
    assert!(syncs.starts_with(&[0, 3, 6, 9]), "{syncs:?}");
    let loops: Vec<&str> = node.context.loops.snapshot().iter().map(|status| status.name).collect();
    assert_eq!(loops, ["worker.heartbeat", "worker.images", "worker.sync"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_manager_is_left_three_seconds_after_a_sync() {
    let (node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    let first = |frame: &FromWorker| matches!(frame, FromWorker::Sync(_)).then_some(());
    session.hear_until(first).await;
    let asked = Instant::now();
    session.ended().await;
    assert_eq!(asked.elapsed().as_secs(), pulse::SILENCE.as_secs());
    let mut next = manager.welcomed().await;
    assert_eq!(sync(&mut next).await, at_nothing());
    assert!(*node.context.connected.borrow());
}

#[tokio::test(start_paused = true)]
async fn reports_are_repeated_until_they_are_stored_also_in_the_next_session() {
    let (node, mut manager) = Node::start(Wishes::default());
    node.context.reporter.tell(report(1));
    let mut session = manager.welcomed().await;
    let batch = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    let first = session.hear_until(batch).await;
    assert_eq!(first.reports, [(&report(1)).into()]);
    let again = session.hear_until(batch).await;
    assert_eq!(again.reports, first.reports);
    drop(session);
    let mut session = manager.welcomed().await;
    let third = session.hear_until(batch).await;
    assert_eq!(third.reports, first.reports);
    session.say(Frame::Stored(v1::ReportsStored { number: third.number })).await;
    node.context.reporter.tell(report(2));
    let other = session.hear_until(batch).await;
    assert_eq!(other.reports, [(&report(2)).into()]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_in_a_new_life_hears_what_it_stored_in_its_last_one() {
    let (node, mut manager) = Node::start(Wishes::default());
    let batch = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    };
    node.context.reporter.tell(report(1));
    let mut session = manager.welcomed().await;
    let first = session.hear_until(batch).await;
    session.say(Frame::Stored(v1::ReportsStored { number: first.number })).await;
    session.assign(9, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(9));
    // It was restored from before that report. A new life begins with new managers, and so with a new session.
    drop(session);
    let mut session = manager.welcomed().await;
    let assignment = warren_types::Assignment {
        version: AssignmentVersion { incarnation: 2, index: 3 },
        tasks: vec![task(1)],
    };
    session.say(Frame::Assignment((&assignment).into())).await;
    let again = session.hear_until(batch).await;
    assert_eq!(again.reports, first.reports);
    // A late word of the last life does not count as one of this.
    session.say(Frame::Stored(v1::ReportsStored { number: first.number })).await;
    let unconfirmed = session.hear_until(batch).await;
    assert_eq!(unconfirmed.reports, first.reports);
}

#[tokio::test(start_paused = true)]
async fn that_nothing_is_left_of_a_task_is_not_said_while_it_is_wanted() {
    let (node, mut manager) = Node::start(Wishes::default());
    let removed = |number| TaskReport { removed: true, ..report(number) };
    node.context.reporter.tell(removed(1));
    let mut session = manager.welcomed().await;
    session.assign(9, vec![task(1)]).await;
    // An actor that has not heard of that yet ends what it was about in the last life.
    node.context.reporter.tell(removed(2));
    node.context.reporter.tell(removed(1));
    let said = |frame: &FromWorker| match frame {
        FromWorker::Reports(reports) if !reports.reports.is_empty() => Some(reports.reports.clone()),
        _ => None,
    };
    assert_eq!(session.hear_until(said).await, [(&removed(2)).into()]);
    node.context.reporter.forget_removal(&task_id(1));
    node.context.reporter.tell(report(1));
    assert_eq!(session.hear_until(said).await, [(&report(1)).into()]);
}

fn refusal(word: &str) -> tonic::Status {
    Problem::new(tonic::Code::FailedPrecondition, word, "the manager's words").into()
}

async fn cast_out(node: &Node) -> Outcast {
    let mut outcast = node.context.outcast.subscribe();
    let said = outcast.wait_for(Option::is_some).await.unwrap().clone();
    said.expect("it was waited for")
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_removed_wants_nothing_remembers_it_and_asks_no_more() {
    for welcomed in [true, false] {
        let known =
            Wishes { version: at(7), tasks: [(task_id(1), Arc::new(task(1)))].into(), ..Wishes::default() };
        let (node, mut manager) = Node::start(known.clone());
        match welcomed {
            // In the middle of a session, or instead of a welcome.
            true => manager.welcomed().await.refuse(refusal(NODE_REMOVED)).await,
            false => manager.session().await.0.refuse(refusal(NODE_REMOVED)).await,
        }
        let reason = "the manager's words".to_owned();
        let before = !welcomed;
        assert_eq!(cast_out(&node).await, Outcast::Removed { reason: reason.clone(), before });
        assert_eq!(note(&node.dir).load(), Some(Removal { reason, containers: 0, cleared: false }));
        let settings = welcomed.then(settings);
        let nothing = Wishes { settings, tasks: Default::default(), confirmed: true, ..known };
        assert_eq!(*node.context.wishes.borrow(), nothing);
        assert!(manager.hears_nobody(3 * OUTCAST_WAIT).await, "it asks no more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_unknown_keeps_what_it_has_asks_seldom_and_is_let_in_again() {
    // What a manager says of its own node is never more than that.
    for (word, can_be_removed) in [(NODE_UNKNOWN, true), (NODE_REMOVED, false)] {
        let known =
            Wishes { version: at(7), tasks: [(task_id(1), Arc::new(task(1)))].into(), ..Wishes::default() };
        let (node, mut manager) = Node::start_as(known.clone(), can_be_removed);
        manager.session().await.0.refuse(refusal(word)).await;
        let reason = "the manager's words".to_owned();
        assert_eq!(cast_out(&node).await, Outcast::Unknown { reason, before: true });
        for _ in 0..2 {
            let before = Instant::now();
            let (session, _) = manager.session().await;
            assert_eq!(before.elapsed().as_secs(), OUTCAST_WAIT.as_secs());
            session.refuse(refusal(word)).await;
        }
        assert_eq!((&*node.context.wishes.borrow(), note(&node.dir).load()), (&known, None));
        let session = manager.welcomed().await;
        node.context.outcast.subscribe().wait_for(Option::is_none).await.unwrap();
        session.refuse(tonic::Status::unavailable("another leader")).await;
        let before = Instant::now();
        drop(manager.welcomed().await);
        assert!(before.elapsed() < Duration::from_secs(1), "as usual again");
    }
}

/// A manager that was restored from before the node joined says "unknown" until its log has grown past what the node
/// has seen, which the node's own asking makes it do. From there on it says "removed".
#[tokio::test(start_paused = true)]
async fn who_did_not_know_a_node_cannot_remove_it_before_it_was_welcome() {
    let known =
        Wishes { version: at(7), tasks: [(task_id(1), Arc::new(task(1)))].into(), ..Wishes::default() };
    let (node, mut manager) = Node::start(known.clone());
    for word in [NODE_UNKNOWN, NODE_REMOVED, NODE_REMOVED] {
        manager.session().await.0.refuse(refusal(word)).await;
        let reason = "the manager's words".to_owned();
        assert_eq!(cast_out(&node).await, Outcast::Unknown { reason, before: true });
    }
    // One that dies meanwhile changes nothing of that.
    manager.session().await.0.refuse(tonic::Status::unavailable("this manager stops")).await;
    manager.session().await.0.refuse(refusal(NODE_REMOVED)).await;
    let (session, _) = manager.session().await;
    assert_eq!((&*node.context.wishes.borrow(), note(&node.dir).load()), (&known, None));
    session.refuse(refusal(NODE_UNKNOWN)).await;
    manager.welcomed().await.refuse(refusal(NODE_REMOVED)).await;
    let mut outcast = node.context.outcast.subscribe();
    outcast.wait_for(|said| matches!(said, Some(Outcast::Removed { .. }))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_cannot_be_reached_or_says_anything_else_removes_nobody() {
    let known =
        Wishes { version: at(7), tasks: [(task_id(1), Arc::new(task(1)))].into(), ..Wishes::default() };
    let (node, mut manager) = Node::start(known.clone());
    for status in [
        tonic::Status::unavailable("this manager stops"),
        tonic::Status::failed_precondition("this node was removed from the cluster"),
        tonic::Status::not_found(NODE_REMOVED),
        refusal("NODE_IN_USE"),
    ] {
        manager.session().await.0.refuse(status).await;
    }
    drop(manager);
    tokio::time::sleep(3 * OUTCAST_WAIT).await;
    assert_eq!(*node.context.outcast.borrow(), None);
    assert_eq!((&*node.context.wishes.borrow(), note(&node.dir).load()), (&known, None));
}

#[tokio::test(start_paused = true)]
async fn settings_of_another_node_end_the_session() {
    let (node, mut manager) = Node::start(Wishes::default());
    let (session, _) = manager.session().await;
    let other = warren_types::NodeSettings { node: NodeId(warren_types::Id(9)), ..settings() };
    session.welcome(&other).await;
    session.ended().await;
    assert_eq!(node.context.wishes.borrow().settings, None);
    drop(manager.welcomed().await);
}

async fn open(session: &Session, purpose: Option<v1::open::Purpose>) {
    session.say(Frame::Open(v1::Open { stream_id: "s1".into(), purpose })).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_for_an_unknown_purpose_is_refused() {
    let (_node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    open(&session, None).await;
    let opened = |frame: &FromWorker| match frame {
        FromWorker::Opened(opened) => Some(opened.clone()),
        _ => None,
    };
    let refused = session.hear_until(opened).await;
    assert_eq!(refused.stream_id, "s1");
    assert!(refused.refused.contains("upgrade"), "{}", refused.refused);
}

/// Sends an archive in pieces and gives what the node says, without progress.
async fn import(pieces: &[StreamFrame]) -> (Vec<StreamFrame>, Vec<u8>) {
    let (node, mut manager) = Node::start(Wishes::default());
    let mut session = manager.welcomed().await;
    open(&session, Some(v1::open::Purpose::ImportImage(v1::ImportImage {}))).await;
    let mut attached = manager.attached().await;
    // The session lives on meanwhile.
    let living = tokio::spawn(async move { session.hear_until(|_| None::<()>).await });
    let mut said = Vec::new();
    for piece in pieces {
        let frame = v1::StreamFrame { frame: Some(piece.clone()) };
        attached.to_worker.send(Ok(frame)).await.unwrap();
    }
    while let Some(frame) = attached.from_worker.recv().await {
        let frame = frame.frame.unwrap();
        let last = matches!(frame, StreamFrame::Done(_) | StreamFrame::Failed(_));
        if !matches!(frame, StreamFrame::ReceivedBytes(_)) {
            said.push(frame);
        }
        if last {
            break;
        }
    }
    living.abort();
    let kept = node.imported.lock().unwrap().clone();
    (said, kept)
}

fn data(bytes: &'static [u8]) -> StreamFrame {
    StreamFrame::Data(bytes.into())
}

#[tokio::test(start_paused = true)]
async fn an_archive_is_imported() {
    let (said, kept) = import(&[data(b"arch"), data(b"ive"), StreamFrame::End(v1::EndOfData {})]).await;
    assert_eq!(kept, b"archive");
    let imported = v1::ImportedImageFrame {
        reference: Reference::parse("demo:1").unwrap().to_string(),
        digest: format!("sha256:{}", "0".repeat(64)),
        size_bytes: 7,
    };
    let id = StreamFrame::StreamId("s1".into());
    assert_eq!(said, [id, StreamFrame::Imported(imported), StreamFrame::Done(v1::StreamDone {})]);
}

#[tokio::test(start_paused = true)]
async fn an_archive_that_fails_says_why() {
    let (said, kept) = import(&[data(b"bad"), data(b"rest")]).await;
    assert!(matches!(&said[1], StreamFrame::Failed(why) if why.contains("bad bytes")), "{said:?}");
    assert!(kept.is_empty());
    let (said, kept) = import(&[data(b"arch"), StreamFrame::Failed("disk gone".into())]).await;
    assert!(matches!(&said[1], StreamFrame::Failed(why) if why.contains("disk gone")), "{said:?}");
    assert!(kept.is_empty(), "an archive that was cut off is not imported");
    let (said, _) = import(&[data(b"arch")]).await;
    assert!(matches!(&said[1], StreamFrame::Failed(why) if why.contains("nothing for 30s")), "{said:?}");
}

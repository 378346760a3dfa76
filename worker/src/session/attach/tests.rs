mod credentials;
mod exec;
mod volumes;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use warren_container_logs::OutputStream;
use warren_container_logs::record::{FILE_HEADER, OutputRecord};
use warren_container_logs::segment;
use warren_control::{Clock, SystemClock};
use warren_image::{Digest, Error, ImagePullProgress, Reference};
use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_task::DesiredState;
use warren_types::{TaskReport, TaskState, Timestamp};

use super::*;
use crate::fake_manager::{FakeManager, FakeSession, FakeStream};
use crate::fixtures::{TIMEOUT, image, tag, task, task_id};
use crate::handlers::images::ImageSource;
use crate::session::tests::{TestNode, report};

fn desired(numbers: &[u64]) -> DesiredState {
    let tasks = numbers.iter().map(|number| (task_id(*number), Arc::new(task(*number)))).collect();
    DesiredState { tasks, is_confirmed: true, ..DesiredState::default() }
}

fn read_logs(number: u64, follow: bool) -> v1::ReadTaskLogs {
    v1::ReadTaskLogs { task_id: task_id(number).to_string(), follow, ..Default::default() }
}

fn record(at: u64, stream: OutputStream, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    OutputRecord::Line { at, stream, partial: false, text: text.as_bytes() }.encode(&mut bytes);
    bytes
}

fn write(dir: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(dir).unwrap();
    let path = segment::segment_path(dir, 1);
    let is_new = !path.exists();
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let whole = if is_new { [FILE_HEADER, bytes].concat() } else { bytes.to_vec() };
    file.write_all(&whole).unwrap();
}

async fn request_stream(session: &FakeSession, purpose: Purpose) {
    let open = v1::OpenStream { stream_id: "s1".into(), purpose: Some(purpose) };
    session.send(FromManager::Open(open)).await;
}

/// Has the node attach a stream; its first frame was received already.
async fn attached(manager: &mut FakeManager, session: &FakeSession, purpose: Purpose) -> FakeStream {
    request_stream(session, purpose).await;
    let mut attached = manager.next_stream().await;
    assert_eq!(next_frame(&mut attached).await, Frame::StreamId("s1".into()));
    attached
}

async fn next_frame(attached: &mut FakeStream) -> Frame {
    let frame = timeout(TIMEOUT, attached.from_worker.recv()).await.expect("the worker says something");
    frame.expect("the stream goes on").frame.unwrap()
}

/// Everything up to the last frame, with the session kept alive meanwhile.
async fn all_frames(attached: &mut FakeStream, session: &mut FakeSession) -> Vec<Frame> {
    let mut output = Vec::new();
    let listening = async {
        loop {
            let frame = next_frame(attached).await;
            let is_last = matches!(
                frame,
                Frame::Done(_) | Frame::Error(_) | Frame::ExitCode(_) | Frame::ExecFailure(_)
            );
            output.push(frame);
            assert!(output.len() < 1000, "it does not come to an end: {:?}", output.last());
            if is_last {
                return;
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = session.next_matching(|_| None::<()>) => {}
    }
    output
}

/// Keeps the session alive for so long.
async fn keep_alive_for(session: &mut FakeSession, time: Duration) {
    let until = Instant::now() + time;
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = session.next_matching(|_| None::<()>) => {}
    }
}

fn texts(frame: &Frame) -> Vec<String> {
    let Frame::Lines(lines) = frame else { panic!("{frame:?}") };
    lines.lines.iter().map(|line| String::from_utf8(line.text.to_vec()).unwrap()).collect()
}

const DONE: Frame = Frame::Done(v1::StreamDone {});

#[tokio::test(start_paused = true)]
async fn log_is_sent_in_order_with_gaps() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let mut bytes = [record(1, OutputStream::Stdout, "one"), record(2, OutputStream::Stderr, "two")].concat();
    OutputRecord::Lost { at: 3, lines: 4, bytes: 50 }.encode(&mut bytes);
    bytes.extend(record(4, OutputStream::Stdout, "three"));
    write(&node.directories.log_dir(&task_id(1)), &bytes);
    let request = read_logs(1, false);
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(request.clone())).await;
    let output = all_frames(&mut stream, &mut session).await;
    drop(stream);
    let Frame::Lines(first) = &output[0] else { panic!("{output:?}") };
    let shown: Vec<_> = first.lines.iter().map(|line| (line.at_ns, line.stream(), &line.text[..])).collect();
    assert_eq!(shown, [(1, v1::LogStream::Out, &b"one"[..]), (2, v1::LogStream::Err, b"two")]);
    assert!(
        matches!(&output[1], Frame::DroppedLines(words) if words.starts_with("4 lines (50 bytes)")),
        "{output:?}"
    );
    assert_eq!((texts(&output[2]), &output[3..]), (vec!["three".into()], &[DONE][..]));
    for (options, want) in [
        (v1::ReadTaskLogs { tail: Some(1), ..request.clone() }, vec!["three"]),
        (v1::ReadTaskLogs { since_ns: Some(4), ..request.clone() }, vec!["three"]),
        (v1::ReadTaskLogs { since_ns: Some(5), ..request }, vec![]),
    ] {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(options)).await;
        let text = all_frames(&mut stream, &mut session).await;
        let lines = text.iter().filter(|frame| matches!(frame, Frame::Lines(_)));
        let lines: Vec<String> = lines.flat_map(texts).collect();
        assert_eq!((lines, text.last()), (want.into_iter().map(String::from).collect(), Some(&DONE)));
    }
}

#[tokio::test(start_paused = true)]
async fn missing_log_is_reported() {
    let (_node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let unknown = v1::ReadTaskLogs { task_id: "web".into(), ..Default::default() };
    for (request, want) in [
        (read_logs(1, false), "no output of task"),
        (read_logs(9, true), "no output of task"),
        (unknown, "\"web\""),
    ] {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(request)).await;
        let text = all_frames(&mut stream, &mut session).await;
        let is_so = match &text[..] {
            [Frame::NoOutput(why), Frame::Done(_)] => want.starts_with("no output") && why.contains(want),
            [Frame::Error(why)] => why.contains(want),
            _ => false,
        };
        assert!(is_so, "{text:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn followed_log_starts_with_task_and_ends_after_last_line() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, true))).await;
    keep_alive_for(&mut session, Duration::from_secs(20)).await;
    let dir = node.directories.log_dir(&task_id(1));
    write(&dir, &record(1, OutputStream::Stdout, "one"));
    assert_eq!(texts(&next_frame(&mut stream).await), ["one"]);
    // Between two attempts.
    let at_rest = TaskReport { state: TaskState::Starting, attempt: 2, ..report(1) };
    node.context.reporter.report(at_rest.clone());
    keep_alive_for(&mut session, Duration::from_secs(20)).await;
    write(&dir, &record(2, OutputStream::Stdout, "two"));
    assert_eq!(texts(&next_frame(&mut stream).await), ["two"]);
    node.context.reporter.report(TaskReport { state: TaskState::Failed, ready: false, ..at_rest });
    // The last log lines may arrive after the task's end.
    sleep(IDLE_CHECK_INTERVAL / 2).await;
    write(&dir, &record(3, OutputStream::Stderr, "three"));
    assert_eq!(texts(&next_frame(&mut stream).await), ["three"]);
    let ended = Instant::now();
    assert_eq!(next_frame(&mut stream).await, DONE);
    assert!(ended.elapsed() <= 3 * IDLE_CHECK_INTERVAL, "{:?}", ended.elapsed());
}

/// See `logs`.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn paused_reader_gets_everything() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let line = "x".repeat(16 << 10);
    // More than all buffers can hold, so that the node has to wait.
    let count = 512;
    let bytes: Vec<u8> = (1..=count).flat_map(|at| record(at, OutputStream::Stdout, &line)).collect();
    write(&node.directories.log_dir(&task_id(1)), &bytes);
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, false))).await;
    keep_alive_for(&mut session, 4 * SEND_DEADLINE).await;
    let output = all_frames(&mut stream, &mut session).await;
    let (last, frames) = output.split_last().unwrap();
    let mut times = Vec::new();
    for frame in frames {
        let Frame::Lines(lines) = frame else { panic!("{frame:?}") };
        assert!(lines.lines.iter().map(|line| line.text.len()).sum::<usize>() <= 64 << 10);
        times.extend(lines.lines.iter().map(|line| line.at_ns));
    }
    assert_eq!((times, last), ((1..=count).collect::<Vec<u64>>(), &DONE));
}

/// Waits until only so many tokio tasks are left.
async fn wait_for_task_count(expected: usize, session: Option<&mut FakeSession>) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let waiting = async {
        while alive() > expected {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let keep = async {
        match session {
            Some(session) => session.next_matching(|_| None::<()>).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = timeout(TIMEOUT, waiting) => ended.unwrap_or_else(|_| panic!("{} tasks, not {expected}", alive())),
        () = keep => {}
    }
}

#[tokio::test(start_paused = true)]
async fn reader_ends_with_stream_and_with_session() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    write(&node.directories.log_dir(&task_id(1)), &record(1, OutputStream::Stdout, "one"));
    keep_alive_for(&mut session, Duration::from_secs(1)).await;
    let before = Handle::current().metrics().num_alive_tasks();
    for _ in 0..2 {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, true))).await;
        assert_eq!(texts(&next_frame(&mut stream).await), ["one"]);
        assert!(Handle::current().metrics().num_alive_tasks() > before);
        drop(stream);
        wait_for_task_count(before, Some(&mut session)).await;
    }
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, true))).await;
    assert_eq!(texts(&next_frame(&mut stream).await), ["one"]);
    drop(session);
    let end = async { while stream.from_worker.recv().await.is_some() {} };
    timeout(TIMEOUT, end).await.expect("the stream ends with the session");
}

#[tokio::test(start_paused = true)]
async fn log_stream_limit_does_not_block_image_streams() {
    let (_node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_LOGS {
        streams.push(attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, true))).await);
    }
    request_stream(&session, Purpose::ReadLogs(read_logs(1, true))).await;
    let refused = |frame: &FromWorker| match frame {
        FromWorker::Opened(opened) => Some(opened.error.clone()),
        _ => None,
    };
    let why = session.next_matching(refused).await;
    assert!(why.contains("256 log streams"), "{why}");
    let mut list = attached(&mut manager, &session, Purpose::ListImages(v1::ListImages {})).await;
    assert!(matches!(&all_frames(&mut list, &mut session).await[..], [Frame::Images(_), Frame::Done(_)]));
    streams.pop();
    keep_alive_for(&mut session, Duration::from_secs(1)).await;
    attached(&mut manager, &session, Purpose::ReadLogs(read_logs(1, true))).await;
}

fn pull(always: bool) -> Purpose {
    Purpose::PullImage(v1::PullImage { reference: tag().to_string(), always })
}

fn pulled(digest: &Digest) -> Frame {
    let (reference, digest) = (tag().to_string(), digest.to_string());
    Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes: 1 << 20 })
}

#[tokio::test(start_paused = true)]
async fn pull_progress_is_rate_limited() {
    let (node, mut manager) = TestNode::start(desired(&[]));
    let mut session = manager.next_welcomed_session().await;
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    let began = Instant::now();
    let other = Digest::of(b"other");
    let registry = async {
        for step in 0..100 {
            let retry_reason = Some(format!("try {step}"));
            node.images.stall_at(&tag(), ImagePullProgress { retry_reason, ..ImagePullProgress::default() });
            sleep(Duration::from_millis(20)).await;
        }
        node.images.serve(&tag(), other.clone());
    };
    let (output, ()) = tokio::join!(all_frames(&mut stream, &mut session), registry);
    let progress = output.iter().filter(|frame| matches!(frame, Frame::Progress(_))).count();
    assert!((4..=9).contains(&progress), "{progress} in {:?}", began.elapsed());
    assert_eq!(output[progress..], [pulled(&other), DONE]);
    assert_eq!(node.images.used(), [tag().record_name()]);
}

#[tokio::test(start_paused = true)]
async fn present_image_is_pulled_only_with_always() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let mut stream = attached(&mut manager, &session, pull(false)).await;
    assert_eq!(all_frames(&mut stream, &mut session).await, [pulled(image().digest().unwrap()), DONE]);
    assert!(node.images.pulled().is_empty());
    let refused = Error::Refused { action: "pull".into(), reason: "no such image".into() };
    node.images.fail(&tag(), refused);
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    let output = all_frames(&mut stream, &mut session).await;
    assert!(matches!(output.last(), Some(Frame::Error(why)) if why.contains("no such image")), "{output:?}");
    let bad = Purpose::PullImage(v1::PullImage { reference: "a b".into(), always: true });
    let mut stream = attached(&mut manager, &session, bad).await;
    let text = all_frames(&mut stream, &mut session).await;
    assert!(matches!(&text[..], [Frame::Error(_)]), "{text:?}");
}

#[tokio::test(start_paused = true)]
async fn pull_is_cancelled_when_stream_closes() {
    let (node, mut manager) = TestNode::start(desired(&[]));
    let mut session = manager.next_welcomed_session().await;
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    assert!(matches!(next_frame(&mut stream).await, Frame::Progress(_)));
    // Unchanged progress is repeated: the node is alive.
    let before = Instant::now();
    let again = tokio::select! {
        frame = next_frame(&mut stream) => frame,
        () = session.next_matching(|_| None::<()>) => unreachable!(),
    };
    assert!(matches!(again, Frame::Progress(_)) && before.elapsed() >= Duration::from_secs(29));
    assert_eq!(node.images.waiter_count(), 1);
    drop(stream);
    let given_up = async {
        while node.images.waiter_count() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, given_up).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn images_are_listed_with_task_count_and_unused_are_pruned() {
    let (node, mut manager) = TestNode::start(desired(&[1, 2]));
    let mut session = manager.next_welcomed_session().await;
    let unused = Reference::parse("old:1").unwrap();
    node.images.add(&unused, Digest::of(b"old"));
    let now = SystemClock::new().unix_millis();
    node.images.mark_used(&unused, Timestamp(now)).await.unwrap();
    let mut stream = attached(&mut manager, &session, Purpose::ListImages(v1::ListImages {})).await;
    let output = all_frames(&mut stream, &mut session).await;
    let rows = |frame: &Frame| match frame {
        Frame::Images(list) => {
            list.images.iter().map(|image| (image.reference.clone(), image.tasks)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (rows(&output[0]), &output[1..]),
        (vec![(tag().record_name(), 2), (unused.record_name(), 0)], &[DONE][..])
    );
    let prune = || Purpose::PruneImages(v1::PruneImages::default());
    let mut stream = attached(&mut manager, &session, prune()).await;
    let text = all_frames(&mut stream, &mut session).await;
    assert_eq!((rows(&text[0]), &text[1..]), (vec![(unused.record_name(), 0)], &[DONE][..]));
    let mut stream = attached(&mut manager, &session, prune()).await;
    assert_eq!(all_frames(&mut stream, &mut session).await, [DONE], "the second time");
}

/// The manager sends a frame to the worker.
async fn to_worker(stream: &FakeStream, frame: Frame) {
    stream.to_worker.send(Ok(v1::StreamFrame { frame: Some(frame) })).await.unwrap();
}

fn end() -> Frame {
    Frame::End(v1::EndOfData {})
}

fn wanted(digest: &Digest) -> Frame {
    Frame::Wanted(v1::BlobRequest { digests: vec![digest.to_string()] })
}

#[tokio::test(start_paused = true)]
async fn one_image_is_removed_unless_a_task_uses_it() {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let mut session = manager.next_welcomed_session().await;
    let unused = Reference::parse("old:1").unwrap();
    node.images.add(&unused, Digest::of(b"old"));
    node.images.add(&Reference::parse("kept:1").unwrap(), Digest::of(b"kept"));
    let now = Timestamp(SystemClock::new().unix_millis());
    node.images.mark_used(&unused, now).await.unwrap();
    let mut remove = async |reference: &str| {
        let purpose =
            Purpose::PruneImages(v1::PruneImages { reference: reference.to_owned(), ..Default::default() });
        let mut stream = attached(&mut manager, &session, purpose).await;
        all_frames(&mut stream, &mut session).await
    };
    let refused = remove(&tag().to_string()).await;
    assert!(matches!(&refused[..], [Frame::Error(why)] if why.contains("is used by 1 tasks")), "{refused:?}");
    let removed = remove("old:1").await;
    let name = |frame: &Frame| match frame {
        Frame::Images(list) => list.images[0].reference.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!((name(&removed[0]), &removed[1..]), (unused.record_name(), &[DONE][..]));
    assert_eq!(remove("old:1").await, [DONE], "the second time");
    assert_eq!(node.images.list().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn requested_blobs_of_an_image_are_sent() {
    let (node, mut manager) = TestNode::start(desired(&[]));
    let session = manager.next_welcomed_session().await;
    let digest = Digest::of(b"other");
    node.images.add(&tag(), digest.clone());
    let now = Timestamp(SystemClock::new().unix_millis());
    node.images.mark_used(&tag(), now).await.unwrap();
    let export = || {
        let (reference, digest) = (tag().to_string(), digest.to_string());
        Purpose::ExportImage(v1::ExportImage { reference, digest })
    };
    let mut stream = attached(&mut manager, &session, export()).await;
    for _twice in 0..2 {
        to_worker(&stream, wanted(&digest)).await;
        assert_eq!(next_frame(&mut stream).await, Frame::Data(digest.to_string().into()));
        assert_eq!(next_frame(&mut stream).await, end());
    }
    to_worker(&stream, wanted(&Digest::of(b"secret"))).await;
    let refused = next_frame(&mut stream).await;
    assert!(matches!(&refused, Frame::Error(why) if why.contains("has no blob")), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn received_image_is_checked_and_announced() {
    let (node, mut manager) = TestNode::start(desired(&[]));
    let mut session = manager.next_welcomed_session().await;
    let (name, digest) = (Reference::parse("copied:1").unwrap(), Digest::of(b"copied"));
    let receive = || {
        let (reference, digest) = (name.to_string(), digest.to_string());
        Purpose::ReceiveImage(v1::ReceiveImage { reference, digest })
    };
    let mut stream = attached(&mut manager, &session, receive()).await;
    assert_eq!(next_frame(&mut stream).await, wanted(&digest));
    to_worker(&stream, Frame::Data("something else".into())).await;
    to_worker(&stream, end()).await;
    let output = all_frames(&mut stream, &mut session).await;
    assert!(matches!(&output[..], [Frame::Error(why)] if why.contains("digest")), "{output:?}");
    assert_eq!(node.images.find(&name).await.unwrap(), None);

    let mut stream = attached(&mut manager, &session, receive()).await;
    assert_eq!(next_frame(&mut stream).await, wanted(&digest));
    to_worker(&stream, Frame::Data(digest.to_string().into())).await;
    to_worker(&stream, end()).await;
    let output = [next_frame(&mut stream).await, next_frame(&mut stream).await];
    let (reference, text) = (name.to_string(), digest.to_string());
    let imported = v1::ImportedImageFrame { reference, digest: text, size_bytes: 1 << 20 };
    assert_eq!(output, [Frame::Imported(imported), DONE]);
    // The manager learns of it without a request.
    let holds = |frame: &FromWorker| match frame {
        FromWorker::Inventory(inventory) => {
            inventory.images.iter().any(|held| held.digest == digest.to_string()).then_some(())
        }
        _ => None,
    };
    let arrived = Instant::now();
    session.next_matching(holds).await;
    assert!(arrived.elapsed() < Duration::from_secs(1), "{:?}", arrived.elapsed());
}

#[tokio::test(start_paused = true)]
async fn prune_before_first_assignment_is_refused() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let session = manager.next_welcomed_session().await;
    node.images.add(&Reference::parse("old:1").unwrap(), Digest::of(b"old"));
    let prune = Purpose::PruneImages(v1::PruneImages::default());
    // The session is not answered: the answer to a sync would contain the assignments.
    let mut stream = attached(&mut manager, &session, prune).await;
    let output = next_frame(&mut stream).await;
    assert!(matches!(&output, Frame::Error(why) if why.contains("try again")), "{output:?}");
}

mod credentials;
mod volumes;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use warren_control::{Clock, SystemClock};
use warren_image::{Digest, Error, Progress, Reference};
use warren_logger::Stream;
use warren_logger::record::{HEADER, Record};
use warren_logger::segment;
use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_proto::v1::worker_frame::Frame as FromWorker;
use warren_task::Wishes;
use warren_types::{TaskReport, TaskState, Timestamp};

use super::*;
use crate::handlers::images::ImageSource;
use crate::samples::{image, tag, task, task_id};
use crate::scripted::{Attached, Manager, PATIENCE, Session};
use crate::session::tests::{Node, report};

fn wishing(numbers: &[u64]) -> Wishes {
    let tasks = numbers.iter().map(|number| (task_id(*number), Arc::new(task(*number)))).collect();
    Wishes { tasks, confirmed: true, ..Wishes::default() }
}

fn purpose(number: u64, follow: bool) -> v1::ReadTaskLogs {
    v1::ReadTaskLogs { task_id: task_id(number).to_string(), follow, ..Default::default() }
}

fn record(at: u64, stream: Stream, text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Record::Line { at, stream, partial: false, text: text.as_bytes() }.encode(&mut bytes);
    bytes
}

fn write(dir: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(dir).unwrap();
    let path = segment::path(dir, 1);
    let is_new = !path.exists();
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let whole = if is_new { [HEADER, bytes].concat() } else { bytes.to_vec() };
    file.write_all(&whole).unwrap();
}

async fn ask(session: &Session, purpose: Purpose) {
    let open = v1::Open { stream_id: "s1".into(), purpose: Some(purpose) };
    session.say(FromManager::Open(open)).await;
}

/// Has the node attach a stream; its first frame is heard already.
async fn attached(manager: &mut Manager, session: &Session, purpose: Purpose) -> Attached {
    ask(session, purpose).await;
    let mut attached = manager.attached().await;
    assert_eq!(hear(&mut attached).await, Frame::StreamId("s1".into()));
    attached
}

async fn hear(attached: &mut Attached) -> Frame {
    let frame = timeout(PATIENCE, attached.from_worker.recv()).await.expect("the worker says something");
    frame.expect("the stream goes on").frame.unwrap()
}

/// Everything up to the last word, with the session kept alive meanwhile.
async fn hear_all(attached: &mut Attached, session: &mut Session) -> Vec<Frame> {
    let mut said = Vec::new();
    let listening = async {
        loop {
            let frame = hear(attached).await;
            let is_last = matches!(frame, Frame::Done(_) | Frame::Failed(_));
            said.push(frame);
            assert!(said.len() < 1000, "it does not come to an end: {:?}", said.last());
            if is_last {
                return;
            }
        }
    };
    tokio::select! {
        () = listening => {}
        () = session.hear_until(|_| None::<()>) => {}
    }
    said
}

/// Keeps the session alive for so long.
async fn pass(session: &mut Session, time: Duration) {
    let until = Instant::now() + time;
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = session.hear_until(|_| None::<()>) => {}
    }
}

fn texts(frame: &Frame) -> Vec<String> {
    let Frame::Lines(lines) = frame else { panic!("{frame:?}") };
    lines.lines.iter().map(|line| String::from_utf8(line.text.to_vec()).unwrap()).collect()
}

const DONE: Frame = Frame::Done(v1::StreamDone {});

#[tokio::test(start_paused = true)]
async fn a_log_is_told_in_order_and_with_what_is_missing() {
    let (node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let mut bytes = [record(1, Stream::Out, "one"), record(2, Stream::Err, "two")].concat();
    Record::Lost { at: 3, lines: 4, bytes: 50 }.encode(&mut bytes);
    bytes.extend(record(4, Stream::Out, "three"));
    write(&node.directories.log(&task_id(1)), &bytes);
    let wish = purpose(1, false);
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(wish.clone())).await;
    let said = hear_all(&mut stream, &mut session).await;
    drop(stream);
    let Frame::Lines(first) = &said[0] else { panic!("{said:?}") };
    let shown: Vec<_> = first.lines.iter().map(|line| (line.at_ns, line.stream(), &line.text[..])).collect();
    assert_eq!(shown, [(1, v1::LogStream::Out, &b"one"[..]), (2, v1::LogStream::Err, b"two")]);
    assert!(matches!(&said[1], Frame::Missed(words) if words.starts_with("4 lines (50 bytes)")), "{said:?}");
    assert_eq!((texts(&said[2]), &said[3..]), (vec!["three".into()], &[DONE][..]));
    for (wish, want) in [
        (v1::ReadTaskLogs { tail: Some(1), ..wish.clone() }, vec!["three"]),
        (v1::ReadTaskLogs { since_ns: Some(4), ..wish.clone() }, vec!["three"]),
        (v1::ReadTaskLogs { since_ns: Some(5), ..wish }, vec![]),
    ] {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(wish)).await;
        let said = hear_all(&mut stream, &mut session).await;
        let lines = said.iter().filter(|frame| matches!(frame, Frame::Lines(_)));
        let lines: Vec<String> = lines.flat_map(texts).collect();
        assert_eq!((lines, said.last()), (want.into_iter().map(String::from).collect(), Some(&DONE)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_without_a_log_says_so() {
    let (_node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let unknown = v1::ReadTaskLogs { task_id: "web".into(), ..Default::default() };
    for (wish, want) in
        [(purpose(1, false), "nothing of task"), (purpose(9, true), "nothing of task"), (unknown, "\"web\"")]
    {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(wish)).await;
        let said = hear_all(&mut stream, &mut session).await;
        assert!(matches!(&said[..], [Frame::Failed(why)] if why.contains(want)), "{said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_followed_begins_with_its_task_and_ends_after_its_last_line() {
    let (node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, true))).await;
    pass(&mut session, Duration::from_secs(20)).await;
    let dir = node.directories.log(&task_id(1));
    write(&dir, &record(1, Stream::Out, "one"));
    assert_eq!(texts(&hear(&mut stream).await), ["one"]);
    // Between two attempts.
    let at_rest = TaskReport { state: TaskState::Starting, attempt: 2, ..report(1) };
    node.context.reporter.tell(at_rest.clone());
    pass(&mut session, Duration::from_secs(20)).await;
    write(&dir, &record(2, Stream::Out, "two"));
    assert_eq!(texts(&hear(&mut stream).await), ["two"]);
    node.context.reporter.tell(TaskReport { state: TaskState::Failed, ready: false, ..at_rest });
    // The logger's last words may come after the task's end.
    sleep(QUIET / 2).await;
    write(&dir, &record(3, Stream::Err, "three"));
    assert_eq!(texts(&hear(&mut stream).await), ["three"]);
    let ended = Instant::now();
    assert_eq!(hear(&mut stream).await, DONE);
    assert!(ended.elapsed() <= 3 * QUIET, "{:?}", ended.elapsed());
}

/// See `logs`.
const QUIET: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn a_reader_that_pauses_gets_everything() {
    let (node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let line = "x".repeat(16 << 10);
    // More than all the buffers on the way have room for, so that the node has to wait.
    let count = 512;
    let bytes: Vec<u8> = (1..=count).flat_map(|at| record(at, Stream::Out, &line)).collect();
    write(&node.directories.log(&task_id(1)), &bytes);
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, false))).await;
    pass(&mut session, 4 * SEND_DEADLINE).await;
    let said = hear_all(&mut stream, &mut session).await;
    let (last, frames) = said.split_last().unwrap();
    let mut times = Vec::new();
    for frame in frames {
        let Frame::Lines(lines) = frame else { panic!("{frame:?}") };
        assert!(lines.lines.iter().map(|line| line.text.len()).sum::<usize>() <= 64 << 10);
        times.extend(lines.lines.iter().map(|line| line.at_ns));
    }
    assert_eq!((times, last), ((1..=count).collect::<Vec<u64>>(), &DONE));
}

/// Waits until as many tasks of tokio are left.
async fn tasks_left(wanted: usize, session: Option<&mut Session>) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    let waiting = async {
        while alive() > wanted {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let keep = async {
        match session {
            Some(session) => session.hear_until(|_| None::<()>).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = timeout(PATIENCE, waiting) => ended.unwrap_or_else(|_| panic!("{} tasks, not {wanted}", alive())),
        () = keep => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_ends_when_the_manager_leaves_and_with_the_session() {
    let (node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    write(&node.directories.log(&task_id(1)), &record(1, Stream::Out, "one"));
    pass(&mut session, Duration::from_secs(1)).await;
    let before = Handle::current().metrics().num_alive_tasks();
    for _ in 0..2 {
        let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, true))).await;
        assert_eq!(texts(&hear(&mut stream).await), ["one"]);
        assert!(Handle::current().metrics().num_alive_tasks() > before);
        drop(stream);
        tasks_left(before, Some(&mut session)).await;
    }
    let mut stream = attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, true))).await;
    assert_eq!(texts(&hear(&mut stream).await), ["one"]);
    drop(session);
    let end = async { while stream.from_worker.recv().await.is_some() {} };
    timeout(PATIENCE, end).await.expect("the stream ends with the session");
}

#[tokio::test(start_paused = true)]
async fn many_logs_leave_room_for_images_and_one_too_many_is_refused() {
    let (_node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_LOGS {
        streams.push(attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, true))).await);
    }
    ask(&session, Purpose::ReadLogs(purpose(1, true))).await;
    let refused = |frame: &FromWorker| match frame {
        FromWorker::Opened(opened) => Some(opened.refused.clone()),
        _ => None,
    };
    let why = session.hear_until(refused).await;
    assert!(why.contains("256 logs being read"), "{why}");
    let mut list = attached(&mut manager, &session, Purpose::ListImages(v1::ListImages {})).await;
    assert!(matches!(&hear_all(&mut list, &mut session).await[..], [Frame::Images(_), Frame::Done(_)]));
    streams.pop();
    pass(&mut session, Duration::from_secs(1)).await;
    attached(&mut manager, &session, Purpose::ReadLogs(purpose(1, true))).await;
}

fn pull(always: bool) -> Purpose {
    Purpose::PullImage(v1::PullImage { reference: tag().to_string(), always })
}

fn pulled(digest: &Digest) -> Frame {
    let (reference, digest) = (tag().to_string(), digest.to_string());
    Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes: 1 << 20 })
}

#[tokio::test(start_paused = true)]
async fn an_image_is_pulled_with_progress_a_few_times_a_second() {
    let (node, mut manager) = Node::start(wishing(&[]));
    let mut session = manager.welcomed().await;
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    let began = Instant::now();
    let other = Digest::of(b"other");
    let registry = async {
        for step in 0..100 {
            let trouble = Some(format!("try {step}"));
            node.images.sends(&tag(), Progress { trouble, ..Progress::default() });
            sleep(Duration::from_millis(20)).await;
        }
        node.images.gives(&tag(), other.clone());
    };
    let (said, ()) = tokio::join!(hear_all(&mut stream, &mut session), registry);
    let progress = said.iter().filter(|frame| matches!(frame, Frame::Progress(_))).count();
    assert!((4..=9).contains(&progress), "{progress} in {:?}", began.elapsed());
    assert_eq!(said[progress..], [pulled(&other), DONE]);
    assert_eq!(node.images.used(), [tag().record()]);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_here_is_pulled_only_when_that_is_said() {
    let (node, mut manager) = Node::start(wishing(&[1]));
    let mut session = manager.welcomed().await;
    let mut stream = attached(&mut manager, &session, pull(false)).await;
    assert_eq!(hear_all(&mut stream, &mut session).await, [pulled(image().digest().unwrap()), DONE]);
    assert!(node.images.pulled().is_empty());
    let refused = Error::Refused { action: "pull".into(), reason: "no such image".into() };
    node.images.fails(&tag(), refused);
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    let said = hear_all(&mut stream, &mut session).await;
    assert!(matches!(said.last(), Some(Frame::Failed(why)) if why.contains("no such image")), "{said:?}");
    let bad = Purpose::PullImage(v1::PullImage { reference: "a b".into(), always: true });
    let mut stream = attached(&mut manager, &session, bad).await;
    let said = hear_all(&mut stream, &mut session).await;
    assert!(matches!(&said[..], [Frame::Failed(_)]), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pull_is_given_up_when_the_manager_leaves() {
    let (node, mut manager) = Node::start(wishing(&[]));
    let mut session = manager.welcomed().await;
    let mut stream = attached(&mut manager, &session, pull(true)).await;
    assert!(matches!(hear(&mut stream).await, Frame::Progress(_)));
    // What stays as it is, is said again: the node is not dead.
    let before = Instant::now();
    let again = tokio::select! {
        frame = hear(&mut stream) => frame,
        () = session.hear_until(|_| None::<()>) => unreachable!(),
    };
    assert!(matches!(again, Frame::Progress(_)) && before.elapsed() >= Duration::from_secs(29));
    assert_eq!(node.images.waiting(), 1);
    drop(stream);
    let given_up = async {
        while node.images.waiting() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, given_up).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn images_are_listed_with_their_tasks_and_removed_without() {
    let (node, mut manager) = Node::start(wishing(&[1, 2]));
    let mut session = manager.welcomed().await;
    let unused = Reference::parse("old:1").unwrap();
    node.images.has(&unused, Digest::of(b"old"));
    let now = SystemClock::new().unix_millis();
    node.images.touch(&unused, Timestamp(now)).await.unwrap();
    let mut stream = attached(&mut manager, &session, Purpose::ListImages(v1::ListImages {})).await;
    let said = hear_all(&mut stream, &mut session).await;
    let rows = |frame: &Frame| match frame {
        Frame::Images(list) => {
            list.images.iter().map(|image| (image.reference.clone(), image.tasks)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((rows(&said[0]), &said[1..]), (vec![(tag().record(), 2), (unused.record(), 0)], &[DONE][..]));
    let prune = || Purpose::PruneImages(v1::PruneImages { unused_for_ms: 0 });
    let mut stream = attached(&mut manager, &session, prune()).await;
    let said = hear_all(&mut stream, &mut session).await;
    assert_eq!((rows(&said[0]), &said[1..]), (vec![(unused.record(), 0)], &[DONE][..]));
    let mut stream = attached(&mut manager, &session, prune()).await;
    assert_eq!(hear_all(&mut stream, &mut session).await, [DONE], "the second time");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_removed_before_it_is_known_what_the_node_should_run() {
    let (node, mut manager) = Node::start(Wishes::default());
    let session = manager.welcomed().await;
    node.images.has(&Reference::parse("old:1").unwrap(), Digest::of(b"old"));
    let prune = Purpose::PruneImages(v1::PruneImages { unused_for_ms: 0 });
    // The session is not answered: the answer to a sync would tell what the node should run.
    let mut stream = attached(&mut manager, &session, prune).await;
    let said = hear(&mut stream).await;
    assert!(matches!(&said, Frame::Failed(why) if why.contains("try again")), "{said:?}");
}

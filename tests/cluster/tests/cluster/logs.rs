//! Task logs through a manager: order, back-pressure, and missing parts.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error, LogOptions, LogStream, LogTarget};
use warren_proto::v1::log_entry::Entry;
use warren_proto::v1::logs_client::LogsClient;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::{Problem, v1};
use warren_types::{Availability, Timestamp};

use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::joined;
use crate::placement::available;
use crate::worker::{ScriptedStream, ScriptedWorker};

/// A batch is sent within this time, unless no client reads it.
const STALLED: Duration = Duration::from_secs(2);
/// Lines of a batch, each of 1 KiB.
const BATCH: u64 = 64;

fn web() -> LogTarget {
    LogTarget::Service("web".into())
}

fn follow() -> LogOptions {
    LogOptions { follow: true, ..LogOptions::default() }
}

/// A service whose tasks run on these workers.
async fn running(client: &Client, workers: &mut [&mut ScriptedWorker], replicas: u32) {
    client.services().create(new_id(), &spec("web", replicas)).await.unwrap();
    wait_running(client, workers, replicas).await;
}

async fn wait_running(client: &Client, workers: &mut [&mut ScriptedWorker], replicas: u32) {
    let done = async {
        while client.services().get("web").await.unwrap().running < replicas {
            for worker in workers.iter_mut() {
                worker.apply_assignment().await;
            }
        }
    };
    timeout(WAIT_DEADLINE, done).await.expect("the tasks run");
}

/// The next log stream that the manager requests, and its parameters.
async fn reader(worker: &mut ScriptedWorker) -> (v1::ReadTaskLogs, ScriptedStream) {
    let asked = timeout(WAIT_DEADLINE, worker.next_stream_request()).await.expect("lines are asked for");
    let Some(Purpose::ReadLogs(expected)) = asked.purpose else { panic!("not for lines: {asked:?}") };
    (expected, worker.attach_to(asked.stream_id).await)
}

fn lines(times: impl IntoIterator<Item = u64>) -> Frame {
    let line = |at_ns: u64| v1::LogLine {
        at_ns,
        stream: v1::LogStream::Out.into(),
        text: format!("{at_ns:01024}").into_bytes().into(),
        partial: false,
    };
    Frame::Lines(v1::LogLines { lines: times.into_iter().map(line).collect() })
}

/// `slot@node time` for a line, `slot@node reason` for missing output.
async fn next(entries: &mut LogStream) -> Option<String> {
    let entry = timeout(WAIT_DEADLINE, entries.next()).await.expect("the stream has an entry").unwrap()?;
    assert_eq!(entry.service_name, "web");
    let output = match entry.entry.unwrap() {
        Entry::Line(line) => {
            assert_eq!(line.text.len(), 1024);
            line.at_ns.to_string()
        }
        Entry::GapReason(words) => words,
    };
    Some(format!("{}@{} {output}", entry.slot, entry.node_name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_several_tasks_come_in_the_order_of_time() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut [&mut worker], 2).await;
    let options = LogOptions { tail: Some(5), since: Some(Timestamp(7)), ..LogOptions::default() };
    let mut entries = client.logs().read(web(), options).await.unwrap();
    let readers = [reader(&mut worker).await, reader(&mut worker).await];
    for (expected, stream) in &readers {
        assert_eq!((expected.follow, expected.tail, expected.since_ns), (false, Some(5), Some(7_000_000)));
        let first = client.tasks().get(&expected.task_id).await.unwrap().slot == 1;
        if first {
            stream.send(lines([10, 40])).await;
        } else {
            stream.send(Frame::DroppedLines("3 lines were not kept".into())).await;
            stream.send(lines([20])).await;
            stream.send(lines([30, 50])).await;
        }
        stream.send(Frame::Done(v1::StreamDone {})).await;
    }
    let mut seen = Vec::new();
    while let Some(entry) = next(&mut entries).await {
        seen.push(entry);
    }
    let expected = ["2@n1 3 lines were not kept", "1@n1 10", "2@n1 20", "2@n1 30", "1@n1 40", "2@n1 50"];
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_client_delays_only_its_own_stream() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut [&mut worker], 1).await;
    let mut entries = client.logs().read(LogTarget::Task("web.1".into()), follow()).await.unwrap();
    let (_, stream) = reader(&mut worker).await;
    let mut sent = 0;
    let batch = |from: u64| v1::StreamFrame { frame: Some(lines(from..from + BATCH)) };
    while timeout(STALLED, stream.frames.send(batch(sent))).await.is_ok() {
        sent += BATCH;
        assert!(sent < 64 << 10, "the manager buffered 64 MiB for a client that does not read");
    }
    assert!(sent > BATCH, "some of it is on its way");
    timeout(WAIT_DEADLINE, worker.sync()).await.expect("the session continues meanwhile");
    for expected in 0..sent {
        assert_eq!(next(&mut entries).await.unwrap(), format!("1@n1 {expected}"), "each line once, in order");
    }
    stream.send(lines([sent])).await;
    assert_eq!(next(&mut entries).await.unwrap(), format!("1@n1 {sent}"));
    drop(entries);
    timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the worker's stream ends with its client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn following_takes_up_later_tasks_and_outlives_a_lost_node() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let mut first = ScriptedWorker::dial(&world).await;
    running(&client, &mut [&mut first], 1).await;
    let mut entries = client.logs().read(web(), follow()).await.unwrap();
    let (expected, stream) = reader(&mut first).await;
    assert!(expected.follow);
    stream.send(lines([10])).await;
    assert_eq!(next(&mut entries).await.unwrap(), "1@n1 10");

    let mut second = ScriptedWorker::dial_as(&world, &node).await;
    client.services().scale("web", 2, None).await.unwrap();
    second.has("the second task", |tasks| tasks.len() == 1).await;
    let (_, later) = reader(&mut second).await;
    later.send(lines([20])).await;
    assert_eq!(next(&mut entries).await.unwrap(), "2@n2 20");

    drop((stream, first));
    let trouble = next(&mut entries).await.unwrap();
    assert!(trouble.starts_with("1@n1 the stream from the node"), "{trouble}");
    later.send(lines([30])).await;
    // Until it is back, it may be reported as missing again, for more than one reason.
    let mut text = next(&mut entries).await.unwrap();
    while text.starts_with("1@n1 ") {
        text = next(&mut entries).await.unwrap();
    }
    assert_eq!(text, "2@n2 30");
    let mut first = ScriptedWorker::dial(&world).await;
    let (again, stream) = reader(&mut first).await;
    assert_eq!(
        (again.task_id, again.since_ns),
        (expected.task_id, Some(11)),
        "it continues after the last line"
    );
    stream.send(lines([40])).await;
    while next(&mut entries).await.unwrap() != "1@n1 40" {}
    // A removed task has no more output.
    client.services().remove("web", None, false).await.unwrap();
    for stream in [stream, later] {
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
    }
    let end = async {
        while client.services().get("web").await.is_ok() {
            first.apply_assignment().await;
            second.apply_assignment().await;
        }
        while next(&mut entries).await.is_some() {}
    };
    timeout(WAIT_DEADLINE, end).await.expect("the entries end with the service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_node_delays_logs_only_briefly() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let (mut mute, mut good) =
        (ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await);
    running(&client, &mut [&mut mute, &mut good], 2).await;
    let mut entries = client.logs().read(web(), LogOptions::default()).await.unwrap();
    let (_, stream) = reader(&mut good).await;
    stream.send(lines([10])).await;
    stream.send(Frame::Done(v1::StreamDone {})).await;
    let mut seen = vec![next(&mut entries).await.unwrap(), next(&mut entries).await.unwrap()];
    assert_eq!(next(&mut entries).await, None);
    seen.sort();
    let quiet = seen.iter().find(|output| output.contains("@n1 ")).unwrap();
    assert!(quiet.ends_with("the node did not open the stream within 5 s"), "{quiet}");
    assert!(seen.iter().any(|text| text.ends_with("@n2 10")), "{seen:?}");

    drop(mute);
    good.sync().await;
    let mut entries = client.logs().read(web(), LogOptions::default()).await.unwrap();
    let (_, stream) = reader(&mut good).await;
    stream.send(Frame::Error("its files are gone".into())).await;
    let mut seen = vec![next(&mut entries).await.unwrap(), next(&mut entries).await.unwrap()];
    assert_eq!(next(&mut entries).await, None);
    seen.sort_by_key(|printed| printed.contains("@n2 "));
    // Whether its session has ended by then or not, the client learns which node is missing.
    let removed = ["no session", "is down", "did not open the stream", "session ended"];
    assert!(seen[0].contains("@n1 ") && removed.iter().any(|words| seen[0].contains(words)), "{seen:?}");
    assert!(seen[1].ends_with("@n2 its files are gone"), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_without_lines_is_refused_or_awaited() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut raw = LogsClient::new(world.channel(CallerKind::Local).await);
    let request = |service: &str, task: &str| v1::ReadLogsRequest {
        service: service.into(),
        task: task.into(),
        ..Default::default()
    };
    let both = v1::ReadLogsRequest { previous: true, follow: true, ..request("web", "") };
    for (wrong, path) in [(request("", ""), "service"), (both, "previous")] {
        let refused = Problem::from(&raw.read(wrong).await.unwrap_err());
        assert_eq!((refused.code, refused.violations.0[0].path.as_str()), (Code::InvalidArgument, path));
    }
    let unknown = client.logs().read(web(), LogOptions::default()).await.unwrap_err();
    assert!(unknown.is_not_found());
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let task = || LogTarget::Task("web.1".into());
    let no_node = warren_testkit::wait::eventually_async(WAIT_DEADLINE, "the task to be there", || async {
        match client.logs().read(task(), LogOptions::default()).await {
            Err(Error::Refused { problem }) if problem.reason == "NOT_FOUND" => Err(problem.to_string()),
            other => Ok(other.unwrap_err()),
        }
    })
    .await;
    assert!(
        matches!(&no_node, Error::Refused { problem } if problem.reason == "TASK_NOT_ASSIGNED"),
        "{no_node}"
    );
    let mut entries = client.logs().read(task(), follow()).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("the task", |tasks| tasks.len() == 1).await;
    let (_, stream) = reader(&mut worker).await;
    stream.send(lines([10])).await;
    assert_eq!(next(&mut entries).await.unwrap(), "1@n1 10");
}

/// The next stream that the manager requests has these frames. It is cancelled when it is dropped.
async fn answer(worker: &mut ScriptedWorker, frames: Vec<Frame>) -> (String, ScriptedStream) {
    let (expected, stream) = reader(worker).await;
    for frame in frames {
        stream.send(frame).await;
    }
    stream.send(Frame::Done(v1::StreamDone {})).await;
    (expected.task_id, stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_of_ended_task_is_read_from_its_node() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut [&mut worker], 1).await;
    let first = client.tasks().get("web.1").await.unwrap().id;
    // So that the next task of the slot is placed nowhere, and only the ended one has a node.
    available(&client, "n1", Availability::Pause).await;
    let ended = v1::TaskReport { removed: true, ..crate::worker::report(&first, v1::TaskState::Failed) };
    worker.report(vec![ended]).await;
    worker.has("no task of before", |tasks| !tasks.contains_key(&first)).await;
    let read = async |target| client.logs().read(target, LogOptions::default()).await;
    let previous = LogOptions { previous: true, ..LogOptions::default() };
    let part = |task: &str| LogTarget::ServiceTask { service: "web".into(), task: task.into() };
    for target in [web(), LogTarget::Task(first.clone()), part(&first), part("1"), part("web.1")] {
        let mut entries = read(target).await.unwrap();
        let (asked, _stream) = answer(&mut worker, vec![lines([10])]).await;
        assert_eq!(asked, first);
        assert_eq!(next(&mut entries).await.unwrap(), "1@n1 10");
        assert_eq!(next(&mut entries).await, None);
    }
    let is_there = || async {
        let task = client.tasks().get("web.1").await.unwrap().id;
        if task == first { Err("no further task".to_owned()) } else { Ok(()) }
    };
    warren_testkit::wait::eventually_async(WAIT_DEADLINE, "the next task of the slot", is_there).await;
    for target in [web(), LogTarget::Task("web.1".into()), part("1")] {
        let mut entries = client.logs().read(target, previous).await.unwrap();
        let (asked, _stream) = answer(&mut worker, vec![lines([20])]).await;
        assert_eq!(asked, first);
        assert_eq!(next(&mut entries).await.unwrap(), "1@n1 20");
    }
    let none = client.logs().read(LogTarget::Task(first.clone()), previous).await.unwrap_err();
    assert!(none.is_not_found() && none.to_string().contains("that ran before"), "{none}");
    assert!(read(part("web.7")).await.unwrap_err().is_not_found());
    // The output was removed from the node: only who asks for the task is told.
    let gone = || vec![Frame::NoOutput("its output was removed".into())];
    let mut entries = read(web()).await.unwrap();
    let _stream = answer(&mut worker, gone()).await;
    assert_eq!(next(&mut entries).await, None);
    let mut entries = read(LogTarget::Task(first.clone())).await.unwrap();
    let _stream = answer(&mut worker, gone()).await;
    assert_eq!(next(&mut entries).await.unwrap(), "1@n1 its output was removed");
    // Scaling down keeps it, the removal of the service does not.
    client.services().scale("web", 0, None).await.unwrap();
    let mut entries = read(web()).await.unwrap();
    let _stream = answer(&mut worker, vec![lines([30])]).await;
    assert_eq!(next(&mut entries).await.unwrap(), "1@n1 30");
    client.services().remove("web", None, false).await.unwrap();
    let is_gone = || async {
        match client.tasks().get(&first).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    warren_testkit::wait::eventually_async(WAIT_DEADLINE, "the record to be deleted", is_gone).await;
}

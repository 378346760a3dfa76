//! Programs in containers through a manager: input, output, refusals, and the end with either side.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error, ProgramEvent, RunningProgram};
use warren_proto::v1::exec_target::Work;
use warren_proto::v1::exec_task::Work as NodeWork;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::{ScriptedStream, ScriptedWorker, report};

/// A chunk is sent within this time, unless no client reads it.
const STALLED: Duration = Duration::from_secs(2);
const CHUNK: usize = 64 << 10;

pub const STARTED: Frame = Frame::ProgramStarted(v1::StreamDone {});

fn program(command: &[&str]) -> v1::ExecProgram {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    v1::ExecProgram { command, input: true, ..Default::default() }
}

pub fn in_task(task: &str) -> v1::ExecTarget {
    v1::ExecTarget {
        task: task.into(),
        work: Some(Work::Program(program(&["cat", "-u"]))),
        ..Default::default()
    }
}

fn in_service(slot: Option<u32>) -> v1::ExecTarget {
    v1::ExecTarget { task: String::new(), service: "web".into(), slot, ..in_task("") }
}

/// A service whose tasks run on this worker.
async fn running(client: &Client, worker: &mut ScriptedWorker, replicas: u32) {
    client.services().create(new_id(), &spec("web", replicas)).await.unwrap();
    let done = async {
        while client.services().get("web").await.unwrap().running < replicas {
            worker.apply_assignment().await;
        }
    };
    timeout(WAIT_DEADLINE, done).await.expect("the tasks run");
}

/// Runs a program that the worker accepts.
async fn start(
    client: &Client,
    worker: &mut ScriptedWorker,
    target: v1::ExecTarget,
) -> (v1::ExecTask, ScriptedStream, RunningProgram) {
    let accept = async {
        let asked = worker.next_stream_request().await;
        let Some(Purpose::ExecTask(task)) = asked.purpose else { panic!("another purpose: {asked:?}") };
        let stream = worker.attach_to(asked.stream_id).await;
        stream.send(STARTED).await;
        (task, stream)
    };
    let tasks = client.tasks();
    let both = async { tokio::join!(accept, tasks.exec(target)) };
    let ((task, stream), started) = timeout(WAIT_DEADLINE, both).await.expect("the program starts");
    (task, stream, started.unwrap())
}

async fn next(program: &mut RunningProgram) -> ProgramEvent {
    timeout(WAIT_DEADLINE, program.output.next()).await.expect("the output goes on").unwrap()
}

fn refusal(refused: Result<RunningProgram, Error>) -> Problem {
    match refused.map(|program| program.started) {
        Err(Error::Refused { problem }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_and_output_are_passed_on() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut worker, 1).await;
    let (task, mut stream, mut program) = start(&client, &mut worker, in_task("web.1")).await;
    assert!(matches!(&task.work, Some(NodeWork::Program(asked)) if asked.command == ["cat", "-u"]));
    assert_eq!((task.task_id, "n1"), (program.started.task_id.clone(), program.started.node_name.as_str()));
    let bytes = Bytes::from_static(b"\0\xff\r\n");
    assert!(program.input.send(bytes.clone()).await);
    assert_eq!(stream.receive().await.unwrap(), Some(Frame::Data(bytes.clone())));
    program.control.signal(2).await;
    assert_eq!(stream.receive().await.unwrap(), Some(Frame::Signal(2)));
    let size = v1::TerminalSize { columns: 80, rows: 24 };
    program.control.resize(size).await;
    assert_eq!(stream.receive().await.unwrap(), Some(Frame::Resize(size)));
    stream.send(Frame::Data(bytes.clone())).await;
    stream.send(Frame::StderrData("error".into())).await;
    assert_eq!(next(&mut program).await, ProgramEvent::Stdout(bytes));
    assert_eq!(next(&mut program).await, ProgramEvent::Stderr("error".into()));
    let RunningProgram { input, mut output, .. } = program;
    assert!(input.end().await);
    assert_eq!(stream.receive().await.unwrap(), Some(Frame::End(v1::EndOfData {})));
    stream.send(Frame::ExitCode(7)).await;
    assert_eq!(output.next().await.unwrap(), ProgramEvent::Exited(7));
    timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the manager closes the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_waits_for_the_program_and_output_for_the_client() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut worker, 1).await;
    let (_, mut stream, mut program) = start(&client, &mut worker, in_task("web.1")).await;
    let chunk = Bytes::from(vec![7; CHUNK]);
    for _ in 0..8 {
        assert!(program.input.send(chunk.clone()).await);
    }
    assert!(timeout(STALLED, program.input.send(chunk.clone())).await.is_err(), "512 KiB are on their way");
    stream.send(Frame::ReceivedBytes(1)).await;
    stream.send(Frame::ReceivedBytes(CHUNK as u64)).await;
    tokio::select! {
        sent = timeout(WAIT_DEADLINE, program.input.send(chunk.clone())) => assert_eq!(sent, Ok(true)),
        event = program.output.next() => panic!("{event:?}"),
    }
    for _ in 0..9 {
        assert_eq!(stream.receive().await.unwrap(), Some(Frame::Data(chunk.clone())));
    }
    let mut sent = 0;
    let frame = || v1::StreamFrame { frame: Some(Frame::Data(chunk.clone())) };
    while timeout(STALLED, stream.frames.send(frame())).await.is_ok() {
        sent += 1;
        assert!(sent < 1024, "the manager buffered 64 MiB for a client that does not read");
    }
    timeout(WAIT_DEADLINE, worker.sync()).await.expect("the session continues meanwhile");
    for _ in 0..sent {
        assert_eq!(next(&mut program).await, ProgramEvent::Stdout(chunk.clone()));
    }
    drop(program);
    timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the worker's stream ends with its client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_selects_a_ready_task() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let none = refusal(client.tasks().exec(in_service(None)).await);
    assert_eq!((none.code, none.reason.as_str()), (Code::NotFound, "NOT_FOUND"));
    running(&client, &mut worker, 3).await;
    let first = client.tasks().get("web.1").await.unwrap().id;
    let unready = v1::TaskReport { ready: false, attempt: 2, ..report(&first, v1::TaskState::Running) };
    worker.report(vec![unready]).await;
    for (slot, expected) in [(None, "web.2"), (Some(3), "web.3"), (Some(1), "web.1")] {
        let (task, _stream, _program) = start(&client, &mut worker, in_service(slot)).await;
        assert_eq!(task.task_id, client.tasks().get(expected).await.unwrap().id);
    }
    assert_eq!(refusal(client.tasks().exec(in_service(Some(9))).await).code, Code::NotFound);
    let all: Vec<String> = worker.tasks.keys().cloned().collect();
    let unready =
        |id: &String| v1::TaskReport { ready: false, attempt: 3, ..report(id, v1::TaskState::Running) };
    worker.report(all.iter().map(unready).collect()).await;
    let none = refusal(client.tasks().exec(in_service(None)).await);
    assert_eq!(none.reason, "NO_READY_TASK");
    assert!(none.message.contains("`warren service ps web`"), "{none}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_that_does_not_run_is_refused_with_its_state() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let pending = eventually_async(WAIT_DEADLINE, "the task", || async {
        let problem = refusal(client.tasks().exec(in_task("web.1")).await);
        if problem.reason == "NOT_FOUND" { Err(problem.to_string()) } else { Ok(problem) }
    })
    .await;
    assert_eq!(pending.reason, "TASK_NOT_RUNNING");
    assert!(pending.message.contains("does not run yet, it is PENDING: "), "{pending}");
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("the task", |tasks| tasks.len() == 1).await;
    worker.run_all().await;
    let id = worker.tasks.keys().next().unwrap().clone();
    let failed =
        v1::TaskReport { reason: "it ran out of memory".into(), ..report(&id, v1::TaskState::Failed) };
    worker.report(vec![v1::TaskReport { ready: false, ..failed }]).await;
    let ended = refusal(client.tasks().exec(in_task(&id)).await);
    assert_eq!((ended.code, ended.reason.as_str()), (Code::FailedPrecondition, "TASK_NOT_RUNNING"));
    assert!(ended.message.contains("has ended, FAILED: it ran out of memory"), "{ended}");
    let empty = v1::ExecTarget { work: Some(Work::Program(program(&[]))), ..in_task("web.1") };
    assert_eq!(refusal(client.tasks().exec(empty).await).violations.0[0].path, "program.command");
    let both = v1::ExecTarget { service: "web".into(), ..in_task("web.1") };
    assert_eq!(refusal(client.tasks().exec(both).await).violations.0[0].path, "task");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_the_node_reach_the_client() {
    use v1::ExecFailureReason as Reason;
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    running(&client, &mut worker, 1).await;
    let tasks = client.tasks();
    // An agent that does not know the request.
    let refuse = async {
        let stream_id = worker.open().await;
        let error = "upgrade the node".into();
        worker.send(Say::Opened(v1::StreamOpened { stream_id, error })).await;
    };
    let ((), refused) = tokio::join!(refuse, tasks.exec(in_task("web.1")));
    let problem = refusal(refused);
    assert_eq!(
        (problem.reason.as_str(), &problem.message[..]),
        ("NODE_NOT_REACHABLE", "node n1: upgrade the node")
    );
    for (reason, expected) in [
        (Reason::CommandNotFound, "COMMAND_NOT_FOUND"),
        (Reason::CommandNotExecutable, "COMMAND_NOT_EXECUTABLE"),
        (Reason::NotRunning, "TASK_NOT_RUNNING"),
        (Reason::Invalid, "INVALID_ARGUMENT"),
        (Reason::Unspecified, "PROGRAM_NOT_STARTED"),
    ] {
        let failure = v1::ExecFailure { reason: reason.into(), field: "user".into(), message: "no".into() };
        let refuse = async {
            let stream = worker.attach().await;
            stream.send(Frame::ExecFailure(failure)).await;
            stream.wait_closed().await;
        };
        let ((), refused) = tokio::join!(refuse, tasks.exec(in_task("web.1")));
        let problem = refusal(refused);
        assert_eq!(problem.reason, expected);
        if reason == Reason::Invalid {
            assert_eq!(problem.violations.0[0].path, "program.user");
        }
    }
    // The node is lost while the program runs.
    let (_, stream, mut program) = start(&client, &mut worker, in_task("web.1")).await;
    drop(stream);
    let lost = timeout(WAIT_DEADLINE, program.output.next()).await.unwrap().unwrap_err();
    assert!(lost.to_string().contains("the connection to the node was lost"), "{lost}");
}

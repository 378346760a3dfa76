use warren_runtime::fake::{FakeFailure, FakeRuntime, FaultPoint, RuntimeOperation};
use warren_runtime::{ContainerOwner, ContainerSpec, OutputTarget, StandardInput};
use warren_types::Bytes;

use warren_proto::v1::exec_task::Work;

use super::*;
use crate::session::attach::exec::MAX_AHEAD;
use crate::tasks::container_id;

/// A node on which the container of task 1 runs.
async fn node_with_task() -> (TestNode, FakeManager, FakeSession) {
    node_with(|_| {}).await
}

async fn node_with(change: impl FnOnce(&mut ContainerSpec)) -> (TestNode, FakeManager, FakeSession) {
    let (node, mut manager) = TestNode::start(desired(&[1]));
    let session = manager.next_welcomed_session().await;
    node.fake_runtime.add_image(&tag());
    let owner = ContainerOwner { task: task_id(1).to_string(), attempt: 1, spec_hash: "hash".into() };
    let mut spec = ContainerSpec::new(container_id(&task_id(1)), owner, tag());
    change(&mut spec);
    node.fake_runtime.ensure_created(&spec).await.unwrap();
    node.fake_runtime.start(&spec.id).await.unwrap();
    (node, manager, session)
}

fn program(command: &[&str]) -> v1::ExecProgram {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    v1::ExecProgram { command, ..Default::default() }
}

fn exec(number: u64, program: v1::ExecProgram) -> Purpose {
    Purpose::ExecTask(v1::ExecTask {
        task_id: task_id(number).to_string(),
        work: Some(Work::Program(program)),
    })
}

const STARTED: Frame = Frame::ProgramStarted(v1::StreamDone {});

/// The frames up to the last one, with the data of each kind joined.
async fn collect(stream: &mut FakeStream, session: &mut FakeSession) -> (Vec<u8>, Vec<u8>, Frame) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let last = async {
        loop {
            match next_frame(stream).await {
                Frame::Data(bytes) => stdout.extend(bytes),
                Frame::StderrData(bytes) => stderr.extend(bytes),
                Frame::ReceivedBytes(_) => {}
                last => return last,
            }
        }
    };
    let last = tokio::select! {
        last = last => last,
        () = session.next_matching(|_| None::<()>) => unreachable!(),
    };
    (stdout, stderr, last)
}

async fn wait_for_no_program(runtime: &FakeRuntime) {
    let ended = async {
        while runtime.exec_count() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, ended).await.expect("the program ends");
}

#[tokio::test(start_paused = true)]
async fn program_has_its_setup_and_both_outputs() {
    let (node, mut manager, mut session) = node_with_task().await;
    let asked = v1::ExecProgram {
        environment: vec!["A=1".into()],
        user: "web".into(),
        directory: "/srv".into(),
        ..program(&["words"])
    };
    let mut stream = attached(&mut manager, &session, exec(1, asked)).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    let (stdout, stderr, last) = collect(&mut stream, &mut session).await;
    assert_eq!(String::from_utf8(stdout).unwrap(), "[\"A=1\"] Some(\"web\") Some(\"/srv\")");
    assert_eq!((&stderr[..], last), (&b"error"[..], Frame::ExitCode(0)));
    let mut stream = attached(&mut manager, &session, exec(1, program(&["exit", "7"]))).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    assert_eq!(collect(&mut stream, &mut session).await.2, Frame::ExitCode(7));
    wait_for_no_program(&node.fake_runtime).await;
}

#[tokio::test(start_paused = true)]
async fn processes_are_listed_and_signals_reach_the_first_one() {
    let (node, mut manager, mut session) = node_with_task().await;
    let mut run = async |number: u64, work: Work| {
        let exec = v1::ExecTask { task_id: task_id(number).to_string(), work: Some(work) };
        let mut stream = attached(&mut manager, &session, Purpose::ExecTask(exec)).await;
        all_frames(&mut stream, &mut session).await
    };
    let list = Work::ListProcesses(v1::ListProcesses {});
    let listed = run(1, list.clone()).await;
    let [STARTED, Frame::Processes(processes), Frame::ExitCode(0)] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!(processes.processes.len(), 1);
    assert_eq!(run(1, Work::Signal(9)).await, [STARTED, Frame::ExitCode(0)]);
    let status = node.fake_runtime.inspect(&container_id(&task_id(1))).await.unwrap().unwrap();
    assert!(matches!(status.process, warren_runtime::ProcessState::Stopped(_)), "{status:?}");
    use v1::ExecFailureReason as Reason;
    for (number, work, expected) in [
        (2, list, Reason::NotRunning),
        (2, Work::Signal(9), Reason::NotRunning),
        (1, Work::Signal(99), Reason::Invalid),
    ] {
        let refused = run(number, work).await;
        let [Frame::ExecFailure(failure)] = &refused[..] else { panic!("{refused:?}") };
        assert_eq!(failure.reason(), expected, "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn input_of_the_first_process_stays_open_until_a_client_ends_it() {
    let (node, mut manager, mut session) = node_with(|spec| {
        spec.stdin = Some(StandardInput { pipe: "/pipe".into(), program: "/init".into() });
        let (program, dir) = ("/logger".into(), "/logs".into());
        spec.log = OutputTarget::Binary { program, dir, max_size: Bytes(1), max_files: 1 };
    })
    .await;
    let id = container_id(&task_id(1));
    let attach = || {
        let terminal = Some(v1::TerminalSize { columns: 90, rows: 20 });
        let work = Some(Work::Attach(v1::AttachTask { input: true, terminal }));
        Purpose::ExecTask(v1::ExecTask { task_id: task_id(1).to_string(), work })
    };
    let mut last = None;
    for text in ["one", "two"] {
        let mut stream = attached(&mut manager, &session, attach()).await;
        assert_eq!(next_frame(&mut stream).await, STARTED);
        let attached_at = next_frame(&mut stream).await;
        assert!(matches!(attached_at, Frame::AttachedAt(1..)), "{attached_at:?}");
        to_worker(&stream, Frame::Data(text.into())).await;
        assert_eq!(next_frame(&mut stream).await, Frame::ReceivedBytes(3));
        // The first client leaves without an end of its input.
        last = Some(stream);
    }
    let mut stream = last.unwrap();
    assert!(!node.fake_runtime.input(&id).has_ended);
    to_worker(&stream, end()).await;
    let ended = async {
        while !node.fake_runtime.input(&id).has_ended || node.fake_runtime.input(&id).bytes != b"onetwo" {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, ended).await.expect("the input ends");
    assert_eq!(node.fake_runtime.input(&id).size.columns, 90);
    let mut late = attached(&mut manager, &session, attach()).await;
    let refused = all_frames(&mut late, &mut session).await;
    let [Frame::ExecFailure(failure)] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(failure.reason(), v1::ExecFailureReason::InputNotOpen, "{failure:?}");
    assert!(failure.message.contains("has ended"), "{failure:?}");
    node.fake_runtime.end_process(&id, 7, false);
    assert_eq!(collect(&mut stream, &mut session).await.2, Frame::ExitCode(7));
}

#[tokio::test(start_paused = true)]
async fn input_comes_back_and_is_acknowledged() {
    let (_node, mut manager, mut session) = node_with_task().await;
    let asked = v1::ExecProgram { input: true, ..program(&["cat"]) };
    let mut stream = attached(&mut manager, &session, exec(1, asked)).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    let bytes: Vec<u8> = (0..200u32 << 10).map(|n| (n ^ (n >> 8)) as u8).collect();
    for chunk in bytes.chunks(32 << 10) {
        to_worker(&stream, Frame::Data(chunk.to_vec().into())).await;
    }
    to_worker(&stream, end()).await;
    let (stdout, stderr, last) = collect(&mut stream, &mut session).await;
    assert!(stdout == bytes && stderr.is_empty(), "{} bytes came back", stdout.len());
    assert_eq!(last, Frame::ExitCode(0));
}

#[tokio::test(start_paused = true)]
async fn signal_passes_input_that_is_not_read() {
    let (_node, mut manager, mut session) = node_with_task().await;
    let asked = || v1::ExecProgram { input: true, ..program(&["sleep"]) };
    let mut stream = attached(&mut manager, &session, exec(1, asked())).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    const INPUT: usize = 32 << 10;
    for _ in 0..MAX_AHEAD / INPUT {
        to_worker(&stream, Frame::Data(vec![0; INPUT].into())).await;
    }
    to_worker(&stream, Frame::Signal(15)).await;
    assert_eq!(collect(&mut stream, &mut session).await.2, Frame::ExitCode(143));
    // More than it may be ahead.
    let mut stream = attached(&mut manager, &session, exec(1, asked())).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    for _ in 0..MAX_AHEAD / INPUT + 3 {
        to_worker(&stream, Frame::Data(vec![0; INPUT].into())).await;
    }
    let last = collect(&mut stream, &mut session).await.2;
    assert!(matches!(&last, Frame::Error(why) if why.contains("ahead of the program")), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn terminal_follows_the_size_of_the_client() {
    let (_node, mut manager, mut session) = node_with_task().await;
    let size = |columns, rows| v1::TerminalSize { columns, rows };
    let asked = v1::ExecProgram { input: true, terminal: Some(size(80, 24)), ..program(&["size"]) };
    let mut stream = attached(&mut manager, &session, exec(1, asked)).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    assert_eq!(next_frame(&mut stream).await, Frame::Data("80x24\n".into()));
    to_worker(&stream, Frame::Resize(size(101, 70_000))).await;
    assert_eq!(next_frame(&mut stream).await, Frame::Data("101x65535\n".into()));
    to_worker(&stream, end()).await;
    assert_eq!(collect(&mut stream, &mut session).await.2, Frame::ExitCode(0));
}

#[tokio::test(start_paused = true)]
async fn program_that_cannot_start_is_explained() {
    use v1::ExecFailureReason as Reason;
    let (node, mut manager, mut session) = node_with_task().await;
    let relative = v1::ExecProgram { directory: "srv".into(), ..program(&["cat"]) };
    for (purpose, reason, field, message) in [
        (exec(1, program(&["nosuch"])), Reason::CommandNotFound, "command", "\"nosuch\" cannot be run"),
        (exec(1, program(&[])), Reason::Invalid, "command", "empty"),
        (exec(1, relative), Reason::Invalid, "directory", "not an absolute path"),
        (exec(2, program(&["cat"])), Reason::NotRunning, "", "not on its node"),
    ] {
        let mut stream = attached(&mut manager, &session, purpose).await;
        let last = collect(&mut stream, &mut session).await.2;
        let Frame::ExecFailure(failure) = last else { panic!("{last:?}") };
        assert_eq!((failure.reason(), failure.field.as_str()), (reason, field), "{failure:?}");
        assert!(failure.message.contains(message), "{failure:?}");
    }
    let failed = FaultPoint::Before(FakeFailure::Unavailable);
    node.fake_runtime.fail_next(RuntimeOperation::Exec, failed);
    let mut stream = attached(&mut manager, &session, exec(1, program(&["cat"]))).await;
    let last = collect(&mut stream, &mut session).await.2;
    let Frame::ExecFailure(failure) = last else { panic!("{last:?}") };
    assert_eq!(failure.reason(), Reason::Unspecified);
}

#[tokio::test(start_paused = true)]
async fn program_ends_with_its_stream_and_with_the_session() {
    let (node, mut manager, mut session) = node_with_task().await;
    let mut stream = attached(&mut manager, &session, exec(1, program(&["flood"]))).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    // Nobody reads it: the program waits, and its end is not delayed by that.
    keep_alive_for(&mut session, 4 * SEND_DEADLINE).await;
    assert_eq!(node.fake_runtime.exec_count(), 1);
    drop(stream);
    tokio::select! {
        () = wait_for_no_program(&node.fake_runtime) => {}
        () = session.next_matching(|_| None::<()>) => unreachable!(),
    }
    let mut stream = attached(&mut manager, &session, exec(1, program(&["sleep"]))).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
    drop(session);
    wait_for_no_program(&node.fake_runtime).await;
}

#[tokio::test(start_paused = true)]
async fn programs_of_a_node_are_limited() {
    let (_node, mut manager, mut session) = node_with_task().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_EXECS {
        let mut stream = attached(&mut manager, &session, exec(1, program(&["sleep"]))).await;
        assert_eq!(next_frame(&mut stream).await, STARTED);
        streams.push(stream);
    }
    request_stream(&session, exec(1, program(&["sleep"]))).await;
    let refused = |frame: &FromWorker| match frame {
        FromWorker::Opened(opened) => Some(opened.error.clone()),
        _ => None,
    };
    let why = session.next_matching(refused).await;
    assert!(why.contains("already has 100 programs"), "{why}");
    streams.pop();
    keep_alive_for(&mut session, Duration::from_secs(1)).await;
    let mut stream = attached(&mut manager, &session, exec(1, program(&["sleep"]))).await;
    assert_eq!(next_frame(&mut stream).await, STARTED);
}

//! Programs that clients run in containers, files that they copy, connections to ports of tasks, and input for their
//! first process: the task's node opens a stream, and this module passes input and output on.
//!
//! Nothing is stored here, and a few frames are buffered per direction. All of it ends when either side disconnects.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};
use warren_core::Refusal;
use warren_core::State;
use warren_core::state::ObjectKind;
use warren_proto::Problem;
use warren_proto::status::{COMMAND_NOT_EXECUTABLE, COMMAND_NOT_FOUND, CONNECTION_REFUSED, INPUT_NOT_OPEN};
use warren_proto::v1;
use warren_proto::v1::exec_request::Message as Input;
use warren_proto::v1::exec_response::Message as Output;
use warren_proto::v1::exec_target::Work;
use warren_proto::v1::exec_task::Work as NodeWork;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::stream_frame::Frame;
use warren_session::worker_streams::WorkerStream;
use warren_store::problem::{manager_stopping, status_of};
use warren_types::{NodeStatus, Signal, Task, TaskState, Violation};

use super::Api;
use super::admission_policy::{check_service_admission, user_role};
use super::audited_call::AuditedCall;
use super::read::allows_stale;

/// How long the client may take to send the first message.
const TARGET_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the node may take to open the stream.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Responses that may be queued for one client.
const MAX_QUEUED_RESPONSES: usize = 4;

/// Responses to one client.
pub type ExecResponses = ReceiverStream<Result<v1::ExecResponse, Status>>;

type ResponseSender = mpsc::Sender<Result<v1::ExecResponse, Status>>;

impl Api {
    /// Opens the stream of the task's node; the program is started after the response.
    pub(super) async fn exec_program(
        &self,
        request: Request<Streaming<v1::ExecRequest>>,
    ) -> Result<ExecResponses, Status> {
        let (caller, is_stale) = (AuditedCall::of(&request), allows_stale(request.metadata())?);
        let role = user_role(&request);
        let mut inputs = request.into_inner();
        let late = |_| Status::deadline_exceeded("no target arrived");
        let first = timeout(TARGET_TIMEOUT, inputs.next()).await.map_err(late)?.transpose()?;
        let Some(Input::Target(target)) = first.and_then(|first| first.message) else {
            return Err(Status::invalid_argument("the first message must be the target"));
        };
        let (work, about) = parse_work(&target).map_err(status_of)?;
        let given = [&target.task, &target.service].into_iter().find(|text| !text.is_empty());
        caller.named(ObjectKind::Task, given.map_or("", String::as_str));
        caller.detail(&about);
        let published = if is_stale { self.store.read() } else { self.read_latest().await? };
        let state = &published.state;
        let task = find_target(state, &target)?;
        check_service_admission(role, state, &task.id.service)?;
        let service =
            state.service(&task.id.service).map(|service| format!("{}.{}", service.spec.name, task.slot));
        caller.identified(ObjectKind::Task, task.id, service.unwrap_or_default(), None);
        if task.observed.state != TaskState::Running || task.observed.removed {
            let reports = self.fetch_node_reports(state, task.node).await;
            return Err(not_running(state, &task, &self.show_task(state, &task, &reports)));
        }
        let node = task.node.and_then(|node| state.node(&node));
        let node = node.ok_or_else(|| unreachable("the node of the task was removed from the cluster"))?;
        if node.status == NodeStatus::Down {
            let why = format!("node {} is DOWN; `warren node ls` shows the nodes", node.name);
            return Err(unreachable(&why));
        }
        let purpose = Purpose::ExecTask(v1::ExecTask { task_id: task.id.to_string(), work: Some(work) });
        let opened = self.open_stream(node.id, purpose, ATTACH_TIMEOUT).await;
        let worker = opened.map_err(|why| unreachable(&format!("node {}: {why}", node.name)))?;
        tracing::info!(%caller, task = %task.id, node = %node.name, about, "working in a container");
        let started = v1::ExecStarted { task_id: task.id.to_string(), node_name: node.name.to_string() };
        let (responses, stream) = mpsc::channel(MAX_QUEUED_RESPONSES);
        let stop = self.shutdown.token();
        self.shutdown.spawn("exec", async move {
            let ended = tokio::select! {
                ended = relay_program(worker, inputs, started, &responses) => ended,
                // The client disconnected: dropping the stream ends the program.
                () = responses.closed() => Ok(()),
                () = stop.cancelled() => Err(manager_stopping()),
            };
            if let Err(status) = ended {
                // A client that does not read has no use for it.
                let _ = responses.send_timeout(Err(status), ATTACH_TIMEOUT).await;
            }
        });
        Ok(ReceiverStream::new(stream))
    }
}

/// What the node does, and a few words about it.
fn parse_work(target: &v1::ExecTarget) -> Result<(NodeWork, String), Violation> {
    match target.work.clone() {
        None => Err(Violation::new("work", "is missing")),
        Some(Work::Program(program)) => match program.command.first() {
            None => Err(Violation::new("program.command", "is empty")),
            Some(first) => {
                let about = format!("program {first}");
                Ok((NodeWork::Program(program), about))
            }
        },
        Some(Work::ReadFiles(files)) => {
            let about = format!("copy from {}", files.path);
            Ok((NodeWork::ReadFiles(files), about))
        }
        Some(Work::WriteFiles(files)) => {
            let about = format!("copy to {}", files.path);
            Ok((NodeWork::WriteFiles(files), about))
        }
        Some(Work::Connect(port)) => Ok((NodeWork::Connect(port), format!("connection to port {port}"))),
        Some(Work::Signal(number)) => {
            let signal = i32::try_from(number).ok().and_then(Signal::from_number);
            let invalid = || Violation::new("signal", format!("{number} is not a signal"));
            let signal = signal.ok_or_else(invalid)?;
            Ok((NodeWork::Signal(number), format!("signal {signal}")))
        }
        Some(Work::ListProcesses(request)) => {
            Ok((NodeWork::ListProcesses(request), "list of processes".to_owned()))
        }
        Some(Work::Attach(request)) => {
            let about = if request.input { "input" } else { "attach without input" };
            Ok((NodeWork::Attach(request), about.to_owned()))
        }
    }
}

fn find_target(state: &State, target: &v1::ExecTarget) -> Result<Arc<Task>, Status> {
    let v1::ExecTarget { task, service, slot, .. } = target;
    match (task.as_str(), service.as_str(), slot) {
        ("", "", _) => Err(status_of(Violation::new("task", "is missing; give it, or service"))),
        (task, "", None) => state.find_task(task).cloned().map_err(status_of),
        ("", service, Some(slot)) => {
            let id = state.find_service(service).map_err(status_of)?.id;
            let missing =
                || Refusal::NotFound { kind: ObjectKind::Task, reference: format!("{service}.{slot}") };
            state.current_task(&id, *slot).cloned().ok_or_else(|| status_of(missing()))
        }
        ("", service, None) => {
            let found = state.find_service(service).map_err(status_of)?;
            let is_up = |task: &Task| {
                let node = task.node.and_then(|node| state.node(&node));
                node.is_some_and(|node| node.status != NodeStatus::Down)
            };
            let is_ready = |task: &Task| {
                task.is_live()
                    && task.observed.state == TaskState::Running
                    && task.observed.ready
                    && is_up(task)
            };
            let ready = state.tasks_of(&found.id).filter(|task| is_ready(task));
            ready.min_by_key(|task| task.slot).cloned().ok_or_else(|| {
                let name = &found.spec.name;
                let message =
                    format!("service {name} has no ready task; `warren service ps {name}` shows why");
                Problem::new(Code::FailedPrecondition, "NO_READY_TASK", message).into()
            })
        }
        _ => Err(status_of(Violation::new("task", "cannot be combined with service or slot"))),
    }
}

fn not_running(state: &State, task: &Task, shown: &v1::Task) -> Status {
    let name = format!("task {}.{} ({})", shown.service_name, shown.slot, shown.id);
    let reason = if shown.reason.is_empty() { String::new() } else { format!(": {}", shown.reason) };
    let observed = task.state().as_str();
    let ended = task.observed.state.is_terminal() || task.observed.removed;
    let successor = state.current_task(&task.id.service, task.slot).filter(|other| other.id != task.id);
    let message = match (ended, successor) {
        (true, Some(other)) => {
            format!("{name} has ended, {observed}{reason}; the task of its slot is now {}", other.id)
        }
        (true, None) => format!("{name} has ended, {observed}{reason}"),
        (false, _) => {
            let observed = shown.state().as_str_name().trim_start_matches("TASK_STATE_");
            format!("{name} does not run yet, it is {observed}{reason}")
        }
    };
    Problem::new(Code::FailedPrecondition, "TASK_NOT_RUNNING", message).into()
}

fn unreachable(why: &str) -> Status {
    Problem::new(Code::FailedPrecondition, "NODE_NOT_REACHABLE", why).into()
}

/// Passes messages on in both directions until the program or one of the connections has ended.
async fn relay_program(
    worker: WorkerStream,
    mut inputs: Streaming<v1::ExecRequest>,
    started: v1::ExecStarted,
    responses: &ResponseSender,
) -> Result<(), Status> {
    let WorkerStream { permit: _permit, relay_permit: _relay_permit, mut inbound, outbound } = worker;
    let to_worker = async {
        while let Some(input) = inputs.next().await.transpose()? {
            let frame = match input.message {
                Some(Input::Input(bytes)) => Frame::Data(bytes),
                Some(Input::EndOfInput(_)) => Frame::End(v1::EndOfData {}),
                Some(Input::Resize(size)) => Frame::Resize(size),
                Some(Input::Signal(number)) => Frame::Signal(number),
                Some(Input::Target(_)) | None => {
                    return Err(Status::invalid_argument("unexpected message after the target"));
                }
            };
            if outbound.send(Ok(v1::StreamFrame { frame: Some(frame) })).await.is_err() {
                break;
            }
        }
        // The client still reads; dropping `outbound` would end the program.
        std::future::pending().await
    };
    let to_client = async {
        let lost = |why: String| {
            let message =
                format!("the connection to the node was lost, and what ran over it has ended: {why}");
            Status::from(Problem::new(Code::Unavailable, "NODE_LOST", message))
        };
        loop {
            let frame =
                inbound.next().await.transpose().map_err(|status| lost(status.message().to_owned()))?;
            let message = match frame.map(|frame| frame.frame) {
                Some(Some(Frame::ProgramStarted(_))) => Output::Started(started.clone()),
                Some(Some(Frame::Data(bytes))) => Output::Stdout(bytes),
                Some(Some(Frame::StderrData(bytes))) => Output::Stderr(bytes),
                Some(Some(Frame::End(_))) => Output::EndOfOutput(v1::EndOfOutput {}),
                Some(Some(Frame::Processes(list))) => Output::Processes(list),
                Some(Some(Frame::AttachedAt(at))) => Output::AttachedAt(at),
                Some(Some(Frame::ReceivedBytes(bytes))) => Output::ConsumedInput(bytes),
                Some(Some(Frame::ExitCode(code))) => Output::ExitCode(code),
                Some(Some(Frame::ExecFailure(failure))) => return Err(failure_status(failure)),
                Some(Some(Frame::Error(why))) => {
                    return Err(Problem::new(Code::Aborted, "PROGRAM_LOST", why).into());
                }
                // A later version's.
                Some(None) => continue,
                Some(Some(_)) | None => return Err(lost("the stream ended".to_owned())),
            };
            let is_last = matches!(message, Output::ExitCode(_));
            let response = v1::ExecResponse { message: Some(message) };
            if responses.send(Ok(response)).await.is_err() || is_last {
                return Ok(());
            }
        }
    };
    tokio::select! {
        ended = to_worker => ended,
        ended = to_client => ended,
    }
}

fn failure_status(failure: v1::ExecFailure) -> Status {
    use v1::ExecFailureReason as Reason;
    let reason = failure.reason();
    let v1::ExecFailure { field, message, .. } = failure;
    let problem = |code, reason, message: String| Problem::new(code, reason, message).into();
    match reason {
        Reason::Invalid => status_of(Violation::new(format!("program.{field}"), message)),
        Reason::FileNotFound => problem(Code::NotFound, "FILE_NOT_FOUND", message),
        Reason::FilesRefused => problem(Code::FailedPrecondition, "FILES_REFUSED", message),
        Reason::CopyFailed => problem(Code::Internal, "COPY_FAILED", message),
        Reason::InputNotOpen => problem(Code::FailedPrecondition, INPUT_NOT_OPEN, message),
        Reason::ConnectionRefused => problem(Code::FailedPrecondition, CONNECTION_REFUSED, message),
        Reason::NotRunning => problem(Code::FailedPrecondition, "TASK_NOT_RUNNING", message),
        Reason::CommandNotFound => problem(Code::FailedPrecondition, COMMAND_NOT_FOUND, message),
        Reason::CommandNotExecutable => problem(Code::FailedPrecondition, COMMAND_NOT_EXECUTABLE, message),
        Reason::Unspecified => problem(Code::Internal, "PROGRAM_NOT_STARTED", message),
    }
}

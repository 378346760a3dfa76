//! Runs a program in the container of a task for a client of a manager, copies its files, connects to its ports, sends
//! it a signal, lists its processes, or passes input on to its first process.
//!
//! Input, signals and sizes come on one stream. So that a program that does not read its input cannot hold back a
//! signal, the sender may be ahead of the program by [`MAX_AHEAD`] bytes only, and the stream is always read. Output
//! waits for the client: a program that nobody reads is blocked by its pipe. All of this ends with the stream.

mod connection;
mod files;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Streaming;
use tonic::transport::Channel;
use warren_archive::{FileTree, RootDir};
use warren_proto::v1;
use warren_proto::v1::ExecFailureReason as Reason;
use warren_proto::v1::exec_task::Work;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;
use warren_runtime::{
    AttachedProcess, ContainerHandles, ContainerProcess, Error, ExecHandle, ExecInput, ExecOutput,
    ExecProcess, ExecSpec, Signal, TerminalSize,
};
use warren_types::TaskId;

use super::{AttachedStream, StreamError, StreamSender, StreamServices, TaskLogs, wait_until_closed};
use crate::tasks::container_id;
use crate::tasks::reporter::TaskReporter;

/// Frames that wait for a slow client.
const QUEUE: usize = 2;
/// Largest part of the output in one frame.
const MAX_CHUNK: usize = 64 << 10;
/// Input that the program has not read yet; the sender must not exceed it.
pub(super) const MAX_AHEAD: usize = 512 << 10;
/// Once the program has ended, its output is complete after this time without any: a process that it left in the
/// background may hold it open.
const OUTPUT_IDLE: Duration = Duration::from_millis(500);

/// What was started.
enum StartedWork {
    Program(ExecProcess),
    ReadFiles(FileTree),
    WriteFiles(RootDir, v1::WriteFiles),
    Connection(TcpStream),
    /// A signal was sent.
    Signalled,
    Processes(v1::ProcessList),
    /// The first process of the task, without output, at this time in Unix milliseconds.
    Attached(ExecProcess, u64),
}

/// How it was left.
enum ExecEnd {
    Exited(u32),
    /// Sent to the client.
    Failed(String),
    Refused(v1::ExecFailure),
}

/// Starts what the request says and passes input and output on until its end.
pub(super) async fn exec(
    client: SessionsClient<Channel>,
    stream_id: &str,
    request: &v1::ExecTask,
    services: &StreamServices,
) -> Result<(), StreamError> {
    let mut attachment = AttachedStream::open(client, stream_id, QUEUE).await?;
    let last = match start(request, services).await {
        Err(failure) => Frame::ExecFailure(failure),
        Ok(started) => {
            attachment.out.send_without_deadline(Frame::ProgramStarted(v1::StreamDone {})).await?;
            let ended = match started {
                StartedWork::Program(process) => serve(process, &mut attachment).await?,
                StartedWork::ReadFiles(tree) => files::read(tree, &mut attachment).await?,
                StartedWork::WriteFiles(root, request) => {
                    files::write(root, request, &mut attachment).await?
                }
                StartedWork::Connection(stream) => connection::serve(stream, &mut attachment).await?,
                StartedWork::Signalled => ExecEnd::Exited(0),
                StartedWork::Attached(process, at) => {
                    attachment.out.send_without_deadline(Frame::AttachedAt(at)).await?;
                    serve(process, &mut attachment).await?
                }
                StartedWork::Processes(list) => {
                    attachment.out.send_without_deadline(Frame::Processes(list)).await?;
                    ExecEnd::Exited(0)
                }
            };
            match ended {
                ExecEnd::Exited(code) => Frame::ExitCode(code),
                ExecEnd::Failed(reason) => Frame::Error(reason),
                ExecEnd::Refused(failure) => Frame::ExecFailure(failure),
            }
        }
    };
    let AttachedStream { mut inbound, out } = attachment;
    // As slow as the client reads; the session detects a lost manager.
    out.send_without_deadline(last).await?;
    drop(out);
    wait_until_closed(&mut inbound).await;
    Ok(())
}

fn failure(reason: Reason, field: &str, message: impl ToString) -> v1::ExecFailure {
    v1::ExecFailure { reason: reason.into(), field: field.to_owned(), message: message.to_string() }
}

/// The files of a container.
fn root_dir(container: ContainerHandles) -> RootDir {
    RootDir::new(container.root).with_ids(container.ids)
}

async fn start(request: &v1::ExecTask, services: &StreamServices) -> Result<StartedWork, v1::ExecFailure> {
    let StreamServices { runtime, logs: TaskLogs { reporter, .. }, sockets, .. } = services;
    let task: TaskId = request
        .task_id
        .parse()
        .map_err(|error| failure(Reason::Invalid, "task", format!("{:?}: {error}", request.task_id)))?;
    let id = container_id(&task);
    let refused = |error| start_failure(error, &task, reporter);
    match request.work.clone() {
        Some(Work::Program(program)) => {
            let spec = exec_spec(program);
            tracing::info!(%task, program = spec.command.first(), user = spec.user, "running a program");
            runtime.exec(&id, &spec).await.map(StartedWork::Program).map_err(refused)
        }
        Some(Work::ReadFiles(request)) => {
            tracing::info!(%task, path = request.path, "copying files from a container");
            let root = root_dir(runtime.open(&id).await.map_err(refused)?);
            files::find(root, request).await.map(StartedWork::ReadFiles)
        }
        Some(Work::WriteFiles(request)) => {
            tracing::info!(%task, path = request.path, "copying files to a container");
            let root = root_dir(runtime.open(&id).await.map_err(refused)?);
            Ok(StartedWork::WriteFiles(root, request))
        }
        Some(Work::Connect(port)) => {
            let network = runtime.open(&id).await.map_err(refused)?.network;
            connection::open(sockets, network, port).await.map(StartedWork::Connection)
        }
        Some(Work::Signal(number)) => {
            let signal = i32::try_from(number).ok().and_then(Signal::from_number);
            let invalid = || failure(Reason::Invalid, "signal", format!("{number} is not a signal"));
            let signal = signal.ok_or_else(invalid)?;
            tracing::info!(%task, %signal, "sending a signal to a task");
            match runtime.signal(&id, signal).await.map_err(refused)? {
                true => Ok(StartedWork::Signalled),
                false => Err(not_running(&task, reporter)),
            }
        }
        Some(Work::ListProcesses(v1::ListProcesses {})) => {
            let (runtime, id) = (Arc::clone(runtime), id.clone());
            // A process may hold the lock that its arguments are read under.
            let listed = tokio::task::spawn_blocking(move || runtime.processes(&id)).await;
            let processes = listed.map_err(|error| failure(Reason::Unspecified, "", error))?;
            if processes.is_empty() {
                return Err(not_running(&task, reporter));
            }
            let processes = processes.into_iter().map(process_to_wire).collect();
            Ok(StartedWork::Processes(v1::ProcessList { processes }))
        }
        Some(Work::Attach(v1::AttachTask { input, terminal })) => {
            let at = unix_millis(SystemTime::now());
            tracing::info!(%task, input, "attaching a client to a task");
            let attached = runtime.attach(&id, input).await;
            let AttachedProcess { input, handle } = attached.map_err(|error| match error {
                Error::InvalidSpec { reason, .. } => failure(Reason::InputNotOpen, "", reason),
                other => refused(other),
            })?;
            if let Some(size) = terminal {
                handle.resize(terminal_size(size)).await.map_err(refused)?;
            }
            let stdout = Box::new(tokio::io::empty());
            Ok(StartedWork::Attached(ExecProcess { input, stdout, stderr: None, handle }, at))
        }
        None => Err(failure(
            Reason::Invalid,
            "work",
            "is not known to this version of the node; upgrade the node",
        )),
    }
}

fn process_to_wire(process: ContainerProcess) -> v1::ContainerProcess {
    let ContainerProcess { pid, parent_pid, uid, started_at, cpu, resident_bytes, command } = process;
    let (started_at, cpu_ms) = (unix_millis(started_at), millis(cpu));
    v1::ContainerProcess { pid, parent_pid, uid, started_at, cpu_ms, resident_bytes, command }
}

fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn not_running(task: &TaskId, reporter: &TaskReporter) -> v1::ExecFailure {
    let state = reporter.latest(task).map(|report| match report.reason.is_empty() {
        true => report.state.as_str().to_owned(),
        false => format!("{}: {}", report.state.as_str(), report.reason),
    });
    let state = state.unwrap_or_else(|| "not on its node".to_owned());
    failure(Reason::NotRunning, "", format!("the task is not running: it is {state}"))
}

fn start_failure(error: Error, task: &TaskId, reporter: &TaskReporter) -> v1::ExecFailure {
    match error {
        Error::NotFound { .. } => not_running(task, reporter),
        Error::CommandNotFound { ref command, reason: ref why } => {
            let reason = match error.is_not_executable() {
                true => Reason::CommandNotExecutable,
                false => Reason::CommandNotFound,
            };
            failure(reason, "command", format!("{command:?} cannot be run: {why}"))
        }
        Error::InvalidSpec { field, reason } => failure(Reason::Invalid, &field, reason),
        other => failure(Reason::Unspecified, "", other),
    }
}

fn exec_spec(program: v1::ExecProgram) -> ExecSpec {
    let v1::ExecProgram { command, environment, user, directory, input, terminal } = program;
    let given = |text: String| (!text.is_empty()).then_some(text);
    ExecSpec {
        command,
        environment,
        user: given(user),
        directory: given(directory),
        input,
        terminal: terminal.map(terminal_size),
        combined: false,
    }
}

fn terminal_size(size: v1::TerminalSize) -> TerminalSize {
    let limited = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    TerminalSize { columns: limited(size.columns), rows: limited(size.rows) }
}

async fn serve(process: ExecProcess, attachment: &mut AttachedStream) -> Result<ExecEnd, StreamError> {
    let AttachedStream { inbound, out } = attachment;
    let ExecProcess { input, stdout, stderr, handle } = process;
    let (consumed, acknowledged) = watch::channel(0);
    let (ended, has_ended) = watch::channel(false);
    let errors_ended = has_ended.clone();
    let outputs = async {
        let errors = async {
            match stderr {
                Some(stderr) => send_output(stderr, out, Frame::StderrData, errors_ended).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(send_output(stdout, out, Frame::Data, has_ended), errors).map(|_| ())
    };
    let input = ProgramInput::new(Some(&*handle), input, consumed);
    let (inputs, acknowledgements) = (input.receive(inbound), send_acknowledgements(acknowledged, out));
    let exit = async {
        let code = handle.wait().await;
        ended.send_replace(true);
        code
    };
    let running = async { tokio::join!(exit, outputs) };
    tokio::pin!(inputs, acknowledgements);
    let (code, sent) = tokio::select! {
        all = running => all,
        reason = &mut inputs => return reason.map(ExecEnd::Failed),
        lost = &mut acknowledgements => return Err(lost),
    };
    sent?;
    Ok(match code {
        Ok(code) => ExecEnd::Exited(code),
        Err(Error::NotFound { .. }) => ExecEnd::Failed("the task ended while the program ran".to_owned()),
        Err(error) => ExecEnd::Failed(error.to_string()),
    })
}

/// Sends output until its end. Waits for a client that reads slowly.
async fn send_output(
    mut output: ExecOutput,
    out: &StreamSender,
    frame: fn(bytes::Bytes) -> Frame,
    mut has_ended: watch::Receiver<bool>,
) -> Result<(), StreamError> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(MAX_CHUNK);
        let idle = async {
            // The sender lives as long as this.
            let _ = has_ended.wait_for(|ended| *ended).await;
            sleep(OUTPUT_IDLE).await;
        };
        let read = tokio::select! {
            biased;
            read = output.read_buf(&mut buffer) => read,
            () = idle => return Ok(()),
        };
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => out.send_without_deadline(frame(buffer.split().freeze())).await?,
            Err(error) => {
                tracing::warn!(%error, "the output of a program cannot be read");
                return Ok(());
            }
        }
    }
}

/// Sends how much input was consumed, the newest number only.
async fn send_acknowledgements(mut consumed: watch::Receiver<u64>, out: &StreamSender) -> StreamError {
    while consumed.changed().await.is_ok() {
        let bytes = *consumed.borrow_and_update();
        if let Err(lost) = out.send_without_deadline(Frame::ReceivedBytes(bytes)).await {
            return lost;
        }
    }
    std::future::pending().await
}

/// What the client sends to a program.
struct ProgramInput<'a> {
    /// `None` if it is no program.
    handle: Option<&'a dyn ExecHandle>,
    /// `None` without an input, and after its end.
    pipe: Option<ExecInput>,
    /// Received and not written.
    waiting: BytesMut,
    consumed: watch::Sender<u64>,
    /// Whether nothing more can be written: it has ended, or its reader has gone.
    closed: watch::Sender<bool>,
}

impl<'a> ProgramInput<'a> {
    fn new(
        handle: Option<&'a dyn ExecHandle>,
        pipe: Option<ExecInput>,
        consumed: watch::Sender<u64>,
    ) -> Self {
        Self { handle, pipe, waiting: BytesMut::new(), consumed, closed: watch::Sender::new(false) }
    }

    /// Receives until the manager closes the stream. Returns the reason of a violated protocol.
    async fn receive(mut self, inbound: &mut Streaming<v1::StreamFrame>) -> Result<String, StreamError> {
        let mut is_complete = self.pipe.is_none();
        loop {
            let is_written = is_complete && self.waiting.is_empty();
            if is_written && self.pipe.take().is_some() {
                self.closed.send_replace(true);
                if let Some(handle) = self.handle
                    && let Err(error) = handle.close_input().await
                {
                    tracing::debug!(%error, "the input of a program was not closed");
                }
            }
            let Self { pipe, waiting, consumed, closed, .. } = &mut self;
            let write = async {
                match pipe {
                    Some(pipe) if !waiting.is_empty() => pipe.write(waiting).await,
                    _ => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                message = inbound.message() => message,
                written = write => {
                    match written {
                        Ok(count) => waiting.advance(count),
                        // It has closed its input: the rest has no reader.
                        Err(_) => {
                            waiting.clear();
                            closed.send_replace(true);
                        }
                    }
                    consumed.send_modify(|consumed| *consumed += written.unwrap_or_default() as u64);
                    continue;
                }
            };
            let Ok(Some(v1::StreamFrame { frame })) = message else { return Err(StreamError::ManagerClosed) };
            match frame {
                Some(Frame::Data(bytes)) if is_complete => {
                    return Ok(format!("{} bytes of input after its end", bytes.len()));
                }
                Some(Frame::Data(bytes)) => {
                    if self.waiting.len() + bytes.len() > MAX_AHEAD {
                        return Ok(format!("the input is more than {MAX_AHEAD} bytes ahead of the program"));
                    }
                    self.waiting.extend_from_slice(&bytes);
                }
                Some(Frame::End(v1::EndOfData {})) => is_complete = true,
                Some(Frame::Resize(size)) => {
                    if let Some(handle) = self.handle
                        && let Err(error) = handle.resize(terminal_size(size)).await
                    {
                        tracing::debug!(%error, "the terminal of a program was not resized");
                    }
                }
                Some(Frame::Signal(number)) => {
                    match i32::try_from(number).ok().and_then(Signal::from_number) {
                        Some(signal) => {
                            self.handle.iter().for_each(|handle| handle.signal(signal));
                        }
                        None => return Ok(format!("{number} is not a signal")),
                    }
                }
                // A later version's.
                None => {}
                Some(_) => return Ok("unexpected frame for a program".to_owned()),
            }
        }
    }
}

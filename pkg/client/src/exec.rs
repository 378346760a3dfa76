//! Runs programs in containers of tasks, copies files, connects to ports, and attaches to tasks: their data is input
//! and output.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};
use warren_proto::Problem;
use warren_proto::v1;
use warren_proto::v1::exec_request::Message as Input;
use warren_proto::v1::exec_response::Message as Output;
use warren_proto::v1::exec_target::Work;
use warren_proto::v1::tasks_client::TasksClient;
use warren_types::{Signal, Timestamp};

use crate::api::TaskApi;
use crate::channel::ManagerChannel;
use crate::client::error_from_status;
use crate::error::{Error, may_have_been_applied};

/// Requests in the send queue.
const QUEUE: usize = 4;
/// Largest part of the input in one request.
pub const INPUT_CHUNK: usize = 64 << 10;
/// How far the input may be ahead of the program.
const MAX_AHEAD: u64 = 512 << 10;
/// Timeout of the start of a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A started program. It ends when this and its parts are dropped.
#[derive(Debug)]
pub struct RunningProgram {
    /// Its task and node.
    pub started: v1::ExecStarted,
    /// Its input.
    pub input: ProgramInput,
    /// Signals and sizes.
    pub control: ProgramControl,
    /// Its output.
    pub output: ProgramOutput,
}

/// The input of a program.
#[derive(Debug)]
pub struct ProgramInput {
    requests: mpsc::Sender<v1::ExecRequest>,
    consumed: watch::Receiver<u64>,
    sent: u64,
}

/// Controls a program.
#[derive(Debug, Clone)]
pub struct ProgramControl {
    requests: mpsc::Sender<v1::ExecRequest>,
}

/// The output of a program.
#[derive(Debug)]
pub struct ProgramOutput {
    link: ManagerChannel,
    responses: Streaming<v1::ExecResponse>,
    consumed: watch::Sender<u64>,
}

/// A part of the output, or its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramEvent {
    /// Of standard output, or of the terminal.
    Stdout(Bytes),
    /// Of standard error.
    Stderr(Bytes),
    /// The other end of a connection sends nothing more.
    OutputEnded,
    /// The program has ended: its exit code, 128 + n after signal n.
    Exited(u32),
}

impl TaskApi<'_> {
    /// Runs a program in the container of a task, or does other work there, and returns once it has started. It is
    /// started at most once: an attempt that may have reached a node is not repeated.
    pub async fn exec(&self, target: v1::ExecTarget) -> Result<RunningProgram, Error> {
        let call = |channel, request: Request<v1::ExecTarget>| async move {
            let (metadata, extensions, target) = request.into_parts();
            let (requests, queue) = mpsc::channel(QUEUE);
            // The queue has room for the first one.
            let _ = requests.try_send(v1::ExecRequest { message: Some(Input::Target(target)) });
            let request = Request::from_parts(metadata, extensions, ReceiverStream::new(queue));
            let answer = TasksClient::new(channel).exec(request).await;
            answer.map(|answer| answer.map(|responses| (requests, responses))).map_err(without_repetition)
        };
        let (link, (requests, responses)) = self.0.start_stream(target, call).await?;
        let (consumed, acknowledged) = watch::channel(0);
        let mut output = ProgramOutput { link, responses, consumed };
        let address = || output.link.address.to_string();
        let late = |_| Error::NoAnswer { address: address(), after: START_TIMEOUT };
        let first = timeout(START_TIMEOUT, output.responses.message()).await.map_err(late)?;
        let first = first.map_err(|status| error_from_status(&output.link, &status))?;
        let Some(v1::ExecResponse { message: Some(Output::Started(started)) }) = first else {
            return Err(output.broken());
        };
        let input = ProgramInput { requests: requests.clone(), consumed: acknowledged, sent: 0 };
        Ok(RunningProgram { started, input, control: ProgramControl { requests }, output })
    }
}

impl TaskApi<'_> {
    /// Sends a signal to the first process of a task.
    pub async fn signal(&self, task: &str, signal: Signal) -> Result<(), Error> {
        let mut work = self.exec(target(task, Work::Signal(signal.number().unsigned_abs()))).await?;
        while !matches!(work.output.next().await?, ProgramEvent::Exited(_)) {}
        Ok(())
    }

    /// Attaches to the first process of a task. The result has no output but the exit code. Also returns the time on
    /// the node: what the task writes from now on is not older.
    pub async fn attach(
        &self,
        task: &str,
        attach: v1::AttachTask,
    ) -> Result<(RunningProgram, Timestamp), Error> {
        let mut attached = self.exec(target(task, Work::Attach(attach))).await?;
        loop {
            if let Some(Output::AttachedAt(at)) = attached.output.message().await? {
                return Ok((attached, Timestamp(at)));
            }
        }
    }

    /// The processes of a task.
    pub async fn processes(&self, task: &str) -> Result<Vec<v1::ContainerProcess>, Error> {
        let mut work = self.exec(target(task, Work::ListProcesses(v1::ListProcesses {}))).await?;
        loop {
            if let Some(Output::Processes(list)) = work.output.message().await? {
                return Ok(list.processes);
            }
        }
    }
}

fn target(task: &str, work: Work) -> v1::ExecTarget {
    v1::ExecTarget { task: task.to_owned(), work: Some(work), ..v1::ExecTarget::default() }
}

/// The error of an attempt that may have started the program is permanent.
fn without_repetition(status: Status) -> Status {
    if !may_have_been_applied(&status) {
        return status;
    }
    let message =
        format!("the connection was lost; the program may have been started ({})", status.message());
    Problem::new(Code::Aborted, "PROGRAM_LOST", message).into()
}

impl ProgramInput {
    /// Sends at most [`INPUT_CHUNK`] bytes, once the program has read enough of the earlier ones. `false`: the program
    /// has ended, and its output says how.
    pub async fn send(&mut self, bytes: Bytes) -> bool {
        let total = self.sent + bytes.len() as u64;
        if self.consumed.wait_for(|consumed| total <= consumed + MAX_AHEAD).await.is_err() {
            return false;
        }
        self.sent = total;
        send(&self.requests, Input::Input(bytes)).await
    }

    /// Ends the input.
    pub async fn end(self) -> bool {
        send(&self.requests, Input::EndOfInput(v1::EndOfInput {})).await
    }
}

impl ProgramControl {
    /// Changes the size of the terminal. `false`: the program has ended.
    pub async fn resize(&self, size: v1::TerminalSize) -> bool {
        send(&self.requests, Input::Resize(size)).await
    }

    /// Sends a signal to the program. `false`: the program has ended.
    pub async fn signal(&self, number: u32) -> bool {
        send(&self.requests, Input::Signal(number)).await
    }
}

async fn send(requests: &mpsc::Sender<v1::ExecRequest>, message: Input) -> bool {
    requests.send(v1::ExecRequest { message: Some(message) }).await.is_ok()
}

impl ProgramOutput {
    /// The next part of the output. Not called again after the end.
    pub async fn next(&mut self) -> Result<ProgramEvent, Error> {
        loop {
            match self.message().await? {
                Some(Output::Stdout(bytes)) => return Ok(ProgramEvent::Stdout(bytes)),
                Some(Output::Stderr(bytes)) => return Ok(ProgramEvent::Stderr(bytes)),
                Some(Output::EndOfOutput(_)) => return Ok(ProgramEvent::OutputEnded),
                Some(Output::ExitCode(code)) => return Ok(ProgramEvent::Exited(code)),
                Some(Output::ConsumedInput(bytes)) => drop(self.consumed.send_replace(bytes)),
                // A later version's.
                Some(Output::Started(_) | Output::Processes(_) | Output::AttachedAt(_)) | None => {}
            }
        }
    }

    async fn message(&mut self) -> Result<Option<Output>, Error> {
        let response = self.responses.message().await;
        let response = response.map_err(|status| error_from_status(&self.link, &status))?;
        Ok(response.ok_or_else(|| self.broken())?.message)
    }

    fn broken(&self) -> Error {
        let why = "the response ended before the program".to_owned();
        Error::Unreachable { address: self.link.address.to_string(), why }
    }
}

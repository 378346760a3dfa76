//! `/containers/ID/exec` and `/exec/ID`: programs in containers of tasks. Docker's clients first describe a program,
//! then start it on a connection that becomes its input and output, and ask for its exit code at last.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use hyper::StatusCode;
use rand::RngExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use warren_client::{
    Client, Error, INPUT_CHUNK, ProgramControl, ProgramEvent, ProgramInput, ProgramOutput, RunningProgram,
};
use warren_proto::status::{COMMAND_NOT_EXECUTABLE, COMMAND_NOT_FOUND};
use warren_proto::v1;
use warren_proto::v1::exec_target::Work;

use crate::containers;
use crate::docker_error::DockerError;
use crate::frames::{MULTIPLEXED, RAW, StreamType, frame};
use crate::one_off;
use crate::request::{DockerRequest, UpgradedConnection, close};
use crate::response::{self, Answer, BodyError, created, empty, ok};

/// Maximum number of programs that are remembered; the oldest one that does not run is forgotten first.
const MAX_PROGRAMS: usize = 1024;
/// Exit codes of shells for a program that cannot be started.
const NOT_FOUND: u32 = 127;
const NOT_EXECUTABLE: u32 = 126;
/// Exit code of a program whose end nobody knows.
const LOST: u32 = 255;
/// How long a size waits for the start of its program.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The size of a terminal before its client tells it, as columns and rows.
const TERMINAL: (u32, u32) = (80, 24);

/// The programs that clients of this socket described.
#[derive(Debug, Default)]
pub struct Programs {
    known: Mutex<BTreeMap<String, Program>>,
    /// Notified of each change of a state.
    changed: Notify,
    /// Those that no client waits for.
    detached: Mutex<JoinSet<()>>,
}

/// A program as a client described it.
#[derive(Debug, Clone)]
struct Program {
    number: u64,
    /// Who described it; nobody else finds it.
    caller: String,
    task_id: String,
    container_id: String,
    request: CreateRequest,
    state: ProgramState,
}

#[derive(Debug, Clone)]
enum ProgramState {
    Created,
    Starting,
    Running(ProgramControl),
    Ended(u32),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct CreateRequest {
    attach_stdin: bool,
    attach_stdout: bool,
    attach_stderr: bool,
    tty: bool,
    privileged: bool,
    env: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    user: String,
    working_dir: String,
    /// Rows and columns.
    console_size: Option<[u32; 2]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct StartRequest {
    detach: bool,
    /// Rows and columns.
    console_size: Option<[u32; 2]>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Programs {
    /// Remembers a program, and forgets the oldest one that does not run if there are too many.
    fn add(&self, caller: &str, task: &v1::Task, request: CreateRequest) -> Result<String, DockerError> {
        let mut known = lock(&self.known);
        if known.len() >= MAX_PROGRAMS {
            let idle = |state: &ProgramState| matches!(state, ProgramState::Ended(_) | ProgramState::Created);
            let candidates = known.iter().filter(|(_, program)| idle(&program.state));
            let oldest = candidates.min_by_key(|(_, program)| program.number).map(|(id, _)| id.clone());
            let full = || {
                DockerError::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    format!("{MAX_PROGRAMS} programs run already on this socket"),
                )
            };
            known.remove(&oldest.ok_or_else(full)?);
        }
        let id = format!("{:032x}{:032x}", rand::rng().random::<u128>(), rand::rng().random::<u128>());
        let number = known.values().map(|program| program.number).max().map_or(0, |newest| newest + 1);
        let program = Program {
            number,
            caller: caller.to_owned(),
            task_id: task.id.clone(),
            container_id: one_off::id_of_task(task),
            request,
            state: ProgramState::Created,
        };
        known.insert(id.clone(), program);
        Ok(id)
    }

    fn get(&self, caller: &str, id: &str) -> Result<Program, DockerError> {
        let known = lock(&self.known).get(id).filter(|program| program.caller == caller).cloned();
        known.ok_or_else(|| no_such_program(id))
    }

    /// Takes a program for its only start.
    fn begin(&self, caller: &str, id: &str) -> Result<Program, DockerError> {
        let mut known = lock(&self.known);
        let program = known.get_mut(id).filter(|program| program.caller == caller);
        let program = program.ok_or_else(|| no_such_program(id))?;
        if !matches!(program.state, ProgramState::Created) {
            let message = format!("exec command {id} has run already; create another one");
            return Err(DockerError::new(StatusCode::CONFLICT, message));
        }
        program.state = ProgramState::Starting;
        Ok(program.clone())
    }

    fn set(&self, id: &str, state: ProgramState) {
        if let Some(program) = lock(&self.known).get_mut(id) {
            program.state = state;
        }
        self.changed.notify_waiters();
    }
}

fn no_such_program(id: &str) -> DockerError {
    DockerError::not_found(format!("No such exec instance: {}", id.chars().take(64).collect::<String>()))
}

/// `POST /containers/ID/exec`.
pub async fn create(
    client: &Client,
    programs: &Programs,
    container: &str,
    request: &DockerRequest,
) -> Answer {
    let task = containers::find(client, container).await?;
    let body: CreateRequest = request.json()?;
    if body.cmd.as_ref().is_none_or(Vec::is_empty) {
        return Err(DockerError::invalid("No exec command specified"));
    }
    if body.privileged {
        return Err(DockerError::invalid(
            "Privileged: a program has the rights of its container; run the service with `--privileged`",
        ));
    }
    if !containers::is_running(&task) {
        return Err(DockerError::new(StatusCode::CONFLICT, format!("container {container} is not running")));
    }
    let id = programs.add(&request.caller, &task, body)?;
    created(&json!({"Id": id}))
}

/// `GET /exec/ID/json`.
pub fn inspect(programs: &Programs, id: &str, request: &DockerRequest) -> Answer {
    let Program { container_id, request, state, .. } = programs.get(&request.caller, id)?;
    let (running, code) = match state {
        ProgramState::Created => (false, Value::Null),
        ProgramState::Starting | ProgramState::Running(_) => (true, Value::Null),
        ProgramState::Ended(code) => (false, code.into()),
    };
    let command = request.cmd.unwrap_or_default();
    let (entrypoint, arguments) =
        command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    ok(&json!({
        "ID": id, "Running": running, "ExitCode": code, "ContainerID": container_id,
        "ProcessConfig": {
            "tty": request.tty, "entrypoint": entrypoint, "arguments": arguments, "privileged": false,
            "user": request.user,
        },
        "OpenStdin": request.attach_stdin, "OpenStdout": request.attach_stdout, "OpenStderr": request.attach_stderr,
        "CanRemove": false, "DetachKeys": "", "Pid": 0,
    }))
}

/// The size that a client's terminal has now.
pub fn terminal_size(request: &DockerRequest) -> Result<v1::TerminalSize, DockerError> {
    let number = |name: &str| {
        let text = request.text(name).unwrap_or_default();
        text.parse().map_err(|_| DockerError::invalid(format!("{name}: it is not a number of characters")))
    };
    Ok(v1::TerminalSize { columns: number("w")?, rows: number("h")? })
}

/// `POST /exec/ID/resize`.
pub async fn resize(programs: &Programs, id: &str, request: &DockerRequest) -> Answer {
    let size = terminal_size(request)?;
    let refused = || DockerError::new(StatusCode::CONFLICT, format!("exec command {id} does not run"));
    let started = async {
        loop {
            // Notified of changes from here on.
            let changed = programs.changed.notified();
            match programs.get(&request.caller, id)?.state {
                ProgramState::Running(control) => return Ok(control),
                ProgramState::Starting => changed.await,
                ProgramState::Created | ProgramState::Ended(_) => return Err(refused()),
            }
        }
    };
    // Clients send the size once, right after the start.
    let control = timeout(START_TIMEOUT, started).await.map_err(|_| refused())??;
    control.resize(size).await;
    empty(StatusCode::OK)
}

/// `POST /exec/ID/start`.
pub async fn start(client: &Client, programs: &Arc<Programs>, id: &str, request: &DockerRequest) -> Answer {
    let body: StartRequest = if request.has_body() { request.json()? } else { StartRequest::default() };
    let program = programs.begin(&request.caller, id)?;
    let mut end = RecordedEnd { id: id.to_owned(), programs: Arc::clone(programs), code: LOST };
    let CreateRequest { tty: is_raw, attach_stdin: has_input, .. } = program.request;
    let shown =
        ShownOutput { is_raw, stdout: program.request.attach_stdout, stderr: program.request.attach_stderr };
    let target = target(&program, body.console_size);
    let upgrade = if body.detach { None } else { request.take_upgrade() };
    let Some(upgrade) = upgrade else {
        let running = client.tasks().exec(target).await.inspect_err(|error| end.code = exit_code(error))?;
        let program = StartedProgram::new(running, end, shown);
        if !body.detach {
            return Ok(program.into_response());
        }
        let mut detached = lock(&programs.detached);
        while detached.try_join_next().is_some() {}
        detached.spawn(async {
            let (mut input, mut output) = (tokio::io::empty(), tokio::io::sink());
            program.run(&mut input, &mut output, false, std::future::pending()).await;
        });
        return empty(StatusCode::OK);
    };
    // It starts after the response, as in Docker: some clients lose output that comes together with the response.
    let client = client.clone();
    upgrade.then(move |connection| async move {
        let UpgradedConnection { mut input, mut output, hang_up } = connection;
        match client.tasks().exec(target).await {
            Ok(running) => {
                let program = StartedProgram::new(running, end, shown);
                program.run(&mut input, &mut output, has_input, hang_up.detect()).await;
            }
            Err(error) => {
                end.code = exit_code(&error);
                drop(end);
                let line = frame(StreamType::Stderr, format!("{error}\r\n").as_bytes(), shown.is_raw);
                let _ = output.write_all(&line).await;
            }
        }
        close(input, output).await;
    });
    Ok(response::upgraded(shown.is_raw))
}

/// The exit code of a program that was not started, as of shells.
fn exit_code(error: &Error) -> u32 {
    match error {
        Error::Refused { problem } if problem.reason == COMMAND_NOT_FOUND => NOT_FOUND,
        Error::Refused { problem } if problem.reason == COMMAND_NOT_EXECUTABLE => NOT_EXECUTABLE,
        _ => LOST,
    }
}

fn target(program: &Program, console: Option<[u32; 2]>) -> v1::ExecTarget {
    let request = &program.request;
    let terminal = || {
        let size = console.or(request.console_size).filter(|[rows, columns]| *rows > 0 && *columns > 0);
        let (columns, rows) = size.map_or(TERMINAL, |[rows, columns]| (columns, rows));
        v1::TerminalSize { columns, rows }
    };
    let program_in_task = v1::ExecProgram {
        command: request.cmd.clone().unwrap_or_default(),
        environment: request.env.clone().unwrap_or_default(),
        user: request.user.clone(),
        directory: request.working_dir.clone(),
        input: request.attach_stdin,
        terminal: request.tty.then(terminal),
    };
    v1::ExecTarget {
        task: program.task_id.clone(),
        work: Some(Work::Program(program_in_task)),
        ..v1::ExecTarget::default()
    }
}

/// Which output a client wants, and in which form.
#[derive(Debug, Clone, Copy)]
struct ShownOutput {
    is_raw: bool,
    stdout: bool,
    stderr: bool,
}

/// A running program. It ends when this is dropped.
struct StartedProgram {
    running: RunningProgram,
    end: RecordedEnd,
    shown: ShownOutput,
}

/// Records the end of a program when it is dropped.
struct RecordedEnd {
    id: String,
    programs: Arc<Programs>,
    code: u32,
}

impl Drop for RecordedEnd {
    fn drop(&mut self) {
        self.programs.set(&self.id, ProgramState::Ended(self.code));
    }
}

impl StartedProgram {
    fn new(running: RunningProgram, end: RecordedEnd, shown: ShownOutput) -> Self {
        end.programs.set(&end.id, ProgramState::Running(running.control.clone()));
        Self { running, end, shown }
    }

    /// Runs it with a connection as its input and output, until it ends or the client hangs up. Its end is recorded
    /// before the client sees the end of the output, and asks for the exit code.
    async fn run(
        self,
        input: &mut (impl AsyncRead + Unpin),
        output: &mut (impl AsyncWrite + Unpin),
        has_input: bool,
        hang_up: impl Future<Output = ()>,
    ) {
        let Self { running, mut end, shown } = self;
        let RunningProgram { started: _, input: program_input, control: _, output: mut program_output } =
            running;
        let feed = async {
            if has_input {
                feed(input, program_input, true).await;
            }
            std::future::pending::<()>().await;
        };
        let print = async {
            while let Some(frame) = next_frame(&mut program_output, &mut end, shown).await? {
                output.write_all(&frame).await.map_err(Error::Input)?;
            }
            Ok::<_, Error>(())
        };
        tokio::select! {
            printed = print => {
                if let Err(error) = printed {
                    tracing::debug!(%error, "a program of the Docker API was ended");
                }
            }
            () = feed => {}
            () = hang_up => {}
        }
    }

    /// Its output as a response, for a client that sends no input.
    fn into_response(self) -> response::DockerResponse {
        let is_raw = self.shown.is_raw;
        let frames = stream::unfold(Some(self), |program| async {
            let mut program = program?;
            match next_frame(&mut program.running.output, &mut program.end, program.shown).await {
                Ok(Some(frame)) => Some((Ok(frame), Some(program))),
                Ok(None) => None,
                Err(error) => Some((Err(BodyError::other(error)), None)),
            }
        });
        response::stream(if is_raw { RAW } else { MULTIPLEXED }, frames)
    }
}

/// The next part of the output; `None` once the program has ended.
async fn next_frame(
    output: &mut ProgramOutput,
    end: &mut RecordedEnd,
    shown: ShownOutput,
) -> Result<Option<Bytes>, Error> {
    loop {
        let (stream, bytes) = match output.next().await? {
            ProgramEvent::Stdout(bytes) if shown.stdout => (StreamType::Stdout, bytes),
            ProgramEvent::Stderr(bytes) if shown.stderr => (StreamType::Stderr, bytes),
            ProgramEvent::Stdout(_) | ProgramEvent::Stderr(_) | ProgramEvent::OutputEnded => continue,
            ProgramEvent::Exited(code) => {
                end.code = code;
                return Ok(None);
            }
        };
        return Ok(Some(frame(stream, &bytes, shown.is_raw)));
    }
}

/// Passes the input on until it ends, and its end if `ends`.
pub async fn feed(from: &mut (impl AsyncRead + Unpin), mut to: ProgramInput, ends: bool) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(INPUT_CHUNK);
        match (&mut *from).take(INPUT_CHUNK as u64).read_buf(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) if to.send(buffer.split().freeze()).await => {}
            // Its output says why.
            Ok(_) => return,
        }
    }
    if ends {
        to.end().await;
    }
}

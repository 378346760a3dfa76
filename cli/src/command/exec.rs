//! `warren task exec` and `warren service exec`: runs a command in a container, with this terminal or these pipes.

use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use terminal_size::{Height, Width, terminal_size_of};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::Signal;
use tokio::time::timeout;
use warren_client::{
    Error, INPUT_CHUNK, ProgramControl, ProgramEvent, ProgramInput, ProgramOutput, RunningProgram,
};
use warren_proto::status::{COMMAND_NOT_EXECUTABLE, COMMAND_NOT_FOUND};
use warren_proto::v1;
use warren_proto::v1::exec_target::Work;

use crate::args::{ExecArgs, GlobalArgs};
use crate::command::environment;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client, from_client_with_hint};
use crate::input::terminal::TerminalGuard;
use crate::signals::{LocalSignals, killed};

/// How long a command may run on after a signal ended this program.
const SIGNAL_GRACE: Duration = Duration::from_secs(5);
/// Exit code when the reader of the output has gone, as after SIGPIPE.
const BROKEN_PIPE: u8 = 141;

/// Where to run a command.
#[derive(Debug, Clone)]
pub enum ExecLocation {
    Task(String),
    Service { service: String, slot: Option<u32> },
}

/// Runs a command; its exit code is the result.
pub async fn run(
    global: &GlobalArgs,
    location: ExecLocation,
    args: ExecArgs,
) -> Result<ExitCode, CommandError> {
    let what = match &location {
        ExecLocation::Task(task) => format!("the command was not run in task {task}"),
        ExecLocation::Service { service, .. } => format!("the command was not run in service {service}"),
    };
    if args.tty && !io::stdin().is_terminal() {
        let why = "the input is not a terminal";
        return Err(CommandError::new(ExitKind::Usage, what, why, "leave out -t"));
    }
    let (interactive, tty) = (args.interactive, args.tty);
    let target = target(&location, args, &what)?;
    let client = connect(global, &what).await?;
    let failed = |error: io::Error| CommandError::new(ExitKind::Failed, what.clone(), error, "");
    // From before the start: no signal ends this program without the command.
    let mut signals = LocalSignals::new().map_err(failed)?;
    let tasks = client.tasks();
    let started = tokio::select! {
        started = tasks.exec(target) => started.map_err(|error| start_failure(&what, error))?,
        number = signals.ending.next() => return Ok(ExitCode::from(killed(number))),
    };
    let RunningProgram { started: _, input, control, output } = started;
    // Dropped, and so restored, on every way out of this function.
    let _raw = (interactive && tty).then(TerminalGuard::raw).transpose().map_err(failed)?;
    let feed = async {
        let ended = if interactive { feed(input).await } else { Ok(()) };
        match ended {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let print = print(output);
    tokio::pin!(print);
    let ended = tokio::select! {
        ended = &mut print => ended,
        error = feed => Err(PrintError::Client(Error::Input(error))),
        never = follow_size(&mut signals.resized, &control, tty) => match never {},
        number = signals.ending.next() => {
            let graceful = timeout(SIGNAL_GRACE, async {
                control.signal(number).await;
                (&mut print).await
            });
            // A second signal does not wait.
            tokio::select! {
                ended = graceful => ended.unwrap_or_else(|_| Ok(killed(number))),
                number = signals.ending.next() => Ok(killed(number)),
            }
        }
    };
    printed(ended)
}

/// The exit code of a command whose output was printed, or why it was not.
pub(super) fn printed(ended: Result<u8, PrintError>) -> Result<ExitCode, CommandError> {
    match ended {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(PrintError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::from(BROKEN_PIPE))
        }
        Err(PrintError::Output(error)) => {
            Err(CommandError::new(ExitKind::Failed, "the output was not printed", error, ""))
        }
        Err(PrintError::Client(error)) => Err(from_client("the command was ended", error)),
    }
}

fn target(location: &ExecLocation, args: ExecArgs, what: &str) -> Result<v1::ExecTarget, CommandError> {
    let ExecArgs { interactive, tty, user, workdir, env, command } = args;
    let variables = environment::resolve(&env, what)?;
    let program = v1::ExecProgram {
        command,
        environment: variables.into_iter().map(|one| format!("{}={}", one.name, one.value)).collect(),
        user: user.unwrap_or_default(),
        directory: workdir.unwrap_or_default(),
        input: interactive,
        terminal: tty.then(size),
    };
    Ok(location.target(Work::Program(program)))
}

impl ExecLocation {
    pub(super) fn target(&self, work: Work) -> v1::ExecTarget {
        let (task, service, slot) = match self.clone() {
            Self::Task(task) => (task, String::new(), None),
            Self::Service { service, slot } => (String::new(), service, slot),
        };
        v1::ExecTarget { task, service, slot, work: Some(work) }
    }
}

/// The failure of a command that was not started, with the exit codes of shells.
fn start_failure(what: &str, error: Error) -> CommandError {
    let kind = match &error {
        Error::Refused { problem } if problem.reason == COMMAND_NOT_FOUND => ExitKind::CommandNotFound,
        Error::Refused { problem } if problem.reason == COMMAND_NOT_EXECUTABLE => {
            ExitKind::CommandNotExecutable
        }
        _ => {
            let hint = "wait until it runs, or choose another one: `warren task ls`".to_owned();
            return from_client_with_hint(what, error, "TASK_NOT_RUNNING", hint);
        }
    };
    CommandError { kind, hint: "name a program of the image".to_owned(), ..from_client(what, error) }
}

/// The size of the terminal that is standard input, or a usual one.
fn size() -> v1::TerminalSize {
    let (Width(columns), Height(rows)) = terminal_size_of(io::stdin()).unwrap_or((Width(80), Height(24)));
    v1::TerminalSize { columns: columns.into(), rows: rows.into() }
}

/// Passes standard input on until its end, or that of the command.
pub(super) async fn feed(mut input: ProgramInput) -> io::Result<()> {
    let mut stdin = tokio::io::stdin();
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(INPUT_CHUNK);
        if (&mut stdin).take(INPUT_CHUNK as u64).read_buf(&mut buffer).await? == 0 {
            input.end().await;
            return Ok(());
        }
        if !input.send(buffer.split().freeze()).await {
            return Ok(());
        }
    }
}

/// Passes changes of the terminal's size on.
async fn follow_size(resized: &mut Signal, control: &ProgramControl, tty: bool) -> Infallible {
    if tty {
        // It may have changed before the command was started.
        while control.resize(size()).await && resized.recv().await.is_some() {}
    }
    std::future::pending().await
}

/// Why printing ended early.
pub(super) enum PrintError {
    Client(Error),
    Output(io::Error),
}

/// Prints until the command has ended; returns its exit code.
pub(super) async fn print(mut output: ProgramOutput) -> Result<u8, PrintError> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        let written = match output.next().await.map_err(PrintError::Client)? {
            ProgramEvent::Stdout(bytes) => write(&mut stdout, bytes).await,
            ProgramEvent::Stderr(bytes) => write(&mut stderr, bytes).await,
            ProgramEvent::OutputEnded => continue,
            ProgramEvent::Exited(code) => return Ok(u8::try_from(code).unwrap_or(u8::MAX)),
        };
        written.map_err(PrintError::Output)?;
    }
}

async fn write(output: &mut (impl AsyncWrite + Unpin), bytes: Bytes) -> io::Result<()> {
    output.write_all(&bytes).await?;
    output.flush().await
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use warren_proto::Problem;

    use super::*;

    #[test]
    fn missing_command_has_the_exit_codes_of_shells() {
        let exit = |reason| {
            let problem = Problem::new(Code::FailedPrecondition, reason, "\"x\" cannot be run");
            start_failure("it was not run", Error::Refused { problem })
        };
        assert_eq!(exit(COMMAND_NOT_FOUND).kind as u8, 127);
        assert_eq!(exit(COMMAND_NOT_EXECUTABLE).kind as u8, 126);
        assert_eq!(exit("TASK_NOT_RUNNING").kind as u8, 4);
        assert!(exit("TASK_NOT_RUNNING").hint.contains("warren task ls"));
    }
}

//! `warren task attach`: prints what a task writes, and passes standard input on to it.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::process::ExitCode;

use warren_client::{Client, ProgramEvent, ProgramOutput, RunningProgram};
use warren_proto::status::INPUT_NOT_OPEN;
use warren_proto::v1;

use crate::args::GlobalArgs;
use crate::command::{exec, logs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client, from_client_with_hint};

/// Attaches until the task has ended; its exit code is the result.
pub async fn run(global: &GlobalArgs, task: &str, interactive: bool) -> Result<ExitCode, CommandError> {
    let what = format!("task {task} was not attached to");
    let client = connect(global, &what).await?;
    let failed = |error| from_client(&what, error);
    let found = client.tasks().get(task).await.map_err(failed)?;
    if found.state() != v1::TaskState::Running {
        let why = format!("task {} does not run", found.id);
        let hint = "print what it wrote with `warren task logs`";
        return Err(CommandError::new(ExitKind::Conflict, what, why, hint));
    }
    match interactive {
        true => with_input(global, &client, &found.id, &what).await?,
        false => logs::attach(global, found.id.clone(), None).await?,
    }
    let ended = client.tasks().get(&found.id).await.map_err(failed)?;
    let code = ended.exit.map_or(0, |exit| exit.code);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

async fn with_input(global: &GlobalArgs, client: &Client, id: &str, what: &str) -> Result<(), CommandError> {
    let request = v1::AttachTask { input: true, terminal: None };
    let attached = client.tasks().attach(id, request).await.map_err(|error| {
        let hint = "create the service with `--stdin`, or run a command: `warren task exec -it TASK COMMAND`";
        from_client_with_hint(what, error, INPUT_NOT_OPEN, hint.to_owned())
    })?;
    let (RunningProgram { started: _, input, control: _control, output }, at) = attached;
    let sent = async {
        match exec::feed(input).await {
            Ok(()) => pending::<io::Error>().await,
            Err(error) => error,
        }
    };
    // What is printed begins before the input is sent, so it has all answers to it.
    tokio::select! {
        printed = logs::attach(global, id.to_owned(), Some(at)) => printed,
        error = sent => Err(CommandError::new(ExitKind::Failed, "standard input was not read", error, "")),
        never = take_acknowledgements(output) => match never {},
    }
}

/// Reads how much of the input was taken, for as long as the task runs.
async fn take_acknowledgements(mut output: ProgramOutput) -> Infallible {
    loop {
        match output.next().await {
            Ok(ProgramEvent::Exited(_)) => break,
            Ok(_) => {}
            Err(error) => {
                eprintln!("warning: standard input is not passed on any more: {error}");
                break;
            }
        }
    }
    pending().await
}

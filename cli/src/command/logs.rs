//! `warren service logs` and `warren task logs`: lines keep their stream; warnings go to stderr.

mod printer;

use std::io::{ErrorKind, IsTerminal};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warren_client::{Client, Error, LogOptions, LogTarget};
use warren_proto::v1;
use warren_types::Timestamp;

use crate::args::value::TailLines;
use crate::args::{GlobalArgs, LogArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use printer::{LineStyle, LogPrinter};

/// Capacity of the print queue: a slow reader slows down the nodes instead of using memory here.
const QUEUE: usize = 256;

type Entries = mpsc::Receiver<Result<v1::LogEntry, Error>>;

/// Prints the logs of services.
pub async fn services(
    global: &GlobalArgs,
    services: Vec<String>,
    task: Option<String>,
    args: &LogArgs,
) -> Result<(), CommandError> {
    let what = format!("the logs of {} were not read", services.join(", "));
    let style = LineStyle { names: true, timestamps: args.timestamps };
    if task.is_some() && services.len() > 1 {
        let (why, hint) = ("--task selects a task of one service", "name one service");
        return Err(CommandError::new(ExitKind::Usage, what, why, hint));
    }
    let target = |service| match task.clone() {
        Some(task) => LogTarget::ServiceTask { service, task },
        None => LogTarget::Service(service),
    };
    read(global, services.into_iter().map(target).collect(), args, style, &what).await
}

/// Prints the log of one task, without prefixes.
pub async fn task(global: &GlobalArgs, task: String, args: &LogArgs) -> Result<(), CommandError> {
    let what = format!("the logs of task {task} were not read");
    let style = LineStyle { names: false, timestamps: args.timestamps };
    read(global, vec![LogTarget::Task(task)], args, style, &what).await
}

/// Prints what a task writes from now on, or since that time on its node, until it ends.
pub async fn attach(global: &GlobalArgs, task: String, since: Option<Timestamp>) -> Result<(), CommandError> {
    let what = format!("the output of task {task} was not read");
    let lines = LogArgs {
        follow: true,
        tail: TailLines(since.is_none().then_some(0)),
        since,
        timestamps: false,
        previous: false,
        raw: false,
    };
    let style = LineStyle { names: false, timestamps: false };
    read(global, vec![LogTarget::Task(task)], &lines, style, &what).await
}

async fn read(
    global: &GlobalArgs,
    of: Vec<LogTarget>,
    args: &LogArgs,
    style: LineStyle,
    what: &str,
) -> Result<(), CommandError> {
    let client = connect(global, what).await?;
    let LogArgs { follow, tail, since, previous, timestamps: _, raw } = *args;
    let options = LogOptions { follow, tail: tail.0, since, previous };
    let (mut readers, mut entries) = start(client, of, options);
    let (out, err) = (std::io::stdout().lock(), std::io::stderr().lock());
    let escapes = [out.is_terminal(), err.is_terminal()].map(|is_terminal| is_terminal && !raw);
    let mut printer = LogPrinter::new(out, err, style, escapes);
    let printed = print(&mut entries, &mut printer).await;
    readers.abort_all();
    match printed {
        Ok(()) => {}
        Err(PrintError::Client(error)) => return Err(crate::failure::from_client(what, error)),
        // The reader closed the pipe (`| head`).
        Err(PrintError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
        Err(PrintError::Output(error)) => {
            return Err(CommandError::new(ExitKind::Failed, "the logs were not printed", error, ""));
        }
    }
    if printer.has_only_warnings() {
        let hint = "check `warren node ls` for unreachable nodes, then retry";
        return Err(CommandError::new(ExitKind::Failed, what, "no node returned a line, see above", hint));
    }
    Ok(())
}

/// Reads sequentially, to keep the order of the arguments; concurrently when following.
fn start(client: Client, of: Vec<LogTarget>, options: LogOptions) -> (JoinSet<()>, Entries) {
    let (sender, entries) = mpsc::channel(QUEUE);
    let mut readers = JoinSet::new();
    let groups: Vec<Vec<LogTarget>> = match options.follow {
        true => of.into_iter().map(|one| vec![one]).collect(),
        false => vec![of],
    };
    for group in groups {
        let (client, sender) = (client.clone(), sender.clone());
        readers.spawn(async move {
            for one in group {
                if let Err(error) = forward_entries(&client, one, options, &sender).await {
                    // A closed channel means that printing has ended.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        });
    }
    (readers, entries)
}

async fn forward_entries(
    client: &Client,
    of: LogTarget,
    options: LogOptions,
    sender: &mpsc::Sender<Result<v1::LogEntry, Error>>,
) -> Result<(), Error> {
    let mut entries = match client.logs().read(of.clone(), options).await {
        Err(error) if error.is_not_found() => {
            // As in Docker, a task stands for itself.
            let LogTarget::Service(task) = of else { return Err(error) };
            client.logs().read(LogTarget::Task(task), options).await.map_err(|_| error)?
        }
        started => started?,
    };
    while let Some(entry) = entries.next().await? {
        if sender.send(Ok(entry)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Why printing ended early.
enum PrintError {
    Client(Error),
    Output(std::io::Error),
}

async fn print<O, E>(entries: &mut Entries, printer: &mut LogPrinter<O, E>) -> Result<(), PrintError>
where
    O: std::io::Write,
    E: std::io::Write,
{
    loop {
        // Flushed whenever no further entry is ready.
        let next = match entries.try_recv() {
            Ok(entry) => Some(entry),
            Err(_) => {
                printer.flush().map_err(PrintError::Output)?;
                entries.recv().await
            }
        };
        match next {
            None => return printer.flush().map_err(PrintError::Output),
            Some(Ok(entry)) => printer.print(entry).map_err(PrintError::Output)?,
            Some(Err(error)) => {
                printer.flush().map_err(PrintError::Output)?;
                return Err(PrintError::Client(error));
            }
        }
    }
}

//! `warren service logs` and `warren task logs`: lines to where the tasks wrote them, troubles to stderr.

mod printer;

use std::io::ErrorKind;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warren_client::{Client, Error, LogsOf, LogsWish};
use warren_proto::v1;

use crate::args::{Global, LogArgs};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use printer::{Printer, Style};

/// Entries that wait to be printed: whoever reads slowly holds back the nodes, not this program's memory.
const QUEUE: usize = 256;

type Entries = mpsc::Receiver<Result<v1::LogEntry, Error>>;

/// What the tasks of services wrote.
pub async fn services(global: &Global, services: Vec<String>, args: &LogArgs) -> Result<(), Failure> {
    let what = format!("the logs of {} were not read", services.join(", "));
    let style = Style { names: true, timestamps: args.timestamps };
    read(global, services.into_iter().map(LogsOf::Service).collect(), args, style, &what).await
}

/// What one task wrote, as it wrote it.
pub async fn task(global: &Global, task: String, args: &LogArgs) -> Result<(), Failure> {
    let what = format!("the logs of task {task} were not read");
    let style = Style { names: false, timestamps: args.timestamps };
    read(global, vec![LogsOf::Task(task)], args, style, &what).await
}

async fn read(
    global: &Global,
    of: Vec<LogsOf>,
    args: &LogArgs,
    style: Style,
    what: &str,
) -> Result<(), Failure> {
    let client = connect(global, what).await?;
    let wish = LogsWish { follow: args.follow, tail: args.tail.0, since: args.since };
    let (mut readers, mut entries) = start(client, of, wish);
    let mut printer = Printer::new(std::io::stdout().lock(), std::io::stderr().lock(), style);
    let printed = print(&mut entries, &mut printer).await;
    readers.abort_all();
    match printed {
        Ok(()) => {}
        Err(Stopped::Client(error)) => return Err(crate::failure::of_client(what, error)),
        // Whoever reads has seen enough (`| head`).
        Err(Stopped::Output(error)) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
        Err(Stopped::Output(error)) => {
            return Err(Failure::new(Exit::Failed, "the logs were not printed", error, ""));
        }
    }
    if printer.only_troubles() {
        let hint = "see `warren node ls` for the nodes that do not answer, then try again";
        return Err(Failure::new(Exit::Failed, what, "no node had a line of them, see above", hint));
    }
    Ok(())
}

/// One reader after the other, so that what was written comes in order; to follow, all at once.
fn start(client: Client, of: Vec<LogsOf>, wish: LogsWish) -> (JoinSet<()>, Entries) {
    let (sender, entries) = mpsc::channel(QUEUE);
    let mut readers = JoinSet::new();
    let groups: Vec<Vec<LogsOf>> = match wish.follow {
        true => of.into_iter().map(|one| vec![one]).collect(),
        false => vec![of],
    };
    for group in groups {
        let (client, sender) = (client.clone(), sender.clone());
        readers.spawn(async move {
            for one in group {
                if let Err(error) = pass_on(&client, one, wish, &sender).await {
                    // When nobody listens any more, nobody need know.
                    let _ = sender.send(Err(error)).await;
                    return;
                }
            }
        });
    }
    (readers, entries)
}

async fn pass_on(
    client: &Client,
    of: LogsOf,
    wish: LogsWish,
    sender: &mpsc::Sender<Result<v1::LogEntry, Error>>,
) -> Result<(), Error> {
    let mut entries = client.logs().read(of, wish).await?;
    while let Some(entry) = entries.next().await? {
        if sender.send(Ok(entry)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Why printing ended before the entries did.
enum Stopped {
    Client(Error),
    Output(std::io::Error),
}

async fn print<O, E>(entries: &mut Entries, printer: &mut Printer<O, E>) -> Result<(), Stopped>
where
    O: std::io::Write,
    E: std::io::Write,
{
    loop {
        // Written out whenever there is nothing to add at once.
        let next = match entries.try_recv() {
            Ok(entry) => Some(entry),
            Err(_) => {
                printer.flush().map_err(Stopped::Output)?;
                entries.recv().await
            }
        };
        match next {
            None => return printer.flush().map_err(Stopped::Output),
            Some(Ok(entry)) => printer.print(entry).map_err(Stopped::Output)?,
            Some(Err(error)) => {
                printer.flush().map_err(Stopped::Output)?;
                return Err(Stopped::Client(error));
            }
        }
    }
}

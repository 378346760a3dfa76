//! `warren task ...`

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use warren_client::TaskFilter;
use warren_proto::v1;
use warren_types::Signal;

use crate::args::{GlobalArgs, ListingArgs, TaskCommand};
use crate::command::exec::{self, ExecLocation};
use crate::command::{attach, copy, forward};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output::{self, Listing};
use crate::view::now;
use crate::view::process::ProcessView;
use crate::view::task::TaskView;
use crate::watch;

/// How long `task restart` waits for the new task.
const RESTART_TIMEOUT: Duration = Duration::from_secs(5 * 60);
const RESTART_POLL: Duration = Duration::from_millis(200);

pub async fn run(global: &GlobalArgs, command: TaskCommand) -> Result<ExitCode, CommandError> {
    let ended = match command {
        TaskCommand::Ls { service, node, listing } => {
            ls(global, TaskFilter { service, node, ..TaskFilter::default() }, &listing).await
        }
        TaskCommand::Inspect { task, pretty } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &task).await
        }
        TaskCommand::Logs { task, lines } => super::logs::task(global, task, &lines).await,
        TaskCommand::Exec { task, exec } => {
            return exec::run(global, ExecLocation::Task(task), exec).await;
        }
        TaskCommand::Restart { task, detach } => restart(global, &task, detach).await,
        TaskCommand::Attach { task, interactive } => {
            return attach::run(global, &task, interactive).await;
        }
        TaskCommand::Processes { task } => processes(global, &task).await,
        TaskCommand::Signal { task, signal } => send_signal(global, &task, signal).await,
        TaskCommand::Cp { follow_link, source, destination } => {
            return copy::run(global, &source, &destination, follow_link).await;
        }
        TaskCommand::PortForward { task, ports } => {
            return forward::run(global, ExecLocation::Task(task), ports).await;
        }
    };
    ended.map(|()| ExitCode::SUCCESS)
}

async fn ls(global: &GlobalArgs, mut filter: TaskFilter, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let list = Listing::<TaskView>::new(global.output, listing, what)?;
    // What the manager can filter is not sent here.
    for (key, field) in [("service", &mut filter.service), ("node", &mut filter.node)] {
        if let (true, Some(value)) = (field.is_empty(), list.single(key)) {
            value.clone_into(field);
        }
    }
    let client = connect(global, what).await?;
    let fetch = async || {
        let tasks = client.tasks().list(filter.clone()).await.map_err(|error| from_client(what, error))?;
        let mut tasks = tasks.into_iter().map(TaskView::try_from).collect::<Result<Vec<_>, _>>()?;
        tasks.sort_by_cached_key(TaskView::sort_key);
        Ok(tasks)
    };
    watch::show(&list, &client, fetch).await
}

async fn restart(global: &GlobalArgs, task: &str, detach: bool) -> Result<(), CommandError> {
    let what = format!("task {task} was not restarted");
    let client = connect(global, &what).await?;
    let failed = |error| from_client(&what, error);
    let old = client.tasks().get(task).await.map_err(failed)?;
    let name = format!("{}.{}", old.service_name, old.slot);
    if old.desired() > v1::DesiredTaskState::Running || old.state() > v1::TaskState::Running {
        let why = format!("task {name} ({}) has ended or is being stopped", old.id);
        let hint = "see `warren service ps --all`";
        return Err(CommandError::new(ExitKind::Conflict, what, why, hint));
    }
    client.tasks().restart(&old.id).await.map_err(failed)?;
    if detach {
        println!("{name}: {} is stopped", old.id);
        return Ok(());
    }
    let what = format!("task {name} was stopped, and no other task runs");
    let filter = TaskFilter { service: old.service_id.clone(), ..TaskFilter::default() };
    let deadline = Instant::now() + RESTART_TIMEOUT;
    loop {
        let all = client.tasks().list(filter.clone()).await.map_err(|error| from_client(&what, error))?;
        let newest = all.into_iter().filter(|other| other.slot == old.slot && other.id != old.id);
        let newest =
            newest.max_by_key(|other| other.created_at).filter(|new| new.created_at >= old.created_at);
        match &newest {
            Some(new) if new.state() == v1::TaskState::Running && new.ready => {
                println!("{name}: {} runs instead of {}", new.id, old.id);
                return Ok(());
            }
            Some(new) if new.state() > v1::TaskState::Running => {
                let why = format!("task {} has ended: {}", new.id, new.reason);
                return Err(CommandError::new(ExitKind::Failed, what, why, "see `warren service ps --all`"));
            }
            _ if Instant::now() > deadline => {
                let why = newest.map_or("there is no other task".to_owned(), |new| new.reason);
                return Err(CommandError::new(ExitKind::TimedOut, what, why, "see `warren service ps`"));
            }
            _ => sleep(RESTART_POLL).await,
        }
    }
}

async fn processes(global: &GlobalArgs, task: &str) -> Result<(), CommandError> {
    let what = "processes were not listed";
    let client = connect(global, what).await?;
    let found = client.tasks().processes(task).await.map_err(|error| from_client(what, error))?;
    let found: Vec<ProcessView> = found.into_iter().map(ProcessView::from).collect();
    output::print_list(global.output, &found, now())
}

async fn send_signal(global: &GlobalArgs, task: &str, signal: Signal) -> Result<(), CommandError> {
    let what = format!("task {task} was sent no signal");
    let client = connect(global, &what).await?;
    client.tasks().signal(task, signal).await.map_err(|error| from_client(&what, error))?;
    println!("{task}: {signal} was sent");
    Ok(())
}

async fn inspect(global: &GlobalArgs, task: &str) -> Result<(), CommandError> {
    let what = format!("task {task} was not found");
    let client = connect(global, &what).await?;
    let found = client.tasks().get(task).await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &TaskView::try_from(found)?)
}

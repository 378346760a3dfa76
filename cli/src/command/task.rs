//! `warren task ...`

use std::process::ExitCode;

use warren_client::TaskFilter;

use crate::args::{GlobalArgs, ListingArgs, TaskCommand};
use crate::command::exec::{self, ExecLocation};
use crate::command::{copy, forward};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output::{self, Listing};
use crate::view::now;
use crate::view::task::TaskView;

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
    let tasks =
        client.tasks().list(filter).await.map_err(|error| crate::failure::from_client(what, error))?;
    let mut tasks = tasks.into_iter().map(TaskView::try_from).collect::<Result<Vec<_>, _>>()?;
    tasks.sort_by_cached_key(TaskView::sort_key);
    list.print(tasks, now())
}

async fn inspect(global: &GlobalArgs, task: &str) -> Result<(), CommandError> {
    let what = format!("task {task} was not found");
    let client = connect(global, &what).await?;
    let found = client.tasks().get(task).await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &TaskView::try_from(found)?)
}

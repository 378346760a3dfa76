//! `warren task ...`

use warren_client::TaskFilter;

use crate::args::{GlobalArgs, TaskCommand};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::now;
use crate::view::task::TaskView;

pub async fn run(global: &GlobalArgs, command: TaskCommand) -> Result<(), CommandError> {
    match command {
        TaskCommand::Ls { service, node } => ls(global, TaskFilter { service, node, current: false }).await,
        TaskCommand::Inspect { task } => inspect(global, &task).await,
        TaskCommand::Logs { task, lines } => super::logs::task(global, task, &lines).await,
    }
}

async fn ls(global: &GlobalArgs, filter: TaskFilter) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let client = connect(global, what).await?;
    let tasks =
        client.tasks().list(filter).await.map_err(|error| crate::failure::from_client(what, error))?;
    let mut tasks = tasks.into_iter().map(TaskView::try_from).collect::<Result<Vec<_>, _>>()?;
    tasks.sort_by_cached_key(TaskView::sort_key);
    output::print_list(global.output, &tasks, now())
}

async fn inspect(global: &GlobalArgs, task: &str) -> Result<(), CommandError> {
    let what = format!("task {task} was not found");
    let client = connect(global, &what).await?;
    let found = client.tasks().get(task).await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &TaskView::try_from(found)?)
}

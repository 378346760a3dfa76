//! `warren task ...`

use warren_client::TaskFilter;

use crate::args::{Global, TaskCommand};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::view::now;
use crate::view::task::TaskView;

pub async fn run(global: &Global, command: TaskCommand) -> Result<(), Failure> {
    match command {
        TaskCommand::Ls { service, node } => ls(global, TaskFilter { service, node, current: false }).await,
        TaskCommand::Inspect { task } => inspect(global, &task).await,
        TaskCommand::Logs { task, lines } => super::logs::task(global, task, &lines).await,
    }
}

async fn ls(global: &Global, filter: TaskFilter) -> Result<(), Failure> {
    let what = "tasks were not listed";
    let client = connect(global, what).await?;
    let tasks = client.tasks().list(filter).await.map_err(|error| crate::failure::of_client(what, error))?;
    let mut tasks = tasks.into_iter().map(TaskView::try_from).collect::<Result<Vec<_>, _>>()?;
    tasks.sort_by_cached_key(TaskView::order);
    output::list(global.output, &tasks, now())
}

async fn inspect(global: &Global, task: &str) -> Result<(), Failure> {
    let what = format!("task {task} was not found");
    let client = connect(global, &what).await?;
    let found = client.tasks().get(task).await.map_err(|error| crate::failure::of_client(what, error))?;
    output::document(global.output, &TaskView::try_from(found)?)
}

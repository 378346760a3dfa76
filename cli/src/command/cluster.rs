//! `warren cluster ...`

use std::collections::BTreeSet;

use warren_proto::v1;

use crate::args::{ClusterCommand, GlobalArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output;
use crate::view::cluster::{BackgroundTaskRow, ClusterInfoView};
use crate::view::now;

pub async fn run(global: &GlobalArgs, command: ClusterCommand) -> Result<(), CommandError> {
    match command {
        ClusterCommand::Info => info(global).await,
        ClusterCommand::BackgroundTasks { name } => background_tasks(global, name).await,
    }
}

async fn info(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the cluster was not shown";
    let client = connect(global, what).await?;
    let info = client.cluster().info().await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &ClusterInfoView::new(info, &client.address()))
}

async fn background_tasks(global: &GlobalArgs, name: Option<String>) -> Result<(), CommandError> {
    let what = "background tasks were not listed";
    let client = connect(global, what).await?;
    let answer = client
        .cluster()
        .background_tasks()
        .await
        .map_err(|error| crate::failure::from_client(what, error))?;
    let v1::ListBackgroundTasksResponse { background_tasks: mut tasks_run, silent } = answer;
    if let Some(name) = name {
        // Several managers and nodes have background tasks of the same name.
        let names: BTreeSet<String> = tasks_run.iter().map(|known| known.name.clone()).collect();
        tasks_run.retain(|known| known.name == name);
        if tasks_run.is_empty() {
            let why =
                format!("there is no background task {name}; existing: {}", Vec::from_iter(names).join(", "));
            return Err(CommandError::new(ExitKind::NotFound, what, why, "choose one of those"));
        }
    }
    let mut lines: Vec<BackgroundTaskRow> = tasks_run.into_iter().map(Into::into).collect();
    lines.extend(silent.into_iter().map(BackgroundTaskRow::from));
    output::print_list(global.output, &lines, now())
}

//! `warren service top`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::sleep;
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;

use crate::args::{GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::now;
use crate::view::top::TaskUsageRow;
use crate::wait::is_transient;

const WHAT: &str = "cannot read the resource usage";

/// Nodes report usage every five seconds, each at its own time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

pub async fn run(global: &GlobalArgs, services: &[String], once: bool) -> Result<(), CommandError> {
    let client = connect(global, WHAT).await?;
    let mut ids = Vec::new();
    for service in services {
        // Fetched first, so that a missing service is an error.
        ids.push(super::fetch_service(&client, service, WHAT).await?.id);
    }
    ids.sort();
    ids.dedup();
    let live =
        matches!(global.output, OutputFormat::Table | OutputFormat::Wide) && std::io::stdout().is_terminal();
    let tasks = tasks(&client, &ids).await.map_err(|error| from_client(WHAT, error))?;
    if once || !live {
        return output::print_list(global.output, &TaskUsageRow::all(tasks)?, now());
    }
    follow(global.output, &client, &ids, tasks).await
}

/// Redraws the table until interrupted.
async fn follow(
    format: OutputFormat,
    client: &Client,
    services: &[String],
    mut found: Vec<v1::Task>,
) -> Result<(), CommandError> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
    bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is valid"));
    let mut warning = String::new();
    loop {
        let table = output::table_text(format, &TaskUsageRow::all(found.clone())?, now());
        bar.set_message(format!("{table}{warning}"));
        bar.tick();
        sleep(REFRESH_INTERVAL).await;
        match tasks(client, services).await {
            Ok(tasks) => (found, warning) = (tasks, String::new()),
            // Keeps the last table and adds the reason.
            Err(error) if is_transient(&error) => warning = format!("not up to date: {error}"),
            Err(error) => return Err(from_client(WHAT, error)),
        }
    }
}

/// Tasks of the services; of all services if none is named. A removed service has none.
async fn tasks(client: &Client, services: &[String]) -> Result<Vec<v1::Task>, Error> {
    if services.is_empty() {
        return client.tasks().list(TaskFilter::default()).await;
    }
    let mut all = Vec::new();
    for service in services {
        let filter = TaskFilter { service: service.clone(), ..TaskFilter::default() };
        match client.tasks().list(filter).await {
            Ok(tasks) => all.extend(tasks),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

//! `warren service top`.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::sleep;
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;

use crate::args::{Format, Global};
use crate::connect::connect;
use crate::failure::{Failure, of_client};
use crate::output;
use crate::view::now;
use crate::view::top::TopView;
use crate::wait::passes;

const WHAT: &str = "what the tasks use was not found";

/// Nodes say what their tasks use every five seconds, each at its own time.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub async fn run(global: &Global, services: &[String], once: bool) -> Result<(), Failure> {
    let client = connect(global, WHAT).await?;
    let mut ids = Vec::new();
    for service in services {
        // Found first, so that one that does not exist is told from one without tasks.
        ids.push(super::find(&client, service, WHAT).await?.id);
    }
    ids.sort();
    ids.dedup();
    let live = matches!(global.output, Format::Table | Format::Wide) && std::io::stdout().is_terminal();
    let tasks = tasks(&client, &ids).await.map_err(|error| of_client(WHAT, error))?;
    if once || !live {
        return output::list(global.output, &TopView::all(tasks)?, now());
    }
    follow(global.output, &client, &ids, tasks).await
}

/// Redraws the table until it is interrupted.
async fn follow(
    format: Format,
    client: &Client,
    services: &[String],
    mut found: Vec<v1::Task>,
) -> Result<(), Failure> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
    bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is valid"));
    let mut trouble = String::new();
    loop {
        let table = output::drawn(format, &TopView::all(found.clone())?, now());
        bar.set_message(format!("{table}{trouble}"));
        bar.tick();
        sleep(LOOK_EVERY).await;
        match tasks(client, services).await {
            Ok(tasks) => (found, trouble) = (tasks, String::new()),
            // What was last heard stays, with the reason why it is not newer.
            Err(error) if passes(&error) => trouble = format!("not up to date: {error}"),
            Err(error) => return Err(of_client(WHAT, error)),
        }
    }
}

/// Of all services if none is named. One that went away meanwhile has none.
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

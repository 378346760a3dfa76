//! `warren why`: the causes that a manager names, and the last lines of the tasks that failed.

use std::process::ExitCode;
use std::time::Duration;

use tokio::task::JoinSet;
use warren_client::Client;

use crate::args::{GlobalArgs, OutputFormat, WhyArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::task_output::{last_lines, shortened};
use crate::view::now;
use crate::view::why::{CauseView, WhyView};

/// The most tasks whose last lines are read.
const MAX_SHOWN_LOGS: usize = 5;
/// Last lines of each.
const LAST_LINES: u64 = 5;
/// How long a node may take to send them.
const LINES_DEADLINE: Duration = Duration::from_secs(6);

pub async fn run(global: &GlobalArgs, args: WhyArgs) -> Result<ExitCode, CommandError> {
    let WhyArgs { object, no_logs } = args;
    let what = format!("{} was not explained", object.name);
    let client = connect(global, &what).await?;
    let answer = client.cluster().why(&object.noun, &object.name).await;
    let mut view = WhyView::from(answer.map_err(|error| from_client(what, error))?);
    if !no_logs {
        add_last_lines(&client, view.cause.with_logs()).await;
    }
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&view.text(now()))?,
        OutputFormat::Json | OutputFormat::Yaml => output::print_document(global.output, &view)?,
    }
    Ok(if view.is_problem() { ExitCode::from(ExitKind::Failed as u8) } else { ExitCode::SUCCESS })
}

async fn add_last_lines(client: &Client, causes: Vec<&mut CauseView>) {
    let mut causes: Vec<&mut CauseView> = causes.into_iter().take(MAX_SHOWN_LOGS).collect();
    let mut reads = JoinSet::new();
    for (position, cause) in causes.iter().enumerate() {
        let (client, task) = (client.clone(), cause.log_task.clone().unwrap_or_default());
        reads.spawn(async move { (position, last_lines(&client, &task, LAST_LINES, LINES_DEADLINE).await) });
    }
    for (position, lines) in reads.join_all().await {
        causes[position].last_lines = lines.iter().map(|line| shortened(&line.to_string())).collect();
    }
}

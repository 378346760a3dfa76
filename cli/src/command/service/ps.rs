//! `warren service ps`

use std::time::Duration;

use tokio::task::JoinSet;
use warren_client::{Client, TaskFilter};

use super::fetch_service;
use crate::args::{GlobalArgs, ListingArgs};
use crate::connect::connect;
use crate::failure::{CommandError, from_client};
use crate::output::{ListContent, Listing};
use crate::task_output::last_lines;
use crate::view::now;
use crate::view::service::uncreated_summary;
use crate::view::task::{TaskView, ended_tasks_text};
use crate::wait::has_slot;
use crate::watch;

/// The newest ended tasks whose last lines are shown.
const MAX_SHOWN_LOGS: usize = 20;
/// Last lines of each.
const LAST_LINES: u64 = 5;
/// How long a node may take to send them.
const LINES_DEADLINE: Duration = Duration::from_secs(6);

pub async fn run(
    global: &GlobalArgs,
    services: &[String],
    all: bool,
    listing: &ListingArgs,
) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let list = Listing::<TaskView>::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    watch::show(&list, &client, async || fetch(&client, &list, services, all, what).await).await
}

/// The tasks of services, by their names or ids.
pub async fn fetch(
    client: &Client,
    list: &Listing<TaskView>,
    services: &[String],
    all: bool,
    what: &str,
) -> Result<ListContent<TaskView>, CommandError> {
    let (mut tasks, mut notes) = (Vec::new(), Vec::new());
    for service in services {
        // Fetched first, so that a missing service is an error.
        let service = fetch_service(client, service, what).await?;
        if service.uncreated_tasks > 0 {
            let name = service.spec.as_ref().map(|spec| spec.name.as_str()).unwrap_or_default();
            notes.push(format!("{name}: {}", uncreated_summary(service.uncreated_tasks)));
        }
        let node = list.single("node").unwrap_or_default().to_owned();
        let filter = TaskFilter { service: service.id.clone(), node, ..TaskFilter::default() };
        let found = client.tasks().list(filter).await.map_err(|error| from_client(what, error))?;
        for task in found {
            let has_slot = has_slot(&service, task.slot);
            let task = TaskView::try_from(task)?;
            if list.matches(&task) && (all || has_slot || !task.is_finished()) {
                tasks.push(task);
            }
        }
    }
    tasks.sort_by_cached_key(TaskView::sort_key);
    let shows_lines = all && list.is_plain() && !list.is_watched();
    if shows_lines {
        add_last_lines(client, &mut tasks).await;
    }
    let below = if shows_lines && list.is_table() { ended_tasks_text(&tasks, now()) } else { String::new() };
    Ok(ListContent { items: tasks, below, notes })
}

/// Reads the last lines of the newest ended tasks.
async fn add_last_lines(client: &Client, tasks: &mut [TaskView]) {
    let mut ended: Vec<usize> =
        (0..tasks.len()).filter(|position| tasks[*position].has_log_of_ended()).collect();
    ended.sort_by_cached_key(|position| std::cmp::Reverse(tasks[*position].age_key()));
    let mut reads = JoinSet::new();
    for position in ended.into_iter().take(MAX_SHOWN_LOGS) {
        let (client, id) = (client.clone(), tasks[position].id().to_owned());
        reads.spawn(async move { (position, last_lines(&client, &id, LAST_LINES, LINES_DEADLINE).await) });
    }
    for (position, lines) in reads.join_all().await {
        tasks[position].last_lines = lines.iter().map(ToString::to_string).collect();
    }
}

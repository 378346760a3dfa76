//! `warren cluster ...`

mod ca;
mod key;
mod policy;
mod rotation;
mod unlock_key;

use std::collections::BTreeSet;

use warren_client::Client;
use warren_proto::v1;
use warren_types::{ClusterSettingsChange, VerificationChange};

use crate::args::{ClusterCommand, ClusterUpdateArgs, GlobalArgs, ListingArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output::{self, Listing};
use crate::view::cluster::{BackgroundTaskRow, ClusterInfoView};
use crate::watch;

pub async fn run(global: &GlobalArgs, command: ClusterCommand) -> Result<(), CommandError> {
    match command {
        ClusterCommand::Info => info(global).await,
        ClusterCommand::Audit(args) => super::audit::run(global, args).await,
        ClusterCommand::CheckSecurity => super::security_check::run(global).await,
        ClusterCommand::Events(args) => super::events::run(global, args).await,
        ClusterCommand::Update(args) => update(global, &args).await,
        ClusterCommand::Ca(command) => ca::run(global, command).await,
        ClusterCommand::Policy(command) => policy::run(global, command).await,
        ClusterCommand::Key(command) => key::run(global, command).await,
        ClusterCommand::UnlockKey { rotate } => unlock_key::run(global, rotate).await,
        ClusterCommand::BackgroundTasks { name, listing } => background_tasks(global, name, &listing).await,
    }
}

async fn info(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "the cluster was not shown";
    let client = connect(global, what).await?;
    let info = client.cluster().info().await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &ClusterInfoView::new(info, &client.address()))
}

async fn update(global: &GlobalArgs, args: &ClusterUpdateArgs) -> Result<(), CommandError> {
    let what = "the cluster's settings were not changed";
    let ClusterUpdateArgs {
        max_replicas_per_service,
        task_history_limit,
        data_plane,
        range_add,
        verify_nodes: enabled,
        verify_remove_after: remove_after,
        verify_timeout: timeout,
        verify_check_add: check_add,
        verify_check_rm: check_rm,
        default_user_namespace,
        no_new_privileges,
        node_certificate_lifetime,
        autolock,
    } = args.clone();
    let verification = VerificationChange { enabled, remove_after, timeout, check_add, check_rm };
    let change = ClusterSettingsChange {
        max_replicas_per_service,
        task_history_limit,
        data_plane,
        verification,
        admission_policy: None,
        default_user_namespace,
        no_new_privileges,
        node_certificate_lifetime,
        range_add,
    };
    let client = connect(global, what).await?;
    let updated = client.cluster().update(&change, autolock, None).await;
    let updated = updated.map_err(|error| crate::failure::from_client(what, error))?;
    let view = ClusterInfoView::new(updated, &client.address());
    eprintln!("cluster updated");
    if autolock == Some(true) {
        unlock_key::print_after_turning_on(&client).await?;
    }
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print_document(global.output, view.settings()),
        OutputFormat::Json | OutputFormat::Yaml => output::print_document(global.output, &view),
    }
}

async fn background_tasks(
    global: &GlobalArgs,
    name: Option<String>,
    listing: &ListingArgs,
) -> Result<(), CommandError> {
    let what = "background tasks were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    watch::show(&list, &client, async || fetch_background_tasks(&client, name.as_deref(), what).await).await
}

async fn fetch_background_tasks(
    client: &Client,
    name: Option<&str>,
    what: &str,
) -> Result<Vec<BackgroundTaskRow>, CommandError> {
    let answer = client.cluster().background_tasks().await;
    let answer = answer.map_err(|error| crate::failure::from_client(what, error))?;
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
    Ok(lines)
}

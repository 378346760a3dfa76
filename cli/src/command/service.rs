//! `warren service ...`

mod create;
mod environment;
mod remove;
mod scale;
mod spec;
mod top;
mod update;

use warren_client::{Client, TaskFilter};
use warren_proto::v1;

use crate::args::{GlobalArgs, ServiceCommand};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::now;
use crate::view::service::ServiceView;
use crate::view::task::TaskView;

pub async fn run(global: &GlobalArgs, command: ServiceCommand) -> Result<(), CommandError> {
    match command {
        ServiceCommand::Create(args) => create::run(global, *args).await,
        ServiceCommand::Ls => ls(global).await,
        ServiceCommand::Ps { services } => ps(global, &services).await,
        ServiceCommand::Inspect { service } => inspect(global, &service).await,
        ServiceCommand::Update(args) => update::run(global, *args).await,
        ServiceCommand::Rollback(args) => update::rollback(global, args).await,
        ServiceCommand::History { service } => update::history(global, &service).await,
        ServiceCommand::Top { services, once } => top::run(global, &services, once).await,
        ServiceCommand::Logs { services, lines } => super::logs::services(global, services, &lines).await,
        ServiceCommand::Scale(args) => scale::run(global, args).await,
        ServiceCommand::Rm(args) => remove::run(global, args).await,
    }
}

async fn ls(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "services were not listed";
    let client = connect(global, what).await?;
    let services =
        client.services().list().await.map_err(|error| crate::failure::from_client(what, error))?;
    let services = services.into_iter().map(ServiceView::try_from).collect::<Result<Vec<_>, _>>()?;
    output::print_list(global.output, &services, now())
}

async fn ps(global: &GlobalArgs, services: &[String]) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let client = connect(global, what).await?;
    let mut tasks = Vec::new();
    for service in services {
        // Fetched first, so that a missing service is an error.
        let id = fetch_service(&client, service, what).await?.id;
        let filter = TaskFilter { service: id, ..TaskFilter::default() };
        let found =
            client.tasks().list(filter).await.map_err(|error| crate::failure::from_client(what, error))?;
        for task in found {
            tasks.push(TaskView::try_from(task)?);
        }
    }
    tasks.sort_by_cached_key(TaskView::sort_key);
    output::print_list(global.output, &tasks, now())
}

async fn inspect(global: &GlobalArgs, service: &str) -> Result<(), CommandError> {
    let what = format!("service {service} was not found");
    let client = connect(global, &what).await?;
    let found = fetch_service(&client, service, &what).await?;
    output::print_document(global.output, &ServiceView::try_from(found)?)
}

async fn fetch_service(client: &Client, service: &str, what: &str) -> Result<v1::Service, CommandError> {
    client.services().get(service).await.map_err(|error| crate::failure::from_client(what, error))
}

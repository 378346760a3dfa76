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

use crate::args::{Global, ServiceCommand};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::view::now;
use crate::view::service::ServiceView;
use crate::view::task::TaskView;

pub async fn run(global: &Global, command: ServiceCommand) -> Result<(), Failure> {
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

async fn ls(global: &Global) -> Result<(), Failure> {
    let what = "services were not listed";
    let client = connect(global, what).await?;
    let services = client.services().list().await.map_err(|error| crate::failure::of_client(what, error))?;
    let services = services.into_iter().map(ServiceView::try_from).collect::<Result<Vec<_>, _>>()?;
    output::list(global.output, &services, now())
}

async fn ps(global: &Global, services: &[String]) -> Result<(), Failure> {
    let what = "tasks were not listed";
    let client = connect(global, what).await?;
    let mut tasks = Vec::new();
    for service in services {
        // Found first, so that one that does not exist is told from one without tasks.
        let id = find(&client, service, what).await?.id;
        let filter = TaskFilter { service: id, ..TaskFilter::default() };
        let found =
            client.tasks().list(filter).await.map_err(|error| crate::failure::of_client(what, error))?;
        for task in found {
            tasks.push(TaskView::try_from(task)?);
        }
    }
    tasks.sort_by_cached_key(TaskView::order);
    output::list(global.output, &tasks, now())
}

async fn inspect(global: &Global, service: &str) -> Result<(), Failure> {
    let what = format!("service {service} was not found");
    let client = connect(global, &what).await?;
    let found = find(&client, service, &what).await?;
    output::document(global.output, &ServiceView::try_from(found)?)
}

async fn find(client: &Client, service: &str, what: &str) -> Result<v1::Service, Failure> {
    client.services().get(service).await.map_err(|error| crate::failure::of_client(what, error))
}

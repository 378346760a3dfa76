//! `warren service ...`

mod create;
pub mod ps;
mod remove;
mod scale;
mod seccomp_files;
mod spec;
mod top;
mod update;
mod warning;

use std::process::ExitCode;

use warren_client::Client;
use warren_proto::v1;

use crate::args::{GlobalArgs, ListingArgs, ServiceCommand};
use crate::command::exec::{self, ExecLocation};
use crate::command::forward;
use crate::connect::connect;
use crate::failure::{CommandError, from_client, not_found};
use crate::output::{self, Listing};
use crate::view::document;
use crate::view::service::{ServiceRow, ServiceView};
use crate::watch;

pub async fn run(global: &GlobalArgs, command: ServiceCommand) -> Result<ExitCode, CommandError> {
    let ended = match command {
        ServiceCommand::Create(args) => create::run(global, *args).await,
        ServiceCommand::Ls(listing) => ls(global, &listing).await,
        ServiceCommand::Ps { services, all, listing } => ps::run(global, &services, all, &listing).await,
        ServiceCommand::Inspect { service, pretty, document } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &service, document.as_document).await
        }
        ServiceCommand::Update(args) => update::run(global, *args).await,
        ServiceCommand::Rollback(args) => update::rollback(global, args).await,
        ServiceCommand::History { service, listing } => update::history(global, &service, &listing).await,
        ServiceCommand::Top { services, once } => top::run(global, &services, once).await,
        ServiceCommand::Logs { services, task, lines } => {
            super::logs::services(global, services, task, &lines).await
        }
        ServiceCommand::Exec { service, slot, exec } => {
            return exec::run(global, ExecLocation::Service { service, slot }, exec).await;
        }
        ServiceCommand::PortForward { service, slot, ports } => {
            return forward::run(global, ExecLocation::Service { service, slot }, ports).await;
        }
        ServiceCommand::Scale(args) => scale::run(global, args).await,
        ServiceCommand::Rm(args) => remove::run(global, args).await,
    };
    ended.map(|()| ExitCode::SUCCESS)
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "services were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let services = client.services().named(list.single("name").unwrap_or_default());
        let listed = match list.shows_documents() {
            true => services.list_as(ServiceRow::try_from).await,
            false => services.summaries_as(ServiceRow::try_from).await,
        };
        listed.map_err(|error| from_client(what, error))?.into_iter().collect::<Result<Vec<_>, _>>()
    };
    watch::show(&list, &client, fetch).await
}

async fn inspect(global: &GlobalArgs, service: &str, as_document: bool) -> Result<(), CommandError> {
    let what = format!("service {service} was not found");
    let client = connect(global, &what).await?;
    let found = fetch_service(&client, service, &what).await?;
    match as_document {
        true => document::print(global.output, &[document::of_service(found)?]),
        false => output::print_document(global.output, &ServiceView::try_from(found)?),
    }
}

/// The service with this name, id or id prefix.
async fn fetch_service(client: &Client, service: &str, what: &str) -> Result<v1::Service, CommandError> {
    let error = match client.services().get(service).await {
        Err(error) if error.is_not_found() => error,
        other => return other.map_err(|error| from_client(what, error)),
    };
    let names = client.services().names().await.unwrap_or_default();
    Err(not_found(what, error, service, names.iter().map(String::as_str)))
}

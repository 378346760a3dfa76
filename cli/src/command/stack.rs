//! `warren stack ...` and `warren deploy`.

mod build;
pub mod data;
pub mod deploy;
mod files;
pub mod forecast;
mod local_paths;
pub mod members;
pub mod plan;
mod remove;

use super::service::ps;
use crate::args::{GlobalArgs, ListingArgs, LogArgs, StackCommand, StackConfigArgs, StackDeployArgs};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output::{self, Listing};
use crate::view::service::ServiceRow;
use crate::view::stack::StackView;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: StackCommand) -> Result<(), CommandError> {
    match command {
        StackCommand::Config(args) => config(global, &args),
        StackCommand::Deploy(args) => deploy(global, args).await,
        StackCommand::Ls(listing) => ls(global, &listing).await,
        StackCommand::Services { name, listing } => services(global, name.as_str(), &listing).await,
        StackCommand::Ps { name, all, listing } => ps(global, name.as_str(), all, &listing).await,
        StackCommand::Logs { name, lines } => logs(global, name.as_str(), &lines).await,
        StackCommand::Rm(args) => remove::run(global, &args).await,
    }
}

pub async fn deploy(global: &GlobalArgs, args: StackDeployArgs) -> Result<(), CommandError> {
    deploy::run(global, &args).await
}

/// Prints the model after all that Warren would do with it was checked.
fn config(global: &GlobalArgs, args: &StackConfigArgs) -> Result<(), CommandError> {
    let what = "the Compose files were not accepted";
    let loaded = files::load_stack(&args.files, args.name.as_ref(), what)?;
    output::print_document(global.output, &loaded.project)
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "stacks were not listed";
    let list = Listing::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let members = members::fetch(&client, what).await?;
        let view = |name: String| {
            let of_stack = members.of(&name);
            StackView {
                name,
                services: of_stack.services.len(),
                networks: of_stack.networks.len(),
                volumes: of_stack.volumes.len(),
                secrets: of_stack.secrets.len(),
                configs: of_stack.configs.len(),
            }
        };
        Ok(members.names().into_iter().map(view).collect::<Vec<_>>())
    };
    watch::show(&list, &client, fetch).await
}

async fn services(global: &GlobalArgs, name: &str, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = format!("the services of stack {name} were not listed");
    let list = Listing::new(global.output, listing, &what)?;
    let client = connect(global, &what).await?;
    let fetch = async || {
        let found = members::fetch(&client, &what).await?.of(name).known(name, &what)?.services;
        found.into_iter().map(ServiceRow::try_from).collect::<Result<Vec<_>, _>>()
    };
    watch::show(&list, &client, fetch).await
}

async fn ps(global: &GlobalArgs, name: &str, all: bool, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = format!("the tasks of stack {name} were not listed");
    let list = Listing::new(global.output, listing, &what)?;
    let client = connect(global, &what).await?;
    let fetch = async || {
        let found = members::fetch(&client, &what).await?.of(name).known(name, &what)?;
        let ids: Vec<String> = found.services.into_iter().map(|service| service.id).collect();
        ps::fetch(&client, &list, &ids, all, &what).await
    };
    watch::show(&list, &client, fetch).await
}

async fn logs(global: &GlobalArgs, name: &str, lines: &LogArgs) -> Result<(), CommandError> {
    let what = format!("the logs of stack {name} were not read");
    let client = connect(global, &what).await?;
    let found = members::fetch(&client, &what).await?.of(name).known(name, &what)?;
    let services = found.services.iter().map(|service| members::service_name(service).to_owned()).collect();
    super::logs::services(global, services, None, lines).await
}

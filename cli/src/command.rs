//! Runs the commands, one module per noun.

mod cluster;
mod confirm;
mod image;
mod logs;
mod manager;
mod network;
mod node;
mod registry;
mod secret_object;
mod service;
mod task;
mod token;
mod version;
mod volume;

use std::collections::BTreeMap;

use warren_types::{SecretObjectKind, Violations};

use crate::args::{Cli, CliCommand};
use crate::failure::CommandError;

/// Runs a parsed command.
pub async fn run(cli: Cli) -> Result<(), CommandError> {
    let global = cli.global;
    let ended = match cli.command {
        CliCommand::Manager(command) => manager::run(&global, command).await,
        CliCommand::Worker(command) => warren_worker::process::run(command).await,
        CliCommand::Service(command) => service::run(&global, command).await,
        CliCommand::Task(command) => task::run(&global, command).await,
        CliCommand::Node(command) => node::run(&global, command).await,
        CliCommand::Token(command) => token::run(&global, command).await,
        CliCommand::Secret(command) => secret_object::run(&global, SecretObjectKind::Secret, command).await,
        CliCommand::Config(command) => secret_object::run(&global, SecretObjectKind::Config, command).await,
        CliCommand::Network(command) => network::run(&global, command).await,
        CliCommand::Volume(command) => volume::run(&global, command).await,
        CliCommand::Registry(command) => registry::run(&global, command).await,
        CliCommand::Image(command) => image::run(&global, command).await,
        CliCommand::Cluster(command) => cluster::run(&global, command).await,
        CliCommand::Version => version::run(&global),
    };
    global.connected_cluster.save_addresses();
    ended
}

/// Pairs of a repeatable flag; a duplicate key is a violation under `path`.
fn unique_pairs(path: &str, given: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Violations> {
    let (mut map, mut wrong) = (BTreeMap::new(), Violations::default());
    for (key, value) in given {
        let field = format!("{path}[{key:?}]");
        if map.insert(key, value).is_some() {
            wrong.add(field, "is given twice");
        }
    }
    wrong.into_result(map)
}

//! Runs the commands, one module per noun.

mod attach;
mod audit;
mod cluster;
mod completion;
mod confirm;
mod context;
mod copy;
mod documents;
mod environment;
mod events;
mod exec;
mod forward;
mod image;
mod inspect;
mod login;
mod logs;
mod man;
mod manager;
mod network;
mod node;
mod registry;
mod secret_object;
mod security_check;
mod service;
mod stack;
mod swarm_import;
mod system;
mod task;
mod token;
mod top;
mod upgrade;
mod user;
mod version;
mod volume;
mod why;

use std::collections::BTreeMap;
use std::process::ExitCode;

use warren_types::{SecretObjectKind, Violations};

use crate::args::{Cli, CliCommand};
use crate::failure::CommandError;

/// Runs a parsed command; only a command in a container has another exit code than success.
pub async fn run(cli: Cli) -> Result<ExitCode, CommandError> {
    let (global, success) = (cli.global, |()| ExitCode::SUCCESS);
    let ended = match cli.command {
        CliCommand::Manager(command) => manager::run(&global, command).await.map(success),
        CliCommand::Worker(command) => warren_worker::process::run(command).await.map(success),
        CliCommand::Service(command) => service::run(&global, command).await,
        CliCommand::Deploy(args) => stack::deploy(&global, args).await.map(success),
        CliCommand::Stack(command) => stack::run(&global, command).await.map(success),
        CliCommand::Apply(args) => documents::apply(&global, &args).await.map(success),
        CliCommand::Diff(args) => documents::diff(&global, &args).await,
        CliCommand::Rm(args) => documents::remove(&global, &args).await.map(success),
        CliCommand::Schema => documents::schema(&global).map(success),
        CliCommand::Task(command) => task::run(&global, command).await,
        CliCommand::Node(command) => node::run(&global, command).await.map(success),
        CliCommand::Token(command) => token::run(&global, command).await.map(success),
        CliCommand::User(command) => user::run(&global, command).await.map(success),
        CliCommand::Login(args) => login::run(&global, args).await.map(success),
        CliCommand::Secret(command) => {
            secret_object::run(&global, SecretObjectKind::Secret, command).await.map(success)
        }
        CliCommand::Config(command) => {
            secret_object::run(&global, SecretObjectKind::Config, command).await.map(success)
        }
        CliCommand::Network(command) => network::run(&global, command).await.map(success),
        CliCommand::Volume(command) => volume::run(&global, command).await.map(success),
        CliCommand::Registry(command) => registry::run(&global, command).await.map(success),
        CliCommand::Image(command) => image::run(&global, command).await.map(success),
        CliCommand::Cluster(command) => cluster::run(&global, command).await.map(success),
        CliCommand::System(command) => system::run(&global, command).await,
        CliCommand::Upgrade(args) => upgrade::run(&global, &args).await.map(success),
        CliCommand::Context(command) => context::run(&global, command).await.map(success),
        CliCommand::Events(args) => events::run(&global, args).await.map(success),
        CliCommand::Inspect { object } => inspect::run(&global, object).await,
        CliCommand::Top => top::run(&global).await,
        CliCommand::Why(args) => why::run(&global, args).await,
        CliCommand::ImportSwarm { socket } => swarm_import::run(&global, &socket).await,
        CliCommand::Completion { shell } => completion::script(shell).map(success),
        CliCommand::Man { directory } => man::run(directory).map(success),
        CliCommand::Complete { words } => completion::candidates(&global, &words).await.map(success),
        CliCommand::Version => version::run(&global).map(success),
    };
    global.connected_cluster.save().await;
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

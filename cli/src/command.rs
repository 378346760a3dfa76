//! What the commands do, by noun.

mod cluster;
mod image;
mod logs;
mod node;
mod service;
mod task;
mod token;
mod version;

use crate::args::{Cli, Command};
use crate::failure::Failure;

/// Does what the command line asks.
pub async fn run(cli: Cli) -> Result<(), Failure> {
    let global = cli.global;
    match cli.command {
        Command::Manager(command) => crate::node::run(command).await,
        Command::Worker(command) => warren_worker::process::run(command).await,
        Command::Service(command) => service::run(&global, command).await,
        Command::Task(command) => task::run(&global, command).await,
        Command::Node(command) => node::run(&global, command).await,
        Command::Token(command) => token::run(&global, command).await,
        Command::Image(command) => image::run(&global, command).await,
        Command::Cluster(command) => cluster::run(&global, command).await,
        Command::Version => version::run(&global),
    }
}

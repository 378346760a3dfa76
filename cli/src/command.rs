//! What the commands do, by noun.

mod cluster;
mod confirm;
mod content;
mod image;
mod logs;
mod manager;
mod node;
mod registry;
mod service;
mod task;
mod token;
mod version;
mod volume;

use std::collections::BTreeMap;

use warren_types::{ContentKind, Violations};

use crate::args::{Cli, Command};
use crate::failure::Failure;

/// Does what the command line asks.
pub async fn run(cli: Cli) -> Result<(), Failure> {
    let global = cli.global;
    let ended = match cli.command {
        Command::Manager(command) => manager::run(&global, command).await,
        Command::Worker(command) => warren_worker::process::run(command).await,
        Command::Service(command) => service::run(&global, command).await,
        Command::Task(command) => task::run(&global, command).await,
        Command::Node(command) => node::run(&global, command).await,
        Command::Token(command) => token::run(&global, command).await,
        Command::Secret(command) => content::run(&global, ContentKind::Secret, command).await,
        Command::Config(command) => content::run(&global, ContentKind::Config, command).await,
        Command::Volume(command) => volume::run(&global, command).await,
        Command::Registry(command) => registry::run(&global, command).await,
        Command::Image(command) => image::run(&global, command).await,
        Command::Cluster(command) => cluster::run(&global, command).await,
        Command::Version => version::run(&global),
    };
    global.talked_to.remember();
    ended
}

/// Pairs of a repeatable flag; a key that is given twice is told as a wrong field of `path`.
fn pairs(path: &str, given: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Violations> {
    let (mut map, mut wrong) = (BTreeMap::new(), Violations::default());
    for (key, value) in given {
        let place = format!("{path}[{key:?}]");
        if map.insert(key, value).is_some() {
            wrong.add(place, "is given twice");
        }
    }
    wrong.into_result(map)
}

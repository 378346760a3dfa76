//! `warren system ...`: the machine on which it runs. No manager is asked.

mod check;
mod install;
mod systemd;
mod unit;

use std::process::ExitCode;

use crate::args::{GlobalArgs, SystemCommand};
use crate::failure::CommandError;

pub async fn run(global: &GlobalArgs, command: SystemCommand) -> Result<ExitCode, CommandError> {
    match command {
        SystemCommand::Check(args) => check::run(global, args).await,
        SystemCommand::Install(args) => install::install(args).await.map(|()| ExitCode::SUCCESS),
        SystemCommand::Uninstall(args) => install::uninstall(args).await.map(|()| ExitCode::SUCCESS),
    }
}

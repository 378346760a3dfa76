//! Connects to a manager as the flags specify.

use std::path::PathBuf;
use std::time::Duration;

use warren_client::contexts::TargetSelection;
use warren_client::{Client, ClientTarget, ClockDifference, Contexts, Error};

use crate::args::GlobalArgs;
use crate::connected_cluster::ContextConnection;
use crate::failure::{CommandError, ExitKind};

/// Connects to a manager that the flags, the contexts file or the local socket specify. `what` is the failure summary.
pub async fn connect(global: &GlobalArgs, what: &str) -> Result<Client, CommandError> {
    let file = contexts_file(what)?;
    let connected = async {
        let selection = TargetSelection {
            context: global.context.clone(),
            managers: global.manager.clone(),
            socket: socket(),
        };
        let contexts = Contexts::load(&file)?;
        let context = contexts.selected_name(&selection).map(str::to_owned);
        let target = contexts.select(selection)?;
        let client =
            Client::connect(&target).await?.stale(global.stale).on_leaderless(print_leaderless_notice);
        let incarnation =
            context.as_ref().and_then(|name| contexts.get(name)).map_or(0, |context| context.incarnation);
        let client = client.with_known_incarnation(incarnation);
        if let Some(difference) = client.clock_difference() {
            print_clock_notice(difference);
        }
        if let (ClientTarget::Tcp { identity, .. }, Some(context)) = (target, context) {
            global.connected_cluster.set(ContextConnection {
                client: client.clone(),
                file: file.clone(),
                context,
                identity,
            });
        }
        Ok(client)
    };
    connected.await.map_err(|error: Error| crate::failure::from_client(what, error))
}

fn print_leaderless_notice() {
    eprintln!("waiting for a leader");
}

fn print_clock_notice(ClockDifference { by, is_ahead }: ClockDifference) {
    let by = humantime::format_duration(Duration::from_secs(by.as_secs()));
    let how = if is_ahead { "ahead of" } else { "behind" };
    eprintln!("the clock of this machine is {by} {how} that of the manager; set it right");
}

/// The contexts file, which need not exist.
pub fn contexts_file(what: &str) -> Result<PathBuf, CommandError> {
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || CommandError::new(ExitKind::Failed, what, "the path of the contexts file is unknown", hint);
    Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)
}

/// The socket of the manager on this machine, if it exists.
fn socket() -> Option<PathBuf> {
    let run_dir = std::env::var_os("WARREN_RUN_DIR")
        .map_or_else(|| PathBuf::from(warren_daemon::RUN_DIR), PathBuf::from);
    Some(run_dir.join("warren.sock")).filter(|socket| socket.exists())
}

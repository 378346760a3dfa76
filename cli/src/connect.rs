//! Connects to a manager as the flags specify, and stores the current addresses of the managers in the context.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use warren_client::contexts::TargetSelection;
use warren_client::{Client, ClientIdentity, ClientTarget, Contexts, Error};

use crate::args::GlobalArgs;
use crate::failure::{CommandError, ExitKind};

/// The cluster that a command connected to, if any. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ConnectedCluster(Arc<Mutex<Option<ContextConnection>>>);

/// A connection that was made with a context of the contexts file.
#[derive(Debug)]
struct ContextConnection {
    client: Client,
    file: PathBuf,
    context: String,
    identity: ClientIdentity,
}

impl ConnectedCluster {
    fn set(&self, known: ContextConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// Stores the addresses that the managers reported in the contexts file, if they changed. Runs after the command;
    /// if the file is in use or not writable, the next command tries again.
    pub fn save_addresses(&self) {
        let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let ContextConnection { client, file, context, identity } = known;
        match Contexts::update_addresses(
            &file,
            &context,
            &identity,
            (&client.manager_addresses(), client.incarnation()),
        ) {
            Ok(true) => tracing::debug!(context, "the context has the addresses of the managers"),
            Ok(false) => {}
            Err(error) => tracing::debug!(context, %error, "the addresses of the managers were not stored"),
        }
    }
}

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

/// The contexts file, which need not exist.
pub fn contexts_file(what: &str) -> Result<PathBuf, CommandError> {
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || CommandError::new(ExitKind::Failed, what, "the path of the contexts file is unknown", hint);
    Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)
}

/// The socket of the manager on this machine, if it exists.
fn socket() -> Option<PathBuf> {
    let run_dir = std::env::var_os("WARREN_RUN_DIR")
        .map_or_else(|| PathBuf::from(warren_process::RUN_DIR), PathBuf::from);
    Some(run_dir.join("warren.sock")).filter(|socket| socket.exists())
}

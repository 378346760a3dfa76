//! From the flags to a connection, and back: where the managers are by now.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use warren_client::contexts::Wish;
use warren_client::{Client, Contexts, Error, Identity, Target};

use crate::args::Global;
use crate::failure::{Exit, Failure};

/// The cluster that a command talked to, if it did. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct TalkedTo(Arc<Mutex<Option<Known>>>);

/// A cluster as the contexts file knows it.
#[derive(Debug)]
struct Known {
    client: Client,
    file: PathBuf,
    context: String,
    identity: Identity,
}

impl TalkedTo {
    fn note(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }

    /// Notes in the contexts file where the managers are by their own words. Nobody waits for that: it comes after
    /// everything else, does nothing where nothing is different, and leaves it to the next command where the file is in
    /// use or cannot be written.
    pub fn remember(&self) {
        let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let Known { client, file, context, identity } = known;
        match Contexts::follow(&file, &context, &identity, (&client.manager_addresses(), client.life())) {
            Ok(true) => tracing::debug!(context, "the context has the addresses of the managers"),
            Ok(false) => {}
            Err(error) => tracing::debug!(context, %error, "the addresses of the managers were not kept"),
        }
    }
}

/// A manager that the flags, the contexts file or this machine's socket name. `what` is what is not done if
/// there is none.
pub async fn connect(global: &Global, what: &str) -> Result<Client, Failure> {
    let file = contexts_file(what)?;
    let connected = async {
        let wish =
            Wish { context: global.context.clone(), managers: global.manager.clone(), socket: socket() };
        let contexts = Contexts::load(&file)?;
        let context = contexts.chosen(&wish).map(str::to_owned);
        let target = contexts.select(wish)?;
        let client = Client::connect(&target).await?.stale(global.stale).on_leaderless(tell_leaderless);
        let life = context.as_ref().and_then(|name| contexts.get(name)).map_or(0, |context| context.life);
        let client = client.having_seen(life);
        if let (Target::Tcp { identity, .. }, Some(context)) = (target, context) {
            global.talked_to.note(Known { client: client.clone(), file: file.clone(), context, identity });
        }
        Ok(client)
    };
    connected.await.map_err(|error: Error| crate::failure::of_client(what, error))
}

fn tell_leaderless() {
    eprintln!("waiting for the managers to have a leader");
}

/// The contexts file, which need not exist.
pub fn contexts_file(what: &str) -> Result<PathBuf, Failure> {
    let hint = "set HOME, or name the file in WARREN_CONTEXTS";
    let none = || Failure::new(Exit::Failed, what, "nothing says where the contexts file is", hint);
    Contexts::path(|name| std::env::var_os(name)).ok_or_else(none)
}

/// This machine's manager's socket, if there is one.
fn socket() -> Option<PathBuf> {
    let run_dir = std::env::var_os("WARREN_RUN_DIR")
        .map_or_else(|| PathBuf::from(warren_process::RUN_DIR), PathBuf::from);
    Some(run_dir.join("warren.sock")).filter(|socket| socket.exists())
}

//! From the flags to a connection.

use std::path::PathBuf;

use warren_client::contexts::Wish;
use warren_client::{Client, Contexts, Error};

use crate::args::Global;
use crate::failure::{Exit, Failure};

/// The manager that the flags, the contexts file or this machine's socket name. `what` is what is not done if
/// there is none.
pub async fn connect(global: &Global, what: &str) -> Result<Client, Failure> {
    let file = contexts_file(what)?;
    let connected = async {
        let wish =
            Wish { context: global.context.clone(), manager: global.manager.clone(), socket: socket() };
        let target = Contexts::load(&file)?.select(wish)?;
        Client::connect(&target).await
    };
    connected.await.map_err(|error: Error| crate::failure::of_client(what, error))
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

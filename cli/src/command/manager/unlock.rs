//! `warren manager unlock`: gives the unlock key to the locked manager of this machine, by its socket.

use tonic::Code;
use warren_client::{Client, ClientTarget, Error};
use warren_daemon::{DirArgs, NodeSection};

use crate::failure::{CommandError, ExitKind, from_client};
use crate::input;
use crate::node::StoredNode;

const WHAT: &str = "the manager was not unlocked";

pub async fn run(dirs: DirArgs) -> Result<(), CommandError> {
    let stored = StoredNode::load(&dirs.data_dir, WHAT)?.map(|stored| stored.node).unwrap_or_default();
    let run_dir = NodeSection { run_dir: dirs.run_dir, metrics_listen: None }.or(stored).run_dir();
    let target = ClientTarget::Unix { socket: run_dir.join("warren.sock") };
    let client = Client::connect(&target).await.map_err(|error| failed(error, "run it as root"))?;
    match client.manager_lock().status().await {
        Err(error) if is_unlocked(&error) => {
            let hint = "there is nothing to do; `warren manager ls` shows the managers";
            return Err(CommandError::new(ExitKind::Conflict, WHAT, "it is not locked", hint));
        }
        status => status.map_err(|error| failed(error, "run it as root"))?,
    };
    let key = input::read_unlock_key(WHAT)?;
    let hint = "give the key that was printed when autolock was turned on, or the key replaced last";
    match client.manager_lock().unlock(&key).await {
        // The answer to an earlier attempt was lost.
        Err(error) if is_unlocked(&error) => {}
        unlocked => drop(unlocked.map_err(|error| failed(error, hint))?),
    }
    eprintln!("the manager is unlocked, and starts");
    Ok(())
}

/// Whether the manager runs.
fn is_unlocked(error: &Error) -> bool {
    matches!(error, Error::Refused { problem } if problem.code == Code::Unimplemented)
}

fn failed(error: Error, hint: &str) -> CommandError {
    let failure = from_client(WHAT, error);
    match failure.kind {
        ExitKind::Usage | ExitKind::Denied => CommandError { hint: hint.to_owned(), ..failure },
        _ => failure,
    }
}

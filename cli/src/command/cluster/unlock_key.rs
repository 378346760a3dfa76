//! `warren cluster unlock-key`: prints the key that unlocks managers, and replaces it.

use warren_client::Client;
use warren_proto::v1;

use crate::args::GlobalArgs;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::view::joined_names;

pub async fn run(global: &GlobalArgs, rotate: bool) -> Result<(), CommandError> {
    let what = if rotate { "the unlock key was not replaced" } else { "the unlock key was not shown" };
    let client = connect(global, what).await?;
    let mut key = fetch(&client, what).await?;
    if key.key.is_empty() {
        let hint = "turn it on with `warren cluster update --autolock on`";
        return Err(CommandError::new(ExitKind::Conflict, what, "autolock is off", hint));
    }
    if rotate {
        let replaced = client.cluster().rotate_unlock_key(&key.id).await;
        key = replaced.map_err(|error| from_client(what, error))?;
    }
    print_pending(&key);
    output::print(&format!("{}\n", key.key))
}

/// Prints the key to standard error: the settings are the result of the command.
pub async fn print_after_turning_on(client: &Client) -> Result<(), CommandError> {
    let key = fetch(client, "the unlock key was not shown").await?;
    eprintln!(
        "after a restart, each manager waits for `warren manager unlock` with this key:\n  {}\nstore it where no \
         manager has its data; `warren cluster unlock-key` prints it while a manager is not locked",
        key.key
    );
    Ok(())
}

async fn fetch(client: &Client, what: &str) -> Result<v1::UnlockKey, CommandError> {
    client.cluster().unlock_key().await.map_err(|error| from_client(what, error))
}

/// Managers apply a change within seconds, but for those that are down.
fn print_pending(key: &v1::UnlockKey) {
    if !key.pending_managers.is_empty() {
        eprintln!(
            "not locked with this key yet: {}; keep the earlier key until they are, see `warren manager ls -o wide`",
            joined_names(&key.pending_managers, false)
        );
    }
}

//! `self`: the node of the manager that answers, as in Docker.

use warren_client::Client;

use crate::failure::{CommandError, ExitKind, from_client};

/// The word for the node of the manager that answers.
const SELF: &str = "self";

/// `node`, or the name of the node of the manager that answers.
pub async fn resolve(client: &Client, node: &str, what: &str) -> Result<String, CommandError> {
    if node != SELF {
        return Ok(node.to_owned());
    }
    let failed = |error| from_client(what, error);
    let own = client.cluster().info().await.map_err(failed)?.manager_id;
    let managers = client.managers().list().await.map_err(failed)?.managers;
    let manager = managers.into_iter().find(|manager| manager.id == own);
    manager.map(|manager| manager.node).filter(|node| !node.is_empty()).ok_or_else(|| {
        let why = "the manager that answers runs no tasks, so its machine is no node";
        CommandError::new(ExitKind::NotFound, what, why, "name a node; see `warren node ls`")
    })
}

//! Services that mount paths of the machine on which the command runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use warren_bootstrap::member_identity::{LocalMemberStatus, read_status};
use warren_client::Client;
use warren_compose::stack::StackObjects;
use warren_proto::v1;
use warren_security::{MembershipStore, NodeMembership};
use warren_types::spec::{ConstraintKey, ConstraintOperator};
use warren_types::{Constraint, Placement};

use crate::failure::{CommandError, ExitKind, from_client};

/// Where the data of the node of this machine is, if not in the usual place.
const DATA_DIR_VARIABLE: &str = "WARREN_DATA_DIR";

/// Lets services that mount paths of this machine run only on its node. Returns the paths that are to be created.
///
/// # Errors
/// This machine is not a node of the cluster, or does not fit the service, or a path is missing.
pub async fn pin(
    client: &Client,
    objects: &mut StackObjects,
    what: &str,
) -> Result<Vec<PathBuf>, CommandError> {
    let mut create = Vec::new();
    if objects.services.iter().all(|service| service.local_paths.is_empty()) {
        return Ok(create);
    }
    let nodes = client.nodes().list().await.map_err(|error| from_client(what, error))?;
    let ids = own_ids(&data_dir());
    let own = nodes.iter().find(|node| ids.contains(&node.id));
    let mut problems = Vec::new();
    for service in &mut objects.services {
        for local in &service.local_paths {
            let path = local.path.display();
            match (local.path.try_exists(), own) {
                (_, None) => problems.push(local.defined.problem(format!(
                    "{path} is a path of this machine, on which no node of the cluster runs; run the command as root \
                     on the node that has it, or give an absolute path, a config or a volume"
                ))),
                (_, Some(node)) if !meets_constraints(node, &service.spec.placement) => {
                    problems.push(local.defined.problem(format!(
                        "{path} is a path of node {}, which the placement of the service excludes; give an absolute \
                         path, a config or a volume",
                        node.name
                    )));
                }
                (Ok(true), Some(_)) => {}
                (Ok(false), Some(_)) if local.create => create.push(local.path.clone()),
                (Ok(false), Some(_)) => {
                    problems.push(local.defined.problem(format!("there is no {path}; create it")));
                }
                (Err(why), Some(_)) => {
                    problems.push(local.defined.problem(format!("{path} cannot be read: {why}")));
                }
            }
        }
        if let Some(node) = own.filter(|_| !service.local_paths.is_empty()) {
            let operator = ConstraintOperator::Equals(node.id.clone());
            service.spec.placement.constraints.push(Constraint { key: ConstraintKey::Id, operator });
        }
    }
    match problems.iter().map(ToString::to_string).collect::<Vec<_>>() {
        none if none.is_empty() => Ok(create),
        listed => Err(CommandError::new(ExitKind::Usage, what, listed.join("\n"), "correct what is listed")),
    }
}

/// Creates a directory at each path, as Docker does.
pub fn create(paths: &[PathBuf], what: &str) -> Result<(), CommandError> {
    for path in paths {
        let created = std::fs::create_dir_all(path);
        created.map_err(|why| {
            let why = format!("{} cannot be created: {why}", path.display());
            CommandError::new(ExitKind::Failed, what, why, "create it, or correct the path")
        })?;
        eprintln!("directory {} created", path.display());
    }
    Ok(())
}

fn data_dir() -> PathBuf {
    std::env::var_os(DATA_DIR_VARIABLE).map_or_else(|| warren_daemon::DATA_DIR.into(), PathBuf::from)
}

/// The ids of the node of this machine: as a worker, and as a manager with a worker.
fn own_ids(data_dir: &Path) -> Vec<String> {
    let worker = match MembershipStore::new(data_dir.join("worker")).load() {
        Ok(NodeMembership::Member { credentials, .. }) => Some(credentials.identity().id().to_owned()),
        _ => None,
    };
    let manager = match read_status(&data_dir.join("manager")) {
        Ok(LocalMemberStatus::Member(identity)) => identity.node.map(|node| node.to_string()),
        _ => None,
    };
    worker.into_iter().chain(manager).collect()
}

/// Whether a node meets the constraints of a service.
pub fn meets_constraints(node: &v1::Node, placement: &Placement) -> bool {
    let description = node.description.clone().unwrap_or_default();
    let role = match node.role() {
        v1::NodeRole::Manager => "manager",
        _ => "worker",
    };
    let address = description.address.parse::<SocketAddr>();
    let address = address.map_or(description.address.clone(), |address| address.ip().to_string());
    placement.constraints.iter().all(|Constraint { key, operator }| {
        operator.matches(match key {
            ConstraintKey::Id => Some(&node.id),
            ConstraintKey::Name => Some(&node.name),
            ConstraintKey::Ip => Some(&address),
            ConstraintKey::Role => Some(role),
            ConstraintKey::Arch => Some(&description.architecture),
            ConstraintKey::Os => Some(&description.os),
            ConstraintKey::Label(key) => node.labels.get(key).map(String::as_str),
            ConstraintKey::EngineLabel(key) => description.labels.get(key).map(String::as_str),
        })
    })
}

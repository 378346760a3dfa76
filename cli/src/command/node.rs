//! `warren node ...`

mod drain;
mod self_node;
mod verify;

use std::collections::BTreeMap;

use warren_client::{Client, NodeChange, TaskFilter};
use warren_types::spec::validate_taints;
use warren_types::{Availability, Suffrage, TaintSelector, Violations};

use crate::args::{GlobalArgs, ListingArgs, NodeCommand, NodeUpdateArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output::{self, ListContent, Listing};
use crate::view::document;
use crate::view::node::NodeView;
use crate::view::task::TaskView;
use crate::watch;

pub async fn run(global: &GlobalArgs, command: NodeCommand) -> Result<(), CommandError> {
    match command {
        NodeCommand::Ls(listing) => ls(global, &listing).await,
        NodeCommand::Inspect { node, pretty, document } => {
            pretty.check(global.output, "nothing was shown")?;
            inspect(global, &node, document.as_document).await
        }
        NodeCommand::Ps { nodes, listing } => ps(global, &nodes, &listing).await,
        NodeCommand::Promote { nodes } => set_suffrage(global, nodes, Suffrage::Voter).await,
        NodeCommand::Demote { nodes } => set_suffrage(global, nodes, Suffrage::Learner).await,
        NodeCommand::Update(args) => update(global, args).await,
        NodeCommand::Drain { node, detach } => {
            let availability = Some(Availability::Drain);
            update(global, NodeUpdateArgs { node, availability, detach, ..NodeUpdateArgs::default() }).await
        }
        NodeCommand::Rm { nodes, force } => rm(global, &nodes, force).await,
        NodeCommand::Verify { nodes } => verify::run(global, &nodes).await,
    }
}

async fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "nodes were not listed";
    let list = Listing::<NodeView>::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let nodes = client.nodes().list().await.map_err(|error| crate::failure::from_client(what, error))?;
        let mut nodes = nodes.into_iter().map(NodeView::try_from).collect::<Result<Vec<_>, _>>()?;
        nodes.retain(|node| list.matches(node));
        let notes = NodeView::down_reasons(&nodes).into_iter();
        let notes = notes.map(|(reason, names)| format!("DOWN: {}: {reason}", names.join(", "))).collect();
        Ok(ListContent::with_notes(nodes, notes))
    };
    watch::show(&list, &client, fetch).await
}

async fn inspect(global: &GlobalArgs, node: &str, as_document: bool) -> Result<(), CommandError> {
    let what = format!("node {node} was not found");
    let client = connect(global, &what).await?;
    let node = self_node::resolve(&client, node, &what).await?;
    if !as_document {
        return show(global, &client, &node, what).await;
    }
    let found = client.nodes().get(&node).await.map_err(|error| crate::failure::from_client(what, error))?;
    document::print(global.output, &[document::of_node(&found)?])
}

async fn show(global: &GlobalArgs, client: &Client, node: &str, what: String) -> Result<(), CommandError> {
    let found = client.nodes().get(node).await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &NodeView::try_from(found)?)
}

async fn ps(global: &GlobalArgs, nodes: &[String], listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let list = Listing::<TaskView>::new(global.output, listing, what)?;
    let client = connect(global, what).await?;
    let fetch = async || {
        let mut tasks = Vec::new();
        for node in nodes {
            // Fetched first, so that a missing node is an error.
            let failed = |error| crate::failure::from_client(what, error);
            let node = self_node::resolve(&client, node, what).await?;
            let node = client.nodes().get(&node).await.map_err(failed)?.id;
            let service = list.single("service").unwrap_or_default().to_owned();
            let filter = TaskFilter { service, node, ..TaskFilter::default() };
            for task in client.tasks().list(filter).await.map_err(failed)? {
                tasks.push(TaskView::try_from(task)?);
            }
        }
        tasks.sort_by_cached_key(TaskView::sort_key);
        Ok(tasks)
    };
    watch::show(&list, &client, fetch).await
}

async fn update(global: &GlobalArgs, args: NodeUpdateArgs) -> Result<(), CommandError> {
    let what = format!("node {} was not updated", args.node);
    let change = change(&args).map_err(|fields| CommandError::invalid_fields(&what, fields))?;
    let client = connect(global, &what).await?;
    let node = self_node::resolve(&client, &args.node, &what).await?;
    check_removed(&client, &node, &args, &what).await?;
    let updated = client.nodes().update(&node, &change).await;
    let updated = updated.map_err(|error| crate::failure::from_client(&what, error))?;
    eprintln!("node {} updated", updated.name);
    if args.availability == Some(Availability::Drain) && !args.detach {
        drain::until_empty(&client, &updated, global.timeout).await?;
    }
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", updated.name)),
        OutputFormat::Json | OutputFormat::Yaml => {
            let what = "the node is updated, but cannot be shown".to_owned();
            show(global, &client, &updated.id, what).await
        }
    }
}

/// Whether the node has each removed label, and taints that each removed selector selects. Managers ignore the others,
/// so that a request can be repeated.
async fn check_removed(
    client: &Client,
    node: &str,
    args: &NodeUpdateArgs,
    what: &str,
) -> Result<(), CommandError> {
    let NodeUpdateArgs { label_rm, taint_rm, .. } = args;
    if label_rm.is_empty() && taint_rm.is_empty() {
        return Ok(());
    }
    let node = client.nodes().get(node).await.map_err(|error| crate::failure::from_client(what, error))?;
    let node = NodeView::try_from(node)?;
    let refused = |missing: String, hint: &str| {
        let why = format!("node {} has no {missing}", node.name);
        Err(CommandError::new(ExitKind::NotFound, what, why, hint))
    };
    if let Some(missing) = label_rm.iter().find(|key| !node.labels.contains_key(*key)) {
        return match node.engine_labels.contains_key(missing) {
            true => refused(
                format!("label {missing} of users, only engine.labels.{missing}, which its agent reports"),
                "remove it from `label` in the node's data directory (node.toml), and restart its agent",
            ),
            false => refused(format!("label {missing}"), "see its labels with `warren node inspect`"),
        };
    }
    let is_missing = |selector: &&TaintSelector| !node.taints.iter().any(|taint| selector.matches(taint));
    match taint_rm.iter().find(is_missing) {
        Some(missing) => refused(format!("taint {missing}"), "see its taints with `warren node inspect`"),
        None => Ok(()),
    }
}

fn change(args: &NodeUpdateArgs) -> Result<NodeChange, Violations> {
    let NodeUpdateArgs { node: _, label_add: given, label_rm, availability, taint_add, taint_rm, detach: _ } =
        args;
    let mut wrong = Violations::default();
    let mut label_add = BTreeMap::new();
    for (key, value) in given {
        if label_add.insert(key.clone(), value.clone()).is_some() {
            wrong.add(format!("labels[{key:?}]"), "is given twice");
        }
        if label_rm.contains(key) {
            wrong.add(format!("labels[{key:?}]"), "is both added and removed; give one of the two");
        }
    }
    let label_rm = label_rm.iter().cloned().collect();
    validate_taints("taints", taint_add, &mut wrong);
    wrong.into_result(NodeChange {
        version: None,
        label_add,
        label_rm,
        availability: *availability,
        taint_add: taint_add.iter().cloned().collect(),
        taint_rm: taint_rm.iter().cloned().collect(),
    })
}

/// `node promote` and `node demote`: as in Swarm, but only for nodes that are managers already.
async fn set_suffrage(
    global: &GlobalArgs,
    nodes: Vec<String>,
    desired: Suffrage,
) -> Result<(), CommandError> {
    let what = "no node was changed";
    let client = connect(global, what).await?;
    let listed = client.managers().list().await.map_err(|error| crate::failure::from_client(what, error))?;
    let mut managers = Vec::new();
    for node in nodes {
        let node = self_node::resolve(&client, &node, what).await?;
        let found = client.nodes().get(&node).await;
        let name = found.map_err(|error| crate::failure::from_client(what, error))?.name;
        let manager = listed.managers.iter().find(|manager| manager.node == name);
        let manager = manager.ok_or_else(|| {
            let why = format!("node {name} is a worker, and only the machine itself can become a manager");
            let hint = "create a token with `warren token create --role manager`, run `warren worker leave` on the \
                        machine, then `warren manager join` with the token";
            CommandError::new(ExitKind::Conflict, what, why, hint)
        })?;
        managers.push(manager.id.clone());
    }
    super::manager::set_suffrage(global, &managers, desired).await
}

async fn rm(global: &GlobalArgs, nodes: &[String], force: bool) -> Result<(), CommandError> {
    let client = connect(global, "no node was removed").await?;
    for node in nodes {
        let removed = client.nodes().remove(node, force).await;
        let what = format!("node {node} was not removed");
        let removed = removed.map_err(|error| crate::failure::from_client(what, error))?;
        output::print(&format!("{}\n", removed.name))?;
    }
    Ok(())
}

//! `warren node ...`

mod drain;

use std::collections::BTreeMap;

use warren_client::{Client, NodeChange, TaskFilter};
use warren_types::{Availability, Violations};

use crate::args::{GlobalArgs, NodeCommand, NodeUpdateArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::node::NodeView;
use crate::view::now;
use crate::view::task::TaskView;

pub async fn run(global: &GlobalArgs, command: NodeCommand) -> Result<(), CommandError> {
    match command {
        NodeCommand::Ls => ls(global).await,
        NodeCommand::Inspect { node } => inspect(global, &node).await,
        NodeCommand::Ps { nodes } => ps(global, &nodes).await,
        NodeCommand::Update(args) => update(global, args).await,
        NodeCommand::Drain { node, detach } => {
            let availability = Some(Availability::Drain);
            let (label_add, label_rm) = (Vec::new(), Vec::new());
            update(global, NodeUpdateArgs { node, label_add, label_rm, availability, detach }).await
        }
        NodeCommand::Rm { nodes, force } => rm(global, &nodes, force).await,
    }
}

async fn ls(global: &GlobalArgs) -> Result<(), CommandError> {
    let what = "nodes were not listed";
    let client = connect(global, what).await?;
    let nodes = client.nodes().list().await.map_err(|error| crate::failure::from_client(what, error))?;
    let nodes = nodes.into_iter().map(NodeView::try_from).collect::<Result<Vec<_>, _>>()?;
    output::print_list(global.output, &nodes, now())?;
    for (reason, names) in NodeView::down_reasons(&nodes) {
        eprintln!("DOWN: {}: {reason}", names.join(", "));
    }
    Ok(())
}

async fn inspect(global: &GlobalArgs, node: &str) -> Result<(), CommandError> {
    let what = format!("node {node} was not found");
    let client = connect(global, &what).await?;
    show(global, &client, node, what).await
}

async fn show(global: &GlobalArgs, client: &Client, node: &str, what: String) -> Result<(), CommandError> {
    let found = client.nodes().get(node).await.map_err(|error| crate::failure::from_client(what, error))?;
    output::print_document(global.output, &NodeView::try_from(found)?)
}

async fn ps(global: &GlobalArgs, nodes: &[String]) -> Result<(), CommandError> {
    let what = "tasks were not listed";
    let client = connect(global, what).await?;
    let mut tasks = Vec::new();
    for node in nodes {
        // Fetched first, so that a missing node is an error.
        let failed = |error| crate::failure::from_client(what, error);
        let node = client.nodes().get(node).await.map_err(failed)?.id;
        let filter = TaskFilter { node, ..TaskFilter::default() };
        for task in client.tasks().list(filter).await.map_err(failed)? {
            tasks.push(TaskView::try_from(task)?);
        }
    }
    tasks.sort_by_cached_key(TaskView::sort_key);
    output::print_list(global.output, &tasks, now())
}

async fn update(global: &GlobalArgs, args: NodeUpdateArgs) -> Result<(), CommandError> {
    let what = format!("node {} was not updated", args.node);
    let change = change(&args).map_err(|fields| CommandError::invalid_fields(&what, fields))?;
    let client = connect(global, &what).await?;
    let updated = client.nodes().update(&args.node, &change).await;
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

fn change(args: &NodeUpdateArgs) -> Result<NodeChange, Violations> {
    let NodeUpdateArgs { node: _, label_add: given, label_rm, availability, detach: _ } = args;
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
    wrong.into_result(NodeChange { version: None, label_add, label_rm, availability: *availability })
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

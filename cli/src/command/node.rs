//! `warren node ...`

use crate::args::{Global, NodeCommand};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::view::node::NodeView;
use crate::view::now;

pub async fn run(global: &Global, command: NodeCommand) -> Result<(), Failure> {
    match command {
        NodeCommand::Ls => ls(global).await,
        NodeCommand::Inspect { node } => inspect(global, &node).await,
    }
}

async fn ls(global: &Global) -> Result<(), Failure> {
    let what = "nodes were not listed";
    let client = connect(global, what).await?;
    let nodes = client.nodes().list().await.map_err(|error| Failure::of_client(what, error))?;
    let nodes = nodes.into_iter().map(NodeView::try_from).collect::<Result<Vec<_>, _>>()?;
    output::list(global.output, &nodes, now())
}

async fn inspect(global: &Global, node: &str) -> Result<(), Failure> {
    let what = format!("node {node} was not found");
    let client = connect(global, &what).await?;
    let found = client.nodes().get(node).await.map_err(|error| Failure::of_client(what, error))?;
    output::document(global.output, &NodeView::try_from(found)?)
}

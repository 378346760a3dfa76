//! `warren cluster ...`

use std::collections::BTreeSet;

use warren_proto::v1;

use crate::args::{ClusterCommand, Global};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::view::cluster::{InfoView, LoopLine};
use crate::view::now;

pub async fn run(global: &Global, command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Info => info(global).await,
        ClusterCommand::Loops { name } => loops(global, name).await,
    }
}

async fn info(global: &Global) -> Result<(), Failure> {
    let what = "the cluster was not asked";
    let client = connect(global, what).await?;
    let info = client.cluster().info().await.map_err(|error| crate::failure::of_client(what, error))?;
    output::document(global.output, &InfoView::new(info, &client.address()))
}

async fn loops(global: &Global, name: Option<String>) -> Result<(), Failure> {
    let what = "background loops were not listed";
    let client = connect(global, what).await?;
    let answer = client.cluster().loops().await.map_err(|error| crate::failure::of_client(what, error))?;
    let v1::LoopsResponse { mut loops, silent } = answer;
    if let Some(name) = name {
        // Several managers and nodes have loops of the same name.
        let names: BTreeSet<String> = loops.iter().map(|known| known.name.clone()).collect();
        loops.retain(|known| known.name == name);
        if loops.is_empty() {
            let why = format!("there is no loop {name}; there are: {}", Vec::from_iter(names).join(", "));
            return Err(Failure::new(Exit::NotFound, what, why, "choose one of those"));
        }
    }
    let mut lines: Vec<LoopLine> = loops.into_iter().map(Into::into).collect();
    lines.extend(silent.into_iter().map(LoopLine::from));
    output::list(global.output, &lines, now())
}

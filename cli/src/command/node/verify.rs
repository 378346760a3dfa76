//! Has nodes verified again, and prints a report.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use warren_client::Client;
use warren_proto::v1;
use warren_types::VerificationState;

use crate::args::{GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::view::node::NodeView;
use crate::view::verification::report;
use crate::wait::is_transient;

const POLL_INTERVAL: Duration = Duration::from_millis(300);

pub async fn run(global: &GlobalArgs, nodes: &[String]) -> Result<(), CommandError> {
    let what = "no node was verified";
    let client = connect(global, what).await?;
    let mut names = Vec::new();
    for node in nodes {
        names.push(super::self_node::resolve(&client, node, what).await?);
    }
    let asked = client.nodes().verify(names).await.map_err(|error| from_client(what, error))?;
    let requests: BTreeMap<String, u64> =
        asked.iter().map(|node| (node.id.clone(), requested(node))).collect();
    let (verified, silent) = wait(&client, requests, global.timeout).await?;
    let mut views = verified.into_iter().map(NodeView::try_from).collect::<Result<Vec<_>, _>>()?;
    views.sort_by(|one, other| one.name.cmp(&other.name));
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => views.iter().try_for_each(print_report)?,
        OutputFormat::Json | OutputFormat::Yaml => output::print_document(global.output, &views)?,
    }
    if !silent.is_empty() {
        let names: Vec<&str> = asked
            .iter()
            .filter(|node| silent.contains_key(&node.id))
            .map(|node| node.name.as_str())
            .collect();
        let within = crate::view::duration(global.timeout);
        let why = format!("{} had no result after {within}", names.join(", "));
        let hint = "the cluster continues; use --timeout to wait longer; see `warren node ls`";
        return Err(CommandError::new(ExitKind::TimedOut, "not all nodes were verified", why, hint));
    }
    let is_verified = |node: &&NodeView| {
        let state = node.verification.as_ref().map(|verification| verification.state);
        state == Some(VerificationState::Verified)
    };
    let failed: Vec<&str> =
        views.iter().filter(|node| !is_verified(node)).map(|node| node.name.as_str()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let what = format!("{} of {} nodes failed the verification", failed.len(), views.len());
    let hint = "they get no new tasks until all checks pass, which are repeated";
    Err(CommandError::new(ExitKind::Failed, what, failed.join(", "), hint))
}

fn requested(node: &v1::Node) -> u64 {
    node.verification.as_ref().map_or(0, |verification| verification.requested)
}

/// Waits until the requests by node are answered. Returns these nodes, and the requests that are not.
async fn wait(
    client: &Client,
    mut requests: BTreeMap<String, u64>,
    within: Duration,
) -> Result<(Vec<v1::Node>, BTreeMap<String, u64>), CommandError> {
    let deadline = Instant::now() + within;
    let mut verified = Vec::new();
    while !requests.is_empty() && Instant::now() < deadline {
        match client.nodes().list().await {
            Ok(nodes) => {
                // A node that was removed meanwhile has no result.
                requests.retain(|id, _| nodes.iter().any(|node| node.id == *id));
                for node in nodes {
                    let answered = node.verification.as_ref().map_or(0, |verification| verification.answered);
                    if requests.get(&node.id).is_some_and(|request| answered >= *request) {
                        requests.remove(&node.id);
                        verified.push(node);
                    }
                }
            }
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(from_client("the result is unknown", error)),
        }
        if !requests.is_empty() {
            sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
        }
    }
    Ok((verified, requests))
}

fn print_report(node: &NodeView) -> Result<(), CommandError> {
    let Some(verification) = &node.verification else { return Ok(()) };
    let rule = "-".repeat(node.name.len());
    let state = verification.state.as_str();
    output::print(&format!("{}\n{rule}\n{}Status: {state}\n\n", node.name, report(&verification.checks)))
}

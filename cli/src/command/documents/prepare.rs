//! What documents would change: read, compared with the cluster, and checked by a manager.

use std::collections::BTreeMap;

use warren_client::{Client, NodeChange};
use warren_documents::{DocumentKind, Documents, NodeDocument};
use warren_proto::v1;
use warren_types::SecretObjectKind;
use warren_types::spec::DEFAULT_NETWORK;

use super::files;
use crate::args::{DocumentFileArgs, GlobalArgs, PruneArgs};
use crate::command::stack::data::SecretObjectData;
use crate::command::stack::forecast::{self, PlanForecast};
use crate::command::stack::members::{self, StackMembers, service_labels};
use crate::command::stack::plan::{DeployPlan, DeployScope, DeployStep, plan};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::view::document::{node_fields, user_labels};

/// Steps that a manager accepts.
pub struct PreparedSteps {
    pub client: Client,
    pub steps: Vec<DeployStep>,
    pub data: SecretObjectData,
    pub forecast: PlanForecast,
}

/// Compares the documents with the cluster. With `outcomes_only` it is not asked where tasks would run.
///
/// # Errors
/// Whatever prevents that all of it can be applied; nothing is changed.
pub async fn prepare(
    global: &GlobalArgs,
    files: &DocumentFileArgs,
    prune: &PruneArgs,
    outcomes_only: bool,
    what: &str,
) -> Result<PreparedSteps, CommandError> {
    let mut documents = files::read(&files.files, what)?;
    check_selector(&documents, prune, what)?;
    let data = files::read_data(&mut documents, what)?;
    let client = connect(global, what).await?;
    let existing = members::fetch(&client, what).await?;
    let nodes = match documents.nodes.is_empty() {
        true => Vec::new(),
        false => client.nodes().list().await.map_err(|error| from_client(what, error))?,
    };
    let plan = plan_documents(&documents, &existing, &nodes, prune)?;
    if !plan.conflicts.is_empty() {
        let hint = "correct what is listed and try again";
        return Err(CommandError::new(ExitKind::Conflict, what, plan.conflicts.join("\n"), hint));
    }
    let steps = plan.steps;
    let forecast = forecast::fetch(&client, &steps, &data, outcomes_only, what).await?;
    let refusals = forecast.refusals(&steps);
    if !refusals.is_empty() {
        let located = refusals.into_iter().map(|(i, why)| located(&documents, &steps, i, &why));
        let why = located.collect::<Vec<_>>().join("\n");
        return Err(CommandError::new(ExitKind::Conflict, what, why, "correct what is listed and try again"));
    }
    Ok(PreparedSteps { client, steps, data, forecast })
}

/// The refusal of a step, with the position of its document.
fn located(documents: &Documents, steps: &[DeployStep], index: usize, why: &str) -> String {
    let object = steps.get(index).map(forecast::object_of);
    let named = documents.names.iter().find(|named| object == Some((named.kind.noun(), named.name.as_str())));
    named.map_or_else(|| why.to_owned(), |named| format!("{}: {why}", named.defined.at))
}

/// Every document must have the labels by which others are removed.
fn check_selector(documents: &Documents, prune: &PruneArgs, what: &str) -> Result<(), CommandError> {
    let mut wrong = Vec::new();
    for named in documents.names.iter().filter(|named| named.kind != DocumentKind::Node) {
        let missing = prune.selector.iter().find(|(key, value)| named.labels.get(key) != Some(value));
        if let Some((key, value)) = missing {
            let message =
                format!("{} {} does not have the label {key}={value}", named.kind.noun(), named.name);
            wrong.push(named.defined.problem(format!("{message} of --selector; add it to its labels")));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(files::refused(what, &wrong)) }
}

fn plan_documents(
    documents: &Documents,
    existing: &StackMembers,
    nodes: &[v1::Node],
    prune: &PruneArgs,
) -> Result<DeployPlan, CommandError> {
    let is_selected = |labels: &BTreeMap<String, String>| {
        prune.prune && prune.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    let prunable = existing.services.iter().filter(|service| is_selected(&service_labels(service)));
    let mut plan = plan(DeployScope::Documents, &documents.objects, existing, prunable.cloned().collect());
    plan_nodes(&mut plan, &documents.nodes, nodes)?;

    let is_named = |kind: DocumentKind, name: &str| {
        documents.names.iter().any(|named| named.kind == kind && named.name == name)
    };
    for (kind, objects) in
        [(SecretObjectKind::Secret, &existing.secrets), (SecretObjectKind::Config, &existing.configs)]
    {
        let removed = objects.iter().filter(|object| {
            is_selected(&object.labels) && !is_named(DocumentKind::from(kind), &object.name)
        });
        plan.steps.extend(
            removed.map(|object| DeployStep::RemoveSecretObject { kind, found: Box::new(object.clone()) }),
        );
    }
    let volumes = existing.volumes.iter().filter(|volume| {
        prune.prune_volumes && is_selected(&volume.labels) && !is_named(DocumentKind::Volume, &volume.name)
    });
    plan.steps.extend(volumes.map(|volume| DeployStep::RemoveVolume { found: Box::new(volume.clone()) }));
    let networks = existing.networks.iter().filter(|network| {
        network.name != DEFAULT_NETWORK
            && is_selected(&network.labels)
            && !is_named(DocumentKind::Network, &network.name)
    });
    plan.steps.extend(networks.map(|network| DeployStep::RemoveNetwork { found: Box::new(network.clone()) }));
    Ok(plan)
}

/// Nodes come first: their labels and taints decide where tasks may run.
fn plan_nodes(
    plan: &mut DeployPlan,
    documents: &[NodeDocument],
    nodes: &[v1::Node],
) -> Result<(), CommandError> {
    let mut steps = Vec::new();
    for document in documents {
        let Some(found) = nodes.iter().find(|node| node.name == document.name.as_str()) else {
            let why = format!("there is no node {}; machines join with `warren worker join`", document.name);
            plan.conflict(&document.defined, why);
            continue;
        };
        let change = node_change(document, found)?;
        let is_same = change == NodeChange { version: change.version, ..NodeChange::default() };
        steps.push(match is_same {
            true => DeployStep::Keep { kind: "node", name: found.name.clone() },
            false => DeployStep::UpdateNode { change: Box::new(change), found: Box::new(found.clone()) },
        });
    }
    plan.steps.splice(0..0, steps);
    Ok(())
}

/// What makes a node as its document says.
fn node_change(document: &NodeDocument, found: &v1::Node) -> Result<NodeChange, CommandError> {
    let fields = node_fields(found)?;
    let mut change = NodeChange { version: Some(found.version), ..NodeChange::default() };
    if let Some(labels) = &document.labels {
        let old = user_labels(found);
        let differs = labels.iter().filter(|(key, value)| old.get(*key) != Some(*value));
        change.label_add = differs.map(|(key, value)| (key.clone(), value.clone())).collect();
        change.label_rm = old.keys().filter(|key| !labels.contains_key(*key)).cloned().collect();
    }
    change.availability =
        document.fields.availability.filter(|availability| fields.availability != Some(*availability));
    if let Some(taints) = &document.fields.taints {
        let old = fields.taints.unwrap_or_default();
        change.taint_add = taints.iter().filter(|taint| !old.contains(taint)).cloned().collect();
        let removed = old.iter().filter(|taint| !taints.contains(taint));
        // A taint is also the selector of exactly itself.
        change.taint_rm = removed.filter_map(|taint| taint.to_string().parse().ok()).collect();
    }
    Ok(change)
}

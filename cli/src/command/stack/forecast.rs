//! What the managers say that a deployment would do.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use warren_client::{Client, NodeChange};
use warren_compose::stack::{StackNetwork, StackSecretObject, StackVolume};
use warren_proto::v1;
use warren_proto::v1::forecast_write::Write;
use warren_types::{Id, NetworkId, SecretObjectId, SecretObjectKind, ServiceId, ServiceSpec, VolumeId};

use super::data::SecretObjectData;
use super::members::service_name;
use super::plan::{DeployStep, restarted_after};
use crate::args::OutputFormat;
use crate::failure::{CommandError, from_client};
use crate::output;
use crate::view::forecast::{ForecastTaskView, ForecastView};
use crate::view::now;
use crate::view::stack::StackStepView;

/// The most bytes of secrets and configs that are sent for a forecast; a request has at most 4 MiB.
const MAX_DATA: usize = 3 << 20;

/// The outcomes of steps, and what follows from them.
pub struct PlanForecast {
    /// By the index of the step. Steps without a write, and data beyond [`MAX_DATA`], have none.
    outcomes: BTreeMap<usize, v1::ForecastOutcome>,
    response: v1::ForecastResponse,
}

/// Asks for a forecast of the steps. With `outcomes_only` it tells only what would be refused or changed.
pub async fn fetch(
    client: &Client,
    steps: &[DeployStep],
    data: &SecretObjectData,
    outcomes_only: bool,
    what: &str,
) -> Result<PlanForecast, CommandError> {
    let (mut left, mut changed) = (MAX_DATA, BTreeSet::new());
    let writes = steps.iter().enumerate();
    let writes = writes.filter_map(|(i, step)| Some((i, write(step, data, &mut left, &mut changed)?)));
    let (steps, writes): (Vec<usize>, Vec<_>) =
        writes.map(|(i, write)| (i, v1::ForecastWrite { write: Some(write) })).unzip();
    if writes.is_empty() {
        return Ok(PlanForecast { outcomes: BTreeMap::new(), response: v1::ForecastResponse::default() });
    }
    let response = client.services().forecast(writes, outcomes_only).await;
    let mut response = response.map_err(|error| from_client(what, error))?;
    let outcomes = steps.into_iter().zip(std::mem::take(&mut response.outcomes)).collect();
    Ok(PlanForecast { outcomes, response })
}

/// The write of a step, while there are bytes `left` for its data. Adds to the names of `changed` services.
fn write(
    step: &DeployStep,
    data: &SecretObjectData,
    left: &mut usize,
    changed: &mut BTreeSet<String>,
) -> Option<Write> {
    // What the forecast creates exists nowhere else, so any id does.
    let id = || Id(rand::random());
    let mut bytes = |object: &StackSecretObject| {
        let bytes = data.get(&(object.kind.as_str(), object.name.clone()))?;
        *left = left.checked_sub(bytes.len())?;
        Some(Bytes::from_owner(bytes.clone()))
    };
    let kind = |kind: SecretObjectKind| i32::from(v1::SecretObjectKind::from(kind));
    Some(match step {
        DeployStep::UpdateNode { change, found } => Write::UpdateNode(node_request(change, &found.id)),
        DeployStep::CreateNetwork(StackNetwork { name, labels, internal, .. }) => {
            let (id, name, labels) = (NetworkId(id()).to_string(), name.to_string(), labels.clone());
            Write::CreateNetwork(v1::CreateNetworkRequest { id, name, labels, internal: *internal })
        }
        DeployStep::CreateVolume(StackVolume { name, labels, driver, options, node, .. }) => {
            Write::CreateVolume(v1::CreateVolumeRequest {
                id: VolumeId(id()).to_string(),
                name: name.to_string(),
                driver: driver.as_str().to_owned(),
                options: options.clone(),
                labels: labels.clone(),
                node: node.as_ref().map(ToString::to_string).unwrap_or_default(),
                reuse: false,
            })
        }
        DeployStep::CreateSecretObject(object) => Write::CreateSecretObject(v1::CreateSecretObjectRequest {
            id: SecretObjectId(id()).to_string(),
            kind: kind(object.kind),
            name: object.name.to_string(),
            labels: object.labels.clone(),
            data: bytes(object)?,
        }),
        DeployStep::UpdateSecretObject { object, found } => {
            let (kind, reference, data) = (kind(object.kind), found.id.clone(), bytes(object)?);
            Write::UpdateSecretObject(v1::UpdateSecretObjectRequest { kind, reference, version: None, data })
        }
        DeployStep::CreateService { spec, .. } => Write::CreateService(v1::CreateServiceRequest {
            id: ServiceId(id()).to_string(),
            spec: Some((&**spec).into()),
            allow_many_replicas: false,
        }),
        DeployStep::UpdateService { spec, after, found } | DeployStep::KeepService { spec, after, found } => {
            let force = restarted_after(after, changed).is_some();
            if matches!(step, DeployStep::KeepService { .. }) && !force {
                return None;
            }
            changed.insert(spec.name.to_string());
            Write::UpdateService(update_request(spec, found, force))
        }
        DeployStep::RemoveService { found } => Write::RemoveService(v1::RemoveServiceRequest {
            reference: found.id.clone(),
            version: None,
            force: false,
        }),
        // They are removed once nothing uses them.
        DeployStep::RemoveSecretObject { .. }
        | DeployStep::RemoveVolume { .. }
        | DeployStep::RemoveNetwork { .. }
        | DeployStep::Keep { .. } => return None,
    })
}

/// An update of a secret before it makes a new version of the service, so none is given.
fn update_request(spec: &ServiceSpec, found: &v1::Service, force: bool) -> v1::UpdateServiceRequest {
    v1::UpdateServiceRequest {
        reference: found.id.clone(),
        version: None,
        spec: Some(spec.into()),
        force,
        allow_many_replicas: false,
    }
}

fn node_request(change: &NodeChange, reference: &str) -> v1::UpdateNodeRequest {
    let NodeChange { version, label_add, label_rm, availability, taint_add, taint_rm } = change.clone();
    let availability = availability.map(v1::Availability::from).unwrap_or_default();
    v1::UpdateNodeRequest {
        reference: reference.to_owned(),
        version,
        label_add,
        label_rm: label_rm.into_iter().collect(),
        availability: availability.into(),
        taint_add: taint_add.iter().map(ToString::to_string).collect(),
        taint_rm: taint_rm.iter().map(ToString::to_string).collect(),
    }
}

/// Kind and name of the object of a step.
pub fn object_of(step: &DeployStep) -> (&str, &str) {
    match step {
        DeployStep::UpdateNode { found, .. } => ("node", found.name.as_str()),
        DeployStep::CreateNetwork(network) => ("network", network.name.as_str()),
        DeployStep::CreateVolume(volume) => ("volume", volume.name.as_str()),
        DeployStep::CreateSecretObject(object) | DeployStep::UpdateSecretObject { object, .. } => {
            (object.kind.as_str(), object.name.as_str())
        }
        DeployStep::Keep { kind, name } => (*kind, name.as_str()),
        DeployStep::CreateService { spec, .. } | DeployStep::UpdateService { spec, .. } => {
            ("service", spec.name.as_str())
        }
        DeployStep::KeepService { found, .. } | DeployStep::RemoveService { found } => {
            ("service", service_name(found))
        }
        DeployStep::RemoveSecretObject { kind, found } => (kind.as_str(), found.name.as_str()),
        DeployStep::RemoveVolume { found } => ("volume", found.name.as_str()),
        DeployStep::RemoveNetwork { found } => ("network", found.name.as_str()),
    }
}

impl PlanForecast {
    /// The steps that would be refused, by their index: why.
    pub fn refusals(&self, steps: &[DeployStep]) -> Vec<(usize, String)> {
        let refused = self.outcomes.iter().filter(|(_, outcome)| !outcome.refusal.is_empty());
        let why = |(i, outcome): (&usize, &v1::ForecastOutcome)| {
            let (kind, name) = steps.get(*i).map(object_of)?;
            let why = match outcome.violations.as_slice() {
                [] => outcome.refusal.clone(),
                violations => violations.join("; "),
            };
            Some((*i, format!("{kind} {name}: {why}")))
        };
        refused.filter_map(why).collect()
    }

    /// What a step would do: `create`, `update`, `restart`, `keep` or `remove`.
    pub fn action(&self, index: usize, step: &DeployStep) -> &'static str {
        match (step, self.outcomes.get(&index).map(|outcome| outcome.changed)) {
            (DeployStep::KeepService { .. }, Some(_)) => "restart",
            (DeployStep::Keep { .. } | DeployStep::KeepService { .. }, _) => "keep",
            (DeployStep::UpdateSecretObject { .. }, None) => "update if its data differs",
            (
                DeployStep::UpdateNode { .. }
                | DeployStep::UpdateSecretObject { .. }
                | DeployStep::UpdateService { .. },
                changed,
            ) => match changed {
                Some(false) => "keep",
                _ => "update",
            },
            (
                DeployStep::CreateNetwork(_)
                | DeployStep::CreateVolume(_)
                | DeployStep::CreateSecretObject(_)
                | DeployStep::CreateService { .. },
                _,
            ) => "create",
            (
                DeployStep::RemoveService { .. }
                | DeployStep::RemoveSecretObject { .. }
                | DeployStep::RemoveVolume { .. }
                | DeployStep::RemoveNetwork { .. },
                _,
            ) => "remove",
        }
    }

    /// Where each task would be, and which would be stopped.
    pub fn tasks(&self) -> Vec<ForecastTaskView> {
        let v1::ForecastResponse { slots, stops, .. } = &self.response;
        let mut tasks: Vec<_> = slots
            .iter()
            .map(ForecastTaskView::from)
            .chain(stops.iter().map(ForecastTaskView::from))
            .collect();
        tasks.sort_by_key(ForecastTaskView::sort_key);
        tasks
    }

    /// What the list of tasks leaves out.
    pub fn notes(&self) -> Vec<String> {
        let shortages = self.response.shortages.iter().map(|shortage| {
            let v1::ForecastShortage { service_name, replicas } = shortage;
            format!("{replicas} more replicas of service {service_name} get no task: there is no room")
        });
        let incomplete = Some(&self.response.incomplete_reason).filter(|reason| !reason.is_empty());
        shortages.chain(incomplete.map(|reason| format!("the forecast is not complete: {reason}"))).collect()
    }

    /// Prints what comes `before` the steps, the steps, and what follows from them.
    pub fn print(
        &self,
        format: OutputFormat,
        before: Vec<StackStepView>,
        steps: &[DeployStep],
    ) -> Result<(), CommandError> {
        let view = |(i, step): (usize, &DeployStep)| {
            let (kind, name) = object_of(step);
            StackStepView { action: self.action(i, step), kind: kind.to_owned(), name: name.to_owned() }
        };
        let steps: Vec<StackStepView> =
            before.into_iter().chain(steps.iter().enumerate().map(view)).collect();
        match format {
            OutputFormat::Table | OutputFormat::Wide => {
                output::print(&output::table_text(format, &steps, now()))?;
                self.print_tasks(format)
            }
            OutputFormat::Json | OutputFormat::Yaml => {
                let (tasks, notes) = (self.tasks(), self.notes());
                output::print_document(format, &ForecastView { steps, tasks, notes })
            }
        }
    }

    /// Prints what follows, after an empty line; nothing if nothing does.
    pub fn print_tasks(&self, format: OutputFormat) -> Result<(), CommandError> {
        let (tasks, notes) = (self.tasks(), self.notes());
        if !tasks.is_empty() {
            output::print(&format!("\n{}", output::table_text(format, &tasks, now())))?;
        }
        notes.iter().try_for_each(|note| output::print(&format!("{note}\n")))
    }
}

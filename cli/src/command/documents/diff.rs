//! `warren diff`: what `apply` would change, field by field, without the data of secrets.

use std::process::ExitCode;

use warren_documents::service_document;
use warren_proto::convert::stored_service_spec;

use super::prepare::{PreparedSteps, prepare};
use crate::args::{DiffArgs, GlobalArgs, OutputFormat};
use crate::command::stack::forecast::object_of;
use crate::command::stack::plan::DeployStep;
use crate::failure::{CommandError, ExitKind};
use crate::output;
use crate::view::document::node_changes;
use crate::view::forecast::{DiffView, ForecastView};
use crate::view::spec_diff::describe_changes;

/// 0 if nothing differs, 1 if something does.
pub async fn run(global: &GlobalArgs, args: &DiffArgs) -> Result<ExitCode, CommandError> {
    let compared = compare(global, args).await;
    compared.map_err(|error| match error.kind {
        ExitKind::Failed => CommandError { kind: ExitKind::NotCompared, ..error },
        _ => error,
    })
}

async fn compare(global: &GlobalArgs, args: &DiffArgs) -> Result<ExitCode, CommandError> {
    let what = "the documents were not compared";
    let prepared = prepare(global, &args.files, &args.prune, false, what).await?;
    let steps = prepared.steps.iter().enumerate();
    let differences: Vec<DiffView> = steps.filter_map(|(i, step)| difference(&prepared, i, step)).collect();
    let code = if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => {
            let texts: Vec<String> = differences.iter().map(DiffView::text).collect();
            output::print(&texts.concat())?;
            // Tasks that stay are of no interest if nothing changes.
            if !differences.is_empty() {
                prepared.forecast.print_tasks(global.output)?;
            }
        }
        OutputFormat::Json | OutputFormat::Yaml => {
            let (tasks, notes) = (prepared.forecast.tasks(), prepared.forecast.notes());
            output::print_document(global.output, &ForecastView { steps: differences, tasks, notes })?;
        }
    }
    Ok(code)
}

fn difference(prepared: &PreparedSteps, index: usize, step: &DeployStep) -> Option<DiffView> {
    let action = prepared.forecast.action(index, step);
    if action == "keep" {
        return None;
    }
    let (kind, name) = object_of(step);
    let (version, changes) = match step {
        DeployStep::UpdateService { spec, found, .. } => {
            let old = found.spec.clone().and_then(|spec| stored_service_spec(spec).ok());
            let old = old.map(|old| service_document(&old)).unwrap_or_default();
            (Some(found.version), describe_changes(&old, &service_document(spec)))
        }
        DeployStep::UpdateSecretObject { object, found } => {
            let data = prepared.data.get(&(object.kind.as_str(), object.name.clone()));
            let size = data.map_or(0, |data| data.len());
            (Some(found.version), vec![format!("the data differs: {} -> {size} bytes", found.size)])
        }
        DeployStep::UpdateNode { change, found } => (Some(found.version), node_changes(change)),
        DeployStep::RemoveService { found } => (Some(found.version), Vec::new()),
        DeployStep::RemoveSecretObject { found, .. } => (Some(found.version), Vec::new()),
        DeployStep::RemoveVolume { found } => (Some(found.version), Vec::new()),
        DeployStep::RemoveNetwork { found } => (Some(found.version), Vec::new()),
        _ => (None, Vec::new()),
    };
    Some(DiffView { action, kind: kind.to_owned(), name: name.to_owned(), version, changes })
}

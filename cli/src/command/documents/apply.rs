//! `warren apply`.

use super::prepare::{PreparedSteps, prepare};
use crate::args::{ApplyArgs, GlobalArgs, OutputFormat};
use crate::command::stack::data::SecretObjectData;
use crate::command::stack::deploy::{DeployReport, Deployment};
use crate::command::stack::plan::DeployStep;
use crate::failure::CommandError;
use crate::output;
use crate::view::now;

pub async fn run(global: &GlobalArgs, args: &ApplyArgs) -> Result<(), CommandError> {
    let what = "nothing was applied";
    let prepared = prepare(global, &args.files, &args.prune, !args.dry_run, what).await?;
    if args.dry_run {
        return prepared.forecast.print(global.output, Vec::new(), &prepared.steps);
    }
    let PreparedSteps { client, steps, mut data, forecast: _ } = prepared;
    let report = DeployReport::Documents { format: global.output, verb: "applied", done: Vec::new() };
    let mut deployment = Deployment::new(global, &client, report);
    let ended = execute(&mut deployment, steps, &mut data, args.detach).await;
    // Also after a failure: what was changed stays.
    if matches!(global.output, OutputFormat::Json | OutputFormat::Yaml) {
        output::print_list(global.output, &deployment.into_done(), now())?;
    }
    ended
}

async fn execute(
    deployment: &mut Deployment<'_>,
    steps: Vec<DeployStep>,
    data: &mut SecretObjectData,
    detach: bool,
) -> Result<(), CommandError> {
    for step in steps {
        deployment.execute(step, data).await?;
    }
    if detach { Ok(()) } else { deployment.wait().await }
}

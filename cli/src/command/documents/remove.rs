//! `warren rm`: removes what documents name, services first.

use warren_documents::{DocumentKind, NamedObject};
use warren_types::SecretObjectKind;

use super::files;
use crate::args::{DocumentRemoveArgs, GlobalArgs, OutputFormat};
use crate::command::stack::data::SecretObjectData;
use crate::command::stack::deploy::{DeployReport, Deployment};
use crate::command::stack::members::{self, StackMembers, service_name};
use crate::command::stack::plan::DeployStep;
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::now;

pub async fn run(global: &GlobalArgs, args: &DocumentRemoveArgs) -> Result<(), CommandError> {
    let what = "nothing was removed";
    let mut named = files::read(&args.files.files, what)?.names;
    // What others use is removed after them.
    named.sort_by_key(|named| std::cmp::Reverse(named.kind));
    let client = connect(global, what).await?;
    let existing = members::fetch(&client, what).await?;
    let report = DeployReport::Documents { format: global.output, verb: "removed", done: Vec::new() };
    let mut deployment = Deployment::new(global, &client, report);
    let ended = remove_all(&mut deployment, &named, &existing).await;
    if matches!(global.output, OutputFormat::Json | OutputFormat::Yaml) {
        output::print_list(global.output, &deployment.into_done(), now())?;
    }
    ended
}

async fn remove_all(
    deployment: &mut Deployment<'_>,
    named: &[NamedObject],
    existing: &StackMembers,
) -> Result<(), CommandError> {
    for object in named {
        match step(object, existing) {
            Some(step) => deployment.execute(step, &mut SecretObjectData::new()).await?,
            None if object.kind == DocumentKind::Node => {
                eprintln!("node {0} stays; remove it with `warren node rm {0}`", object.name);
            }
            None => eprintln!("{} {} does not exist", object.kind.noun(), object.name),
        }
    }
    deployment.wait().await
}

/// Removes the object; `None` if there is none, and for nodes.
fn step(NamedObject { kind, name, .. }: &NamedObject, existing: &StackMembers) -> Option<DeployStep> {
    Some(match kind {
        DocumentKind::Node => return None,
        DocumentKind::Service => {
            let found = existing.services.iter().find(|service| service_name(service) == name)?;
            DeployStep::RemoveService { found: Box::new(found.clone()) }
        }
        DocumentKind::Secret => {
            let found = existing.secrets.iter().find(|secret| secret.name == *name)?;
            DeployStep::RemoveSecretObject { kind: SecretObjectKind::Secret, found: Box::new(found.clone()) }
        }
        DocumentKind::Config => {
            let found = existing.configs.iter().find(|config| config.name == *name)?;
            DeployStep::RemoveSecretObject { kind: SecretObjectKind::Config, found: Box::new(found.clone()) }
        }
        DocumentKind::Volume => {
            let found = existing.volumes.iter().find(|volume| volume.name == *name)?;
            DeployStep::RemoveVolume { found: Box::new(found.clone()) }
        }
        DocumentKind::Network => {
            let found = existing.networks.iter().find(|network| network.name == *name)?;
            DeployStep::RemoveNetwork { found: Box::new(found.clone()) }
        }
    })
}

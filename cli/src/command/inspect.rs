//! `warren inspect`: finds the kind of an object, and runs the `inspect` of that kind.

use std::process::ExitCode;

use warren_proto::v1;
use warren_types::SecretObjectKind;

use super::{network, node, secret_object, service, task, volume};
use crate::args::{
    AsDocumentArgs, GlobalArgs, NetworkCommand, NodeCommand, ObjectSelector, PrettyArgs, SecretObjectCommand,
    ServiceCommand, TaskCommand, VolumeCommand,
};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};

pub async fn run(global: &GlobalArgs, object: ObjectSelector) -> Result<ExitCode, CommandError> {
    let what = format!("{} was not found", object.name);
    let client = connect(global, &what).await?;
    let found = client.cluster().why(&object.noun, &object.name).await;
    let v1::WhyResponse { kind, id, name, .. } = found.map_err(|error| from_client(&what, error))?;
    let (pretty, document) = (PrettyArgs::default(), AsDocumentArgs::default());
    let shown = match kind.as_str() {
        "service" => {
            let command = ServiceCommand::Inspect { service: id, pretty, document };
            return service::run(global, command).await;
        }
        "task" => return task::run(global, TaskCommand::Inspect { task: id, pretty }).await,
        "node" => node::run(global, NodeCommand::Inspect { node: id, pretty, document }).await,
        "network" => {
            network::run(global, NetworkCommand::Inspect { networks: vec![id], pretty, document }).await
        }
        "volume" => volume::run(global, VolumeCommand::Inspect { volumes: vec![id], pretty, document }).await,
        kind => {
            let kind = match kind {
                "secret" => SecretObjectKind::Secret,
                "config" => SecretObjectKind::Config,
                other => {
                    let why = format!("it is a {other}, which this version cannot show");
                    return Err(CommandError::new(
                        ExitKind::Failed,
                        what,
                        why,
                        "use the version of the managers",
                    ));
                }
            };
            let command = SecretObjectCommand::Inspect { names: vec![name], pretty, document };
            secret_object::run(global, kind, command).await
        }
    };
    shown.map(|()| ExitCode::SUCCESS)
}

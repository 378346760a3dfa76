//! `warren stack rm`.

use warren_types::SecretObjectKind;

use super::members::{self, is_bootstrap, service_name};
use crate::args::{GlobalArgs, StackRemoveArgs};
use crate::command::volume::{removal_failure, removal_message};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};

pub async fn run(global: &GlobalArgs, args: &StackRemoveArgs) -> Result<(), CommandError> {
    let what = "nothing was removed";
    let client = connect(global, what).await?;
    let all = members::fetch(&client, what).await?;
    // Every stack is known before any is removed.
    let mut stacks = Vec::new();
    for name in &args.names {
        stacks.push((name, all.of(name.as_str()).known(name.as_str(), what)?));
    }
    let mut services = stacks.iter().flat_map(|(_, stack)| &stack.services);
    if let Some(bootstrap) = services.find(|service| is_bootstrap(service)).filter(|_| !args.force) {
        let why = format!("service {} is a bootstrap service", service_name(bootstrap));
        return Err(CommandError::new(ExitKind::Conflict, what, why, "remove it too with --force"));
    }
    for (name, stack) in stacks {
        let mut goals = Vec::new();
        for service in &stack.services {
            let service_name = service_name(service);
            match client.services().remove(&service.id, None, args.force).await {
                // Removed by another client, or by an earlier attempt of this request.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    return Err(from_client(format!("service {service_name} was not removed"), error));
                }
                Ok(_) => {}
            }
            goals.push(ServiceGoal::new(service, WaitGoal::Gone));
        }
        // What they use can be removed only after them.
        wait_all(&client, &goals, global.timeout).await?;
        let kinds = [(SecretObjectKind::Secret, &stack.secrets), (SecretObjectKind::Config, &stack.configs)];
        for (kind, objects) in kinds {
            for object in objects {
                let removed = client.secret_objects(kind).remove(&object.id).await;
                removed
                    .map_err(|error| from_client(format!("{kind} {} was not removed", object.name), error))?;
                eprintln!("{kind} {} removed", object.name);
            }
        }
        for network in &stack.networks {
            let removed = client.networks().remove(&network.id).await;
            removed
                .map_err(|error| from_client(format!("network {} was not removed", network.name), error))?;
            eprintln!("network {} removed", network.name);
        }
        for volume in stack.volumes.iter().filter(|_| args.volumes) {
            let removed = client.volumes().remove(&volume.id, false).await;
            let removed = removed.map_err(|error| removal_failure(&volume.name, error))?;
            eprintln!("{}", removal_message(&removed, false));
        }
        if !args.volumes && !stack.volumes.is_empty() {
            let names: Vec<&str> = stack.volumes.iter().map(|volume| volume.name.as_str()).collect();
            eprintln!("the volumes {} remain; --volumes removes them", names.join(", "));
        }
        output::print(&format!("{name}\n"))?;
    }
    Ok(())
}

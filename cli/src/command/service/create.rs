//! `warren service create`.

use warren_types::{Id, ServiceId};

use super::seccomp_files::SeccompFiles;
use super::spec;
use super::warning::{warn_of_local_ports, warn_of_shadowed_instance};
use crate::args::{GlobalArgs, OutputFormat, ServiceCreateArgs};
use crate::command::environment;
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::view::service::ServiceView;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};

pub async fn run(global: &GlobalArgs, args: ServiceCreateArgs) -> Result<(), CommandError> {
    let name = args.name.as_ref().or(args.positional_name.as_ref()).cloned().unwrap_or_default();
    let what = format!("service {name} was not created");
    let env = environment::read(&args.additions, &what)?;
    let profiles = SeccompFiles::read(&args.spec.privileges, &what)?;
    let spec = spec::create(&name, &args, &env, &profiles);
    let spec = spec.map_err(|fields| CommandError::invalid_fields(&what, fields))?;

    let client = connect(global, &what).await?;
    profiles.create(&client, &what).await?;
    // Chosen once: the server recognizes a repeated create by the id.
    let id = ServiceId(Id(rand::random()));
    let created = client.services().allow_many_replicas(args.yes).create(id, &spec).await;
    let created = created.map_err(|error| crate::failure::from_client(&what, error))?;
    if !args.quiet {
        eprintln!("service {} created", spec.name);
        warn_of_shadowed_instance(&client, spec.name.as_str()).await;
        warn_of_local_ports(&client, &spec).await;
    }
    if !args.detach {
        let goal = ServiceGoal { quiet: args.quiet, ..ServiceGoal::new(&created, WaitGoal::Running) };
        wait_all(&client, &[goal], global.timeout).await?;
    }
    match global.output {
        OutputFormat::Table | OutputFormat::Wide => output::print(&format!("{}\n", created.id)),
        OutputFormat::Json | OutputFormat::Yaml => {
            let shown =
                super::fetch_service(&client, &created.id, "the service is created, but cannot be shown")
                    .await?;
            output::print_document(global.output, &ServiceView::try_from(shown)?)
        }
    }
}

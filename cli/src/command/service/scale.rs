//! `warren service scale`.

use warren_proto::convert::replicas;

use crate::args::{GlobalArgs, OutputFormat, ServiceScaleArgs};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output;
use crate::view::service::ServiceView;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};

pub async fn run(global: &GlobalArgs, args: ServiceScaleArgs) -> Result<(), CommandError> {
    let what = "nothing was scaled";
    let mut requests = Vec::new();
    for target in &args.targets {
        let desired = replicas(target.replicas.0);
        requests
            .push((&target.service, desired.map_err(|fields| CommandError::invalid_fields(what, fields))?));
    }
    let client = connect(global, what).await?;
    // Every service is fetched before any is scaled.
    let mut found = Vec::new();
    for (service, replicas) in requests {
        let service = super::fetch_service(&client, service, what).await?;
        if found.iter().any(|(_, earlier): &(u32, ServiceGoal)| earlier.id == service.id) {
            let why =
                format!("service {} is named twice", ServiceGoal::new(&service, WaitGoal::Running).name);
            return Err(CommandError::new(ExitKind::Usage, what, why, "name each service only once"));
        }
        let expected = ServiceGoal::of_existing(&client, &service, WaitGoal::Scaled).await;
        found.push((replicas, expected.map_err(|error| crate::failure::from_client(what, error))?));
    }
    let mut required = Vec::new();
    for (replicas, one) in found {
        let services = client.services().allow_many_replicas(args.yes);
        let (name, scaled) = (&one.name, services.scale(&one.id, replicas, None).await);
        let what = || format!("service {name} was not scaled");
        let scaled = scaled.map_err(|error| crate::failure::from_client(what(), error))?;
        eprintln!("service {name} scaled to {replicas}");
        required.push(one.after_write(&scaled));
    }
    if !args.detach {
        wait_all(&client, &required, global.timeout).await?;
    }
    if matches!(global.output, OutputFormat::Table | OutputFormat::Wide) {
        return Ok(());
    }
    let mut shown = Vec::new();
    for one in &required {
        let service =
            super::fetch_service(&client, &one.id, "the services are scaled, but cannot be shown").await?;
        shown.push(ServiceView::try_from(service)?);
    }
    output::print_document(global.output, &shown)
}

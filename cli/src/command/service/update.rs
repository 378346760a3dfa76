//! `warren service update`, `rollback` and `history`. An update can also resume a paused one.

use warren_client::Client;
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;

use super::seccomp_files::SeccompFiles;
use super::spec;
use super::warning::warn_of_local_ports;
use crate::args::{GlobalArgs, ListingArgs, OutputFormat, ServiceRollbackArgs, ServiceUpdateArgs};
use crate::command::environment;
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind};
use crate::output::{self, Listing};
use crate::view::revision::RevisionView;
use crate::view::service::ServiceView;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};
use crate::watch;

pub async fn run(global: &GlobalArgs, args: ServiceUpdateArgs) -> Result<(), CommandError> {
    let what = format!("service {} was not updated", args.service);
    let env = environment::read(&args.additions.0, &what)?;
    let profiles = SeccompFiles::read(&args.spec.privileges, &what)?;
    let client = connect(global, &what).await?;
    let found = super::fetch_service(&client, &args.service, &what).await?;
    let is_alone = args.resume || args.rollback;
    let old = found.spec.clone().ok_or_else(|| CommandError::unreadable_answer(&what, "it has no spec"))?;
    let old = stored_service_spec(old).map_err(|fields| CommandError::unreadable_answer(&what, fields))?;
    let new = spec::change(&old, &args, &env, &profiles);
    let new = new.map_err(|fields| CommandError::invalid_fields(&what, fields))?;
    if is_alone && new != old {
        let why = "--resume and --rollback cannot be combined with changes";
        let hint = "give them alone; a change starts an update of its own";
        return Err(CommandError::new(ExitKind::Usage, what, why, hint));
    }
    if args.rollback {
        let ServiceUpdateArgs { service, detach, .. } = args;
        return rollback(global, ServiceRollbackArgs { service, to: None, detach }).await;
    }
    if args.resume {
        return resume(global, &client, &found, args.detach, &what).await;
    }
    if new == old && !args.force {
        let hint =
            if is_paused(&found) { "--resume continues its update" } else { "--force replaces all tasks" };
        eprintln!("service {} is unchanged ({hint})", old.name);
        return print_service(global, &client, &found.id).await;
    }
    let desired = apply_change(&client, &found, args.detach, &what).await?;
    let desired = desired.map(|goal| ServiceGoal { quiet: args.quiet, ..goal });
    profiles.create(&client, &what).await?;
    let services = client.services().allow_many_replicas(args.yes);
    let updated = services.update(&found.id, &new, Some(found.version), args.force).await;
    let updated = updated
        .map_err(|error| with_conflict_hint(crate::failure::from_client(&what, error), &args.service))?;
    if !args.quiet {
        eprintln!("service {} updated: revision {}", new.name, updated.revision);
        if new.ports != old.ports {
            warn_of_local_ports(&client, &new).await;
        }
    }
    wait_and_print(global, &client, &updated, desired).await
}

/// A rollout stopped because its tasks failed.
fn is_paused(service: &v1::Service) -> bool {
    let state = service.rollout.as_ref().map(v1::Rollout::state);
    matches!(state, Some(v1::RolloutState::Paused | v1::RolloutState::RollbackPaused))
}

async fn resume(
    global: &GlobalArgs,
    client: &Client,
    service: &v1::Service,
    detach: bool,
    what: &str,
) -> Result<(), CommandError> {
    let name = service.spec.as_ref().map_or(service.id.as_str(), |spec| &spec.name);
    if !is_paused(service) {
        let why = "its update is not paused";
        return Err(CommandError::new(
            ExitKind::Conflict,
            what,
            why,
            format!("see `warren service inspect {name}`"),
        ));
    }
    let desired = apply_change(client, service, detach, what).await?;
    let resumed = client.services().resume(&service.id, Some(service.version)).await;
    let resumed =
        resumed.map_err(|error| with_conflict_hint(crate::failure::from_client(what, error), name))?;
    eprintln!("service {name} continues its update to revision {}", resumed.revision);
    wait_and_print(global, client, &resumed, desired).await
}

pub async fn rollback(global: &GlobalArgs, args: ServiceRollbackArgs) -> Result<(), CommandError> {
    let what = format!("service {} was not rolled back", args.service);
    let client = connect(global, &what).await?;
    let found = super::fetch_service(&client, &args.service, &what).await?;
    let desired = apply_change(&client, &found, args.detach, &what).await?;
    let back = client.services().rollback(&found.id, args.to, Some(found.version)).await;
    let back =
        back.map_err(|error| with_conflict_hint(crate::failure::from_client(&what, error), &args.service))?;
    let name = back.spec.as_ref().map_or(args.service.as_str(), |spec| &spec.name);
    eprintln!("service {name} rolled back: revision {}", back.revision);
    wait_and_print(global, &client, &back, desired).await
}

pub async fn history(global: &GlobalArgs, service: &str, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = format!("the history of service {service} was not found");
    let list = Listing::new(global.output, listing, &what)?;
    let client = connect(global, &what).await?;
    let fetch = async || {
        let revisions = client.services().history(service).await;
        RevisionView::all(revisions.map_err(|error| crate::failure::from_client(&what, error))?)
    };
    watch::show(&list, &client, fetch).await
}

/// Replaces the hint of a conflict.
fn with_conflict_hint(failure: CommandError, service: &str) -> CommandError {
    let hint = format!("check it with `warren service inspect {service}`, then retry");
    match failure.kind {
        ExitKind::Conflict => CommandError { hint, ..failure },
        _ => failure,
    }
}

/// The goal of an update; `None` with `--detach`. Created before the write, so that earlier failures are not counted.
async fn apply_change(
    client: &Client,
    service: &v1::Service,
    detach: bool,
    what: &str,
) -> Result<Option<ServiceGoal>, CommandError> {
    if detach {
        return Ok(None);
    }
    let desired = ServiceGoal::of_existing(client, service, WaitGoal::Updated).await;
    desired.map(Some).map_err(|error| crate::failure::from_client(what, error))
}

/// Waits for the goal, then prints the service.
async fn wait_and_print(
    global: &GlobalArgs,
    client: &Client,
    service: &v1::Service,
    desired: Option<ServiceGoal>,
) -> Result<(), CommandError> {
    if let Some(expected) = desired {
        let required = expected.after_write(service);
        wait_all(client, &[required], global.timeout).await?;
    }
    print_service(global, client, &service.id).await
}

async fn print_service(global: &GlobalArgs, client: &Client, id: &str) -> Result<(), CommandError> {
    if matches!(global.output, OutputFormat::Table | OutputFormat::Wide) {
        return output::print(&format!("{id}\n"));
    }
    let shown = super::fetch_service(client, id, "the service is updated, but cannot be shown").await?;
    output::print_document(global.output, &ServiceView::try_from(shown)?)
}

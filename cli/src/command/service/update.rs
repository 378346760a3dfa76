//! `warren service update`, `rollback` and `history`.

use warren_client::Client;
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;

use super::{environment, spec};
use crate::args::{Format, Global, RollbackArgs, UpdateArgs};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::view::now;
use crate::view::revision::RevisionView;
use crate::view::service::ServiceView;
use crate::wait::{Goal, Wanted, until_done};

pub async fn run(global: &Global, args: UpdateArgs) -> Result<(), Failure> {
    let what = format!("service {} was not updated", args.service);
    let env = environment::read(&args.added.0, &what)?;
    let client = connect(global, &what).await?;
    let found = super::find(&client, &args.service, &what).await?;
    let old = found.spec.clone().ok_or_else(|| Failure::not_understood(&what, "it has no spec"))?;
    let old = stored_service_spec(old).map_err(|fields| Failure::not_understood(&what, fields))?;
    let new = spec::change(&old, &args, &env).map_err(|fields| Failure::invalid(&what, fields))?;
    if new == old && !args.force {
        eprintln!("service {} is like that already (--force makes new tasks)", old.name);
        return show(global, &client, &found.id).await;
    }
    let wanted = wanted(&client, &found, args.detach, &what).await?;
    let updated = client.services().update(&found.id, &new, Some(found.version), args.force).await;
    let updated =
        updated.map_err(|error| in_the_way(crate::failure::of_client(&what, error), &args.service))?;
    eprintln!("service {} updated: revision {}", new.name, updated.revision);
    settle(global, &client, &updated, wanted).await
}

pub async fn rollback(global: &Global, args: RollbackArgs) -> Result<(), Failure> {
    let what = format!("service {} was not rolled back", args.service);
    let client = connect(global, &what).await?;
    let found = super::find(&client, &args.service, &what).await?;
    let wanted = wanted(&client, &found, args.detach, &what).await?;
    let back = client.services().rollback(&found.id, args.to, Some(found.version)).await;
    let back = back.map_err(|error| in_the_way(crate::failure::of_client(&what, error), &args.service))?;
    let name = back.spec.as_ref().map_or(args.service.as_str(), |spec| &spec.name);
    eprintln!("service {name} rolled back: revision {}", back.revision);
    settle(global, &client, &back, wanted).await
}

pub async fn history(global: &Global, service: &str) -> Result<(), Failure> {
    let what = format!("the history of service {service} was not found");
    let client = connect(global, &what).await?;
    let revisions = client.services().history(service).await;
    let revisions = revisions.map_err(|error| crate::failure::of_client(what, error))?;
    output::list(global.output, &RevisionView::all(revisions)?, now())
}

/// What to do when somebody else was faster, or the service does not let itself be changed.
fn in_the_way(failure: Failure, service: &str) -> Failure {
    let hint = format!("look at it with `warren service inspect {service}`, then try again");
    match failure.exit {
        Exit::Conflict => Failure { hint, ..failure },
        _ => failure,
    }
}

/// What is waited for when the service has changed, unless nobody waits. Asked before, so that what went wrong
/// then is told from what goes wrong because of the change.
async fn wanted(
    client: &Client,
    service: &v1::Service,
    detach: bool,
    what: &str,
) -> Result<Option<Wanted>, Failure> {
    if detach {
        return Ok(None);
    }
    let wanted = Wanted::of_old(client, service, Goal::Updated).await;
    wanted.map(Some).map_err(|error| crate::failure::of_client(what, error))
}

/// Waits until the tasks run what the service is now.
async fn settle(
    global: &Global,
    client: &Client,
    service: &v1::Service,
    wanted: Option<Wanted>,
) -> Result<(), Failure> {
    if let Some(wanted) = wanted {
        let wanted = wanted.made_by(service);
        until_done(client, &[wanted], global.timeout).await?;
    }
    show(global, client, &service.id).await
}

async fn show(global: &Global, client: &Client, id: &str) -> Result<(), Failure> {
    if matches!(global.output, Format::Table | Format::Wide) {
        return output::print(&format!("{id}\n"));
    }
    let shown = super::find(client, id, "the service is updated, but cannot be shown").await?;
    output::document(global.output, &ServiceView::try_from(shown)?)
}

//! `warren service scale`.

use warren_proto::convert::replicas;

use crate::args::{Format, Global, ScaleArgs};
use crate::connect::connect;
use crate::failure::{Exit, Failure};
use crate::output;
use crate::view::now;
use crate::view::service::ServiceView;
use crate::wait::{Goal, Wanted, until_done};

pub async fn run(global: &Global, args: ScaleArgs) -> Result<(), Failure> {
    let what = "nothing was scaled";
    let mut wishes = Vec::new();
    for wish in &args.wishes {
        let wanted = replicas(wish.replicas.0);
        wishes.push((&wish.service, wanted.map_err(|fields| Failure::invalid(what, fields))?));
    }
    let client = connect(global, what).await?;
    // All of them are found before any is changed.
    let mut found = Vec::new();
    for (service, replicas) in wishes {
        let service = super::find(&client, service, what).await?;
        if found.iter().any(|(_, earlier): &(u32, Wanted)| earlier.id == service.id) {
            let why = format!("service {} is named twice", Wanted::new(&service, Goal::Running).name);
            return Err(Failure::new(Exit::Usage, what, why, "name each service once"));
        }
        let wanted = Wanted::of_old(&client, &service, Goal::Scaled).await;
        found.push((replicas, wanted.map_err(|error| crate::failure::of_client(what, error))?));
    }
    let mut wanted = Vec::new();
    for (replicas, one) in found {
        let (name, scaled) = (&one.name, client.services().scale(&one.id, replicas, None).await);
        let what = || format!("service {name} was not scaled");
        let scaled = scaled.map_err(|error| crate::failure::of_client(what(), error))?;
        eprintln!("service {name} scaled to {replicas}");
        wanted.push(one.made_by(&scaled));
    }
    if !args.detach {
        until_done(&client, &wanted, global.timeout).await?;
    }
    if matches!(global.output, Format::Table | Format::Wide) {
        return Ok(());
    }
    let mut shown = Vec::new();
    for one in &wanted {
        let service = super::find(&client, &one.id, "the services are scaled, but cannot be shown").await?;
        shown.push(ServiceView::try_from(service)?);
    }
    output::list(global.output, &shown, now())
}

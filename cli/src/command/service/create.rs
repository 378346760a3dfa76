//! `warren service create`.

use warren_types::{Id, ServiceId};

use super::{environment, spec};
use crate::args::{CreateArgs, Format, Global};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::view::service::ServiceView;
use crate::wait::{Goal, Wanted, until_done};

pub async fn run(global: &Global, args: CreateArgs) -> Result<(), Failure> {
    let name = args.name.as_ref().or(args.positional_name.as_ref()).cloned().unwrap_or_default();
    let what = format!("service {name} was not created");
    let env = environment::read(&args.lists, &what)?;
    let spec = spec::create(&name, &args, &env).map_err(|fields| Failure::invalid(&what, fields))?;

    let client = connect(global, &what).await?;
    // Made once: a create that is sent again is the same create.
    let id = ServiceId(Id(rand::random()));
    let created = client.services().create(id, &spec).await;
    let created = created.map_err(|error| crate::failure::of_client(&what, error))?;
    eprintln!("service {} created", spec.name);
    if !args.detach {
        until_done(&client, &[Wanted::new(&created, Goal::Running)], global.timeout).await?;
    }
    match global.output {
        Format::Table | Format::Wide => output::print(&format!("{}\n", created.id)),
        Format::Json | Format::Yaml => {
            let shown =
                super::find(&client, &created.id, "the service is created, but cannot be shown").await?;
            output::document(global.output, &ServiceView::try_from(shown)?)
        }
    }
}

//! `warren service rm`.

use crate::args::{Global, RemoveArgs};
use crate::connect::connect;
use crate::failure::Failure;
use crate::output;
use crate::wait::{Goal, Wanted, until_done};

pub async fn run(global: &Global, args: RemoveArgs) -> Result<(), Failure> {
    let what = "nothing was removed";
    let client = connect(global, what).await?;
    // All of them are found before any is removed.
    let mut wanted: Vec<Wanted> = Vec::new();
    for service in &args.services {
        let service = super::find(&client, service, what).await?;
        if wanted.iter().all(|earlier| earlier.id != service.id) {
            wanted.push(Wanted::new(&service, Goal::Gone));
        }
    }
    for Wanted { id, name, .. } in &wanted {
        match client.services().remove(id, None).await {
            // It was there a moment ago: somebody else, or our own request that is repeated, removed it.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                return Err(crate::failure::of_client(format!("service {name} was not removed"), error));
            }
            Ok(_) => {}
        }
    }
    if !args.detach {
        until_done(&client, &wanted, global.timeout).await?;
    }
    let names: String = wanted.iter().map(|one| format!("{}\n", one.name)).collect();
    output::print(&names)
}

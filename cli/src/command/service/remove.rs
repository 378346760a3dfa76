//! `warren service rm`.

use crate::args::{GlobalArgs, ServiceRemoveArgs};
use crate::connect::connect;
use crate::failure::CommandError;
use crate::output;
use crate::wait::{ServiceGoal, WaitGoal, wait_all};

pub async fn run(global: &GlobalArgs, args: ServiceRemoveArgs) -> Result<(), CommandError> {
    let what = "nothing was removed";
    let client = connect(global, what).await?;
    // Every service is fetched before any is removed.
    let mut desired: Vec<ServiceGoal> = Vec::new();
    for service in &args.services {
        let service = super::fetch_service(&client, service, what).await?;
        if desired.iter().all(|earlier| earlier.id != service.id) {
            desired.push(ServiceGoal::new(&service, WaitGoal::Gone));
        }
    }
    for ServiceGoal { id, name, .. } in &desired {
        match client.services().remove(id, None, args.force).await {
            // Removed by another client, or by an earlier attempt of this request.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                return Err(crate::failure::from_client(format!("service {name} was not removed"), error));
            }
            Ok(_) => {}
        }
    }
    if !args.detach {
        wait_all(&client, &desired, global.timeout).await?;
    }
    let names: String = desired.iter().map(|one| format!("{}\n", one.name)).collect();
    output::print(&names)
}

//! Services of many tasks, by the API.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::RngExt;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_types::Id;

use super::group::{ManagerProcesses, SOON};

/// Between two checks of a service.
pub const LOOK: Duration = Duration::from_millis(4);

/// A client of the leader.
pub fn connect(group: &ManagerProcesses, runtime: &Runtime) -> anyhow::Result<ServicesClient<Channel>> {
    let address = group.addresses()[group.wait_all_voters()?];
    let channel = runtime.block_on(group.access().connect(address)).map_err(anyhow::Error::msg)?;
    Ok(ServicesClient::new(channel))
}

/// Creates a service and waits until all its tasks run.
pub async fn deploy(services: &mut ServicesClient<Channel>, replicas: u32) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let id = create(services, replicas).await?;
    wait_running(services, id, replicas).await?;
    Ok(start.elapsed())
}

/// Creates a service, and returns its id.
pub async fn create(services: &mut ServicesClient<Channel>, replicas: u32) -> anyhow::Result<String> {
    let id = Id(rand::rng().random()).to_string();
    let spec = v1::ServiceSpec {
        name: format!("s-{id}"),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: replicas.into() })),
        task: Some(v1::TaskSpec {
            image: "web:1".into(),
            resolve_image: v1::ImageResolver::Worker.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    services
        .create(v1::CreateServiceRequest { id: id.clone(), spec: Some(spec), allow_many_replicas: true })
        .await?;
    Ok(id)
}

/// Waits until that many tasks of the service run.
pub async fn wait_running(
    services: &mut ServicesClient<Channel>,
    id: String,
    replicas: u32,
) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let service = services.get(v1::Reference { reference: id.clone() }).await?.into_inner();
        if service.running == replicas {
            return Ok(());
        }
        ensure!(start.elapsed() < SOON, "{} of {replicas} tasks run after {SOON:?}", service.running);
        // Not a wait for a condition: the next check.
        tokio::time::sleep(LOOK).await;
    }
}

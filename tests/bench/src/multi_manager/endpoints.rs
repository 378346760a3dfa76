//! The time until all nodes know of a changed endpoint, and the bytes that it costs, in small and large clusters.

use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;

use super::ManagerBenchScale;
use super::fake_workers::FakeWorkers;
use super::group::ManagerProcesses;
use super::services::{connect, create, deploy, wait_running};
use crate::figures::BenchFigures;

const CHANGES: usize = 20;
const WITHDRAWALS: usize = 100;
/// Tasks of each service.
const TASKS: u32 = 3;

pub fn measure(
    figures: &mut BenchFigures,
    runtime: &Runtime,
    scale: ManagerBenchScale,
) -> anyhow::Result<()> {
    let (workers, many) = (scale.three.0, scale.three.1 / 5);
    for services in [10, many] {
        let group = ManagerProcesses::start(3)?;
        let mut fakes = FakeWorkers::join(group.warren(), &group.addresses(), workers)?;
        fakes.open()?;
        let mut client = connect(&group, runtime)?;
        // Each worker has a task, so each is told.
        runtime.block_on(deploy(&mut client, u32::try_from(workers * 2)?))?;
        let mut last = String::new();
        for _ in 0..services {
            last = runtime.block_on(create(&mut client, TASKS))?;
        }
        runtime.block_on(wait_running(&mut client, last.clone(), TASKS))?;
        let (mut delays, mut bytes) = (Vec::new(), Vec::new());
        for change in 0..CHANGES {
            let replicas = TASKS - (change as u32 + 1) % 2;
            let (reference, scaled) = (last.clone(), &mut client);
            let (delay, sent) = fakes.watch_network(|| {
                let request =
                    v1::ScaleServiceRequest { reference, replicas: replicas.into(), ..Default::default() };
                runtime.block_on(scaled.scale(request))?;
                Ok(())
            })?;
            delays.push(delay * 1000.0);
            bytes.push(sent);
            runtime.block_on(wait_running(&mut client, last.clone(), replicas))?;
        }
        let cluster = format!("3 managers, {workers} workers, {services} services");
        let what = format!("{cluster}: a changed endpoint");
        figures.add_samples(&format!("{what} is known to all, after the commit"), &delays, "ms", "< 200");
        figures.add_samples(&format!("{what}, bytes per worker"), &bytes, "B", "");
        let mut delays = Vec::new();
        for _ in 0..WITHDRAWALS {
            let scale = |client: &mut ServicesClient<Channel>, replicas: u32| {
                let reference = last.clone();
                let request =
                    v1::ScaleServiceRequest { reference, replicas: replicas.into(), ..Default::default() };
                runtime.block_on(client.scale(request)).map(drop).map_err(anyhow::Error::from)
            };
            delays.push(fakes.watch_withdrawal(|| scale(&mut client, TASKS - 1))? * 1000.0);
            scale(&mut client, TASKS)?;
            runtime.block_on(wait_running(&mut client, last.clone(), TASKS))?;
        }
        // The largest of so many is the 99th percentile or more.
        let what = format!("{cluster}: a withdrawal is acknowledged by all, after the commit");
        figures.add_samples(&what, &delays, "ms", "< 300");
    }
    Ok(())
}

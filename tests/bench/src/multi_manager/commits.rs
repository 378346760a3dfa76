//! Durable commits with several managers: services created over mutual TLS, each acknowledged by a quorum.

use std::time::{Duration, Instant};

use rand::RngExt;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_types::Id;

use super::group::ManagerProcesses;
use crate::figures::BenchFigures;

const ROUNDS: usize = 5;
const SPAN: Duration = Duration::from_secs(1);
const WRITERS: [usize; 3] = [1, 32, 256];
/// Connections that the writers share.
const CONNECTIONS: usize = 4;

pub fn measure(figures: &mut BenchFigures, runtime: &Runtime) -> anyhow::Result<()> {
    let (three, one) = (ManagerProcesses::start(3)?, ManagerProcesses::start(1)?);
    let leader = three.wait_all_voters()?;
    let at_leader = connect(&three, leader, runtime)?;
    let at_follower = connect(&three, (leader + 1) % 3, runtime)?;
    let alone = connect(&one, 0, runtime)?;
    for writers in WRITERS {
        let (mut rates, mut forwarded, mut single, mut p50) = (vec![], vec![], vec![], vec![]);
        for round in 0..=ROUNDS {
            let (leading, half) = rate(runtime, &at_leader, writers)?;
            let (following, _) = rate(runtime, &at_follower, writers)?;
            let (single_rate, _) = rate(runtime, &alone, writers)?;
            // The first round warms caches.
            if round > 0 {
                rates.push(leading);
                p50.push(half);
                forwarded.push(following);
                single.push(single_rate);
            }
        }
        let aim = if writers == 32 { "> 5000" } else { "" };
        figures.add_samples(
            &format!("3 managers, {writers} writers at the leader: commits"),
            &rates,
            "per second",
            aim,
        );
        figures.add_samples(&format!("3 managers, {writers} writers at the leader: p50"), &p50, "ms", "");
        figures.add_samples(
            &format!("3 managers, {writers} writers at a follower: commits"),
            &forwarded,
            "per second",
            "",
        );
        figures.add_samples(
            &format!("1 manager beside them, {writers} writers: commits"),
            &single,
            "per second",
            "",
        );
    }
    Ok(())
}

fn connect(
    group: &ManagerProcesses,
    place: usize,
    runtime: &Runtime,
) -> anyhow::Result<Vec<ServicesClient<Channel>>> {
    let (access, address) = (group.access(), group.addresses()[place]);
    let connect =
        || runtime.block_on(access.connect(address)).map(ServicesClient::new).map_err(anyhow::Error::msg);
    (0..CONNECTIONS).map(|_| connect()).collect()
}

/// Commits per second, and the median latency in milliseconds.
fn rate(
    runtime: &Runtime,
    clients: &[ServicesClient<Channel>],
    writers: usize,
) -> anyhow::Result<(f64, f64)> {
    let start = Instant::now();
    let writing: Vec<_> = (0..writers)
        .map(|writer| {
            let mut client = clients[writer % CONNECTIONS].clone();
            runtime.spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < SPAN {
                    let request =
                        v1::CreateServiceRequest { id: new_id(), spec: Some(spec()), ..Default::default() };
                    let begun = Instant::now();
                    client.create(request).await?;
                    latencies.push(begun.elapsed());
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for writer in writing {
        latencies.extend(runtime.block_on(writer)??);
    }
    let elapsed = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let half = latencies.get(latencies.len() / 2).map_or(0.0, Duration::as_secs_f64);
    Ok((latencies.len() as f64 / elapsed, half * 1000.0))
}

fn new_id() -> String {
    Id(rand::rng().random()).to_string()
}

/// A minimal service.
fn spec() -> v1::ServiceSpec {
    v1::ServiceSpec {
        name: format!("s-{}", new_id()),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: 0 })),
        task: Some(v1::TaskSpec {
            image: "web:1".into(),
            resolve_image: v1::ImageResolver::Worker.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

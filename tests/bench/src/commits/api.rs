//! A whole manager, used by the client crate over TCP with mutual TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use rand::RngExt;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use warren_client::{Client, ClientIdentity, ClientTarget, PrivateKeyPem};
use warren_log::LogEngine;
use warren_manager::{Manager, ManagerConfig};
use warren_registry::{RegistryClients, RegistrySettings};
use warren_types::{Id, ServiceId};

use super::driver::spec;
use super::{CommitBenchmark, CommitSample, SPAN};

/// Connections that the writers share.
const CONNECTIONS: usize = 4;

/// A manager and connections to it.
pub struct ApiBenchmark {
    clients: Vec<Client>,
    created: usize,
    // In this order: the manager closes its files before they are removed.
    manager: Manager,
    _sockets: TempDir,
    _data: TempDir,
}

impl ApiBenchmark {
    /// Creates a cluster in `data`.
    pub fn start(runtime: &Runtime, data: TempDir, engine: LogEngine) -> anyhow::Result<Self> {
        // A socket's path must be short, and needs no disk space.
        let sockets = tempfile::tempdir()?;
        let config = ManagerConfig {
            data_dir: data.path().join("data"),
            run_dir: sockets.path().to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: "127.0.0.1".parse().map_err(anyhow::Error::msg)?,
            name: "bench".parse().context("a name")?,
            cluster_ranges: vec!["10.210.0.0/16".parse().context("a range")?],
            data_plane: Default::default(),
            node: None,
            log_engine: engine,
            is_data_loss_accepted: false,
            docker: Default::default(),
            registries: Arc::new(RegistryClients::new(RegistrySettings::default())),
            unlock_key: None,
        };
        let manager = runtime.block_on(Manager::start(config, true))?;
        let identity = ClientIdentity {
            ca: manager.roots().pem().to_owned(),
            certificate: manager.admin().certificate_pem().to_owned(),
            key: PrivateKeyPem(manager.admin().key().pem().to_owned()),
        };
        let address = manager.address().to_string().parse()?;
        let target = ClientTarget::Tcp { addresses: vec![address], identity };
        let clients = (0..CONNECTIONS).map(|_| Ok(runtime.block_on(Client::connect(&target))?));
        let clients = clients.collect::<anyhow::Result<_>>()?;
        Ok(Self { clients, created: 0, manager, _sockets: sockets, _data: data })
    }
}

impl CommitBenchmark for ApiBenchmark {
    /// Every writer creates services without tasks.
    fn measure(&mut self, runtime: &Runtime, writers: usize) -> anyhow::Result<CommitSample> {
        let writes = || self.manager.store().read().log.writes;
        let (start, before, run) = (Instant::now(), writes(), self.created);
        let writing: Vec<_> = (0..writers)
            .map(|writer| {
                let client = self.clients[writer % CONNECTIONS].clone();
                runtime.spawn(async move {
                    let mut latencies = Vec::new();
                    while start.elapsed() < SPAN {
                        let spec = spec(&format!("s-{run}-{writer}-{}", latencies.len()))?;
                        let id = ServiceId(Id(rand::rng().random()));
                        let begun = Instant::now();
                        client.services().create(id, &spec).await?;
                        latencies.push(begun.elapsed());
                    }
                    anyhow::Ok(latencies)
                })
            })
            .collect();
        let mut latencies = Vec::new();
        for writer in writing {
            latencies.push(runtime.block_on(writer)??);
        }
        let sample = CommitSample::new(start.elapsed(), writes() - before, latencies);
        self.created += 1;
        Ok(sample)
    }
}

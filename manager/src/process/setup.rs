//! Computes the start configuration from the settings and the host. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;
use warren_daemon::{CommandError, ExitKind, HostInfo, MetricsListen};
use warren_docker_api::server::DockerEndpoints;
use warren_log::LogEngine;
use warren_registry::{InvalidHost, RegistryPolicy, RegistrySettings};
use warren_types::{DataPlane, ManagerAddress, NodeName};

use super::{AdvertiseAddress, ManagerSettings, START_FAILED};

/// Where a manager listens by default.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);

/// The start configuration, with all defaults resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerSetup {
    /// Directory of all persistent data.
    pub data_dir: PathBuf,
    /// Directory of the socket.
    pub run_dir: PathBuf,
    /// Listen address.
    pub listen: SocketAddr,
    /// Host that other machines use, without a port.
    pub advertise_host: String,
    /// Port that other machines use, if it is not the listen port.
    pub advertise_port: Option<u16>,
    /// Address ranges of task networks.
    pub cluster_ranges: Vec<Ipv4Net>,
    /// What carries packets between nodes of a new cluster.
    pub data_plane: DataPlane,
    /// Storage engine of the log.
    pub log_engine: LogEngine,
    /// Vote although the log lacks acknowledged entries.
    pub accept_data_loss: bool,
    /// Where Docker's API is served.
    pub docker: DockerEndpoints,
    /// Address of the metrics endpoint.
    pub metrics_listen: MetricsListen,
    /// Name of this manager.
    pub name: NodeName,
    /// How registries are asked what tags stand for.
    pub registries: RegistrySettings,
}

impl ManagerSetup {
    /// The configuration for this machine.
    ///
    /// # Errors
    /// The host name is not a valid name, and no other is given; or a registry is none.
    pub fn new(
        data_dir: PathBuf,
        reported: &ManagerSettings,
        machine: &HostInfo,
    ) -> Result<Self, CommandError> {
        let flags = &reported.flags;
        let name = machine.node_name(flags.name.as_ref())?;
        let listen = flags.listen.unwrap_or(DEFAULT_LISTEN);
        let own = Some(listen.ip()).filter(|ip| !ip.is_unspecified());
        let own = own.or(machine.address).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let host =
            flags.advertise.as_ref().map_or_else(|| own.to_string(), |advertise| advertise.host.clone());
        let port = flags.advertise.as_ref().and_then(|advertise| advertise.port);
        let ranges = match flags.cluster_range.as_slice() {
            [] => vec![Ipv4Net::new(Ipv4Addr::new(10, 210, 0, 0), 16).expect("16 is a prefix length")],
            given => given.to_vec(),
        };
        let log_engine = flags.log_engine.unwrap_or_default();
        let accept_data_loss = flags.accept_data_loss;
        let (run_dir, metrics_listen) = (reported.node.run_dir(), reported.node.metrics_listen());
        let socket = flags.docker_socket.as_ref().and_then(|socket| socket.path(&run_dir));
        let docker = DockerEndpoints { socket, listen: flags.docker_listen.and_then(|listen| listen.0) };
        Ok(Self {
            data_dir,
            run_dir,
            listen,
            advertise_host: host,
            advertise_port: port,
            cluster_ranges: ranges,
            data_plane: flags.data_plane.unwrap_or_default(),
            log_engine,
            accept_data_loss,
            docker,
            metrics_listen,
            name,
            registries: registries(&flags.insecure_registry)?,
        })
    }

    /// The advertised address, as the manager gets it.
    pub fn advertise(&self) -> AdvertiseAddress {
        AdvertiseAddress { host: self.advertise_host.clone(), port: self.advertise_port }
    }

    /// The manager's address before it listens.
    ///
    /// # Errors
    /// The port will be chosen at start and is not known yet.
    pub fn join_address(&self) -> Result<ManagerAddress, CommandError> {
        self.advertise().resolve(self.listen.port()).map_err(|error| {
            let why = format!("the address of this manager must be known before it joins: {error}");
            CommandError::new(ExitKind::Usage, START_FAILED, why, "give a port with --listen or --advertise")
        })
    }

    /// The manager's address once the port is known.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        with_port(&self.advertise_host, self.advertise_port.unwrap_or(bound.port()))
    }

    /// The address for a worker in the same process.
    pub fn local_address(bound: SocketAddr) -> String {
        match bound.ip() {
            ip if ip.is_unspecified() => with_port("127.0.0.1", bound.port()),
            _ => bound.to_string(),
        }
    }
}

/// A manager asks again after a while, so it gives up sooner than the pull of a node.
fn registries(insecure: &[String]) -> Result<RegistrySettings, CommandError> {
    let mut registries = RegistrySettings::default();
    registries.policy = RegistryPolicy {
        connect_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(10),
        max_tries: 2,
        ..RegistryPolicy::default()
    };
    registries.refuse_internal_addresses();
    for host in insecure {
        let invalid = |error: InvalidHost| {
            let hint = "correct --insecure-registry";
            CommandError::new(ExitKind::Usage, START_FAILED, error, hint)
        };
        registries.allow_plain_http(host).map_err(invalid)?;
    }
    Ok(registries)
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

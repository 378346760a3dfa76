//! From what was said and what the machine is to what is started. Pure.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::Ipv4Net;
use warren_log::Engine;
use warren_process::{Exit, Failure, Machine, MetricsListen};
use warren_types::{ManagerAddress, NodeName};

use super::context::told_when_it_joined;
use super::{Advertise, Begun, Told, WHAT, told_context};
use crate::manager::Manager;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);

/// What is started, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Holds everything that must survive.
    pub data_dir: PathBuf,
    /// Holds the socket.
    pub run_dir: PathBuf,
    /// Where the one port listens.
    pub listen: SocketAddr,
    /// Where other machines reach this one: a host without a port.
    pub host: String,
    /// The port other machines reach it at, if it is not the one listened on.
    pub port: Option<u16>,
    /// Addresses for tasks.
    pub ranges: Vec<Ipv4Net>,
    /// What keeps the log.
    pub log_engine: Engine,
    /// It votes even if its data is older than what it acknowledged.
    pub accept_data_loss: bool,
    /// Where metrics are served.
    pub metrics_listen: MetricsListen,
    /// What people call this manager.
    pub name: NodeName,
}

impl Plan {
    /// What to start on this machine.
    ///
    /// # Errors
    /// The machine's name is none for a manager, and no other is given.
    pub fn new(data_dir: PathBuf, told: &Told, machine: &Machine) -> Result<Self, Failure> {
        let flags = &told.flags;
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
        let (run_dir, metrics_listen) = (told.node.run_dir(), told.node.metrics_listen());
        Ok(Self {
            data_dir,
            run_dir,
            listen,
            host,
            port,
            ranges,
            log_engine,
            accept_data_loss,
            metrics_listen,
            name,
        })
    }

    /// Where others reach this one, as the manager is told.
    pub fn advertise(&self) -> Advertise {
        Advertise { host: self.host.clone(), port: self.port }
    }

    /// The manager's own address as others will reach it, before it listens.
    ///
    /// # Errors
    /// It will get a port that nobody can know.
    pub fn advertised_before(&self) -> Result<ManagerAddress, Failure> {
        self.advertise().at(self.listen.port()).map_err(|error| {
            let why = format!("where others reach this manager must be known: {error}");
            Failure::new(Exit::Usage, WHAT, why, "give a port with --listen or --advertise")
        })
    }

    /// The manager's own address as others reach it, once the port is known.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        with_port(&self.host, self.port.unwrap_or(bound.port()))
    }

    /// Where a worker in the same process reaches the manager.
    pub fn inner_address(bound: SocketAddr) -> String {
        match bound.ip() {
            ip if ip.is_unspecified() => with_port("127.0.0.1", bound.port()),
            _ => bound.to_string(),
        }
    }

    /// What to say once the manager runs: what became of it, where the admin context was written, and how other
    /// machines join. Nothing for one that was resumed.
    pub fn greeting(&self, manager: &Manager, begun: &Begun) -> Option<String> {
        let address = self.advertised(manager.address());
        let mut text = match begun {
            Begun::Resumed => return None,
            Begun::Founded => format!("cluster {} is served at {address}\n", manager.cluster()),
            Begun::Joined(text) => text.clone(),
        };
        let others = told_when_it_joined(&self.data_dir);
        let (roots, admin) = (manager.roots(), manager.admin());
        let context = told_context(&address, &others, manager.cluster(), &roots, &admin);
        text += context.as_deref().unwrap_or_default();
        let hint = |role: &str| {
            format!("  warren {role} join {address} --token $(warren token create --role {role} --quiet)\n")
        };
        text += &format!("other machines join with\n{}{}", hint("worker"), hint("manager"));
        Some(text)
    }
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

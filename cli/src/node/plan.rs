//! From what was said and what the machine is to what is started. Pure but for [`Machine::look`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use ipnet::Ipv4Net;
use warren_log::Engine;
use warren_types::{Bytes, MilliCpu, NodeName};

use crate::args::Settings;
use crate::connect::RUN_DIR;
use crate::failure::{Exit, Failure};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);

/// What is asked of the machine before anything is started.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name for itself.
    pub host_name: String,
    /// Where it would reach other machines from; `None` without a route.
    pub address: Option<IpAddr>,
    /// Whether this process may do what workers do.
    pub root: bool,
}

/// What is started, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
    pub listen: SocketAddr,
    /// Where other machines reach this one: a host without a port.
    pub host: String,
    /// The port other machines reach it at, if it is not the one listened on.
    pub port: Option<u16>,
    pub ranges: Vec<Ipv4Net>,
    pub log_engine: Engine,
    /// `None` runs no tasks here.
    pub worker: Option<WorkerPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPlan {
    pub name: NodeName,
    pub containerd_socket: Option<PathBuf>,
    pub cpus: Option<MilliCpu>,
    pub memory: Option<Bytes>,
}

impl Machine {
    /// Asks the system. Nothing is sent to find the route.
    pub fn look() -> Result<Self, Failure> {
        let host_name = nix::unistd::gethostname().map_err(|error| {
            Failure::new(
                Exit::Failed,
                "the node was not started",
                error,
                "give the node a name with --node-name",
            )
        })?;
        // 192.0.2.0/24 is documentation's own (RFC 5737): it is routed like any other and belongs to nobody.
        let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
            socket.local_addr()
        });
        let host_name = host_name.to_string_lossy().into_owned();
        let root = nix::unistd::geteuid().is_root();
        Ok(Self { host_name, address: route.ok().map(|address| address.ip()), root })
    }
}

impl Plan {
    /// What to start for these settings on this machine.
    pub fn new(data_dir: PathBuf, settings: &Settings, machine: &Machine) -> Result<Self, Failure> {
        let listen = settings.listen.unwrap_or(DEFAULT_LISTEN);
        let own = Some(listen.ip()).filter(|ip| !ip.is_unspecified());
        let own = own.or(machine.address).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let host =
            settings.advertise.as_ref().map_or_else(|| own.to_string(), |advertise| advertise.host.clone());
        let port = settings.advertise.as_ref().and_then(|advertise| advertise.port);
        let ranges = match settings.cluster_range.as_slice() {
            [] => vec![Ipv4Net::new(Ipv4Addr::new(10, 210, 0, 0), 16).expect("16 is a prefix length")],
            given => given.to_vec(),
        };
        let worker = match settings.manager_only {
            Some(true) => None,
            _ => Some(WorkerPlan::new(settings, machine)?),
        };
        let run_dir = settings.run_dir.clone().unwrap_or_else(|| PathBuf::from(RUN_DIR));
        let log_engine = settings.log_engine.unwrap_or_default();
        Ok(Self { data_dir, run_dir, listen, host, port, ranges, log_engine, worker })
    }

    /// The manager's own address as others reach it, once the port is known.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        with_port(&self.host, self.port.unwrap_or(bound.port()))
    }

    /// Where the worker in this process reaches the manager.
    pub fn inner_address(bound: SocketAddr) -> String {
        match bound.ip() {
            ip if ip.is_unspecified() => with_port("127.0.0.1", bound.port()),
            _ => bound.to_string(),
        }
    }
}

fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl WorkerPlan {
    fn new(settings: &Settings, machine: &Machine) -> Result<Self, Failure> {
        if !machine.root {
            let why = "running containers needs root";
            let hint = "run it as root, or give --manager-only";
            return Err(Failure::new(Exit::Denied, "the node was not started", why, hint));
        }
        let name = match &settings.node_name {
            Some(name) => name.clone(),
            None => machine.host_name.parse().map_err(|why| {
                let why = format!("the host name is no name for a node: {why}");
                Failure::new(Exit::Usage, "the node was not started", why, "give it one with --node-name")
            })?,
        };
        let (containerd_socket, cpus, memory) =
            (settings.containerd_socket.clone(), settings.cpus, settings.memory);
        Ok(Self { name, containerd_socket, cpus, memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { host_name: "m1".into(), address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7))), root: true }
    }

    fn plan(settings: &Settings, machine: &Machine) -> Result<Plan, Failure> {
        Plan::new("/d".into(), settings, machine)
    }

    #[test]
    fn defaults_make_a_hybrid_node_that_others_can_reach() {
        let plan = plan(&Settings::default(), &machine()).unwrap();
        assert_eq!(plan.listen.to_string(), "0.0.0.0:8080");
        assert_eq!(plan.run_dir, PathBuf::from("/run/warren"));
        assert_eq!(plan.ranges[0].to_string(), "10.210.0.0/16");
        assert_eq!(plan.advertised(plan.listen), "10.0.0.7:8080");
        assert_eq!(Plan::inner_address(plan.listen), "127.0.0.1:8080");
        assert_eq!(plan.worker.unwrap().name.as_str(), "m1");
    }

    #[test]
    fn one_address_is_listened_on_dialled_and_advertised() {
        let settings = Settings { listen: Some("10.0.0.8:9000".parse().unwrap()), ..Settings::default() };
        let plan = plan(&settings, &machine()).unwrap();
        assert_eq!(plan.advertised(plan.listen), "10.0.0.8:9000");
        assert_eq!(Plan::inner_address(plan.listen), "10.0.0.8:9000");
    }

    #[test]
    fn what_is_advertised_may_be_another_place() {
        let advertise = |text: &str| {
            let settings = Settings { advertise: Some(text.parse().unwrap()), ..Settings::default() };
            let plan = plan(&settings, &machine()).unwrap();
            plan.advertised(plan.listen)
        };
        assert_eq!(advertise("example.org"), "example.org:8080");
        assert_eq!(advertise("example.org:80"), "example.org:80");
        assert_eq!(advertise("fd00::1"), "[fd00::1]:8080");
        let lonely = Machine { address: None, ..machine() };
        let plan = plan(&Settings::default(), &lonely).unwrap();
        assert_eq!(plan.advertised(plan.listen), "127.0.0.1:8080");
    }

    #[test]
    fn only_a_worker_needs_root_and_a_name() {
        let user = Machine { root: false, ..machine() };
        let nameless = Machine { host_name: "_".into(), ..machine() };
        assert_eq!(plan(&Settings::default(), &user).unwrap_err().exit, Exit::Denied);
        assert_eq!(plan(&Settings::default(), &nameless).unwrap_err().exit, Exit::Usage);
        let manager_only = Settings { manager_only: Some(true), ..Settings::default() };
        assert_eq!(plan(&manager_only, &user).unwrap().worker, None);
        let named = Settings { node_name: Some("n".parse().unwrap()), ..Settings::default() };
        assert_eq!(plan(&named, &nameless).unwrap().worker.unwrap().name.as_str(), "n");
    }
}

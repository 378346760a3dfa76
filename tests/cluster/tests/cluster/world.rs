//! One manager with its directories, and every way to reach it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use tonic::transport::Channel;
use warren_client::{Client, Identity, PrivateKey, Target};
use warren_log::Engine;
use warren_manager::manager::StartError;
use warren_manager::{Config, LocalNode, Manager, Tuning};
use warren_security::{CertificateAuthority, Credentials, Role};
use warren_testkit::scratch::Scratch;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually_async;
use warren_types::{
    Bytes, Id, MilliCpu, Mode, NodeDescription, Placement, Resources, ServiceId, ServiceSpec, TaskSpec,
};

use crate::door;

/// For anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A stop that takes longer is a failure.
const STOP: Duration = Duration::from_secs(2);

pub struct World {
    manager: Option<Manager>,
    /// Holds the data directory, if that is to have little room.
    disk: Option<SmallDisk>,
    directory: Scratch,
    tuning: Tuning,
    /// What keeps the log from the next start on.
    pub engine: Engine,
}

/// Who dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Anonymous,
    Certified(Role),
    Local,
}

impl World {
    pub async fn new() -> Self {
        Self::tuned(Tuning::default()).await
    }

    pub async fn tuned(tuning: Tuning) -> Self {
        Self::made(tuning, Engine::default(), None).await
    }

    /// A manager whose log is kept by `engine`.
    pub async fn with_engine(engine: Engine) -> Self {
        Self::made(Tuning::default(), engine, None).await
    }

    /// A manager that has a disk of so many MiB for itself.
    pub async fn on_small_disk(engine: Engine, tuning: Tuning, mebibytes: u64) -> Self {
        Self::made(tuning, engine, Some(mebibytes)).await
    }

    async fn made(tuning: Tuning, engine: Engine, mebibytes: Option<u64>) -> Self {
        let directory = Scratch::new();
        let disk = mebibytes.map(|mebibytes| SmallDisk::new(directory.path(), mebibytes));
        let mut world = Self { manager: None, disk, directory, tuning, engine };
        world.start(true).await.unwrap();
        world
    }

    /// The disk of [`World::on_small_disk`].
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("this world has a disk of its own")
    }

    pub fn config(&self) -> Config {
        Config {
            data_dir: self.data_dir(),
            run_dir: self.directory.path().join("run"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: "127.0.0.1".parse().unwrap(),
            name: "n1".parse().unwrap(),
            ranges: vec!["10.210.0.0/16".parse().unwrap()],
            node: Some(LocalNode { description: description() }),
            log_engine: self.engine,
            accept_data_loss: false,
        }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.disk.as_ref().map_or(self.directory.path(), SmallDisk::path).join("data")
    }

    pub fn manager(&self) -> &Manager {
        self.manager.as_ref().expect("the manager runs")
    }

    pub async fn start(&mut self, create: bool) -> Result<(), StartError> {
        self.manager = Some(Manager::start_tuned(self.config(), create, self.tuning).await?);
        Ok(())
    }

    /// Stops the manager as its process would; quickly, whoever is connected.
    pub async fn stop(&mut self) {
        let stopping = self.manager.take().unwrap().stop();
        tokio::time::timeout(STOP, stopping).await.expect("a manager stops within two seconds");
        self.socket_is_gone().await;
    }

    /// Lets go of the manager without a word, and waits until its directory is free again.
    pub async fn drop_manager(&mut self) {
        drop(self.manager.take());
        self.socket_is_gone().await;
        let data_dir = self.data_dir();
        eventually_async(PATIENCE, "the data directory to be given back", || async {
            let lock = std::fs::File::open(data_dir.join("lock")).unwrap();
            lock.try_lock().map_err(|error| error.to_string())?;
            // Closing it is not enough while another test starts a program.
            lock.unlock().map_err(|error| error.to_string())
        })
        .await;
    }

    async fn socket_is_gone(&self) {
        let socket = self.socket();
        eventually_async(PATIENCE, "the socket to go", || async {
            if socket.exists() { Err("it is there".to_owned()) } else { Ok(()) }
        })
        .await;
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/warren.sock")
    }

    fn authority(&self) -> CertificateAuthority {
        CertificateAuthority::load(&self.data_dir().join("manager/ca.pem")).unwrap()
    }

    fn credentials(&self, role: Role) -> Credentials {
        match role {
            Role::Worker => self.manager().node().unwrap().1,
            Role::Admin => self.manager().admin(),
            Role::Manager | Role::Viewer => {
                let authority = self.authority();
                let identity = warren_security::Identity::new(authority.cluster(), role, "someone").unwrap();
                authority.issue(&identity, SystemTime::now()).unwrap()
            }
        }
    }

    /// A client on the unix socket.
    pub async fn local(&self) -> Client {
        Client::connect(&Target::Unix { socket: self.socket() }).await.unwrap()
    }

    /// A client with the administrator's certificate.
    pub async fn admin(&self) -> Client {
        let admin = self.manager().admin();
        let identity = Identity {
            ca: self.manager().roots().pem().to_owned(),
            certificate: admin.certificate_pem().to_owned(),
            key: PrivateKey(admin.key().pem().to_owned()),
        };
        let address = self.manager().address().to_string().parse().unwrap();
        Client::connect(&Target::Tcp { addresses: vec![address], identity }).await.unwrap()
    }

    /// A bare connection.
    pub async fn channel(&self, caller: Caller) -> Channel {
        match caller {
            Caller::Local => door::dial_socket(&self.socket()).await.unwrap(),
            Caller::Certified(role) => self.channel_as(Some(&self.credentials(role))).await,
            Caller::Anonymous => self.channel_as(None).await,
        }
    }

    /// A bare connection of whoever these credentials are of.
    pub async fn channel_as(&self, credentials: Option<&Credentials>) -> Channel {
        let manager = self.manager();
        door::dial(manager.address(), &manager.roots(), credentials).await.unwrap()
    }
}

pub fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources { cpu: MilliCpu(4000), memory: Bytes(8 << 30) },
        disk: Bytes(64 << 30),
        os: "linux".into(),
        labels: Default::default(),
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "scripted".into(),
        version: "0.1.0".into(),
        address: "127.0.0.1".into(),
    }
}

pub fn new_id() -> ServiceId {
    ServiceId(Id(rand::rng().random()))
}

pub fn spec(name: &str, replicas: u32) -> ServiceSpec {
    ServiceSpec {
        name: name.parse().unwrap(),
        labels: Default::default(),
        mode: Mode::Replicated { replicas },
        task: TaskSpec::new("web:1".parse().unwrap()),
        ports: Vec::new(),
        placement: Placement::default(),
        replace_after: Default::default(),
    }
}

//! A machine that is a manager, or was one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::Channel;
use warren_client::JoinToken;
use warren_log::Engine;
use warren_manager::manager::StartError;
use warren_manager::process::{JoinWish, Joined, join};
use warren_manager::{Config, LocalNode, Manager, Tuning};
use warren_process::Failure;
use warren_security::{Credentials, Roots};
use warren_testkit::ports;
use warren_testkit::scratch::Scratch;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually_async;
use warren_types::ManagerAddress;

use crate::door;
use crate::world::{PATIENCE, description};

/// A stop that takes longer is a failure. Whoever leads hands over first.
const STOP: Duration = Duration::from_secs(4);

pub struct Host {
    pub name: String,
    pub tuning: Tuning,
    /// Holds the data directory, if that is to have little room.
    disk: Option<SmallDisk>,
    /// What keeps its log from the next start on.
    pub engine: Engine,
    /// Whether its machine runs tasks as well, from the next start on.
    pub hybrid: bool,
    directory: Scratch,
    port: u16,
    manager: Option<Manager>,
}

impl Host {
    pub fn new(name: &str, tuning: Tuning) -> Self {
        let (directory, port) = (Scratch::new(), ports::free());
        let (name, engine) = (name.to_owned(), Engine::default());
        Self { name, tuning, disk: None, engine, hybrid: false, directory, port, manager: None }
    }

    /// A host whose data directory has a disk of so many MiB for itself.
    pub fn on_small_disk(name: &str, tuning: Tuning, mebibytes: u64) -> Self {
        let host = Self::new(name, tuning);
        let disk = SmallDisk::new(host.directory.path(), mebibytes);
        Self { disk: Some(disk), ..host }
    }

    /// The disk of [`Host::on_small_disk`].
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("this host has a disk of its own")
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub fn advertised(&self) -> ManagerAddress {
        address_of(self.address())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.disk.as_ref().map_or(self.directory.path(), SmallDisk::path).join("data")
    }

    pub fn config(&self) -> Config {
        Config {
            data_dir: self.data_dir(),
            run_dir: self.directory.path().join("run"),
            listen: self.address(),
            advertise: self.advertised().into(),
            name: self.name.parse().unwrap(),
            ranges: vec!["10.210.0.0/16".parse().unwrap()],
            node: self.hybrid.then(|| LocalNode { description: description() }),
            log_engine: self.engine,
            accept_data_loss: false,
        }
    }

    /// Whether its manager runs.
    pub fn is_up(&self) -> bool {
        self.manager.is_some()
    }

    pub fn manager(&self) -> &Manager {
        self.manager.as_ref().expect("this manager runs")
    }

    /// For those who wait for its end.
    pub fn manager_mut(&mut self) -> &mut Manager {
        self.manager.as_mut().expect("this manager runs")
    }

    pub async fn start(&mut self, create: bool) -> Result<(), StartError> {
        loop {
            match Manager::start_tuned(self.config(), create, self.tuning).await {
                // A process that another test has just begun holds for a moment all that this one has open.
                Err(StartError::Log(warren_log::Error::InUse { .. })) if !self.is_up() => {
                    self.is_free().await
                }
                started => {
                    self.manager = Some(started?);
                    return Ok(());
                }
            }
        }
    }

    /// Stops the manager as its process would.
    pub async fn stop(&mut self) {
        let stopping = self.manager.take().unwrap().stop();
        tokio::time::timeout(STOP, stopping).await.expect("a manager stops soon");
        self.is_free().await;
    }

    /// Lets go of the manager without a word.
    pub async fn let_go(&mut self) {
        drop(self.manager.take());
        self.is_free().await;
    }

    /// Becomes a manager, as `warren manager join` does, through the manager at `through`. It does not run yet.
    pub async fn join(&self, through: SocketAddr, token: &JoinToken) -> Result<Joined, Failure> {
        self.join_as(through, token, &self.advertised()).await
    }

    /// The same, and says that it will be reached at `address`.
    pub async fn join_as(
        &self,
        through: SocketAddr,
        token: &JoinToken,
        address: &ManagerAddress,
    ) -> Result<Joined, Failure> {
        let wish = JoinWish {
            data_dir: &self.data_dir(),
            manager: &address_of(through),
            token: &token.reveal(),
            name: &self.name.parse().unwrap(),
            address,
            listen: Some(self.address()),
        };
        join(wish).await
    }

    /// What its manager shows.
    pub fn credentials(&self) -> Credentials {
        Credentials::load(&self.data_dir().join("manager/manager.pem")).unwrap()
    }

    /// Nobody uses its directory and its port any more.
    async fn is_free(&self) {
        let lock = self.data_dir().join("lock");
        eventually_async(PATIENCE, "the data directory to be given back", || async {
            let lock = std::fs::File::open(&lock).map_err(|error| error.to_string())?;
            lock.try_lock().map_err(|error| error.to_string())?;
            // Closing it is not enough while another test starts a program.
            lock.unlock().map_err(|error| error.to_string())?;
            std::net::TcpListener::bind(self.address()).map_err(|error| error.to_string())
        })
        .await;
    }

    /// As after the loss of its disk.
    pub fn lose_disk(&mut self) {
        assert!(!self.is_up());
        std::fs::remove_dir_all(self.data_dir()).unwrap();
    }

    pub async fn channel(&self, roots: &Roots, credentials: Option<&Credentials>) -> Channel {
        door::dial(self.address(), roots, credentials).await.unwrap()
    }
}

fn address_of(address: SocketAddr) -> ManagerAddress {
    address.to_string().parse().unwrap()
}

//! The machine of a manager, present or former.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use tonic::transport::Channel;
use warren_client::JoinToken;
use warren_daemon::CommandError;
use warren_log::LogEngine;
use warren_manager::locked::LockedManager;
use warren_manager::manager::ManagerStartError;
use warren_manager::process::{JoinParams, ManagerJoinOutcome, join};
use warren_manager::server::ListenError;
use warren_manager::{LocalNode, Manager, ManagerConfig, ManagerTuning};
use warren_security::seal::KeyFiles;
use warren_security::{Credentials, LocalSocketError, Roots, UnlockKey};
use warren_testkit::ports;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually_async;
use warren_types::ManagerAddress;

use crate::dial;
use crate::fake_registry::FakeRegistry;
use crate::fixture::{STOP, WAIT_DEADLINE, description};

pub struct ManagerHost {
    pub name: String,
    pub tuning: ManagerTuning,
    /// The small disk of the data directory, if any.
    disk: Option<SmallDisk>,
    /// The log engine from the next start on.
    pub engine: LogEngine,
    /// Whether the machine runs tasks as well, from the next start on.
    pub hybrid: bool,
    /// What opens its keys, from the next start on.
    pub unlock_key: Option<UnlockKey>,
    directory: ScratchDir,
    port: u16,
    manager: Option<Manager>,
}

impl ManagerHost {
    pub fn new(name: &str, tuning: ManagerTuning) -> Self {
        let (directory, port) = (ScratchDir::new(), ports::allocate());
        let (name, engine) = (name.to_owned(), LogEngine::default());
        let (hybrid, unlock_key, manager) = (false, None, None);
        Self { name, tuning, disk: None, engine, hybrid, unlock_key, directory, port, manager }
    }

    /// A host whose data directory has its own disk of that many MiB.
    pub fn on_small_disk(name: &str, tuning: ManagerTuning, mebibytes: u64) -> Self {
        let host = Self::new(name, tuning);
        let disk = SmallDisk::new(host.directory.path(), mebibytes);
        Self { disk: Some(disk), ..host }
    }

    /// The disk of [`ManagerHost::on_small_disk`].
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

    pub fn config(&self) -> ManagerConfig {
        ManagerConfig {
            data_dir: self.data_dir(),
            run_dir: self.directory.path().join("run"),
            listen: self.address(),
            advertise: self.advertised().into(),
            name: self.name.parse().unwrap(),
            cluster_ranges: vec!["10.210.0.0/16".parse().unwrap()],
            data_plane: Default::default(),
            node: self.hybrid.then(|| LocalNode { description: description(), taints: Default::default() }),
            log_engine: self.engine,
            is_data_loss_accepted: false,
            docker: Default::default(),
            registries: Arc::new(FakeRegistry),
            unlock_key: self.unlock_key.clone(),
        }
    }

    /// Whether its manager runs.
    pub fn is_running(&self) -> bool {
        self.manager.is_some()
    }

    pub fn manager(&self) -> &Manager {
        self.manager.as_ref().expect("this manager runs")
    }

    /// Waits until the manager has recorded the address that it advertises, some time after it joined.
    pub async fn address_recorded(&self) {
        let file = self.data_dir().join("manager").join("advertised-address");
        eventually_async(WAIT_DEADLINE, "the advertised address to be recorded", || async {
            if file.exists() { Ok(()) } else { Err(format!("there is no {}", file.display())) }
        })
        .await;
    }

    /// Resolves when the manager ends.
    pub fn manager_mut(&mut self) -> &mut Manager {
        self.manager.as_mut().expect("this manager runs")
    }

    pub async fn start(&mut self, create: bool) -> Result<(), ManagerStartError> {
        loop {
            match Manager::start_with_tuning(self.config(), create, self.tuning).await {
                // A child that another test has just started may still hold the open files of this process.
                Err(ManagerStartError::Log(warren_log::Error::InUse { .. })) if !self.is_running() => {
                    self.is_free().await
                }
                // The same for the listeners of a start that failed.
                Err(ManagerStartError::Listen(ListenError::Socket(LocalSocketError::InUse(_)))) => {
                    self.is_free().await
                }
                Err(ManagerStartError::Listen(ListenError::Listen { source, .. }))
                    if source.kind() == std::io::ErrorKind::AddrInUse =>
                {
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

    /// Drops the manager without a shutdown.
    pub async fn drop_manager(&mut self) {
        drop(self.manager.take());
        self.is_free().await;
    }

    /// Joins as a manager, as `warren manager join` does, through the manager at `through`. It does not run
    /// yet.
    pub async fn join(
        &self,
        through: SocketAddr,
        token: &JoinToken,
    ) -> Result<ManagerJoinOutcome, CommandError> {
        self.join_as(through, token, &self.advertised()).await
    }

    /// The same, with the advertised address `address`.
    pub async fn join_as(
        &self,
        through: SocketAddr,
        token: &JoinToken,
        address: &ManagerAddress,
    ) -> Result<ManagerJoinOutcome, CommandError> {
        let request = JoinParams {
            data_dir: &self.data_dir(),
            manager: &address_of(through),
            token: &token.reveal(),
            name: &self.name.parse().unwrap(),
            address,
            listen: Some(self.address()),
        };
        join(request).await
    }

    /// The socket of its manager.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/warren.sock")
    }

    /// Its stopped manager, which waits for the key that it is locked with.
    pub fn locked(&self) -> LockedManager {
        assert!(!self.is_running());
        let dir = self.data_dir().join("manager");
        let needed = KeyFiles::locked_with(&dir).unwrap().expect("it is locked");
        LockedManager::bind(&self.socket(), dir, needed).unwrap()
    }

    /// What its manager shows.
    pub fn credentials(&self) -> Credentials {
        Credentials::load(&self.data_dir().join("manager/manager.pem")).unwrap()
    }

    /// Waits until no process uses its directory and its port.
    async fn is_free(&self) {
        let lock = self.data_dir().join("lock");
        let socket = self.socket();
        eventually_async(WAIT_DEADLINE, "the data directory to be given back", || async {
            if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
                return Err("its socket is served".to_owned());
            }
            let lock = std::fs::File::open(&lock).map_err(|error| error.to_string())?;
            lock.try_lock().map_err(|error| error.to_string())?;
            // A child that another test starts at this moment may still hold the lock.
            lock.unlock().map_err(|error| error.to_string())?;
            std::net::TcpListener::bind(self.address()).map_err(|error| error.to_string())
        })
        .await;
    }

    /// Simulates the loss of its disk.
    pub fn lose_disk(&mut self) {
        assert!(!self.is_running());
        std::fs::remove_dir_all(self.data_dir()).unwrap();
    }

    pub async fn channel(&self, roots: &Roots, credentials: Option<&Credentials>) -> Channel {
        dial::dial(self.address(), roots, credentials).await.unwrap()
    }
}

fn address_of(address: SocketAddr) -> ManagerAddress {
    address.to_string().parse().unwrap()
}

//! One manager with its directories, and every way to connect to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rand::RngExt;
use tonic::Status;
use tonic::transport::Channel;
use warren_client::{Client, ClientIdentity, ClientTarget, JoinToken, NewUser, PrivateKeyPem};
use warren_docker_api::server::DockerEndpoints;
use warren_log::LogEngine;
use warren_manager::manager::ManagerStartError;
use warren_manager::{LocalNode, Manager, ManagerConfig, ManagerTuning};
use warren_proto::v1;
use warren_proto::v1::users_client::UsersClient;
use warren_registry::ResolveNames;
use warren_security::{CertificateAuthority, CertificateRequest, Credentials, PrivateKey, Role};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::wait::eventually_async;
use warren_types::{
    Bytes, Id, ImageResolver, MilliCpu, NodeDescription, Resources, ServiceId, ServiceMode, ServiceSpec,
    TaskSpec, UpdatePolicy, UserId, UserRole,
};

use crate::dial;
use crate::fake_registry::FakeRegistry;

/// For anything that a test waits for.
pub const WAIT_DEADLINE: Duration = Duration::from_secs(30);
/// A stop that takes longer is a failure. It takes seconds on a slow disk.
pub const STOP: Duration = Duration::from_secs(15);

pub struct ManagerFixture {
    manager: Option<Manager>,
    /// The small disk of the data directory, if any.
    disk: Option<SmallDisk>,
    directory: ScratchDir,
    tuning: ManagerTuning,
    registries: Arc<dyn ResolveNames>,
    /// The log engine from the next start on.
    pub engine: LogEngine,
}

/// The clients' identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerKind {
    Anonymous,
    Certified(Role),
    Local,
}

impl ManagerFixture {
    pub async fn new() -> Self {
        Self::tuned(ManagerTuning::default()).await
    }

    pub async fn tuned(tuning: ManagerTuning) -> Self {
        Self::build(tuning, LogEngine::default(), None).await
    }

    /// A manager with this log `engine`.
    pub async fn with_engine(engine: LogEngine) -> Self {
        Self::build(ManagerTuning::default(), engine, None).await
    }

    /// A manager with its own disk of that many MiB.
    pub async fn on_small_disk(engine: LogEngine, tuning: ManagerTuning, mebibytes: u64) -> Self {
        Self::build(tuning, engine, Some(mebibytes)).await
    }

    /// A manager that asks these registries.
    pub async fn with_registries(registries: Arc<dyn ResolveNames>) -> Self {
        let mut world = Self::prepare(ManagerTuning::default(), LogEngine::default(), None);
        world.registries = registries;
        world.start(true).await.unwrap();
        world
    }

    async fn build(tuning: ManagerTuning, engine: LogEngine, mebibytes: Option<u64>) -> Self {
        let mut world = Self::prepare(tuning, engine, mebibytes);
        world.start(true).await.unwrap();
        world
    }

    fn prepare(tuning: ManagerTuning, engine: LogEngine, mebibytes: Option<u64>) -> Self {
        let directory = ScratchDir::new();
        let disk = mebibytes.map(|mebibytes| SmallDisk::new(directory.path(), mebibytes));
        Self { manager: None, disk, directory, tuning, registries: Arc::new(FakeRegistry), engine }
    }

    /// The disk of [`ManagerFixture::on_small_disk`].
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("the manager was created on a small disk")
    }

    pub fn config(&self) -> ManagerConfig {
        ManagerConfig {
            data_dir: self.data_dir(),
            run_dir: self.directory.path().join("run"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: "127.0.0.1".parse().unwrap(),
            name: "n1".parse().unwrap(),
            cluster_ranges: vec!["10.210.0.0/16".parse().unwrap()],
            data_plane: Default::default(),
            node: Some(LocalNode { description: description(), taints: Default::default() }),
            log_engine: self.engine,
            is_data_loss_accepted: false,
            docker: DockerEndpoints {
                socket: Some(self.docker_socket()),
                listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            },
            registries: Arc::clone(&self.registries),
            unlock_key: None,
        }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.disk.as_ref().map_or(self.directory.path(), SmallDisk::path).join("data")
    }

    pub fn manager(&self) -> &Manager {
        self.manager.as_ref().expect("the manager runs")
    }

    pub async fn start(&mut self, create: bool) -> Result<(), ManagerStartError> {
        self.manager = Some(Manager::start_with_tuning(self.config(), create, self.tuning).await?);
        Ok(())
    }

    /// Stops the manager as its process would; quickly, even with open connections.
    pub async fn stop(&mut self) {
        let stopping = self.manager.take().unwrap().stop();
        tokio::time::timeout(STOP, stopping).await.expect("a manager stops");
        self.wait_socket_removed().await;
    }

    /// Drops the manager without a shutdown, and waits until its directory is unlocked.
    pub async fn drop_manager(&mut self) {
        drop(self.manager.take());
        self.wait_socket_removed().await;
        let data_dir = self.data_dir();
        eventually_async(WAIT_DEADLINE, "the data directory to be given back", || async {
            let lock = std::fs::File::open(data_dir.join("lock")).unwrap();
            lock.try_lock().map_err(|error| error.to_string())?;
            // A child that another test starts at this moment may still hold the lock.
            lock.unlock().map_err(|error| error.to_string())
        })
        .await;
    }

    async fn wait_socket_removed(&self) {
        let sockets = [self.socket(), self.docker_socket()];
        eventually_async(WAIT_DEADLINE, "the sockets to go", || async {
            let left: Vec<_> = sockets.iter().filter(|socket| socket.exists()).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("run/warren.sock")
    }

    /// The socket of Docker's API.
    pub fn docker_socket(&self) -> PathBuf {
        self.directory.path().join("run/docker.sock")
    }

    fn authority(&self) -> CertificateAuthority {
        CertificateAuthority::load(&self.data_dir().join("manager/ca.pem")).unwrap()
    }

    pub fn credentials(&self, role: Role) -> Credentials {
        match role {
            Role::Worker => self.manager().node().unwrap().1,
            Role::User => self.manager().admin(),
            Role::Manager => {
                // Of no member.
                let (authority, key) = (self.authority(), PrivateKey::generate().unwrap());
                let id = key.node_id().unwrap().to_string();
                let identity = warren_security::Identity::new(authority.cluster(), role, id).unwrap();
                authority.issue_for(&identity, key, SystemTime::now()).unwrap()
            }
        }
    }

    /// A client on the unix socket.
    pub async fn local(&self) -> Client {
        Client::connect(&ClientTarget::Unix { socket: self.socket() }).await.unwrap()
    }

    /// A client with the administrator's certificate.
    pub async fn admin(&self) -> Client {
        self.client_as(&self.manager().admin()).await
    }

    /// A client with these credentials.
    pub async fn client_as(&self, user: &Credentials) -> Client {
        self.connect_as(user).await.unwrap()
    }

    /// The same, if the manager accepts them.
    pub async fn connect_as(&self, user: &Credentials) -> Result<Client, warren_client::Error> {
        let identity = ClientIdentity {
            ca: self.manager().roots().pem().to_owned(),
            certificate: user.certificate_pem().to_owned(),
            key: PrivateKeyPem(user.key().pem().to_owned()),
        };
        let address = self.manager().address().to_string().parse().unwrap();
        Client::connect(&ClientTarget::Tcp { addresses: vec![address], identity }).await
    }

    /// The same identity and key, with a certificate that was issued that long ago.
    pub fn issued_ago(&self, user: &Credentials, ago: Duration) -> Credentials {
        let issued_at = SystemTime::now() - ago;
        self.authority().issue_for(user.identity(), user.key().clone(), issued_at).unwrap()
    }

    /// A new user with this role, logged in.
    pub async fn user(&self, name: &str, role: UserRole) -> Credentials {
        self.user_for(name, role, None).await
    }

    /// The same, who ends after that time.
    pub async fn user_for(&self, name: &str, role: UserRole, ttl: Option<Duration>) -> Credentials {
        let user = NewUser { name: name.parse().unwrap(), role, ttl, login_ttl: Duration::from_secs(60) };
        let id = UserId(Id(rand::rng().random()));
        let (_, token) = self.admin().await.users().create(id, &user).await.unwrap();
        self.login(&token).await.unwrap()
    }

    /// Logs in with a new key.
    pub async fn login(&self, token: &JoinToken) -> Result<Credentials, Status> {
        let key = PrivateKey::generate().unwrap();
        let certificate_request = CertificateRequest::create(&key).unwrap();
        let message = v1::LoginRequest { token: token.reveal().to_string(), certificate_request };
        let mut client = UsersClient::new(self.channel_as(None).await);
        let answer = client.login(message).await?.into_inner();
        Ok(Credentials::new(answer.certificate, key).unwrap())
    }

    /// A plain connection.
    pub async fn channel(&self, caller: CallerKind) -> Channel {
        match caller {
            CallerKind::Local => dial::dial_socket(&self.socket()).await.unwrap(),
            CallerKind::Certified(role) => self.channel_as(Some(&self.credentials(role))).await,
            CallerKind::Anonymous => self.channel_as(None).await,
        }
    }

    /// A plain connection with these credentials.
    pub async fn channel_as(&self, credentials: Option<&Credentials>) -> Channel {
        let manager = self.manager();
        dial::dial(manager.address(), &manager.roots(), credentials).await.unwrap()
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
        data_address: None,
        wireguard_key: None,
        apparmor_missing: false,
    }
}

pub fn new_id() -> ServiceId {
    ServiceId(Id(rand::rng().random()))
}

/// A service whose tasks count as ready immediately, and whose image is resolved by workers.
pub fn spec(name: &str, replicas: u32) -> ServiceSpec {
    let mut task = TaskSpec::new("web:1".parse().unwrap());
    task.resolve_image = ImageResolver::Worker;
    let immediately = UpdatePolicy { monitor: Duration::ZERO, ..UpdatePolicy::default() };
    ServiceSpec {
        mode: ServiceMode::Replicated { replicas },
        update: immediately,
        rollback: immediately,
        ..ServiceSpec::new(name.parse().unwrap(), task)
    }
}

/// Waits until managers recorded that all tasks of the service's current revision were ready: until then they
/// write.
pub async fn rollout_completed(client: &Client, service: &str) {
    eventually_async(WAIT_DEADLINE, "the end of the rollout", || async {
        let rollout = client.services().get(service).await.unwrap().rollout.unwrap_or_default();
        match rollout.state() {
            v1::RolloutState::Completed | v1::RolloutState::RolledBack => Ok(()),
            _ => Err(format!("{rollout:?}")),
        }
    })
    .await;
}

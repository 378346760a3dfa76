//! The composition root: opens what is on disk, starts the driver, the controllers and the API, in that order.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use warren_control::{BoxError, Loops, Queue, RunnerSettings, Shutdown, SystemClock, system_chance};
use warren_core::{Command, Refusal, State};
use warren_log::DataDir;
use warren_security::{Credentials, LiveCertificate, Roots};
use warren_telemetry::Part;
use warren_types::{ClusterId, Node, NodeId, NodeRole};

use crate::api::Api;
use crate::background;
use crate::ca::{CaError, Keys, content_key};
use crate::config::{Config, LocalNode, Tuning};
use crate::controllers::planner::Planner;
use crate::controllers::wake::{SWEEP, SWEEP_LOOP, Waker};
use crate::controllers::{Refusals, key::Key};
use crate::metrics::{self, Metrics, Sources};
use crate::raft::driver::DriverError;
use crate::raft::restore::{Ended, RestoreError, open_store};
use crate::server::{Listeners, ServeError};
use crate::session::server::SessionServer;
use crate::session::{Registry, Streams};
use crate::stamp::Stamp;
use crate::store::{ProposeError, Store};

/// Keys that may wait for the planners; each service has two.
const KEYS: usize = 1 << 16;
/// How long a single manager may take to lead.
const LEAD: Duration = Duration::from_secs(20);
/// How long the parts may take to stop.
const STOP: Duration = Duration::from_secs(5);

/// Why a manager did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Log(#[from] warren_log::Error),
    /// The keys cannot be used.
    #[error(transparent)]
    Keys(#[from] CaError),
    /// The port or the socket cannot be had.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A directory cannot be made.
    #[error("cannot make {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What is on disk cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The driver ended at once.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// It did not become leader.
    #[error("this manager did not become leader within {0:?}")]
    NoLeader(Duration),
    /// The first writes were refused.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// A running manager. Dropping it lets go of everything as well, but waits for nothing: use [`Manager::stop`].
pub struct Manager {
    address: SocketAddr,
    keys: Keys,
    store: Store,
    shutdown: Shutdown,
    metrics: (Metrics, Sources),
    /// `None` once it was told.
    failure: Option<Failure>,
}

/// Says why the driver cannot go on; closed without a word when it was told to end.
type Failure = oneshot::Receiver<DriverError>;

impl Manager {
    /// Starts a manager, and returns once it leads and serves. `create` makes a cluster where there is none.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start(config: Config, create: bool) -> Result<Self, StartError> {
        Self::start_tuned(config, create, Tuning::default()).await
    }

    /// As [`Manager::start`], with other bounds.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running then.
    pub async fn start_tuned(config: Config, create: bool, tuning: Tuning) -> Result<Self, StartError> {
        let shutdown = Shutdown::new();
        let started = start(config, create, tuning, shutdown.clone()).await;
        if started.is_err() {
            // What was started before the failure ends; the failure is what matters.
            let _ = shutdown.stop(STOP).await;
        }
        started
    }

    /// Where the port is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.keys.cluster
    }

    /// What clients and workers of the cluster trust.
    pub fn roots(&self) -> Roots {
        self.keys.authority.roots()
    }

    /// What this machine's administrator shows.
    pub fn admin(&self) -> &Credentials {
        &self.keys.admin
    }

    /// What this machine's agent shows, in hybrid mode.
    pub fn node(&self) -> Option<&(NodeId, Credentials)> {
        self.keys.node.as_ref()
    }

    /// The replicated state.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What this manager shows to monitoring.
    pub fn telemetry(&self) -> Part {
        let (metrics, sources) = &self.metrics;
        metrics::part(metrics, sources)
    }

    /// Resolves when the manager cannot go on, with the reason, once; never before that.
    pub async fn failed(&mut self) -> DriverError {
        if let Some(failure) = &mut self.failure {
            let failed = failure.await;
            self.failure = None;
            if let Ok(error) = failed {
                return error;
            }
        }
        std::future::pending().await
    }

    /// Stops everything. What was acknowledged is on disk, and another process may use the data directory.
    pub async fn stop(self) {
        if let Err(late) = self.shutdown.stop(STOP).await {
            tracing::warn!(%late, "stopping");
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.shutdown.token().cancel();
    }
}

async fn start(
    config: Config,
    create: bool,
    tuning: Tuning,
    shutdown: Shutdown,
) -> Result<Manager, StartError> {
    let data_dir = DataDir::open(&config.data_dir)?;
    let dir = config.data_dir.join("manager");
    for path in [&dir, &config.run_dir] {
        let made = std::fs::create_dir_all(path);
        made.map_err(|source| StartError::Directory { path: path.clone(), source })?;
    }
    let keys = Keys::open(&dir, create, config.node.is_some(), SystemTime::now())?;
    let listeners = Listeners::bind(config.listen, &config.run_dir.join("warren.sock")).await?;
    let address =
        listeners.address().map_err(|source| ServeError::Listen { address: config.listen, source })?;

    let (store, ended) = open_store(data_dir, &dir, config.log_engine, tuning, shutdown.token())?;
    let mut failure = attend(ended, &shutdown);
    lead(&store, &mut failure).await?;
    check_cluster(&store.read().state, &keys, &dir, create)?;
    let content_key = Arc::new(content_key(&dir, &store.read().state)?);

    let clock = Arc::new(SystemClock::new());
    let loops = Loops::new(shutdown.clone(), clock.clone(), system_chance());
    let stamp = Stamp::new(clock.clone(), store.clone());
    found(&store, &keys, &config, &stamp).await?;

    let (registry, streams, refusals) = (Registry::default(), Streams::default(), Refusals::default());
    let metrics = Metrics::default();
    let counted = metrics.scheduler.clone();
    let planner = Planner::new(store.clone(), registry.clone(), refusals.clone(), stamp.clone(), counted);
    control(planner, &store, &registry, &loops, &shutdown);
    let (reads, connected, running) = (store.clone(), registry.clone(), loops.clone());
    let sources = Sources { store: reads, registry: connected, loops: running, clock, dir: dir.clone() };
    let api = Api {
        store: store.clone(),
        registry,
        streams,
        refusals,
        loops,
        clock: stamp,
        shutdown: shutdown.clone(),
        authority: keys.authority.clone(),
        content_key,
        manager: keys.manager.identity().id().to_string(),
        log_engine: config.log_engine,
        metrics: metrics.clone(),
    };
    let sessions = SessionServer::of(&api);
    let certificate = LiveCertificate::new(&keys.manager);
    listeners.serve(&keys.authority.roots(), certificate, &api, &sessions, &shutdown)?;
    tracing::info!(%address, cluster = %keys.cluster, "manager is serving");
    Ok(Manager { address, keys, store, shutdown, metrics: (metrics, sources), failure: Some(failure) })
}

/// Makes the driver one of the things that a stop waits for, and its failure the end of all others.
fn attend(ended: Ended, shutdown: &Shutdown) -> Failure {
    let (failed, failure) = oneshot::channel();
    let stop = shutdown.token();
    shutdown.spawn("raft", async move {
        let error = match ended.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => DriverError::Panicked,
        };
        tracing::error!(%error, "the manager stops");
        stop.cancel();
        // Nobody may be waiting for it.
        let _ = failed.send(error);
    });
    failure
}

/// Waits until this manager leads and has applied everything it had on disk. One that cannot write does not start:
/// whoever starts it is told at once, and nothing is changed.
async fn lead(store: &Store, failure: &mut Failure) -> Result<(), StartError> {
    let mut watch = store.watch(0);
    let leads = async {
        loop {
            let published = store.read();
            if let Some(held) = &published.held {
                return Err(ProposeError::Held(held.clone()).into());
            }
            if published.role.may_plan {
                return Ok(());
            }
            // A missed change is as good a reason to look again as any.
            let _ = watch.next().await;
        }
    };
    tokio::select! {
        leads = leads => leads,
        failed = failure => Err(failed.map_or(StartError::NoLeader(Duration::ZERO), StartError::Driver)),
        () = tokio::time::sleep(LEAD) => Err(StartError::NoLeader(LEAD)),
    }
}

/// Keys and log must be of one cluster. A log that was lost must not pass for a new cluster: workers would be told
/// that nothing is wanted any more.
fn check_cluster(state: &State, keys: &Keys, dir: &Path, create: bool) -> Result<(), StartError> {
    match state.cluster() {
        None if create => Ok(()),
        None => Err(CaError::NoCluster(dir.to_owned()).into()),
        Some(cluster) if cluster.id == keys.cluster => Ok(()),
        Some(cluster) => {
            let other = Refusal::OtherCluster { wanted: keys.cluster, found: cluster.id };
            Err(ProposeError::Rejected(other).into())
        }
    }
}

/// The first facts of a cluster. Harmless when they are known already.
async fn found(store: &Store, keys: &Keys, config: &Config, stamp: &Stamp) -> Result<(), StartError> {
    if store.read().state.cluster().is_none() {
        let (id, ranges) = (keys.cluster, config.ranges.clone());
        store
            .propose(Command::CreateCluster { id, ranges, level: warren_core::LEVEL, at: stamp.now() })
            .await?;
    }
    if let (Some((id, _)), Some(LocalNode { name, description })) = (&keys.node, &config.node) {
        let (id, name, description) = (*id, name.clone(), description.clone());
        let role = NodeRole::Manager;
        let known = |node: &Arc<Node>| node.name == name && node.role == role;
        if !store.read().state.node(&id).is_some_and(known) {
            store.propose(Command::RegisterNode { id, name, role, description, at: stamp.now() }).await?;
        }
    }
    Ok(())
}

fn control(planner: Planner, store: &Store, registry: &Registry, loops: &Loops, shutdown: &Shutdown) {
    let queue: Queue<Key> = Queue::new(KEYS);
    let keys = queue.handle();
    let planner = Arc::new(planner);
    loops.spawn_queue("planner", queue, RunnerSettings::default(), move |key| {
        let planner = planner.clone();
        async move { planner.run(key).await }
    });
    let waker = Arc::new(Waker::new(store.clone(), registry.clone(), keys));
    let sweeper = waker.clone();
    loops.spawn(SWEEP_LOOP, SWEEP, move || {
        sweeper.wake_all();
        std::future::ready(Ok::<(), BoxError>(()))
    });
    background::spawn(shutdown, "waker", async move { waker.follow().await });
}

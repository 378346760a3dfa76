//! The composition root: who owns what, what is started in which order, and how it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Notify, OnceCell, RwLock, Semaphore, watch};
use warren_control::{Chance, Clock, Loops, NotStopped, Shutdown, SystemClock, system_chance};
use warren_image::{Images, ImportOptions};
use warren_logger::{Programs, ensure_installed};
use warren_security::files::{FileError, ensure_private_dir};
use warren_security::{LiveCertificate, MembershipStore, Role, Roots, TlsError, client_config};
use warren_types::{ClusterId, NodeId};

use crate::cache::Cache;
use crate::certificate::Renewal;
use crate::doors::Doors;
use crate::garbage::{self, Shelf};
use crate::handlers::files::Directories;
use crate::handlers::ports::Ports;
use crate::node::NodeOverrides;
use crate::node::health::{Condition, Health};
use crate::node::usage::Meter;
use crate::session::{self, Archive, Context, Dial, Dialer, Import, Services, TaskLogs};
use crate::tasks::supervisor::{Parts, Supervisor};
use crate::tasks::{Driver, Ground, NOT_YET};
use crate::wishes::Wishes;

/// For actions that are under way when the agent stops.
const STOP_DEADLINE: Duration = Duration::from_secs(70);
/// Changes of the wishes that come within this are written together.
const CACHE_EVERY: Duration = Duration::from_millis(200);
/// Before a cache that could not be written is tried again.
const CACHE_RETRY: Duration = Duration::from_secs(10);

/// What a worker must be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds `worker/cache.json` (disposable), `worker/spool`, `worker/bin` and `tasks/<id>`. Programs must be
    /// executable there.
    pub data_dir: PathBuf,
    /// Addresses of managers, each `host:port`; dialled in turn.
    pub managers: Vec<String>,
    /// Who this node is.
    pub certificate: Arc<LiveCertificate>,
    /// Whom it trusts.
    pub roots: Roots,
    /// What a person says of the node in place of what is measured.
    pub overrides: NodeOverrides,
    /// The largest image archive that is accepted, in bytes, packed and unpacked each.
    pub max_archive: u64,
    /// Where renewed certificates go; `None` where somebody else renews them.
    pub membership: Option<MembershipStore>,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificate is not one of a node.
    #[error("the certificate is for {found}; a worker needs that of a worker or manager node")]
    Certificate {
        /// Whom it is for.
        found: String,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] FileError),
    /// The programs that containers are run with could not be written.
    #[error(transparent)]
    Programs(#[from] warren_logger::Error),
}

/// Why a worker cannot take on tasks now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// No manager has welcomed the node.
    #[error("no session with a manager yet")]
    Session,
    /// containerd does not answer.
    #[error("containerd does not answer")]
    Runtime,
    /// The node's part of the network is not made.
    #[error("the node's network is not ready: {reason}")]
    Network {
        /// Why not.
        reason: String,
    },
}

/// What did not end well when a worker stopped. The containers keep running whatever it is.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// Some of the agent's tasks had to be cut off.
    #[error(transparent)]
    Tasks(#[from] NotStopped),
    /// What the containers stood in could not be removed.
    #[error("the node's cgroup could not be removed")]
    Runtime(#[from] warren_runtime::Error),
    /// The node's network could not be removed.
    #[error("the node's network could not be removed")]
    Network(#[from] warren_network::Error),
    /// The containerd that was started for this worker could not be ended.
    #[error("the containerd that this node started could not be ended")]
    Containerd(#[from] warren_runtime::supervise::Error),
}

/// A running worker. Dropping it ends nothing in an orderly way: use [`Worker::stop`].
pub struct Worker {
    doors: Doors,
    shutdown: Shutdown,
    loops: Loops,
    cache: Cache,
    wishes: watch::Receiver<Wishes>,
    connected: watch::Receiver<bool>,
    removed: watch::Receiver<Option<String>>,
    ground: watch::Receiver<Ground>,
    health: Arc<Health>,
}

impl Worker {
    /// Takes over what runs on this machine, then looks for a manager. Returns at once; [`Worker::ready`]
    /// says when the node can take tasks.
    pub async fn start(config: Config, doors: Doors) -> Result<Self, StartError> {
        let tls = client_config(&config.roots, Some(Arc::clone(&config.certificate)))?;
        let dial = Dialer::new(config.managers.clone(), tls).into_dial();
        Self::start_with(config, doors, dial, system_chance()).await
    }

    /// As [`Worker::start`], with another way to managers and another source of chance.
    pub(crate) async fn start_with(
        config: Config,
        doors: Doors,
        dial: Dial,
        chance: Chance,
    ) -> Result<Self, StartError> {
        let (cluster, node) = identity(&config.certificate)?;
        let own = config.data_dir.join("worker");
        ensure_private_dir(&own)?;
        ensure_private_dir(&own.join("spool"))?;
        let programs = install(own.join("bin")).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let shutdown = Shutdown::new();
        let loops = Loops::new(shutdown.clone(), Arc::clone(&clock), Arc::clone(&chance));
        let cache = Cache::new(own.join("cache.json"), cluster, node);
        let (wishes, wanted) = watch::channel(cache.load().await);
        let (connected, connection) = watch::channel(false);
        let (removed, removal) = watch::channel(None);
        let health = Arc::<Health>::default();
        let (ground, laid) = watch::channel(Ground::Awaited);
        let directories = Directories::new(config.data_dir.join("tasks"));
        let supervisor = Supervisor::new(Parts {
            driver: driver(directories.clone(), &doors, programs, cluster, laid.clone()),
            clock: Arc::clone(&clock),
            shutdown: shutdown.clone(),
            wishes: wanted.clone(),
            health: Arc::clone(&health),
            ground,
        });
        supervisor.start(&loops, &chance);
        let meter = Arc::new(Meter::new(config.data_dir));
        let shelf = Arc::new(Shelf {
            source: Arc::clone(&doors.source),
            runtime: Arc::clone(&doors.runtime),
            wishes: wanted.clone(),
            clock: Arc::clone(&clock),
        });
        let pressure = garbage::start(Arc::clone(&shelf), Arc::clone(&meter), &loops, shutdown.token());
        if let Some(store) = config.membership {
            let (live, dial, removed) = (config.certificate, Arc::clone(&dial), removed.clone());
            Renewal { store, live, dial, chance: chance(), clock, removed }.start(&loops);
        }
        let services = Services {
            import: import(doors.images.clone(), own.join("spool"), config.max_archive),
            logs: TaskLogs { directories, reporter: supervisor.reporter(), wishes: wanted.clone() },
            shelf,
        };
        let context = Context {
            cluster,
            node,
            wishes,
            reporter: supervisor.reporter(),
            runtime: Arc::clone(&doors.runtime),
            overrides: config.overrides,
            meter,
            health: Arc::clone(&health),
            services: Arc::new(services),
            pressure,
            loops: loops.clone(),
            chance,
            connected,
            removed,
        };
        shutdown.spawn("worker.session", session::run(Arc::new(context), dial, shutdown.token()));
        shutdown.spawn("worker.cache", keep_cache(cache.clone(), wanted.clone(), shutdown.clone()));
        Ok(Self {
            doors,
            shutdown,
            loops,
            cache,
            wishes: wanted,
            connected: connection,
            removed: removal,
            ground: laid,
            health,
        })
    }

    /// Whether the node can take tasks; else the first thing that is missing.
    pub fn ready(&self) -> Result<(), NotReady> {
        if self.health.has(Condition::Runtime) {
            return Err(NotReady::Runtime);
        }
        if !*self.connected.borrow() {
            return Err(NotReady::Session);
        }
        match self.ground.borrow().clone() {
            Ground::Laid => Ok(()),
            Ground::Awaited => Err(NotReady::Network { reason: NOT_YET.to_string() }),
            Ground::Missing(reason) => Err(NotReady::Network { reason }),
        }
    }

    /// Waits until a manager says that this node is none of its cluster any more; gives its words. The containers
    /// keep running.
    pub fn removed(&self) -> impl Future<Output = String> + use<> {
        let mut removed = self.removed.clone();
        async move {
            // An agent that stops hears of nothing any more.
            let reason = removed.wait_for(Option::is_some).await.map(|reason| reason.clone()).ok().flatten();
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// What is wrong with the node, in sentences; as managers hear it.
    pub fn conditions(&self) -> Vec<String> {
        self.health.sentences()
    }

    /// The registry of this worker's background loops.
    pub fn loops(&self) -> &Loops {
        &self.loops
    }

    /// Stops the agent and keeps the containers. Where there are none left, what the agent made for the
    /// node as a whole goes too: its network, and the containerd that was started for it.
    pub async fn stop(self) -> Result<(), StopError> {
        let stopped = self.shutdown.stop(STOP_DEADLINE).await;
        if let Err(error) = self.cache.store(&self.wishes.borrow().clone()).await {
            tracing::warn!(%error, "could not write the cache, the next start will resync");
        }
        if self.is_empty().await {
            self.sweep().await;
            self.doors.runtime.remove_node().await?;
            self.doors.network.remove_node().await?;
            if let Some(containerd) = self.doors.containerd {
                containerd.stop().await?;
            }
        }
        Ok(stopped?)
    }

    /// The last sweep: nobody will look again.
    async fn sweep(&self) {
        match self.doors.runtime.sweep_strays().await {
            Ok(swept) if swept.is_empty() => {}
            Ok(swept) => tracing::info!(?swept, "removed what no container owned"),
            Err(error) => tracing::warn!(%error, "could not look for what no container owns"),
        }
    }

    /// Whether no container is left. When containerd does not say, there may be some.
    async fn is_empty(&self) -> bool {
        self.doors.runtime.list().await.is_ok_and(|found| found.is_empty())
    }
}

/// Cluster and node as the certificate names them.
fn identity(certificate: &LiveCertificate) -> Result<(ClusterId, NodeId), StartError> {
    let identity = certificate.identity();
    let wrong = || StartError::Certificate { found: identity.to_string() };
    if !matches!(identity.role(), Role::Worker | Role::Manager) {
        return Err(wrong());
    }
    let cluster = identity.cluster().parse().map_err(|_| wrong())?;
    Ok((cluster, identity.id().parse().map_err(|_| wrong())?))
}

/// Writes the programs that containers are run with, where they are not there yet.
async fn install(directory: PathBuf) -> Result<Programs, StartError> {
    let install = move || {
        ensure_private_dir(&directory)?;
        Ok(ensure_installed(&directory)?)
    };
    tokio::task::spawn_blocking(install).await.expect("writing two files does not panic")
}

/// What the actors of this node's tasks do their work with.
fn driver(
    directories: Directories,
    doors: &Doors,
    programs: Programs,
    cluster: ClusterId,
    ground: watch::Receiver<Ground>,
) -> Driver {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Driver {
        runtime: Arc::clone(&doors.runtime),
        network: Arc::clone(&doors.network),
        images: Arc::clone(&doors.source),
        programs,
        directories,
        ports: Ports::new(Arc::clone(&doors.network)),
        cluster,
        ground,
        // Starts are bound by the CPU: more at once make the first ones later and none earlier.
        starts: Arc::new(Semaphore::new((3 * cores).max(4))),
        laying: RwLock::default(),
        botched: Notify::new(),
    }
}

/// Imports archives into `images`. Before the first, what killed imports left is let go.
fn import(images: Images, spool: PathBuf, max_bytes: u64) -> Import {
    let swept = Arc::new(OnceCell::new());
    Arc::new(move |archive: Archive| {
        let (images, swept, spool_dir) = (images.clone(), Arc::clone(&swept), spool.clone());
        async move {
            swept.get_or_try_init(|| images.sweep_leases()).await?;
            images.import(archive, ImportOptions { spool_dir, max_bytes, name: None }).await
        }
        .boxed()
    })
}

/// Writes the wishes down whenever they changed.
async fn keep_cache(cache: Cache, mut wishes: watch::Receiver<Wishes>, shutdown: Shutdown) {
    let stop = shutdown.token();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = wishes.changed() => if changed.is_err() { return },
        }
        let newest = wishes.borrow_and_update().clone();
        let pause = match cache.store(&newest).await {
            Ok(()) => CACHE_EVERY,
            Err(error) => {
                tracing::warn!(%error, "could not write the cache");
                wishes.mark_changed();
                CACHE_RETRY
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod real;
#[cfg(test)]
mod tests;

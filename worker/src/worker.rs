//! The composition root: who owns what, what is started in which order, and how it ends.

mod clearing;
mod equipment;
mod telemetry;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{OnceCell, watch};
use warren_control::{Chance, Clock, Loops, NotStopped, Shutdown, SystemClock, system_chance};
use warren_image::{Images, ImportOptions};
use warren_logger::{Programs, ensure_installed};
use warren_security::files::{FileError, ensure_private_dir};
use warren_security::{Identity, LiveCertificate, MembershipStore, Role, Roots, TlsError, client_config};
use warren_task::Wishes;
use warren_types::{ClusterId, NodeCondition, NodeId};

use crate::cache::{Cache, cache_file};
use crate::certificate::Renewal;
use crate::doors::Doors;
use crate::garbage::{self, Shelf};
use crate::handlers::contents::courier::Courier;
use crate::handlers::contents::memory::{Memory, MemoryError};
use crate::handlers::files::Directories;
use crate::node::NodeOverrides;
use crate::node::health::Health;
use crate::node::metrics::WorkerMetrics;
use crate::node::stats::Stats;
use crate::node::usage::Meter;
use crate::node::vitals::Vitals;
use crate::node::watch::Watch;
use crate::session::{
    self, Archive, Contact, Context, Dial, Dialer, Fetcher, Import, Outcast, Removal, RemovalNote, Services,
    TaskLogs,
};
use crate::tasks::supervisor::{Parts, Supervisor};
use crate::tasks::{Ground, NOT_YET};
use equipment::{Places, Shared, driver};

/// For actions that are under way when the agent stops.
const STOP_DEADLINE: Duration = Duration::from_secs(70);
/// Changes of the wishes that come within this are written together.
const CACHE_EVERY: Duration = Duration::from_millis(200);
/// Before a cache that could not be written is tried again.
const CACHE_RETRY: Duration = Duration::from_secs(10);

/// What a worker must be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds `worker/cache.json` (disposable), `worker/removed.json` (once it was removed from its cluster),
    /// `worker/spool`, `worker/bin` and `tasks/<id>`. Programs must be executable there.
    pub data_dir: PathBuf,
    /// Lost with a reboot: secrets, and what containers are made with.
    pub run_dir: PathBuf,
    /// Addresses of managers, each `host:port`; dialled in turn, as are those that managers tell of. Of a manager's
    /// own node that manager, which comes first.
    pub managers: Vec<String>,
    /// Who this node is.
    pub certificate: Arc<LiveCertificate>,
    /// Whom it trusts.
    pub roots: Roots,
    /// What a person says of the node in place of what is measured.
    pub overrides: NodeOverrides,
    /// The largest image archive that is accepted, in bytes, packed and unpacked each.
    pub max_archive: u64,
    /// Where renewed certificates go; `None` of a manager's own node, where somebody else renews them, and which no
    /// manager's word removes: only what is written down of it.
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
    /// The memory that secrets and configs were in could not be given back.
    #[error("the memory of secrets and configs could not be given back")]
    Memory(#[from] MemoryError),
    /// The containerd that was started for this worker could not be ended.
    #[error("the containerd that this node started could not be ended")]
    Containerd(#[from] warren_runtime::supervise::Error),
}

/// A running worker. Dropping it ends nothing in an orderly way: use [`Worker::stop`].
pub struct Worker {
    doors: Doors,
    shutdown: Shutdown,
    loops: Loops,
    cluster: ClusterId,
    tasks_dir: PathBuf,
    memory: Memory,
    cache: Cache,
    note: Option<RemovalNote>,
    wishes: watch::Receiver<Wishes>,
    connected: watch::Receiver<bool>,
    outcast: watch::Receiver<Option<Outcast>>,
    ground: watch::Receiver<Ground>,
    health: Arc<Health>,
    clock: Arc<dyn Clock>,
    meter: Arc<Meter>,
    stats: Arc<Stats>,
    metrics: WorkerMetrics,
}

impl Worker {
    /// Takes over what runs on this machine, then looks for a manager. Returns at once; [`Worker::ready`]
    /// says when the node can take tasks. A node that is known to be removed looks for none: it only clears what it
    /// ran.
    pub async fn start(config: Config, doors: Doors) -> Result<Self, StartError> {
        let tls = client_config(&config.roots, Some(Arc::clone(&config.certificate)))?;
        let (_, node) = identity(&config.certificate.identity())?;
        let dialer = Dialer::new(node, config.managers.clone(), tls);
        let dial: Dial = match &config.membership {
            Some(_) => Arc::new(dialer),
            None => Arc::new(dialer.of_manager()),
        };
        Self::start_with(config, doors, dial, system_chance()).await
    }

    /// As [`Worker::start`], with another way to managers and another source of chance.
    pub(crate) async fn start_with(
        config: Config,
        doors: Doors,
        dial: Dial,
        chance: Chance,
    ) -> Result<Self, StartError> {
        let (cluster, node) = identity(&config.certificate.identity())?;
        let own = config.data_dir.join("worker");
        ensure_private_dir(&own)?;
        ensure_private_dir(&own.join("spool"))?;
        let programs = install(own.join("bin")).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let shutdown = Shutdown::new();
        let loops = Loops::new(shutdown.clone(), Arc::clone(&clock), Arc::clone(&chance));
        let cache = Cache::new(cache_file(&config.data_dir), cluster, node);
        let note = RemovalNote::new(&config.data_dir, cluster, node);
        let removal = note.load();
        // A manager's own node does not hear of its removal: it is only started with a note to be cleared.
        let note = (config.membership.is_some() || removal.is_some()).then_some(note);
        let mut known = cache.load().await;
        if removal.is_some() {
            known.want_nothing();
        }
        let (wishes, wanted) = watch::channel(known);
        let (connected, connection) = watch::channel(false);
        let removed = removal.map(|Removal { reason, .. }| Outcast::Removed { reason, before: true });
        let is_removed = removed.is_some();
        let (outcast, cast_out) = watch::channel(removed);
        let (health, metrics) = (Arc::<Health>::default(), WorkerMetrics::default());
        let (ground, laid) = watch::channel(Ground::Awaited);
        let tasks_dir = config.data_dir.join("tasks");
        let directories = Directories::new(tasks_dir.clone());
        let memory = Memory::of(&config.run_dir);
        let contact = Arc::new(Contact::resume(&config.run_dir));
        let places = Places {
            directories: directories.clone(),
            volumes: config.data_dir.join("volumes"),
            pins: config.run_dir.join("volumes"),
            memory: memory.clone(),
        };
        let (manager, line) = watch::channel(None);
        let courier: Arc<dyn Courier> = Arc::new(Fetcher::new(node, line));
        let shared = Shared::new(&doors, &places, courier, wanted.clone(), metrics.clone(), &programs);
        let supervisor = Supervisor::new(Parts {
            driver: driver(&doors, places, &shared, programs, cluster, wanted.clone(), laid.clone()),
            clock: Arc::clone(&clock),
            shutdown: shutdown.clone(),
            wishes: wanted.clone(),
            health: Arc::clone(&health),
            metrics: metrics.clone(),
            ground,
            standing: contact.standing(),
        });
        supervisor.start(&loops, &chance);
        Arc::clone(&contact).keep(wanted.clone(), &loops);
        let meter = Arc::new(Meter::new(config.data_dir));
        let stats = Arc::new(Stats::new(Arc::clone(&doors.runtime), wanted.clone()));
        Watch {
            meter: Arc::clone(&meter),
            stats: Arc::clone(&stats),
            health: Arc::clone(&health),
            metrics: metrics.clone(),
            connected: connection.clone(),
        }
        .start(&loops);
        let shelf = Arc::new(Shelf {
            source: Arc::clone(&doors.source),
            runtime: Arc::clone(&doors.runtime),
            wishes: wanted.clone(),
            clock: Arc::clone(&clock),
        });
        let pressure = garbage::start(Arc::clone(&shelf), Arc::clone(&meter), &loops, shutdown.token());
        if let Some(store) = config.membership.filter(|_| !is_removed) {
            let (live, dial) = (config.certificate, Arc::clone(&dial));
            Renewal { store, live, dial, chance: chance(), clock: Arc::clone(&clock) }.start(&loops);
        }
        let services = Services {
            import: import(doors.images.clone(), own.join("spool"), config.max_archive),
            logs: TaskLogs { directories, reporter: supervisor.reporter(), wishes: wanted.clone() },
            shelf,
            courier: Arc::clone(&shared.courier),
            volumes: Arc::clone(&shared.volumes),
        };
        let context = Context {
            cluster,
            node,
            wishes,
            reporter: supervisor.reporter(),
            runtime: Arc::clone(&doors.runtime),
            overrides: config.overrides,
            meter: Arc::clone(&meter),
            health: Arc::clone(&health),
            vitals: Arc::new(Vitals::new(Arc::clone(&stats), Arc::clone(&shared.checking))),
            services: Arc::new(services),
            pressure,
            loops: loops.clone(),
            chance,
            contact: Arc::clone(&contact),
            connected,
            manager,
            outcast,
            note: note.clone(),
        };
        if !is_removed {
            shutdown.spawn("worker.session", session::run(Arc::new(context), dial, shutdown.token()));
        }
        shutdown.spawn("worker.cache", keep_cache(cache.clone(), wanted.clone(), shutdown.clone()));
        Ok(Self {
            doors,
            shutdown,
            loops,
            cluster,
            tasks_dir,
            memory,
            cache,
            note,
            wishes: wanted,
            connected: connection,
            outcast: cast_out,
            ground: laid,
            health,
            clock,
            meter,
            stats,
            metrics,
        })
    }

    /// Whether the node can take tasks; else the first thing that is missing.
    pub fn ready(&self) -> Result<(), NotReady> {
        if self.health.has(NodeCondition::RuntimeDown) {
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

    /// What is wrong with the node, in sentences; as managers hear it.
    pub fn conditions(&self) -> Vec<String> {
        self.health.sentences()
    }

    /// What managers want of this node, as far as it is known.
    pub(crate) fn wishes(&self) -> watch::Receiver<Wishes> {
        self.wishes.clone()
    }

    /// The registry of this worker's background loops.
    pub fn loops(&self) -> &Loops {
        &self.loops
    }

    /// Stops the agent and keeps the containers. Where there are none left, what the agent made for the
    /// node as a whole goes too: its network, and the containerd that was started for it.
    pub async fn stop(mut self) -> Result<(), StopError> {
        let stopped = self.shutdown.stop(STOP_DEADLINE).await;
        let is_removed = matches!(&*self.outcast.borrow(), Some(Outcast::Removed { .. }));
        if let Err(error) = self.cache.store(&self.wishes.borrow().clone()).await {
            tracing::warn!(%error, "could not write the cache, the next start will resync");
        }
        let is_empty = self.is_empty().await;
        // A node that was removed has no reason to wait for containers that are none of its cluster's.
        if is_empty || is_removed && self.has_none_of_its_own().await {
            self.sweep().await;
            // Secrets do not stay because of something else that does.
            let forgotten = self.memory.remove();
            self.doors.runtime.remove_node().await?;
            self.doors.network.remove_node().await?;
            forgotten?;
            if is_empty && let Some(containerd) = self.doors.containerd.take() {
                containerd.stop().await?;
            }
            if is_removed {
                self.forget_cluster();
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
pub(crate) fn identity(identity: &Identity) -> Result<(ClusterId, NodeId), StartError> {
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

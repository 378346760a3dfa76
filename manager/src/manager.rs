//! The composition root: opens what is on disk, starts the driver, the controllers and the API, in that order.

mod chores;
mod error;
mod footing;
mod identity;
mod registration;
mod said;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use warren_control::{Loops, Shutdown, SystemClock, system_chance};
use warren_core::Command;
use warren_log::DataDir;
use warren_security::{Credentials, Roots};
use warren_telemetry::Part;
use warren_types::{ClusterId, ManagerAddress, NodeId};

use self::chores::{control, renew_certificates};
pub use self::error::{Failed, StartError};
use self::footing::{attend, check_cluster, lead_if_alone, leave_in_the_end};
use self::identity::identify;
use self::registration::{Registration, reached_at};
use crate::agreement::Agreement;
use crate::api::Api;
use crate::api::progress::Ears;
use crate::background;
use crate::ca::{CaError, Keys, LocalAgent, check_content_key};
use crate::config::{Config, Tuning};
use crate::controllers::liveness::ask_peers;
use crate::controllers::planner::{Planner, Surroundings};
use crate::controllers::{Refusals, Waits};
use crate::metrics::{self, Metrics, Sources};
use crate::peers::server::{Parts as PeerParts, PeerServer};
use crate::peers::{self, Peers};
use crate::raft::restore::{Group, Opened, open_store};
use crate::recovery::joining;
use crate::recovery::seat::{self, Seat};
use crate::server::{Listeners, ServeError, Services};
use crate::session::leader::LeaderWatch;
use crate::session::server::SessionServer;
use crate::session::{Registry, Streams};
use crate::stamp::Stamp;
use crate::store::Store;

/// How long the parts may take to stop.
const STOP: Duration = Duration::from_secs(5);

/// A running manager. Dropping it lets go of everything as well, but waits for nothing: use [`Manager::stop`].
pub struct Manager {
    address: SocketAddr,
    keys: Arc<Keys>,
    store: Store,
    shutdown: Shutdown,
    metrics: (Metrics, Sources),
    failure: Failure,
}

/// Says why the manager cannot go on; closed without a word when it was told to end.
type Failure = mpsc::Receiver<Failed>;

impl Manager {
    /// Starts a manager, and returns once it serves. One that is alone in its cluster leads by then; another one looks
    /// for its leader meanwhile. `create` makes a cluster where there is none.
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

    /// What this machine's administrator shows by now.
    pub fn admin(&self) -> Credentials {
        self.keys.admin().borrow().clone()
    }

    /// The same, and whenever it is renewed.
    pub fn admins(&self) -> watch::Receiver<Credentials> {
        self.keys.admin()
    }

    /// What this machine's agent shows by now, in hybrid mode; `None` until it is known which node this is.
    pub fn node(&self) -> Option<(NodeId, Credentials)> {
        self.keys.agent().borrow().as_ref().map(|agent| (agent.id, agent.credentials.clone()))
    }

    /// What this machine's agent shows, once it is known which node this is. Pends for ever without a node.
    pub fn agent(&self) -> impl Future<Output = LocalAgent> + Send + use<> {
        let mut agent = self.keys.agent();
        async move {
            let known = agent.wait_for(Option::is_some).await.map(|agent| agent.clone());
            match known.ok().flatten() {
                Some(agent) => agent,
                // The manager is gone.
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until the manager hears of a leader, or leads, but for no longer than `within`. One that was removed hears
    /// of none.
    pub fn hears_a_leader(&self, within: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (store, deadline) = (self.store.clone(), tokio::time::Instant::now() + within);
        async move {
            store.until(|published| published.role.leader_id.is_some(), deadline).await;
        }
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
    pub async fn failed(&mut self) -> Failed {
        match self.failure.recv().await {
            Some(failed) => failed,
            None => std::future::pending().await,
        }
    }

    /// Stops everything; a leader hands over first. What was acknowledged is on disk, and another process may use the
    /// data directory.
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

/// A manager whose log is open, and which nobody can ask yet.
struct Opening {
    config: Config,
    dir: PathBuf,
    seat: Seat,
    keys: Arc<Keys>,
    store: Store,
    peers: Peers,
    listeners: Listeners,
    address: SocketAddr,
    advertised: ManagerAddress,
    /// Where it said at its last start that it is reached.
    advertised_before: Option<ManagerAddress>,
    /// It is the only voter of its group, and leads.
    alone: bool,
    failure: Failure,
}

async fn start(
    config: Config,
    create: bool,
    tuning: Tuning,
    shutdown: Shutdown,
) -> Result<Manager, StartError> {
    let opening = open(config, create, tuning, &shutdown).await?;
    let Opening { dir, keys, store, alone, .. } = &opening;
    let founding = create && seat::is_init_pending(dir);
    check_cluster(&store.read().state, keys, dir, founding || !alone)?;
    check_content_key(dir, &keys.content_key, &store.read().state)?;
    let clock = Arc::new(SystemClock::new());
    let loops = Loops::new(shutdown.clone(), clock.clone(), system_chance());
    let stamp = Stamp::new(clock.clone(), store.clone());
    register(&opening, founding, &stamp, &shutdown).await?;
    if store.read().state.cluster().is_some() && seat::is_init_pending(dir) {
        seat::finish_init(dir)?;
    }
    renew_certificates(keys, &clock, &loops, tuning.certificates);
    serve(opening, (clock, stamp, loops), shutdown)
}

/// Listens, opens the log and begins to talk to the other managers.
async fn open(
    config: Config,
    create: bool,
    tuning: Tuning,
    shutdown: &Shutdown,
) -> Result<Opening, StartError> {
    let data_dir = DataDir::open(&config.data_dir)?;
    let dir = config.data_dir.join("manager");
    for path in [&dir, &config.run_dir] {
        let made = std::fs::create_dir_all(path);
        made.map_err(|source| StartError::Directory { path: path.clone(), source })?;
    }
    joining::clean(&dir)?;
    let now = SystemTime::now();
    let (keys, issued, seat) = identify(&dir, create, config.log_engine, now)?;
    let keys = Arc::new(keys);
    let listeners = Listeners::bind(config.listen, &config.run_dir.join("warren.sock")).await?;
    let address =
        listeners.address().map_err(|source| ServeError::Listen { address: config.listen, source })?;
    let advertised = config.advertise.at(address.port())?;

    let roots = keys.authority.roots();
    let shown = peers::Credentials {
        cluster: keys.authority.cluster(),
        id: keys.id,
        roots: &roots,
        certificate: keys.manager.clone(),
    };
    let (peers, wire, unsent) =
        Peers::new(seat.member, advertised.clone(), shown).map_err(ServeError::from)?;
    peers.introduce(&seat.managers);
    let (own, founders) = (seat.member, seat.founders.clone());
    let (wire, leader, accept_data_loss) = (Box::new(wire), Arc::new(peers.clone()), config.accept_data_loss);
    let group = Group { own, founders, wire, leader, accept_data_loss };
    let Opened { store, ended, snapshots } =
        open_store(data_dir, &dir, (config.log_engine, seat.owner()), tuning, group, shutdown.token())?;
    issued.save(&dir, now)?;
    let advertised_before = said::last(&dir);
    peers.reached_at(reached_at(&store.read().state, own, &advertised, advertised_before.as_ref()));
    let (failing, mut failure) = mpsc::channel(1);
    attend(ended, failing.clone(), shutdown);
    peers.start(store.clone(), Arc::new(snapshots), unsent, shutdown);
    leave_in_the_end(&peers, &dir, seat.clone(), failing, shutdown);
    let alone = lead_if_alone(&store, create, &mut failure).await?;
    Ok(Opening {
        config,
        dir,
        seat,
        keys,
        store,
        peers,
        listeners,
        address,
        advertised,
        advertised_before,
        alone,
        failure,
    })
}

/// Says the first facts of a new cluster, and who this manager is: at once if it is alone, else as soon as it can.
async fn register(
    opening: &Opening,
    founding: bool,
    stamp: &Stamp,
    shutdown: &Shutdown,
) -> Result<(), StartError> {
    let Opening { config, dir, keys, store, advertised, advertised_before, alone, .. } = opening;
    if founding && *alone && store.read().state.cluster().is_none() {
        let (id, ranges) = (keys.cluster, config.ranges.clone());
        let level = warren_core::LEVEL;
        store.propose(Command::CreateCluster { id, ranges, level, at: stamp.now() }).await?;
    }
    let registration = Registration {
        store: store.clone(),
        keys: keys.clone(),
        clock: stamp.clone(),
        name: config.name.clone(),
        address: advertised.clone(),
        before: advertised_before.clone(),
        dir: dir.clone(),
        node: config.node.clone(),
    };
    if *alone {
        match registration.ensure().await {
            // Whoever is to remove that node needs a manager that serves.
            Err(StartError::Keys(error @ CaError::NodeOfAnother { .. })) => tracing::warn!(%error),
            ensured => return ensured,
        }
    }
    background::spawn(shutdown, "registration", registration.keep_trying());
    Ok(())
}

/// Plans when it leads, and answers whoever asks.
fn serve(
    opening: Opening,
    (clock, stamp, loops): (Arc<SystemClock>, Stamp, Loops),
    shutdown: Shutdown,
) -> Result<Manager, StartError> {
    let Opening { config, dir, seat, keys, store, peers, listeners, address, failure, .. } = opening;
    let (registry, streams, refusals) = (Registry::default(), Streams::default(), Refusals::default());
    let (metrics, waits) = (Metrics::default(), Waits::default());
    let surroundings = Surroundings {
        registry: registry.clone(),
        ask: ask_peers(peers.clone()),
        refusals: refusals.clone(),
        waits: waits.clone(),
        metrics: metrics.scheduler.clone(),
    };
    let planner = Planner::new(store.clone(), seat.member, stamp.clone(), surroundings);
    control(planner, &store, &registry, &loops, &shutdown);
    let (reads, connected, running) = (store.clone(), registry.clone(), loops.clone());
    let agreement = Agreement::default();
    let compared = (seat.member, agreement.clone());
    let sources = Sources { store: reads, registry: connected, loops: running, clock, dir, compared };
    let api = Api {
        store: store.clone(),
        leader: LeaderWatch::start(store.clone(), &loops),
        registry: registry.clone(),
        streams,
        refusals,
        loops,
        clock: stamp.clone(),
        shutdown: shutdown.clone(),
        authority: keys.authority.clone(),
        content_key: keys.content_key.clone(),
        manager: keys.id.to_string(),
        member: seat.member,
        manager_only: config.node.is_none(),
        founders: seat.founders.into(),
        peers: peers.clone(),
        agreement: agreement.clone(),
        waits: waits.clone(),
        ears: Ears::default(),
        log_engine: config.log_engine,
        metrics: metrics.clone(),
    };
    let sessions = SessionServer::start(&api);
    api.compare_states();
    let parts = PeerParts {
        peers,
        store: store.clone(),
        registry,
        clock: stamp,
        waits,
        sessions: Arc::new(api.clone()),
        shutdown: shutdown.clone(),
    };
    let services = Services { api, sessions, peers: PeerServer::new(parts) };
    listeners.serve(&keys.authority.roots(), keys.manager.clone(), &services, &shutdown)?;
    tracing::info!(%address, cluster = %keys.cluster, member = seat.member, "manager is serving");
    Ok(Manager { address, keys, store, shutdown, metrics: (metrics, sources), failure })
}

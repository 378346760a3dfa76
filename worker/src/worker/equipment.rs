//! What the actors of this node's tasks do their work with.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Notify, RwLock, Semaphore, watch};
use warren_health::{InContainers, Limits, Prober};
use warren_logger::Programs;
use warren_task::Wishes;
use warren_types::ClusterId;
use warren_volume::{Local, Pins};

use crate::doors::Doors;
use crate::handlers::contents::ContentFiles;
use crate::handlers::contents::courier::Courier;
use crate::handlers::contents::memory::Memory;
use crate::handlers::files::Directories;
use crate::handlers::ports::Ports;
use crate::handlers::setups::RuntimeSetups;
use crate::handlers::volumes::Volumes;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::checks::{Checking, Results};
use crate::tasks::contents::Contents;
use crate::tasks::{Driver, Ground};

/// Where on this node tasks have what.
pub(super) struct Places {
    pub directories: Directories,
    /// On disk: data that outlives tasks.
    pub volumes: PathBuf,
    /// Lost with a reboot: parts of volumes, while containers are made with them.
    pub pins: PathBuf,
    /// In memory: secrets and configs.
    pub memory: Memory,
}

/// What several of the agent's parts share with the actors.
pub(super) struct Shared {
    pub volumes: Arc<Volumes>,
    pub checking: Arc<Checking>,
    pub contents: Arc<dyn Contents>,
    pub courier: Arc<dyn Courier>,
}

impl Shared {
    pub fn new(
        doors: &Doors,
        places: &Places,
        courier: Arc<dyn Courier>,
        wishes: watch::Receiver<Wishes>,
        metrics: WorkerMetrics,
        programs: &Programs,
    ) -> Self {
        let kept = Arc::new(Local::new(&places.volumes));
        let volumes = Volumes::new(kept, Pins::new(&places.pins), Arc::clone(&doors.runtime), wishes);
        let setups = Arc::new(RuntimeSetups::new(Arc::clone(&doors.runtime)));
        let exec = InContainers::new(programs.exec.clone(), setups);
        let prober = Prober::new(Arc::new(exec), Limits::of(cores()));
        let (memory, runtime) = (places.memory.clone(), Arc::clone(&doors.runtime));
        let contents = ContentFiles { memory, courier: Arc::clone(&courier), runtime };
        Self {
            volumes: Arc::new(volumes),
            checking: Arc::new(Checking { prober, results: Results::default(), metrics }),
            contents: Arc::new(contents),
            courier,
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What actions are done with.
pub(super) fn driver(
    doors: &Doors,
    places: Places,
    shared: &Shared,
    programs: Programs,
    cluster: ClusterId,
    wishes: watch::Receiver<Wishes>,
    ground: watch::Receiver<Ground>,
) -> Driver {
    Driver {
        runtime: Arc::clone(&doors.runtime),
        network: Arc::clone(&doors.network),
        images: Arc::clone(&doors.source),
        courier: Arc::clone(&shared.courier),
        programs,
        directories: places.directories,
        ports: Ports::new(Arc::clone(&doors.network)),
        contents: Arc::clone(&shared.contents),
        volumes: Arc::clone(&shared.volumes),
        checking: Arc::clone(&shared.checking),
        cluster,
        wishes,
        ground,
        // Starts are bound by the CPU: more at once make the first ones later and none earlier.
        starts: Arc::new(Semaphore::new((3 * cores()).max(4))),
        laying: RwLock::default(),
        botched: Notify::new(),
    }
}

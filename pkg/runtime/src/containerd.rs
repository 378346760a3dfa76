//! The runtime on containerd 1.6 or later, over its gRPC socket.
//!
//! Order is what keeps this safe. The container record is made first, because it is what containerd's
//! garbage collector follows; the file system second; the process last. Removal goes the other way. A call
//! that creates a process is never dropped half-way: containerd would leave a supervisor behind that nobody
//! ends.

mod bundle;
mod collect;
mod create;
mod events;
mod folders;
mod look;
mod oci_runtime;
mod process;
mod record;
mod remove;
mod shim;
mod sweep;
mod turns;
mod view;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{Notify, Semaphore};
use tokio_stream::wrappers::BroadcastStream;
use warren_image::{Connection, Images, Reference};

use crate::cgroup::Hierarchies;
use crate::container::{ContainerId, ContainerSpec, Exit, Found, Info, RuntimeEvent, Swept};
use crate::error::Error;
use crate::image_files::{ImageFiles, RunsAs};
use crate::setup::ProcessSetup;
use crate::spec::{Host, cgroup_path};
use crate::usage::{Meters, Usage};
use crate::{Result, Runtime};
use warren_types::Signal;

pub use crate::spec::Architectures;
pub use oci_runtime::OciRuntime;

/// Calls that read or write one record.
const RECORD: Duration = Duration::from_secs(10);
/// Asking one process's supervisor. A stopped one never answers and must not hold up the others.
const ASK: Duration = Duration::from_secs(5);
/// Lists of everything.
const LIST: Duration = Duration::from_secs(30);
/// Creating a process. Never shorter: giving up makes containerd abandon a supervisor.
const CREATE: Duration = Duration::from_secs(60);
/// Starting a process that was made; it takes some 10 ms.
const START: Duration = Duration::from_secs(15);
/// Deleting a process together with its supervisor.
const TURN: Duration = Duration::from_secs(30);

/// Where containerd is and what of it is ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// containerd's socket.
    pub socket: PathBuf,
    /// The namespace that holds our images and containers, and nobody else's. Two nodes on one machine need
    /// two, even with a containerd each: runc keeps its notes by namespace and container id alone.
    pub namespace: String,
    /// The plugin that keeps file systems.
    pub snapshotter: String,
    /// The cgroup under which containers get theirs. Two nodes on one machine need two, because empty ones
    /// below it are swept.
    pub cgroup_parent: String,
    /// The program that makes containers.
    pub runtime: OciRuntime,
    /// Whose programs containers under the default seccomp profile may run.
    pub architectures: Architectures,
}

impl Settings {
    /// The usual settings for a containerd at `socket`: namespace `warren`, `overlayfs`, cgroups under
    /// `/warren`, `runc`, and programs of the machine's own architecture.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            namespace: "warren".to_owned(),
            snapshotter: "overlayfs".to_owned(),
            cgroup_parent: "/warren".to_owned(),
            runtime: OciRuntime::default(),
            architectures: Architectures::default(),
        }
    }
}

/// The runtime on containerd. Clones are the same runtime.
#[derive(Clone)]
pub struct Containerd {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    connection: Connection,
    images: Images,
    cgroups: Hierarchies,
    /// `None` where the machine counts nothing.
    meters: Option<Meters>,
    host: Host,
    /// The program that makes containers: absolute.
    oci_runtime: PathBuf,
    /// CPU is the limit of starts: more at once are slower in total, and the first comes much later.
    starts: Arc<Semaphore>,
    stops: Arc<Semaphore>,
    turns: turns::Turns,
    announcer: Arc<events::Announcer>,
    watch: watch::Watch,
    views: view::Views,
    /// A container was removed.
    removed: Arc<Notify>,
    _pump: watch::Running,
    _collector: watch::Running,
}

impl Containerd {
    /// A runtime on the containerd at `settings.socket`. It connects by itself, now or whenever containerd
    /// comes up, and needs a tokio runtime around it.
    ///
    /// # Errors
    /// [`Error::NoOciRuntime`] when the program that makes containers is missing; [`Error::InvalidSpec`] when the
    /// namespace is no header value; [`Error::Failed`] without `/proc`.
    pub fn new(settings: Settings) -> Result<Self> {
        let oci_runtime = settings.runtime.find()?;
        let connection = Connection::new(&settings.socket, &settings.namespace)
            .map_err(|status| Error::invalid("namespace", status.message()))?;
        let unread = |what: &str, error: std::io::Error| Error::Failed {
            action: format!("read {what}"),
            reason: error.to_string(),
        };
        let cgroups = Hierarchies::read().map_err(|error| unread("the mount table", error))?;
        let meters = Meters::read().map_err(|error| unread("the mount table", error))?;
        let host = Host::read(&cgroups, settings.architectures);
        let host = host.map_err(|error| unread("what this process may do", error))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let images = Images::new(connection.clone(), &settings.snapshotter);
        let announcer = Arc::new(events::Announcer::default());
        let memory = events::Memory { cgroups: cgroups.clone(), parent: settings.cgroup_parent.clone() };
        let pump = watch::Running::spawn(events::pump(connection.clone(), announcer.clone(), memory.clone()));
        let watch = watch::Watch::new(connection.clone(), announcer.clone(), memory);
        let removed = Arc::new(Notify::new());
        // What a killed agent removed last may wait for a collection as well.
        removed.notify_one();
        let collector = watch::Running::spawn(collect::run(images.clone(), removed.clone()));
        let shared = Shared {
            settings,
            connection,
            images,
            cgroups,
            meters,
            host,
            oci_runtime,
            starts: Arc::new(Semaphore::new((3 * cores).max(4))),
            stops: Arc::new(Semaphore::new((2 * cores).max(4))),
            turns: turns::Turns::default(),
            announcer,
            watch,
            views: view::Views::default(),
            removed,
            _pump: pump,
            _collector: collector,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The images of the same namespace.
    pub fn images(&self) -> &Images {
        &self.shared.images
    }
}

#[async_trait]
impl Runtime for Containerd {
    async fn info(&self) -> Result<Info> {
        let version = self.shared.connection.version(ASK).await;
        let version = version.map_err(|status| Error::of("ask for its version", &status))?;
        Ok(Info { name: "containerd", version })
    }

    async fn list(&self) -> Result<Vec<Found>> {
        self.shared.list().await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<Found>> {
        self.shared.inspect(id).await
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        let _turn = self.shared.turns.work(&spec.id).await;
        self.shared.ensure_created(spec).await
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        let _turn = self.shared.turns.work(id).await;
        self.shared.start(id).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        self.shared.signal(id, signal).await
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<Exit>> {
        let _turn = self.shared.turns.work(id).await;
        self.shared.delete_process(id).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let _turn = self.shared.turns.work(id).await;
        self.shared.remove(id).await
    }

    async fn set_ledger(&self, id: &ContainerId, ledger: &str) -> Result<()> {
        self.shared.set_ledger(id, ledger).await
    }

    fn usage(&self, id: &ContainerId) -> Option<Usage> {
        let cgroup = cgroup_path(&self.shared.settings.cgroup_parent, id);
        self.shared.meters.as_ref()?.usage(&cgroup, Path::new("/proc"))
    }

    async fn process_setup(&self, id: &ContainerId) -> Result<ProcessSetup> {
        self.shared.process_setup(id).await
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        let received = BroadcastStream::new(self.shared.announcer.subscribe());
        received.map(|event| event.unwrap_or(RuntimeEvent::Lost)).boxed()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.shared.image_files(image).await
    }

    async fn runs_as(&self, image: &Reference, user: Option<&str>) -> Result<RunsAs> {
        self.shared.runs_as(image, user).await
    }

    async fn sweep_strays(&self) -> Result<Swept> {
        let mut swept = self.shared.sweep_strays().await?;
        self.shared.sweep_views(&mut swept).await?;
        Ok(swept)
    }

    async fn remove_node(&self) -> Result<()> {
        // A cgroup that something lives in is left alone by the kernel.
        self.shared.cgroups.remove_empty(Path::new(&self.shared.settings.cgroup_parent));
        Ok(())
    }
}

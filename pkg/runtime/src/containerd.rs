//! The runtime on containerd 1.6 or later, over its gRPC socket.
//!
//! The order of operations is essential. The container record is created first, because containerd's garbage
//! collector follows it; the file system second; the process last. Removal uses the reverse order. A call
//! that creates a process is never cancelled: containerd would leave a supervisor that is never stopped.

mod attach;
mod bundle;
mod create;
mod create_error;
mod events;
mod exec;
mod gc;
mod input_pipe;
mod inspect;
mod layer;
mod locks;
mod oci_runtime;
mod orphan_dirs;
mod process;
mod process_watcher;
mod record;
mod remove;
mod shim;
mod sweep;
mod view;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{Notify, Semaphore};
use tokio_stream::wrappers::BroadcastStream;
use warren_image::{ContainerdConnection, ImageStore, Reference};

use crate::apparmor::AppArmorHost;
use crate::cgroup::CgroupHierarchies;
use crate::container::{
    ContainerId, ContainerSpec, ContainerStatus, ProcessExit, RuntimeEvent, RuntimeInfo, SweepReport,
};
use crate::error::Error;
use crate::exec::{AttachedProcess, ContainerHandles, ExecProcess, ExecSpec};
use crate::image_files::{ContainerUser, ImageFiles};
use crate::process_list::{self, ContainerProcess};
use crate::spec::{HostFeatures, cgroup_path};
use crate::usage::{ContainerUsage, LayerUsage, UsageCounters};
use crate::{Result, Runtime};
use warren_types::Signal;

pub use crate::spec::AllowedArchitectures;
pub use oci_runtime::OciRuntime;

/// Calls that read or write one record.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// Query of one process's supervisor. A stopped one never answers and must not delay the others.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Lists of all objects.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Creating a process. Not shorter: after a timeout containerd abandons a supervisor.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// Starting a created process; it takes some 10 ms.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// Deleting a process with its supervisor.
const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerdSettings {
    /// Socket of containerd.
    pub socket: PathBuf,
    /// Namespace of this node's images and containers, without other users. Two nodes on one machine need
    /// two, even with one containerd each: runc stores its state by namespace and container id alone.
    pub namespace: String,
    /// Snapshotter plugin for file systems.
    pub snapshotter: String,
    /// Parent cgroup of containers. Two nodes on one machine need two, because empty child cgroups are
    /// removed by the sweep.
    pub cgroup_parent: String,
    /// OCI runtime.
    pub runtime: OciRuntime,
    /// Architectures of programs in containers under the default seccomp profile.
    pub architectures: AllowedArchitectures,
    /// Volatile directory for the pipes of further programs with terminals, without other users.
    pub exec_dir: PathBuf,
}

impl ContainerdSettings {
    /// Defaults for a containerd at `socket`: namespace `warren`, `overlayfs`, cgroups under `/warren`,
    /// `runc`, programs of the machine's own architecture, and pipes beside the socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        let socket = socket.into();
        Self {
            exec_dir: socket.with_file_name("exec"),
            socket,
            namespace: "warren".to_owned(),
            snapshotter: "overlayfs".to_owned(),
            cgroup_parent: "/warren".to_owned(),
            runtime: OciRuntime::default(),
            architectures: AllowedArchitectures::default(),
        }
    }
}

/// The runtime on containerd. Clones share state.
#[derive(Clone)]
pub struct ContainerdRuntime {
    shared: Arc<Inner>,
}

struct Inner {
    settings: ContainerdSettings,
    connection: ContainerdConnection,
    images: ImageStore,
    cgroups: CgroupHierarchies,
    /// `None` without accounting.
    usage_counters: Option<UsageCounters>,
    host: HostFeatures,
    apparmor: AppArmorHost,
    /// Absolute path of the OCI runtime.
    oci_runtime: PathBuf,
    /// Starts are CPU bound: more at once are slower in total, and the first is ready much later.
    start_permits: Arc<Semaphore>,
    stop_permits: Arc<Semaphore>,
    locks: locks::ContainerLocks,
    broadcaster: Arc<events::EventBroadcaster>,
    watcher: process_watcher::ProcessWatcher,
    views: view::Views,
    exec_dirs: exec::ExecDirs,
    /// For further programs without terminals.
    sealed_program: exec::SealedProgram,
    /// Notified after a removal.
    removed: Arc<Notify>,
    /// The directory of the writable layers, once it is known.
    layer_root: OnceLock<PathBuf>,
    _forwarder: process_watcher::AbortOnDrop,
    _collector: process_watcher::AbortOnDrop,
}

impl ContainerdRuntime {
    /// A runtime on the containerd at `settings.socket`. It connects by itself, now or as soon as containerd
    /// is up, and needs a tokio runtime.
    ///
    /// # Errors
    /// [`Error::OciRuntimeMissing`] if the OCI runtime is missing; [`Error::InvalidSpec`] if the namespace is not
    /// a valid header value; [`Error::Failed`] without `/proc`.
    pub fn new(settings: ContainerdSettings) -> Result<Self> {
        let oci_runtime = settings.runtime.find()?;
        let connection = ContainerdConnection::new(&settings.socket, &settings.namespace)
            .map_err(|status| Error::invalid_field("namespace", status.message()))?;
        let unread = |what: &str, error: std::io::Error| Error::Failed {
            action: format!("read {what}"),
            reason: error.to_string(),
        };
        let cgroups = CgroupHierarchies::read().map_err(|error| unread("the mount table", error))?;
        let meters = UsageCounters::read().map_err(|error| unread("the mount table", error))?;
        let host = HostFeatures::read(&cgroups, settings.architectures);
        let host = host.map_err(|error| unread("the capabilities of this process", error))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let images = ImageStore::new(connection.clone(), &settings.snapshotter);
        let announcer = Arc::new(events::EventBroadcaster::default());
        let memory =
            events::OomDetector { cgroups: cgroups.clone(), cgroup_parent: settings.cgroup_parent.clone() };
        let pump = process_watcher::AbortOnDrop::spawn(events::forward_events(
            connection.clone(),
            announcer.clone(),
            memory.clone(),
        ));
        let watch = process_watcher::ProcessWatcher::new(connection.clone(), announcer.clone(), memory);
        let removed = Arc::new(Notify::new());
        // The last removals of a killed agent may need a collection as well.
        removed.notify_one();
        let collector = process_watcher::AbortOnDrop::spawn(gc::run(images.clone(), removed.clone()));
        let shared = Inner {
            settings,
            connection,
            images,
            cgroups,
            usage_counters: meters,
            host,
            apparmor: AppArmorHost::find(),
            oci_runtime,
            start_permits: Arc::new(Semaphore::new((3 * cores).max(4))),
            stop_permits: Arc::new(Semaphore::new((2 * cores).max(4))),
            locks: locks::ContainerLocks::default(),
            broadcaster: announcer,
            watcher: watch,
            views: view::Views::default(),
            exec_dirs: exec::ExecDirs::default(),
            sealed_program: exec::SealedProgram::default(),
            removed,
            layer_root: OnceLock::new(),
            _forwarder: pump,
            _collector: collector,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Loads the default AppArmor profile of containers, if the machine has AppArmor.
    ///
    /// # Errors
    /// [`Error::Failed`]; containers then have no profile.
    pub async fn load_apparmor_profile(&self) -> Result<()> {
        self.shared.apparmor.load().await
    }

    /// Image store of the same namespace.
    pub fn images(&self) -> &ImageStore {
        &self.shared.images
    }
}

#[async_trait]
impl Runtime for ContainerdRuntime {
    async fn info(&self) -> Result<RuntimeInfo> {
        let version = self.shared.connection.version(STATE_TIMEOUT).await;
        let version = version.map_err(|status| Error::from_status("get its version", &status))?;
        Ok(RuntimeInfo { name: "containerd", version, apparmor: self.shared.apparmor.state().await })
    }

    async fn list(&self) -> Result<Vec<ContainerStatus>> {
        self.shared.list().await
    }

    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>> {
        self.shared.inspect(id).await
    }

    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()> {
        let _turn = self.shared.locks.lock_shared(&spec.id).await;
        self.shared.ensure_created(spec).await
    }

    async fn start(&self, id: &ContainerId) -> Result<u32> {
        let _turn = self.shared.locks.lock_shared(id).await;
        self.shared.start(id).await
    }

    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool> {
        self.shared.signal(id, signal).await
    }

    async fn delete_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>> {
        let _turn = self.shared.locks.lock_shared(id).await;
        self.shared.delete_process(id).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<()> {
        let _turn = self.shared.locks.lock_shared(id).await;
        self.shared.remove(id).await
    }

    async fn set_attempt_history(&self, id: &ContainerId, history: &str) -> Result<()> {
        self.shared.set_attempt_history(id, history).await
    }

    fn usage(&self, id: &ContainerId) -> Option<ContainerUsage> {
        let cgroup = cgroup_path(&self.shared.settings.cgroup_parent, id);
        self.shared.usage_counters.as_ref()?.usage(&cgroup, Path::new("/proc"))
    }

    async fn layer_usage(&self, id: &ContainerId) -> Result<Option<LayerUsage>> {
        self.shared.layer_usage(id).await
    }

    async fn layer_root(&self) -> Result<Option<PathBuf>> {
        self.shared.layer_root().await
    }

    async fn remove_layer(&self, id: &ContainerId) -> Result<()> {
        let _turn = self.shared.locks.lock_shared(id).await;
        self.shared.remove_layer(id).await
    }

    fn processes(&self, id: &ContainerId) -> Vec<ContainerProcess> {
        let cgroup = cgroup_path(&self.shared.settings.cgroup_parent, id);
        process_list::read(&self.shared.cgroups.processes(&cgroup), Path::new("/proc"))
    }

    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess> {
        self.shared.exec(id, spec).await
    }

    async fn attach(&self, id: &ContainerId, with_input: bool) -> Result<AttachedProcess> {
        self.shared.attach(id, with_input).await
    }

    async fn open(&self, id: &ContainerId) -> Result<ContainerHandles> {
        self.shared.open(id).await
    }

    fn events(&self) -> BoxStream<'static, RuntimeEvent> {
        let received = BroadcastStream::new(self.shared.broadcaster.subscribe());
        received.map(|event| event.unwrap_or(RuntimeEvent::Lost)).boxed()
    }

    async fn image_files(&self, image: &Reference) -> Result<ImageFiles> {
        self.shared.image_files(image).await
    }

    async fn resolve_user(&self, image: &Reference, user: Option<&str>) -> Result<ContainerUser> {
        self.shared.resolve_user(image, user).await
    }

    async fn sweep_orphans(&self) -> Result<SweepReport> {
        let mut swept = self.shared.sweep_orphans().await?;
        self.shared.sweep_views(&mut swept).await?;
        self.shared.sweep_quotas().await?;
        self.shared.sweep_execs(&mut swept).await;
        Ok(swept)
    }

    async fn remove_node(&self) -> Result<()> {
        // The kernel does not remove a cgroup with processes.
        self.shared.cgroups.remove_empty(Path::new(&self.shared.settings.cgroup_parent));
        Ok(())
    }
}

//! The doors to the machine that a worker works through: containers, images, network.

use std::path::PathBuf;
use std::sync::Arc;

use warren_image::{Images, InvalidHost, Registries};
use warren_network::{LinuxNetwork, NamespaceLock, Network};
use warren_runtime::Runtime;
use warren_runtime::containerd::{Containerd, OciRuntime, Settings};
use warren_runtime::supervise::{self, Options, Supervisor};

use crate::handlers::images::ImageSource;

/// Where a worker keeps what, and which containerd it uses.
#[derive(Debug, Clone)]
pub struct Place {
    /// On disk: a containerd of our own keeps its images and containers here.
    pub data_dir: PathBuf,
    /// Lost with a reboot: sockets and network namespaces. A short path, since sockets have at most 107
    /// bytes.
    pub run_dir: PathBuf,
    /// Use the containerd at this socket; `None` takes the machine's, or starts one.
    pub containerd_socket: Option<PathBuf>,
    /// The cgroup under which containers get theirs; two nodes on one machine need two.
    pub cgroup_parent: String,
    /// What runs containers: `runc`, `crun`, or the absolute path of such a program; `None` is `runc`.
    pub runtime: Option<String>,
    /// Registries that are spoken to over plain HTTP, each `HOST` or `HOST:PORT`.
    pub insecure_registries: Vec<String>,
}

/// The doors. In tests each can be a fake.
pub struct Doors {
    /// Containers.
    pub runtime: Arc<dyn Runtime>,
    /// Network namespaces, links, ports.
    pub network: Arc<dyn Network>,
    /// Images of the same containerd.
    pub images: Images,
    /// Where tasks get theirs from: `images`, or a fake.
    pub source: Arc<dyn ImageSource>,
    /// The containerd that is kept running for this worker; `None` when somebody else does that.
    pub containerd: Option<Supervisor>,
    /// Held as long as this process is the node of its network namespace.
    pub namespace: Option<NamespaceLock>,
}

/// Why this machine cannot be a worker now.
#[derive(Debug, thiserror::Error)]
pub enum DoorsError {
    /// Another node runs here, or the kernel's or iptables' part is not there.
    #[error(transparent)]
    Network(#[from] warren_network::Error),
    /// There is no containerd.
    #[error(transparent)]
    Containerd(#[from] supervise::Error),
    /// The runtime cannot be set up.
    #[error(transparent)]
    Runtime(#[from] warren_runtime::Error),
    /// What was said of a registry cannot be.
    #[error(transparent)]
    Registry(#[from] InvalidHost),
}

impl Place {
    /// The usual place: the machine's containerd or one of our own, cgroups under `/warren`.
    pub fn new(data_dir: impl Into<PathBuf>, run_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            run_dir: run_dir.into(),
            containerd_socket: None,
            cgroup_parent: "/warren".into(),
            runtime: None,
            insecure_registries: Vec::new(),
        }
    }

    fn oci_runtime(&self) -> Result<OciRuntime, DoorsError> {
        Ok(self.runtime.as_deref().map(OciRuntime::parse).transpose()?.unwrap_or_default())
    }

    fn registries(&self) -> Result<Registries, DoorsError> {
        let mut registries = Registries::default();
        for host in &self.insecure_registries {
            registries.allow_plain_http(host)?;
        }
        Ok(registries)
    }
}

impl Doors {
    /// Looks whether the doors can be opened, and changes nothing.
    ///
    /// # Errors
    /// What is missing on this machine, or that another node runs here.
    pub async fn check(place: &Place) -> Result<(), DoorsError> {
        place.oci_runtime()?.check().await?;
        place.registries()?;
        let _namespace = NamespaceLock::take()?;
        Ok(LinuxNetwork::new(&place.run_dir).check().await?)
    }

    /// Opens the real doors of this machine. Starts a containerd where none answers.
    pub async fn open(place: &Place) -> Result<Self, DoorsError> {
        let (oci_runtime, registries) = (place.oci_runtime()?, place.registries()?);
        // Said before a containerd is started that nobody could use.
        oci_runtime.check().await?;
        let namespace = NamespaceLock::take()?;
        let network = LinuxNetwork::new(&place.run_dir);
        network.check().await?;
        let (root, state) = (place.data_dir.join("containerd"), place.run_dir.join("containerd"));
        let options = Options { socket: place.containerd_socket.clone(), ..Options::new(root, state) };
        let containerd = Supervisor::ensure(options).await?;
        let settings = Settings::new(&containerd.endpoint().socket);
        let cgroup_parent = place.cgroup_parent.clone();
        let runtime = Containerd::new(Settings { cgroup_parent, runtime: oci_runtime, ..settings })?;
        let images = runtime.images().clone().with_registries(registries);
        Ok(Self {
            source: Arc::new(images.clone()),
            images,
            runtime: Arc::new(runtime),
            network: Arc::new(network),
            containerd: Some(containerd),
            namespace: Some(namespace),
        })
    }
}

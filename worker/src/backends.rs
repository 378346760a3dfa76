//! The backends of a worker on its machine: containers, images, network.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warren_dns::DnsSockets;
use warren_image::{ImageStore, InvalidHost, RegistrySettings};
use warren_network::{LinuxNetwork, NamespaceLock, NetworkBackend, WireGuardProgram};
use warren_runtime::Runtime;
use warren_runtime::containerd::{ContainerdRuntime, ContainerdSettings, OciRuntime};
use warren_runtime::supervise::{self, ContainerdSupervisor, SupervisorOptions};
use warren_security::files::{FileError, ensure_private_dir};

use crate::handlers::images::ImageSource;
use crate::network::dns::BindDns;

/// Directories of a worker, and its choice of containerd.
#[derive(Debug, Clone)]
pub struct BackendConfig {
    /// Persistent data of a private containerd: images and containers.
    pub data_dir: PathBuf,
    /// Volatile directory of sockets and network namespaces. Use a short path, since socket paths have at
    /// most 107 bytes.
    pub run_dir: PathBuf,
    /// Socket of the containerd to use; `None` takes the machine's, or starts a private one.
    pub containerd_socket: Option<PathBuf>,
    /// Parent cgroup of containers; two nodes on one machine need two.
    pub cgroup_parent: String,
    /// OCI runtime: `runc`, `crun`, or an absolute path; `None` is `runc`.
    pub runtime: Option<String>,
    /// Registries to use over plain HTTP, each `HOST` or `HOST:PORT`.
    pub insecure_registries: Vec<String>,
}

/// The backends. In tests each can be a fake.
pub struct HostBackends {
    /// Containers.
    pub runtime: Arc<dyn Runtime>,
    /// Network namespaces, links, ports.
    pub network: Arc<dyn NetworkBackend>,
    /// Opens the sockets of the node's DNS server.
    pub bind_dns: BindDns,
    /// Images of the same containerd.
    pub images: ImageStore,
    /// Source of images for tasks: `images`, or a fake.
    pub image_source: Arc<dyn ImageSource>,
    /// The private containerd; `None` if containerd is external.
    pub containerd: Option<ContainerdSupervisor>,
    /// Lock of this process on its network namespace.
    pub namespace: Option<NamespaceLock>,
}

/// This machine cannot be a worker now.
#[derive(Debug, thiserror::Error)]
pub enum HostBackendsError {
    /// Another node runs here, or kernel or iptables features are missing.
    #[error(transparent)]
    Network(#[from] warren_network::Error),
    /// No containerd can be used.
    #[error(transparent)]
    Containerd(#[from] supervise::Error),
    /// The runtime cannot be set up.
    #[error(transparent)]
    Runtime(#[from] warren_runtime::Error),
    /// A directory cannot be created.
    #[error(transparent)]
    Directory(#[from] FileError),
    /// A configured registry is invalid.
    #[error(transparent)]
    Registry(#[from] InvalidHost),
}

impl BackendConfig {
    /// Defaults: the machine's containerd or a private one, cgroups under `/warren`.
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

    fn parse_oci_runtime(&self) -> Result<OciRuntime, HostBackendsError> {
        Ok(self.runtime.as_deref().map(OciRuntime::parse).transpose()?.unwrap_or_default())
    }

    fn parse_registries(&self) -> Result<RegistrySettings, HostBackendsError> {
        let mut registries = RegistrySettings::default();
        for host in &self.insecure_registries {
            registries.allow_plain_http(host)?;
        }
        Ok(registries)
    }
}

/// Directory of the programs for containers.
pub(crate) fn programs_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("worker/bin")
}

fn linux_network(config: &BackendConfig) -> LinuxNetwork {
    LinuxNetwork::new(&config.run_dir, WireGuardProgram::own())
}

impl HostBackends {
    /// Checks the requirements of the backends, and changes nothing.
    ///
    /// # Errors
    /// A requirement is missing, or another node runs here.
    pub async fn check(config: &BackendConfig) -> Result<(), HostBackendsError> {
        config.parse_oci_runtime()?.check().await?;
        config.parse_registries()?;
        let _namespace = NamespaceLock::acquire()?;
        Ok(linux_network(config).check().await?)
    }

    /// Opens the backends of this machine. Starts a private containerd if none answers.
    pub async fn open(config: &BackendConfig) -> Result<Self, HostBackendsError> {
        let (oci_runtime, registries) = (config.parse_oci_runtime()?, config.parse_registries()?);
        // Checked before a containerd is started that could not be used.
        oci_runtime.check().await?;
        let namespace = NamespaceLock::acquire()?;
        let network = linux_network(config);
        network.check().await?;
        let (root, state) = (config.data_dir.join("containerd"), config.run_dir.join("containerd"));
        let options = SupervisorOptions {
            socket: config.containerd_socket.clone(),
            ..SupervisorOptions::new(root, state)
        };
        let containerd = ContainerdSupervisor::ensure(options).await?;
        let settings = ContainerdSettings::new(&containerd.endpoint().socket);
        let (cgroup_parent, exec_dir) = (config.cgroup_parent.clone(), config.run_dir.join("exec"));
        ensure_private_dir(&exec_dir)?;
        let runtime = ContainerdRuntime::new(ContainerdSettings {
            cgroup_parent,
            exec_dir,
            runtime: oci_runtime,
            ..settings
        })?;
        if let Err(error) = runtime.load_apparmor_profile().await {
            tracing::warn!(%error, "containers have no AppArmor profile");
        }
        let images = runtime.images().clone().with_registries(registries);
        Ok(Self {
            image_source: Arc::new(images.clone()),
            images,
            runtime: Arc::new(runtime),
            network: Arc::new(network),
            bind_dns: Arc::new(DnsSockets::bind),
            containerd: Some(containerd),
            namespace: Some(namespace),
        })
    }
}

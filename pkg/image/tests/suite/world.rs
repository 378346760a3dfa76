//! Shared fixture: a private containerd and checks of its remaining content.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warren_image::{
    ContainerdConnection, Error, ImageStore, ImportOptions, ImportedName, PulledImage, Reference,
    RegistryAccess, RegistryCredentials, RegistryPolicy, RegistrySettings,
};
use warren_registry::RegistryClients;
use warren_testkit::containerd::TestContainerd;
use warren_testkit::image::PackedImage;
use warren_testkit::process::ChildProcess;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually_async;

const NAMESPACE: &str = "pull";
const SOON: Duration = Duration::from_secs(60);

/// A store without images.
pub struct ImageFixture {
    pub images: ImageStore,
    pub registries: RegistryClients,
    containerd: TestContainerd,
    root: PathBuf,
}

fn images(containerd: &TestContainerd, namespace: &str) -> ImageStore {
    ImageStore::new(ContainerdConnection::new(containerd.socket(), namespace).unwrap(), "overlayfs")
}

/// Registry settings with short delays. A loaded machine causes no retry.
pub fn registries() -> RegistrySettings {
    let policy = RegistryPolicy {
        connect_timeout: Duration::from_secs(60),
        stall_timeout: Duration::from_secs(60),
        max_tries: 3,
        min_backoff: Duration::from_millis(10),
        max_backoff: Duration::from_millis(50),
        pull_timeout: Duration::from_secs(60),
    };
    let mut registries = RegistrySettings::default();
    registries.policy = policy;
    registries
}

/// The same with a short stall timeout, for registries that do not answer.
pub fn impatient() -> RegistrySettings {
    let mut registries = registries();
    registries.policy.stall_timeout = Duration::from_millis(700);
    registries
}

impl ImageFixture {
    pub fn start() -> Self {
        Self::with(registries())
    }

    pub fn with(registries: RegistrySettings) -> Self {
        let containerd = TestContainerd::start();
        let root = containerd.directory().join("root");
        Self::new(containerd, root, registries)
    }

    /// `root` is the storage directory.
    pub fn on(root: &Path) -> Self {
        Self::new(TestContainerd::start_on(root), root.to_owned(), registries())
    }

    fn new(containerd: TestContainerd, root: PathBuf, registries: RegistrySettings) -> Self {
        let images = images(&containerd, NAMESPACE).with_registries(registries.clone());
        Self { images, registries: RegistryClients::new(registries), containerd, root }
    }

    /// The same images with the state of a freshly started agent.
    pub fn reopened(&self) -> ImageStore {
        images(&self.containerd, NAMESPACE).with_registries(registries())
    }

    /// The images of another namespace of the same containerd.
    pub fn other_namespace(&self) -> ImageStore {
        images(&self.containerd, "neighbour").with_registries(registries())
    }

    /// Storage directory of containerd.
    pub fn directory(&self) -> &Path {
        self.containerd.directory()
    }

    /// Process of containerd, to pause it.
    pub fn process(&mut self) -> &mut ChildProcess {
        self.containerd.process()
    }

    pub fn ctr(&self, arguments: &[&str]) -> String {
        self.containerd.ctr(["--namespace", NAMESPACE].iter().chain(arguments).copied())
    }

    pub async fn pull(&self, name: &str) -> Result<PulledImage, Error> {
        self.pull_as(name, None).await
    }

    pub async fn pull_as(
        &self,
        name: &str,
        credentials: Option<RegistryCredentials>,
    ) -> Result<PulledImage, Error> {
        self.pull_with(name, credentials.map(RegistryAccess::Password)).await
    }

    pub async fn pull_with(&self, name: &str, access: Option<RegistryAccess>) -> Result<PulledImage, Error> {
        self.images.pull(&Reference::parse(name).unwrap(), access).outcome().await
    }

    /// Output of `command` in a container of the image.
    pub fn run_output(&self, image: &str, command: &[&str]) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = format!("says-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.containerd.container_stdout(NAMESPACE, image, &id, command)
    }

    /// Imports an archive under its own name, or another one.
    pub async fn import(&self, archive: &PackedImage, name: Option<&str>) -> Result<ImportedName, Error> {
        let spool = ScratchDir::new();
        let options = ImportOptions {
            spool_dir: spool.path().to_owned(),
            max_bytes: 1 << 30,
            name: name.map(|name| name.parse().unwrap()),
        };
        let imported = self.images.import(&archive.bytes[..], options).await;
        assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0, "the spool is empty again");
        imported.map(|mut all| all.remove(0))
    }

    /// The names of all images.
    pub async fn names(&self) -> Vec<String> {
        self.images.list().await.unwrap().into_iter().map(|row| row.reference).collect()
    }

    /// Blobs, snapshots, half-written blobs and leases, one per line.
    pub fn stored_objects(&self) -> Vec<String> {
        let lists: [&[&str]; 4] = [
            &["content", "ls", "--quiet"],
            &["snapshots", "ls"],
            &["content", "active"],
            &["leases", "ls", "--quiet"],
        ];
        let lines = |arguments: &&[&str]| {
            let output = self.ctr(arguments);
            let is_head = |line: &str| line.starts_with("KEY") || line.starts_with("REF");
            output.lines().filter(|line| !is_head(line)).map(str::to_owned).collect::<Vec<_>>()
        };
        lists.iter().flat_map(lines).collect()
    }

    /// Files and directories of blobs, partial blobs, layers and mounts, including those unknown to
    /// containerd.
    fn files(&self) -> Vec<String> {
        let content = "io.containerd.content.v1.content";
        let places = [
            format!("{content}/blobs/sha256"),
            format!("{content}/ingest"),
            "io.containerd.snapshotter.v1.overlayfs/snapshots".to_owned(),
            "tmpmounts".to_owned(),
        ];
        let entries =
            |place: &String| std::fs::read_dir(self.root.join(place)).into_iter().flatten().flatten();
        places.iter().flat_map(entries).map(|entry| entry.path().display().to_string()).collect()
    }

    /// Checks that nothing of any image remains.
    #[track_caller]
    pub fn assert_nothing(&self) -> impl Future<Output = ()> + '_ {
        let place = std::panic::Location::caller();
        async move {
            let images = self.images.list().await.unwrap();
            assert!(images.is_empty(), "{place}: {images:?}");
            self.eventually("an empty store", || async {
                let stored = [self.stored_objects(), self.files()].concat();
                if stored.is_empty() { Ok(()) } else { Err(format!("{place}: {stored:#?}")) }
            })
            .await;
        }
    }

    pub async fn eventually<T, F>(&self, what: &str, look: impl FnMut() -> F) -> T
    where
        F: Future<Output = Result<T, String>>,
    {
        eventually_async(SOON, what, look).await
    }
}

/// Bytes that do not compress, the same for the same seed.
pub fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&next());
    }
    bytes.truncate(length);
    bytes
}

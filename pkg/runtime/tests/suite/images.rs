//! Images in a real content store.

use std::time::Duration;

use containerd_client::services::v1::{CreateRequest, ListRequest};
use warren_image::build::{gzip, pack};
use warren_image::{ContainerdConnection, Error, ImportOptions, Reference, with_deadline};
use warren_runtime::Runtime;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::testing::PrivateContainerd;

use crate::world::{IMAGE, import, spec, stopped, tiny};

struct Store {
    runtime: ContainerdRuntime,
    containerd: PrivateContainerd,
}

impl Store {
    async fn start() -> Self {
        let containerd = PrivateContainerd::start().await;
        Self { runtime: ContainerdRuntime::new(containerd.settings()).unwrap(), containerd }
    }

    async fn import(&self, archive: Vec<u8>) -> Result<Vec<warren_image::ImportedName>, Error> {
        let spool = self.containerd.dir().join("spool");
        std::fs::create_dir_all(&spool).unwrap();
        let result = import(&self.runtime, &spool, archive).await;
        assert_eq!(std::fs::read_dir(&spool).unwrap().count(), 0, "the spool is empty again");
        result
    }

    fn connection(&self) -> ContainerdConnection {
        let settings = self.containerd.settings();
        ContainerdConnection::new(&settings.socket, &settings.namespace).unwrap()
    }

    async fn leases(&self) -> usize {
        self.lease_ids().await.len()
    }

    /// Those of imports; the runtime takes another one, with the same label, for a moment when it collects garbage.
    async fn import_leases(&self) -> usize {
        self.lease_ids().await.iter().filter(|id| id.starts_with("warren-import-")).count()
    }

    async fn lease_ids(&self) -> Vec<String> {
        let connection = self.connection();
        let request = connection.request(ListRequest { filters: Vec::new() });
        let listed = with_deadline(Duration::from_secs(60), connection.leases().list(request)).await.unwrap();
        listed.leases.into_iter().map(|lease| lease.id).collect()
    }

    /// Waits until there are so many leases and snapshots: the runtime takes one of each for a moment when it collects
    /// garbage, also after its start.
    async fn has(&self, leases: usize, layers: usize) {
        let is_so = async || (self.leases().await, self.layers().await) == (leases, layers);
        crate::world::eventually(&format!("{leases} leases and {layers} layers"), is_so).await;
    }

    /// Committed snapshots, which are the unpacked layers.
    async fn layers(&self) -> usize {
        let settings = self.containerd.settings();
        let listed = std::process::Command::new("ctr")
            .args(["--address", settings.socket.to_str().unwrap(), "-n", &settings.namespace])
            .args(["snapshots", "ls"])
            .output()
            .unwrap();
        String::from_utf8(listed.stdout).unwrap().lines().skip(1).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_formats_import_twice_and_are_removed() {
    let store = Store::start().await;
    let images = store.runtime.images();
    let (oci, docker) = (tiny(IMAGE).oci_archive().unwrap(), tiny("docker:1").docker_archive().unwrap());
    let mut digests = Vec::new();
    for archive in [oci.clone(), docker, gzip(&oci).unwrap(), oci] {
        let imported = store.import(archive).await.unwrap();
        assert_eq!(imported.len(), 1);
        let info = images.get(&imported[0].reference).await.unwrap().expect("it was just imported");
        assert_eq!(info.digest, imported[0].digest);
        assert_eq!(info.config.cmd, ["sleep", "100000"]);
        assert!(imported[0].size > 500_000, "{imported:?}");
        digests.push(info.digest.clone());
        // The same layer is unpacked once, whatever it came in.
        store.has(0, 1).await;
    }
    assert_eq!((&digests[0], &digests[0]), (&digests[2], &digests[3]), "importing again changes nothing");
    let names: Vec<String> = images.list().await.unwrap().into_iter().map(|image| image.reference).collect();
    assert_eq!(names, ["docker.io/library/docker:1", IMAGE]);

    let first = Reference::parse(IMAGE).unwrap();
    assert!(images.remove(&first).await.unwrap());
    assert!(!images.remove(&first).await.unwrap(), "the second time there is nothing to remove");
    assert_eq!(images.get(&first).await.unwrap(), None);
    let other = Reference::parse("docker:1").unwrap();
    // Another image still needs the layer.
    store.has(0, 1).await;
    let container = warren_runtime::ContainerSpec { image: other.clone(), ..spec("uses", &["true"]) };
    store.runtime.ensure_created(&container).await.unwrap();
    assert!(images.remove(&other).await.unwrap());
    store.runtime.start(&container.id).await.expect("a container keeps what it runs from");
    assert_eq!(stopped(&store.runtime, &container.id).await.code, 0);
    store.runtime.remove(&container.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_archive_leaves_nothing() {
    let store = Store::start().await;
    // The last blob is the layer. Its bytes change; its size and all descriptors do not.
    let mut bytes = tiny(IMAGE).oci_archive().unwrap();
    let middle = bytes.len() - 100_000;
    bytes[middle] ^= 1;
    let error = store.import(bytes).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }) && error.is_bad_input(), "{error}");
    let error = store.import(pack(&[("x".into(), vec![1])]).unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::NotAnArchive { .. }), "{error}");
    assert_eq!(store.runtime.images().list().await.unwrap(), []);
    store.has(0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_wrong_diff_id_is_rejected() {
    let store = Store::start().await;
    // A docker archive describes only the unpacked form of a compressed layer, so the mismatch is found
    // there.
    let honest = tiny(IMAGE).docker_archive().unwrap();
    let mut files = Vec::new();
    for entry in tar::Archive::new(&honest[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        if name.ends_with("layer.tar") {
            bytes = gzip(&pack(&[("other".into(), vec![1])]).unwrap()).unwrap();
        }
        files.push((name, bytes));
    }
    let error = store.import(pack(&files).unwrap()).await.unwrap_err();
    assert!(matches!(&error, Error::DigestMismatch { what, .. } if what.contains("unpacked")), "{error}");
    store.has(0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_import_ends() {
    let store = Store::start().await;
    let archive = tiny(IMAGE).oci_archive().unwrap();
    let images = store.runtime.images().clone();
    let options =
        ImportOptions { spool_dir: store.containerd.dir().to_owned(), max_bytes: 64 << 20, name: None };
    let waiting = tokio::spawn(async move { images.import(&archive[..], options).await.map(|_| ()) });
    crate::world::eventually("the import has begun", || async {
        store.import_leases().await > 0 || waiting.is_finished()
    })
    .await;
    if waiting.is_finished() {
        waiting.await.unwrap().unwrap();
    } else {
        waiting.abort();
    }
    let reference = Reference::parse(IMAGE).unwrap();
    let is_there = async || store.runtime.images().get(&reference).await.unwrap().is_some();
    crate::world::eventually("the image is there", &is_there).await;
    crate::world::eventually("the lease is released", async || store.leases().await == 0).await;
    let images = store.runtime.images();
    assert_eq!(images.sweep_leases().await.unwrap(), Vec::<String>::new());

    // Leftovers of a killed import, and objects that are not an import's.
    for (id, label) in [("stray", "warren.import"), ("foreign", "somebody.else")] {
        let labels = [(label.to_owned(), "1".to_owned())].into();
        let connection = store.connection();
        let request = connection.request(CreateRequest { id: id.to_owned(), labels });
        with_deadline(Duration::from_secs(5), connection.leases().create(request)).await.unwrap();
    }
    assert_eq!(images.sweep_leases().await.unwrap(), ["stray"]);
    store.has(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_imports_repair_lost_snapshots() {
    let store = Store::start().await;
    let archive = tiny(IMAGE).oci_archive().unwrap();
    let imports = (0..4).map(|_| store.import_only(archive.clone()));
    for imported in futures::future::join_all(imports).await {
        imported.unwrap();
    }
    store.has(0, 1).await;
    let info = store.runtime.images().get(&Reference::parse(IMAGE).unwrap()).await.unwrap().unwrap();
    let settings = store.containerd.settings();
    let removed = std::process::Command::new("ctr")
        .args(["--address", settings.socket.to_str().unwrap(), "-n", &settings.namespace])
        .args(["snapshots", "rm", info.chain_id.as_str()])
        .status()
        .unwrap();
    assert!(removed.success());
    store.has(0, 0).await;
    let container = spec("repaired", &["true"]);
    store.runtime.ensure_created(&container).await.unwrap();
    store.runtime.remove(&container.id).await.unwrap();
    store.has(0, 1).await;
}

impl Store {
    async fn import_only(&self, archive: Vec<u8>) -> Result<Vec<warren_image::ImportedName>, Error> {
        import(&self.runtime, self.containerd.dir(), archive).await
    }
}

//! The images of one containerd namespace: what callers of this crate use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use containerd_client::services::v1 as api;
use containerd_client::types;
use tokio::io::AsyncRead;

use crate::archive::{Archive, Candidate, spool};
use crate::connection::{Connection, Fault, within};
use crate::digest::Digest;
use crate::document::{Configuration, Descriptor, Index, Manifest, RunConfig};
use crate::error::Error;
use crate::reference::Reference;
use crate::store::{COLLECT, Lease, RECORD, Store};
use crate::unpack::ensure_unpacked;

const REF_CONFIG: &str = "containerd.io/gc.ref.content.config";
const REF_LAYER: &str = "containerd.io/gc.ref.content.l.";
const REF_SNAPSHOT: &str = "containerd.io/gc.ref.snapshot.";
/// Parsed images kept in memory; the cache is emptied when it is full.
const CACHED: usize = 256;

/// Where an archive is spooled, how large it may be, what its image shall be called.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// A directory on a disk with room for the archive twice. Nothing is left in it.
    pub spool_dir: PathBuf,
    /// The largest archive accepted, in bytes, packed and unpacked each.
    pub max_bytes: u64,
    /// The name for the archive's only image. Without it the archive must name its images.
    pub name: Option<Reference>,
}

/// One name that an import created or moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The image's name from now on.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its layers and configuration as stored.
    pub size: u64,
}

/// What running an image needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// The digest of the manifest for this platform.
    pub digest: Digest,
    /// The name of the committed snapshot that holds its file system.
    pub chain_id: Digest,
    /// How it wants to be run.
    pub config: RunConfig,
    layers: Vec<Descriptor>,
    diff_ids: Vec<Digest>,
    config_digest: Digest,
}

/// One row of the list of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name as containerd keeps it.
    pub reference: String,
    /// The digest it points to: a manifest, or an index when another tool stored it.
    pub digest: String,
}

/// The images of one containerd namespace. Clones share a cache of parsed documents.
#[derive(Clone, Debug)]
pub struct Images {
    store: Store,
    snapshotter: Arc<str>,
    parsed: Arc<Mutex<HashMap<Digest, Arc<ImageInfo>>>>,
}

impl Images {
    /// The images reached by `connection`, unpacked by `snapshotter` (usually `overlayfs`).
    pub fn new(connection: Connection, snapshotter: &str) -> Self {
        Self { store: Store { connection }, snapshotter: snapshotter.into(), parsed: Arc::default() }
    }

    /// Imports every image of an OCI-layout or docker-save archive, plain or gzip, told apart by content.
    /// Importing the same archive again changes nothing; a name that exists moves to the new image.
    ///
    /// Once the archive is received the import runs to its end even if this future is dropped, and releases
    /// its lease. Names appear last: an import that fails leaves none.
    ///
    /// # Errors
    /// [`Error::is_bad_input`] tells a bad archive from a failing node.
    pub async fn import<R>(&self, archive: R, options: ImportOptions) -> Result<Vec<Imported>, Error>
    where
        R: AsyncRead + Unpin + Send,
    {
        let spooled = spool(archive, &options.spool_dir, options.max_bytes).await?;
        let images = self.clone();
        let work = async move {
            let opened = tokio::task::spawn_blocking(move || {
                let archive = Archive::open(spooled, &options.spool_dir, options.max_bytes)?;
                let candidates = archive.candidates(options.name.as_ref())?;
                let file = archive.file().map_err(|error| Error::spool(&options.spool_dir, error))?;
                Ok::<_, Error>((Arc::new(file), candidates))
            });
            let (file, candidates) = opened.await.expect("reading an archive does not panic")?;
            let lease = images.store.lease().await?;
            let imported = images.ingest(&lease, file, &candidates).await;
            let released = images.store.release(&lease.id).await;
            imported.and_then(|imported| released.map(|()| imported))
        };
        tokio::spawn(work).await.expect("an import is neither cancelled nor panics")
    }

    async fn ingest(
        &self,
        lease: &Lease,
        file: Arc<std::fs::File>,
        candidates: &[Candidate],
    ) -> Result<Vec<Imported>, Error> {
        for candidate in candidates {
            self.ingest_one(lease, file.clone(), candidate).await?;
        }
        let mut imported = Vec::new();
        for candidate in candidates {
            let size =
                candidate.config.0.size + candidate.layers.iter().map(|(layer, _)| layer.size).sum::<u64>();
            for name in &candidate.names {
                self.point(name, &candidate.manifest.0).await?;
                let (reference, digest) = (name.clone(), candidate.manifest.0.digest.clone());
                imported.push(Imported { reference, digest, size });
            }
        }
        Ok(imported)
    }

    async fn ingest_one(
        &self,
        lease: &Lease,
        file: Arc<std::fs::File>,
        image: &Candidate,
    ) -> Result<(), Error> {
        self.store.write_document(lease, &image.config.1, HashMap::new()).await?;
        let mut references: HashMap<String, String> = HashMap::new();
        references.insert(REF_CONFIG.to_owned(), image.config.0.digest.to_string());
        for (position, (layer, span)) in image.layers.iter().enumerate() {
            self.store.write_span(lease, &layer.digest, file.clone(), *span).await?;
            references.insert(format!("{REF_LAYER}{position}"), layer.digest.to_string());
        }
        self.store.write_document(lease, &image.manifest.1, references).await?;
        let layers: Vec<Descriptor> = image.layers.iter().map(|(layer, _)| layer.clone()).collect();
        self.unpack(lease, &layers, &image.diff_ids, &image.config.0.digest).await.map(|_| ())
    }

    async fn unpack(
        &self,
        lease: &Lease,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        config: &Digest,
    ) -> Result<Digest, Error> {
        let chain_id =
            ensure_unpacked(&self.store.connection, &self.snapshotter, lease, layers, diff_ids).await?;
        // From here on the image record holds the snapshots too: record -> manifest -> configuration -> top
        // snapshot.
        self.store
            .label(config, &format!("{REF_SNAPSHOT}{}", self.snapshotter), chain_id.to_string())
            .await?;
        Ok(chain_id)
    }

    /// Creates the record of a name, or moves it.
    async fn point(&self, name: &Reference, manifest: &Descriptor) -> Result<(), Error> {
        let target = types::Descriptor {
            media_type: manifest.media_type.clone(),
            digest: manifest.digest.to_string(),
            size: manifest.size as i64,
            ..Default::default()
        };
        let image = Some(api::Image { name: name.to_string(), target: Some(target), ..Default::default() });
        let message = api::CreateImageRequest { image: image.clone(), source_date_epoch: None };
        let connection = &self.store.connection;
        let made = within(RECORD, connection.images().create(connection.request(message))).await;
        let status = match made {
            Ok(_) => return Ok(()),
            Err(status) => status,
        };
        if Fault::of(&status) == Fault::AlreadyExists {
            let mask = prost_types::FieldMask { paths: vec!["target".to_owned()] };
            let message = api::UpdateImageRequest { image, update_mask: Some(mask), source_date_epoch: None };
            return match within(RECORD, connection.images().update(connection.request(message))).await {
                Ok(_) => Ok(()),
                Err(status) => Err(Error::of(format!("move the image name {name}"), &status)),
            };
        }
        Err(Error::of(format!("create the image name {name}"), &status))
    }

    /// Looks an image up by name; `None` when there is no such name or its content is not complete.
    ///
    /// # Errors
    /// When containerd fails, or the image's documents are unusable or for another platform.
    pub async fn get(&self, reference: &Reference) -> Result<Option<Arc<ImageInfo>>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::GetImageRequest { name: reference.to_string() });
        let record = match within(RECORD, connection.images().get(request)).await {
            Ok(reply) => reply.image.unwrap_or_default(),
            Err(status) if Fault::of(&status) == Fault::NotFound => return Ok(None),
            Err(status) => return Err(Error::of(format!("look up image {reference}"), &status)),
        };
        let target = record.target.unwrap_or_default();
        let digest =
            Digest::parse(&target.digest).map_err(|error| Error::document(reference.to_string(), error))?;
        if let Some(info) = self.parsed.lock().expect("no holder panics").get(&digest) {
            return Ok(Some(info.clone()));
        }
        let descriptor = Descriptor::new(&target.media_type, digest.clone(), target.size as u64);
        let Some(info) = self.read(descriptor).await?.map(Arc::new) else { return Ok(None) };
        let mut parsed = self.parsed.lock().expect("no holder panics");
        if parsed.len() >= CACHED {
            parsed.clear();
        }
        parsed.insert(digest, info.clone());
        Ok(Some(info))
    }

    /// Reads an image's documents from the store. One index is followed, as other tools record it.
    async fn read(&self, target: Descriptor) -> Result<Option<ImageInfo>, Error> {
        let manifest = match target.is_index() {
            false => target,
            true => {
                let Some(index) = self.document::<Index>(&target.digest).await? else { return Ok(None) };
                let platforms = |descriptor: &Descriptor| descriptor.platform.clone();
                let mut native =
                    index.manifests.iter().filter(|each| platforms(each).is_some_and(|p| p.is_native()));
                let found = || index.manifests.iter().filter_map(platforms);
                let names = || found().map(|p| format!("{}/{}", p.os, p.architecture)).collect::<Vec<_>>();
                let missing =
                    || Error::Platform { what: target.digest.to_string(), found: names().join(", ") };
                native.next().ok_or_else(missing)?.clone()
            }
        };
        let Some(parsed) = self.document::<Manifest>(&manifest.digest).await? else { return Ok(None) };
        let Some(configuration) = self.document::<Configuration>(&parsed.config.digest).await? else {
            return Ok(None);
        };
        let diff_ids = configuration.rootfs.diff_ids;
        let chain = Digest::chain(&diff_ids);
        match chain.into_iter().next_back() {
            Some(chain_id) if diff_ids.len() == parsed.layers.len() => Ok(Some(ImageInfo {
                digest: manifest.digest,
                chain_id,
                config: configuration.config,
                layers: parsed.layers,
                diff_ids,
                config_digest: parsed.config.digest,
            })),
            _ => {
                Err(Error::document(manifest.digest.to_string(), "its layers and configuration do not agree"))
            }
        }
    }

    async fn document<T: serde::de::DeserializeOwned>(&self, digest: &Digest) -> Result<Option<T>, Error> {
        let Some(bytes) = self.store.read_document(digest).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|error| Error::document(digest.to_string(), error))
    }

    /// Unpacks an image whose content is stored but whose snapshots are not there: another tool pulled it
    /// without unpacking, or they were deleted by hand. Harmless when they are there.
    ///
    /// # Errors
    /// As for an import.
    pub async fn ensure_unpacked(&self, image: &ImageInfo) -> Result<(), Error> {
        let lease = self.store.lease().await?;
        let unpacked = self.unpack(&lease, &image.layers, &image.diff_ids, &image.config_digest).await;
        let released = self.store.release(&lease.id).await;
        unpacked.and(released)
    }

    /// Every image name of the namespace.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn list(&self) -> Result<Vec<Listed>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::ListImagesRequest { filters: Vec::new() });
        let reply = within(RECORD, connection.images().list(request))
            .await
            .map_err(|status| Error::of("list images", &status))?;
        let listed = |image: api::Image| {
            let digest = image.target.unwrap_or_default().digest;
            Listed { reference: image.name, digest }
        };
        Ok(reply.images.into_iter().map(listed).collect())
    }

    /// Removes a name, and what no other name or container needs. Says whether there was such a name.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn remove(&self, reference: &Reference) -> Result<bool, Error> {
        let connection = &self.store.connection;
        let message =
            api::DeleteImageRequest { name: reference.to_string(), sync: true, ..Default::default() };
        match within(COLLECT, connection.images().delete(connection.request(message))).await {
            Ok(()) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("remove image {reference}"), &status)),
        }
    }

    /// Has containerd delete now what nothing refers to any more.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn collect_garbage(&self) -> Result<(), Error> {
        self.store.collect().await
    }

    /// Releases the leases of imports that were killed half-way and says which. Only for the start of the
    /// one process that imports into this namespace: a running import would lose what it has stored so far.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn sweep_leases(&self) -> Result<Vec<String>, Error> {
        let stray = self.store.leases().await?;
        for id in &stray {
            self.store.release(id).await?;
        }
        Ok(stray)
    }
}

//! containerd's content store and leases.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use containerd_client::services::v1 as api;
use futures::StreamExt;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tonic::metadata::{Ascii, MetadataValue};
use warren_registry::{Digest, MAX_DOCUMENT};

use crate::archive::Span;
use crate::connection::{CallError, ContainerdConnection, with_deadline};
use crate::error::Error;

mod ingest;

pub(crate) use ingest::{Ingest, IngestTarget};

/// Timeout of calls on one record.
pub(crate) const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of calls that run garbage collection before they return.
pub(crate) const COLLECT_TIMEOUT: Duration = Duration::from_secs(60);
/// A lease that was not released (the process was killed) expires after this.
const LEASE_LIFETIME: Duration = Duration::from_secs(6 * 3600);
/// Lease whose release makes containerd collect garbage.
const COLLECT_LEASE: &str = "warren-collect";
/// How long containerd may finish its writes after the work under a lease has ended. It syncs a blob to
/// disk first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
const LEASE_LABEL: &str = "warren.import";
const CHUNK: u64 = 1 << 20;

/// Protects everything created under it from garbage collection, until it is released or expires.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub id: String,
    pub header: MetadataValue<Ascii>,
    /// Read-locked during each containerd operation.
    in_progress: Arc<RwLock<()>>,
}

impl Lease {
    /// Hold the guard while containerd writes a blob or a file system under this lease.
    pub async fn writing(&self) -> OwnedRwLockReadGuard<()> {
        self.in_progress.clone().read_owned().await
    }

    /// Waits until containerd writes nothing. Content collected during a write is removed only in part, and
    /// the rest is never collected.
    async fn wait_idle(in_progress: &RwLock<()>) {
        if tokio::time::timeout(IDLE_TIMEOUT, in_progress.write()).await.is_err() {
            tracing::warn!("containerd still writes cancelled content after {IDLE_TIMEOUT:?}");
        }
    }
}

/// Id of a lease in use by this process. If the work is dropped, the lease becomes an orphan.
struct HeldLease {
    id: String,
    all: Arc<Mutex<BTreeSet<String>>>,
}

impl HeldLease {
    fn new(all: Arc<Mutex<BTreeSet<String>>>) -> Self {
        let id = unique_name("import");
        all.lock().expect("no holder panics").insert(id.clone());
        Self { id, all }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.all.lock().expect("no holder panics").remove(&self.id);
    }
}

/// The content store of one containerd namespace.
#[derive(Clone, Debug)]
pub(crate) struct ContentStore {
    pub connection: ContainerdConnection,
    /// Ids of the leases in use by this process.
    held_leases: Arc<Mutex<BTreeSet<String>>>,
}

impl ContentStore {
    pub fn new(connection: ContainerdConnection) -> Self {
        Self { connection, held_leases: Arc::default() }
    }

    /// Runs `work` under its own lease and releases the lease in every case.
    pub async fn under_lease<T, F>(&self, work: impl FnOnce(Lease) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let held = HeldLease::new(self.held_leases.clone());
        let done = match self.create_lease(held.id.clone()).await {
            Ok(lease) => {
                let in_progress = lease.in_progress.clone();
                let done = work(lease).await;
                Lease::wait_idle(&in_progress).await;
                done
            }
            Err(error) => Err(error),
        };
        let released = self.release(&held.id).await;
        if done.is_err() {
            // A concurrent collection may have missed leftovers of the failure; the next one finds them.
            let _ = self.collect().await;
        }
        done.and_then(|done| released.map(|()| done))
    }

    /// Runs containerd's garbage collection and waits for it by releasing a lease, whose release is
    /// synchronous. All these leases have the same name, so one of a killed process is released too.
    pub async fn collect(&self) -> Result<(), Error> {
        let lease = self.create_lease(COLLECT_LEASE.to_owned()).await?;
        self.release(&lease.id).await
    }

    async fn create_lease(&self, id: String) -> Result<Lease, Error> {
        let header = id.parse().expect("an id made of ASCII letters and digits is a header value");
        let expire = (jiff::Timestamp::now() + LEASE_LIFETIME).to_string();
        let labels =
            [("containerd.io/gc.expire".to_owned(), expire), (LEASE_LABEL.to_owned(), "1".to_owned())];
        let message = api::CreateRequest { id: id.clone(), labels: labels.into() };
        let request = self.connection.request(message);
        match with_deadline(RECORD_TIMEOUT, self.connection.leases().create(request)).await {
            Err(status) if CallError::from_status(&status) != CallError::AlreadyExists => {
                Err(Error::from_status("take a lease", &status))
            }
            _ => Ok(Lease { id, header, in_progress: Arc::default() }),
        }
    }

    /// Releases a lease; unreferenced content is collected before the call returns. Idempotent.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let request = self.connection.request(api::DeleteRequest { id: id.to_owned(), sync: true });
        match with_deadline(COLLECT_TIMEOUT, self.connection.leases().delete(request)).await {
            Ok(()) => Ok(()),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(()),
            Err(status) => Err(Error::from_status(format!("release lease {id}"), &status)),
        }
    }

    /// Ids of leases of this crate that no process will release: their process has ended. That of a collection is
    /// released by the next one.
    pub async fn orphan_leases(&self) -> Result<Vec<String>, Error> {
        let request = self.connection.request(api::ListRequest { filters: Vec::new() });
        let reply = with_deadline(RECORD_TIMEOUT, self.connection.leases().list(request))
            .await
            .map_err(|status| Error::from_status("list leases", &status))?;
        let ours = reply.leases.into_iter().filter(|lease| lease.labels.contains_key(LEASE_LABEL));
        let held = self.held_leases.lock().expect("no holder panics").clone();
        Ok(ours.map(|lease| lease.id).filter(|id| !held.contains(id) && id != COLLECT_LEASE).collect())
    }

    /// Whether the store has a blob.
    pub async fn has(&self, digest: &Digest) -> Result<bool, Error> {
        let request = self.connection.request(api::InfoRequest { digest: digest.to_string() });
        match with_deadline(RECORD_TIMEOUT, self.connection.content().info(request)).await {
            Ok(_) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("look up blob {digest}"), &status)),
        }
    }

    /// Starts to store a blob of `size` bytes, unless the store has it.
    pub async fn ingest(&self, lease: &Lease, digest: &Digest, size: u64) -> Result<IngestTarget, Error> {
        Ingest::open(self, lease, digest, size).await
    }

    /// Stores a document. Its digest is that of its bytes.
    pub async fn write_document(
        &self,
        lease: &Lease,
        bytes: &[u8],
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let digest = Digest::of(bytes);
        match self.ingest(lease, &digest, bytes.len() as u64).await? {
            IngestTarget::Absent(mut ingest) => {
                ingest.write(bytes.to_vec()).await?;
                ingest.commit(labels).await
            }
            // It keeps its old labels unless they are set again.
            IngestTarget::Present => {
                for (key, value) in labels {
                    self.label(&digest, &key, value).await?;
                }
                Ok(())
            }
        }
    }

    /// Stores a part of a file under the expected `digest`, which containerd verifies.
    pub async fn write_span(
        &self,
        lease: &Lease,
        digest: &Digest,
        file: &Arc<File>,
        span: Span,
    ) -> Result<(), Error> {
        let IngestTarget::Absent(mut ingest) = self.ingest(lease, digest, span.size).await? else {
            return Ok(());
        };
        let mut done = 0;
        while done < span.size {
            let (file, length) = (file.clone(), CHUNK.min(span.size - done));
            let read = tokio::task::spawn_blocking(move || {
                let mut data = vec![0; length as usize];
                file.read_exact_at(&mut data, span.offset + done).map(|()| data)
            });
            let read = read.await.expect("reading a file does not panic");
            let unreadable =
                |source| Error::Unreadable { what: digest.to_string(), source: Arc::new(source) };
            ingest.write(read.map_err(unreadable)?).await?;
            done += length;
        }
        ingest.commit(HashMap::new()).await
    }

    /// Sets one label of a blob.
    pub async fn label(&self, digest: &Digest, key: &str, value: String) -> Result<(), Error> {
        let labels = [(key.to_owned(), value)].into();
        let info = api::Info { digest: digest.to_string(), labels, ..Default::default() };
        let mask = prost_types::FieldMask { paths: vec![format!("labels.{key}")] };
        let message = api::UpdateRequest { info: Some(info), update_mask: Some(mask) };
        let request = self.connection.request(message);
        match with_deadline(RECORD_TIMEOUT, self.connection.content().update(request)).await {
            Ok(_) => Ok(()),
            Err(status) => Err(Error::from_status(format!("label blob {digest}"), &status)),
        }
    }

    /// Reads a document; `None` when the store does not have it.
    pub async fn read_document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        let message = api::ReadContentRequest { digest: digest.to_string(), offset: 0, size: 0 };
        let request = self.connection.request(message);
        let mut client = self.connection.content();
        let call = async {
            let mut replies = client.read(request).await?.into_inner();
            let mut bytes = Vec::new();
            while let Some(reply) = replies.next().await {
                bytes.extend_from_slice(&reply?.data);
                if bytes.len() as u64 > MAX_DOCUMENT {
                    return Err(tonic::Status::out_of_range("the document is too large"));
                }
            }
            Ok(bytes)
        };
        let result = match tokio::time::timeout(RECORD_TIMEOUT, call).await {
            Ok(result) => result,
            Err(_) => Err(tonic::Status::deadline_exceeded(format!("no answer within {RECORD_TIMEOUT:?}"))),
        };
        match result {
            Ok(bytes) => Ok(Some(bytes)),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(None),
            Err(status) => Err(Error::from_status(format!("read blob {digest}"), &status)),
        }
    }
}

/// A name that is unique on this containerd.
pub(crate) fn unique_name(purpose: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("warren-{purpose}-{}-{now}-{count}", std::process::id())
}

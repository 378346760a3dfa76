//! containerd's content store and leases, as far as images need them.

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

use crate::archive::Span;
use crate::connection::{Connection, Fault, within};
use crate::digest::Digest;
use crate::document::MAX_DOCUMENT;
use crate::error::Error;

mod ingest;

pub(crate) use ingest::{Ingest, Opened};

/// Calls that touch one record.
pub(crate) const RECORD: Duration = Duration::from_secs(10);
/// Calls that make containerd collect garbage before they answer.
pub(crate) const COLLECT: Duration = Duration::from_secs(60);
/// A lease nobody deleted (the process was killed) ends by itself after this.
const LEASE_LIFE: Duration = Duration::from_secs(6 * 3600);
/// So long containerd gets to come to an end with what it writes when the work under a lease has ended. A blob it first
/// writes through to the disk.
const AT_REST: Duration = Duration::from_secs(10);
const LEASE_LABEL: &str = "warren.import";
const CHUNK: u64 = 1 << 20;

/// Holds everything made under it against garbage collection, until it is released or expires.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub id: String,
    pub header: MetadataValue<Ascii>,
    /// Taken for each thing that containerd is at work on.
    at_work: Arc<RwLock<()>>,
}

impl Lease {
    /// Held as long as containerd writes a blob or a file system under this lease.
    pub async fn writing(&self) -> OwnedRwLockReadGuard<()> {
        self.at_work.clone().read_owned().await
    }

    /// Waits until containerd writes nothing. What it collects while it is written to is removed only in part, and it
    /// never looks at the rest again.
    async fn rest(at_work: &RwLock<()>) {
        if tokio::time::timeout(AT_REST, at_work.write()).await.is_err() {
            tracing::warn!("containerd still writes what was given up {AT_REST:?} ago");
        }
    }
}

/// The id of a lease that work goes on under. When the work is dropped half-way, the lease is a stray one.
struct Held {
    id: String,
    all: Arc<Mutex<BTreeSet<String>>>,
}

impl Held {
    fn new(all: Arc<Mutex<BTreeSet<String>>>) -> Self {
        let id = unique("import");
        all.lock().expect("no holder panics").insert(id.clone());
        Self { id, all }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.lock().expect("no holder panics").remove(&self.id);
    }
}

/// The content store of one containerd namespace.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub connection: Connection,
    /// Leases that work of this process goes on under.
    held: Arc<Mutex<BTreeSet<String>>>,
}

impl Store {
    pub fn new(connection: Connection) -> Self {
        Self { connection, held: Arc::default() }
    }

    /// Does `work` under a lease of its own and ends the lease whatever came of it.
    pub async fn under_lease<T, F>(&self, work: impl FnOnce(Lease) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let held = Held::new(self.held.clone());
        let done = match self.lease_called(held.id.clone()).await {
            Ok(lease) => {
                let at_work = lease.at_work.clone();
                let done = work(lease).await;
                Lease::rest(&at_work).await;
                done
            }
            Err(error) => Err(error),
        };
        let released = self.release(&held.id).await;
        if done.is_err() {
            // A collection that was under way did not see all that the failure left; the next one does.
            let _ = self.collect().await;
        }
        done.and_then(|done| released.map(|()| done))
    }

    /// Has containerd delete what nothing refers to, and waits for it: the end of a lease is what it lets one
    /// wait for. One that a killed process left is ended too, since all have the same name.
    pub async fn collect(&self) -> Result<(), Error> {
        let lease = self.lease_called("warren-collect".to_owned()).await?;
        self.release(&lease.id).await
    }

    async fn lease_called(&self, id: String) -> Result<Lease, Error> {
        let header = id.parse().expect("an id made of ASCII letters and digits is a header value");
        let expire = (jiff::Timestamp::now() + LEASE_LIFE).to_string();
        let labels =
            [("containerd.io/gc.expire".to_owned(), expire), (LEASE_LABEL.to_owned(), "1".to_owned())];
        let message = api::CreateRequest { id: id.clone(), labels: labels.into() };
        let request = self.connection.request(message);
        match within(RECORD, self.connection.leases().create(request)).await {
            Err(status) if Fault::of(&status) != Fault::AlreadyExists => {
                Err(Error::of("take a lease", &status))
            }
            _ => Ok(Lease { id, header, at_work: Arc::default() }),
        }
    }

    /// Ends a lease; what nothing else refers to is collected before the call returns. Harmless the second
    /// time.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let request = self.connection.request(api::DeleteRequest { id: id.to_owned(), sync: true });
        match within(COLLECT, self.connection.leases().delete(request)).await {
            Ok(()) => Ok(()),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(()),
            Err(status) => Err(Error::of(format!("release lease {id}"), &status)),
        }
    }

    /// Ids of the leases that this crate took and nobody will release: their process is gone.
    pub async fn stray_leases(&self) -> Result<Vec<String>, Error> {
        let request = self.connection.request(api::ListRequest { filters: Vec::new() });
        let reply = within(RECORD, self.connection.leases().list(request))
            .await
            .map_err(|status| Error::of("list leases", &status))?;
        let ours = reply.leases.into_iter().filter(|lease| lease.labels.contains_key(LEASE_LABEL));
        let held = self.held.lock().expect("no holder panics").clone();
        Ok(ours.map(|lease| lease.id).filter(|id| !held.contains(id)).collect())
    }

    /// Whether a blob is here.
    pub async fn has(&self, digest: &Digest) -> Result<bool, Error> {
        let request = self.connection.request(api::InfoRequest { digest: digest.to_string() });
        match within(RECORD, self.connection.content().info(request)).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("look up blob {digest}"), &status)),
        }
    }

    /// Begins to store a blob of `size` bytes, unless the store has it.
    pub async fn ingest(&self, lease: &Lease, digest: &Digest, size: u64) -> Result<Opened, Error> {
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
            Opened::Absent(mut ingest) => {
                ingest.write(bytes.to_vec()).await?;
                ingest.commit(labels).await
            }
            // It keeps its old labels unless they are set again.
            Opened::Present => {
                for (key, value) in labels {
                    self.label(&digest, &key, value).await?;
                }
                Ok(())
            }
        }
    }

    /// Stores a part of a file that claims to have `digest`; containerd checks that it has.
    pub async fn write_span(
        &self,
        lease: &Lease,
        digest: &Digest,
        file: &Arc<File>,
        span: Span,
    ) -> Result<(), Error> {
        let Opened::Absent(mut ingest) = self.ingest(lease, digest, span.size).await? else { return Ok(()) };
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
        match within(RECORD, self.connection.content().update(request)).await {
            Ok(_) => Ok(()),
            Err(status) => Err(Error::of(format!("label blob {digest}"), &status)),
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
        let result = match tokio::time::timeout(RECORD, call).await {
            Ok(result) => result,
            Err(_) => Err(tonic::Status::deadline_exceeded(format!("no answer within {RECORD:?}"))),
        };
        match result {
            Ok(bytes) => Ok(Some(bytes)),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(None),
            Err(status) => Err(Error::of(format!("read blob {digest}"), &status)),
        }
    }
}

/// A name nobody else on this containerd uses.
pub(crate) fn unique(purpose: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("warren-{purpose}-{}-{now}-{count}", std::process::id())
}

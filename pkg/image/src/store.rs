//! containerd's content store and leases, as far as images need them.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use containerd_client::services::v1 as api;
use futures::{Stream, StreamExt, stream};
use tonic::metadata::{Ascii, MetadataValue};

use crate::archive::Span;
use crate::connection::{Connection, Fault, within};
use crate::digest::Digest;
use crate::document::MAX_DOCUMENT;
use crate::error::{Error, transfer_deadline};

/// Calls that touch one record.
pub(crate) const RECORD: Duration = Duration::from_secs(10);
/// Calls that make containerd collect garbage before they answer.
pub(crate) const COLLECT: Duration = Duration::from_secs(60);
/// A lease nobody deleted (the process was killed) ends by itself after this.
const LEASE_LIFE: Duration = Duration::from_secs(6 * 3600);
const LEASE_LABEL: &str = "warren.import";
const CHUNK: u64 = 1 << 20;

/// Holds everything made under it against garbage collection, until it is released or expires.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub id: String,
    pub header: MetadataValue<Ascii>,
}

/// The content store of one containerd namespace.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub connection: Connection,
}

impl Store {
    /// Takes a new lease.
    pub async fn lease(&self) -> Result<Lease, Error> {
        self.lease_called(unique("import")).await
    }

    /// Has containerd delete what nothing refers to, and waits for it: the end of a lease is what it lets one wait
    /// for. One that a killed process left is ended too, since all have the same name.
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
            _ => Ok(Lease { id, header }),
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

    /// Ids of the leases that imports took and nobody released.
    pub async fn leases(&self) -> Result<Vec<String>, Error> {
        let request = self.connection.request(api::ListRequest { filters: Vec::new() });
        let reply = within(RECORD, self.connection.leases().list(request))
            .await
            .map_err(|status| Error::of("list leases", &status))?;
        let ours = reply.leases.into_iter().filter(|lease| lease.labels.contains_key(LEASE_LABEL));
        Ok(ours.map(|lease| lease.id).collect())
    }

    /// Stores a document. Its digest is that of its bytes.
    pub async fn write_document(
        &self,
        lease: &Lease,
        bytes: &[u8],
        labels: HashMap<String, String>,
    ) -> Result<(), Error> {
        let digest = Digest::of(bytes);
        let message = commit_of(&digest, bytes.len() as u64, labels.clone());
        let message = api::WriteContentRequest { data: bytes.to_vec(), offset: 0, ..message };
        self.write(lease, &digest, bytes.len() as u64, stream::iter([message])).await?;
        // A document that was there before keeps its old labels unless they are set again.
        for (key, value) in labels {
            self.label(&digest, &key, value).await?;
        }
        Ok(())
    }

    /// Stores a part of a file that claims to have `digest`; containerd checks that it has.
    pub async fn write_span(
        &self,
        lease: &Lease,
        digest: &Digest,
        file: Arc<File>,
        span: Span,
    ) -> Result<(), Error> {
        let messages = stream::unfold(Some(0), {
            let digest = digest.clone();
            move |done| next_chunk(file.clone(), span, digest.clone(), done)
        });
        self.write(lease, digest, span.size, messages).await
    }

    async fn write(
        &self,
        lease: &Lease,
        digest: &Digest,
        size: u64,
        messages: impl Stream<Item = api::WriteContentRequest> + Send + 'static,
    ) -> Result<(), Error> {
        let reference = unique("ingest");
        let messages =
            messages.map(move |message| api::WriteContentRequest { r#ref: reference.clone(), ..message });
        let request = self.connection.leased(messages, &lease.header);
        let mut client = self.connection.content();
        let call = async {
            let mut replies = client.write(request).await?.into_inner();
            while let Some(reply) = replies.next().await {
                if reply?.action == api::WriteAction::Commit as i32 {
                    return Ok(());
                }
            }
            Err(tonic::Status::aborted("the archive could not be read to its end"))
        };
        let status = match tokio::time::timeout(transfer_deadline(size), call).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(status)) => status,
            Err(_) => tonic::Status::deadline_exceeded("the content store took too long"),
        };
        match Fault::of(&status) {
            // The same content is there already, and the lease now holds it too.
            Fault::AlreadyExists => Ok(()),
            _ if status.message().contains("unexpected commit digest") => {
                Err(Error::DigestMismatch { what: "a blob".to_owned(), wanted: digest.clone() })
            }
            _ => Err(Error::of(format!("store blob {digest}"), &status)),
        }
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

/// The message that ends a write and names what must have been written.
fn commit_of(digest: &Digest, size: u64, labels: HashMap<String, String>) -> api::WriteContentRequest {
    api::WriteContentRequest {
        action: api::WriteAction::Commit as i32,
        r#ref: String::new(),
        total: size as i64,
        expected: digest.to_string(),
        offset: size as i64,
        data: Vec::new(),
        labels,
    }
}

/// Yields the chunk at `done`, then the commit, then nothing. Ends early when the file cannot be read.
async fn next_chunk(
    file: Arc<File>,
    span: Span,
    digest: Digest,
    done: Option<u64>,
) -> Option<(api::WriteContentRequest, Option<u64>)> {
    let done = done?;
    let commit = commit_of(&digest, span.size, HashMap::new());
    if done == span.size {
        return Some((commit, None));
    }
    let length = CHUNK.min(span.size - done);
    let read = tokio::task::spawn_blocking(move || {
        let mut data = vec![0; length as usize];
        file.read_exact_at(&mut data, span.offset + done).map(|()| data)
    });
    let data = read.await.ok()?.ok()?;
    let action = api::WriteAction::Write as i32;
    Some((api::WriteContentRequest { action, offset: done as i64, data, ..commit }, Some(done + length)))
}

/// A name nobody else on this containerd uses.
pub(crate) fn unique(purpose: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("warren-{purpose}-{}-{now}-{count}", std::process::id())
}

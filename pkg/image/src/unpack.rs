//! From layers in the content store to a chain of committed snapshots, one per layer, named by chain id.

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;

use crate::connection::{Connection, Fault, within};
use crate::digest::Digest;
use crate::document::Descriptor;
use crate::error::{Error, transfer_deadline};
use crate::store::{Lease, RECORD, unique};

/// Unpacks what is not unpacked yet and returns the chain id of the top layer. Harmless the second time, and
/// when two do it at once: the first to commit a layer wins and the other takes its work.
pub(crate) async fn ensure_unpacked(
    connection: &Connection,
    snapshotter: &str,
    lease: &Lease,
    layers: &[Descriptor],
    diff_ids: &[Digest],
) -> Result<Digest, Error> {
    let unpack = Unpack { connection, snapshotter, lease };
    let chain = Digest::chain(diff_ids);
    let mut parent = String::new();
    for ((layer, diff_id), chain_id) in layers.iter().zip(diff_ids).zip(&chain) {
        if !unpack.exists(chain_id).await? {
            unpack.layer(layer, diff_id, &parent, chain_id).await?;
        }
        parent = chain_id.to_string();
    }
    Ok(chain.last().expect("images without layers are refused when their documents are read").clone())
}

struct Unpack<'a> {
    connection: &'a Connection,
    snapshotter: &'a str,
    lease: &'a Lease,
}

impl Unpack<'_> {
    async fn exists(&self, chain_id: &Digest) -> Result<bool, Error> {
        let message =
            snap::StatSnapshotRequest { snapshotter: self.snapshotter.to_owned(), key: chain_id.to_string() };
        let request = self.connection.leased(message, &self.lease.header);
        match within(RECORD, self.connection.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("look up snapshot {chain_id}"), &status)),
        }
    }

    async fn layer(
        &self,
        layer: &Descriptor,
        diff_id: &Digest,
        parent: &str,
        chain_id: &Digest,
    ) -> Result<(), Error> {
        let key = unique("extract");
        let done = self.extract(layer, diff_id, parent, chain_id, &key).await;
        match done {
            Ok(Committed::ByUs) => return Ok(()),
            Ok(Committed::ByAnother) | Err(_) => {}
        }
        // What is left over is ours alone; the lease would take it too, but only at its end.
        let message =
            snap::RemoveSnapshotRequest { snapshotter: self.snapshotter.to_owned(), key: key.clone() };
        let request = self.connection.request(message);
        if let Err(status) = within(RECORD, self.connection.snapshots().remove(request)).await
            && Fault::of(&status) != Fault::NotFound
        {
            tracing::warn!(key, error = status.message(), "left an extraction for the garbage collector");
        }
        done.map(|_| ())
    }

    async fn extract(
        &self,
        layer: &Descriptor,
        diff_id: &Digest,
        parent: &str,
        chain_id: &Digest,
        key: &str,
    ) -> Result<Committed, Error> {
        let snapshotter = self.snapshotter.to_owned();
        let message = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: Default::default(),
        };
        let request = self.connection.leased(message, &self.lease.header);
        let mounts = within(RECORD, self.connection.snapshots().prepare(request))
            .await
            .map_err(|status| Error::of(format!("prepare a snapshot on {parent:?}"), &status))?
            .mounts;
        let diff = types::Descriptor {
            media_type: layer.media_type.clone(),
            digest: layer.digest.to_string(),
            size: layer.size as i64,
            ..Default::default()
        };
        let message =
            api::ApplyRequest { diff: Some(diff), mounts, payloads: Default::default(), sync_fs: true };
        let request = self.connection.leased(message, &self.lease.header);
        let applied = within(transfer_deadline(layer.size), self.connection.diff().apply(request))
            .await
            .map_err(|status| Error::of(format!("unpack layer {}", layer.digest), &status))?
            .applied
            .unwrap_or_default();
        if applied.digest != diff_id.as_str() {
            let what = format!("layer {}, unpacked,", layer.digest);
            return Err(Error::DigestMismatch { what, wanted: diff_id.clone() });
        }
        let name = chain_id.to_string();
        let message = snap::CommitSnapshotRequest {
            snapshotter,
            name,
            key: key.to_owned(),
            labels: Default::default(),
        };
        let request = self.connection.leased(message, &self.lease.header);
        match within(RECORD, self.connection.snapshots().commit(request)).await {
            Ok(()) => Ok(Committed::ByUs),
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => Ok(Committed::ByAnother),
            Err(status) => Err(Error::of(format!("commit snapshot {chain_id}"), &status)),
        }
    }
}

enum Committed {
    ByUs,
    ByAnother,
}

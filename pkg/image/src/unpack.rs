//! Turns layers in the content store into a chain of committed snapshots, one per layer, named by chain id.

use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;
use futures::{Stream, StreamExt};
use tonic::Status;
use warren_registry::Digest;

use crate::connection::{CallError, ContainerdConnection, with_deadline};
use crate::document::Descriptor;
use crate::error::{Error, transfer_deadline};
use crate::store::{Lease, RECORD_TIMEOUT, unique_name};

/// Disk space of a file in addition to its content; an empty file costs this.
const BYTES_PER_FILE: u64 = 1 << 10;
/// Upper bound of disk write speed, so that small images are never measured while they are unpacked.
const FASTEST_BYTES_PER_SECOND: u64 = 1 << 30;
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The snapshotter for layers, and the space limit of an image.
#[derive(Clone, Debug)]
pub(crate) struct Unpacker {
    pub connection: ContainerdConnection,
    /// Name of containerd's snapshotter.
    pub snapshotter: Arc<str>,
    /// Limit in bytes for the new layers of one image on disk.
    pub limit: u64,
}

impl Unpacker {
    /// Unpacks the layers that are not unpacked yet and returns the chain id of the top layer. A layer
    /// starts when `arrived` yields for it, lowest first. Idempotent, and safe concurrently: the first
    /// commit of a layer wins and the other caller uses its result.
    pub async fn ensure_unpacked(
        &self,
        lease: &Lease,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        mut arrived: impl Stream<Item = ()> + Unpin,
        mut done: impl FnMut(usize),
    ) -> Result<Digest, Error> {
        let chain = Digest::chain_ids(diff_ids);
        let mut unpack = Unpack { unpacker: self, lease, bytes_left: self.limit };
        let mut parent = String::new();
        for (position, ((layer, diff_id), chain_id)) in layers.iter().zip(diff_ids).zip(&chain).enumerate() {
            if arrived.next().await.is_none() {
                return Err(Error::MissingLayer { layer: layer.digest.clone() });
            }
            if !unpack.exists(chain_id).await? {
                unpack.layer(layer, diff_id, &parent, chain_id).await?;
            }
            done(position);
            parent = chain_id.to_string();
        }
        Ok(chain.last().expect("images without layers are refused when their documents are read").clone())
    }

    /// Disk usage of one snapshot, without those below it; `None` when it does not exist. Committed
    /// snapshots store the value; no directory is walked.
    pub async fn committed_size(&self, chain_id: &Digest) -> Result<Option<u64>, Error> {
        match self.usage(chain_id.as_str()).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(None),
            Err(status) => Err(Error::from_status(format!("measure snapshot {chain_id}"), &status)),
        }
    }

    /// Creates and removes an empty snapshot: containerd scans for orphaned directories only after a
    /// snapshot was removed, and does not scan again when it could not remove them, as on a full disk.
    pub async fn trigger_cleanup(&self) -> Result<(), Error> {
        let (snapshotter, key) = (self.snapshotter.to_string(), unique_name("collect"));
        let message = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.clone(),
            ..Default::default()
        };
        let prepared = with_deadline(
            RECORD_TIMEOUT,
            self.connection.snapshots().prepare(self.connection.request(message)),
        )
        .await;
        prepared.map_err(|status| Error::from_status("prepare an empty snapshot", &status))?;
        let request = self.connection.request(snap::RemoveSnapshotRequest { snapshotter, key });
        match with_deadline(RECORD_TIMEOUT, self.connection.snapshots().remove(request)).await {
            Ok(()) => Ok(()),
            // A concurrent garbage collection removed it.
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(()),
            Err(status) => Err(Error::from_status("remove an empty snapshot", &status)),
        }
    }

    async fn usage(&self, key: &str) -> Result<u64, Status> {
        let message = snap::UsageRequest { snapshotter: self.snapshotter.to_string(), key: key.to_owned() };
        let request = self.connection.request(message);
        let usage = with_deadline(RECORD_TIMEOUT, self.connection.snapshots().usage(request)).await?;
        let files = u64::try_from(usage.inodes).unwrap_or(0).saturating_mul(BYTES_PER_FILE);
        Ok(u64::try_from(usage.size).unwrap_or(0).saturating_add(files))
    }
}

struct Unpack<'a> {
    unpacker: &'a Unpacker,
    lease: &'a Lease,
    /// Space limit for the remaining layers.
    bytes_left: u64,
}

impl Unpack<'_> {
    /// Whether a layer is unpacked. If so, the lease retains it from now on, even when the image it came
    /// from is removed.
    async fn exists(&self, chain_id: &Digest) -> Result<bool, Error> {
        self.add_to_lease(chain_id).await?;
        let message = snap::StatSnapshotRequest {
            snapshotter: self.unpacker.snapshotter.to_string(),
            key: chain_id.to_string(),
        };
        let request = self.unpacker.connection.request_with_lease(message, &self.lease.header);
        match with_deadline(RECORD_TIMEOUT, self.unpacker.connection.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("look up snapshot {chain_id}"), &status)),
        }
    }

    /// Adds a snapshot to the lease; the snapshot need not exist.
    async fn add_to_lease(&self, chain_id: &Digest) -> Result<(), Error> {
        let r#type = format!("snapshots/{}", self.unpacker.snapshotter);
        let resource = Some(api::Resource { id: chain_id.to_string(), r#type });
        let message = api::AddResourceRequest { id: self.lease.id.clone(), resource };
        let request = self.unpacker.connection.request(message);
        match with_deadline(RECORD_TIMEOUT, self.unpacker.connection.leases().add_resource(request)).await {
            Ok(()) => Ok(()),
            Err(status) => Err(Error::from_status(format!("hold snapshot {chain_id}"), &status)),
        }
    }

    async fn layer(
        &mut self,
        layer: &Descriptor,
        diff_id: &Digest,
        parent: &str,
        chain_id: &Digest,
    ) -> Result<(), Error> {
        let key = unique_name("extract");
        let done = self.extract(layer, diff_id, parent, chain_id, &key).await;
        match done {
            Ok(Committed::ByUs) => {
                let used = self.unpacker.committed_size(chain_id).await?.unwrap_or(0);
                self.bytes_left = self.bytes_left.checked_sub(used).ok_or_else(|| self.too_large(layer))?;
                return Ok(());
            }
            Ok(Committed::ByAnother) | Err(_) => {}
        }
        // Leftovers belong to this call only; the lease would remove them too, but only at its end.
        let message = snap::RemoveSnapshotRequest {
            snapshotter: self.unpacker.snapshotter.to_string(),
            key: key.clone(),
        };
        let request = self.unpacker.connection.request(message);
        if let Err(status) =
            with_deadline(RECORD_TIMEOUT, self.unpacker.connection.snapshots().remove(request)).await
            && CallError::from_status(&status) != CallError::NotFound
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
        let snapshotter = self.unpacker.snapshotter.to_string();
        let message = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: Default::default(),
        };
        let request = self.unpacker.connection.request_with_lease(message, &self.lease.header);
        let mounts = with_deadline(RECORD_TIMEOUT, self.unpacker.connection.snapshots().prepare(request))
            .await
            .map_err(|status| Error::from_status(format!("prepare a snapshot on {parent:?}"), &status))?
            .mounts;
        let diff = types::Descriptor {
            media_type: layer.media_type.clone(),
            digest: layer.digest.to_string(),
            size: layer.size as i64,
            ..Default::default()
        };
        let message =
            api::ApplyRequest { diff: Some(diff), mounts, payloads: Default::default(), sync_fs: true };
        let request = self.unpacker.connection.request_with_lease(message, &self.lease.header);
        let (mut client, deadline) = (self.unpacker.connection.diff(), transfer_deadline(layer.size));
        let guard = self.lease.writing().await;
        // It continues when its caller is dropped, and the lease waits for it.
        let mut call = tokio::spawn(async move {
            let _guard = guard;
            with_deadline(deadline, client.apply(request)).await
        });
        let applied = tokio::select! {
            applied = &mut call => applied.unwrap_or_else(|error| Err(Status::internal(error.to_string()))),
            error = self.wait_for_overflow(layer, key) => {
                // Dropping the call also cancels the work in containerd.
                call.abort();
                let _ = call.await;
                return Err(error);
            }
        };
        let applied = applied
            .map_err(|status| Error::from_unpack_status(&layer.digest, &status))?
            .applied
            .unwrap_or_default();
        if applied.digest != diff_id.as_str() {
            let what = format!("layer {}, unpacked,", layer.digest);
            return Err(Error::DigestMismatch { what, expected: diff_id.clone() });
        }
        let name = chain_id.to_string();
        let message = snap::CommitSnapshotRequest {
            snapshotter,
            name,
            key: key.to_owned(),
            labels: Default::default(),
        };
        let request = self.unpacker.connection.request_with_lease(message, &self.lease.header);
        match with_deadline(RECORD_TIMEOUT, self.unpacker.connection.snapshots().commit(request)).await {
            Ok(()) => Ok(Committed::ByUs),
            Err(status) if CallError::from_status(&status) == CallError::AlreadyExists => {
                Ok(Committed::ByAnother)
            }
            Err(status) => Err(Error::from_status(format!("commit snapshot {chain_id}"), &status)),
        }
    }

    /// Waits until a layer in progress exceeds the space limit. Pending forever otherwise.
    async fn wait_for_overflow(&self, layer: &Descriptor, key: &str) -> Error {
        let mut left = self.bytes_left;
        loop {
            tokio::time::sleep(pause(left)).await;
            match self.unpacker.usage(key).await {
                Ok(used) if used > self.bytes_left => return self.too_large(layer),
                Ok(used) => left = self.bytes_left - used,
                // The unpack itself returns the containerd error.
                Err(status) => {
                    tracing::debug!(key, error = status.message(), "cannot measure the size of a layer");
                }
            }
        }
    }

    fn too_large(&self, layer: &Descriptor) -> Error {
        let what = format!("with layer {} unpacked the image", layer.digest);
        Error::ImageTooLarge { what, limit: self.unpacker.limit }
    }
}

/// When to measure a layer again that may still grow by `left` bytes.
fn pause(left: u64) -> Duration {
    let millis = left / (FASTEST_BYTES_PER_SECOND / 1000);
    Duration::from_millis(millis).clamp(MIN_PAUSE, MAX_PAUSE)
}

enum Committed {
    ByUs,
    ByAnother,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_interval_shrinks_near_limit() {
        assert_eq!(pause(0), MIN_PAUSE);
        assert_eq!(pause(1 << 30).as_millis() / 10, 100);
        assert_eq!(pause(u64::MAX), MAX_PAUSE);
    }
}

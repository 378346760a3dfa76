//! From layers in the content store to a chain of committed snapshots, one per layer, named by chain id.

use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;
use futures::{Stream, StreamExt};
use tonic::Status;

use crate::connection::{Connection, Fault, within};
use crate::digest::Digest;
use crate::document::Descriptor;
use crate::error::{Error, transfer_deadline};
use crate::store::{Lease, RECORD, unique};

/// What a file costs on disk beside its content; an empty one costs this.
const FILE: u64 = 1 << 10;
/// No disk is filled faster, so that small images are never looked at while they are unpacked.
const FASTEST_BYTES_PER_SECOND: u64 = 1 << 30;
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Where layers become snapshots, and how much they may take there.
#[derive(Clone, Debug)]
pub(crate) struct Unpacker {
    pub connection: Connection,
    /// The name of containerd's snapshotter.
    pub snapshotter: Arc<str>,
    /// The most that the new layers of one image may take on disk, in bytes.
    pub limit: u64,
}

impl Unpacker {
    /// Unpacks what is not unpacked yet and returns the chain id of the top layer. A layer is begun when
    /// `arrived` says that it is stored, lowest first. Harmless the second time, and when two do it at once:
    /// the first to commit a layer wins and the other takes its work.
    pub async fn ensure_unpacked(
        &self,
        lease: &Lease,
        layers: &[Descriptor],
        diff_ids: &[Digest],
        mut arrived: impl Stream<Item = ()> + Unpin,
        mut done: impl FnMut(usize),
    ) -> Result<Digest, Error> {
        let chain = Digest::chain(diff_ids);
        let mut unpack = Unpack { place: self, lease, left: self.limit };
        let mut parent = String::new();
        for (position, ((layer, diff_id), chain_id)) in layers.iter().zip(diff_ids).zip(&chain).enumerate() {
            if arrived.next().await.is_none() {
                return Err(Error::Incomplete { layer: layer.digest.clone() });
            }
            if !unpack.exists(chain_id).await? {
                unpack.layer(layer, diff_id, &parent, chain_id).await?;
            }
            done(position);
            parent = chain_id.to_string();
        }
        Ok(chain.last().expect("images without layers are refused when their documents are read").clone())
    }

    /// What the files of one snapshot take on disk, without those below it; `None` when there is no such
    /// snapshot. Those that are committed know it; nothing is walked for it.
    pub async fn committed_size(&self, chain_id: &Digest) -> Result<Option<u64>, Error> {
        match self.usage(chain_id.as_str()).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(None),
            Err(status) => Err(Error::of(format!("measure snapshot {chain_id}"), &status)),
        }
    }

    /// Makes and removes an empty snapshot: containerd looks for directories that no snapshot has only when one was
    /// removed since it last did, and does not look again when it could not remove them, as on a full disk.
    pub async fn stir(&self) -> Result<(), Error> {
        let (snapshotter, key) = (self.snapshotter.to_string(), unique("collect"));
        let message = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.clone(),
            ..Default::default()
        };
        let prepared =
            within(RECORD, self.connection.snapshots().prepare(self.connection.request(message))).await;
        prepared.map_err(|status| Error::of("prepare an empty snapshot", &status))?;
        let request = self.connection.request(snap::RemoveSnapshotRequest { snapshotter, key });
        match within(RECORD, self.connection.snapshots().remove(request)).await {
            Ok(()) => Ok(()),
            // A collection that came between took it.
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(()),
            Err(status) => Err(Error::of("remove an empty snapshot", &status)),
        }
    }

    async fn usage(&self, key: &str) -> Result<u64, Status> {
        let message = snap::UsageRequest { snapshotter: self.snapshotter.to_string(), key: key.to_owned() };
        let request = self.connection.request(message);
        let usage = within(RECORD, self.connection.snapshots().usage(request)).await?;
        let files = u64::try_from(usage.inodes).unwrap_or(0).saturating_mul(FILE);
        Ok(u64::try_from(usage.size).unwrap_or(0).saturating_add(files))
    }
}

struct Unpack<'a> {
    place: &'a Unpacker,
    lease: &'a Lease,
    /// What the layers to come may take.
    left: u64,
}

impl Unpack<'_> {
    /// Whether a layer is unpacked. When it is, the lease holds it from now on, also when the image that
    /// brought it is removed meanwhile.
    async fn exists(&self, chain_id: &Digest) -> Result<bool, Error> {
        self.hold(chain_id).await?;
        let message = snap::StatSnapshotRequest {
            snapshotter: self.place.snapshotter.to_string(),
            key: chain_id.to_string(),
        };
        let request = self.place.connection.leased(message, &self.lease.header);
        match within(RECORD, self.place.connection.snapshots().stat(request)).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("look up snapshot {chain_id}"), &status)),
        }
    }

    /// Lets the lease hold a snapshot, which need not be there.
    async fn hold(&self, chain_id: &Digest) -> Result<(), Error> {
        let r#type = format!("snapshots/{}", self.place.snapshotter);
        let resource = Some(api::Resource { id: chain_id.to_string(), r#type });
        let message = api::AddResourceRequest { id: self.lease.id.clone(), resource };
        let request = self.place.connection.request(message);
        match within(RECORD, self.place.connection.leases().add_resource(request)).await {
            Ok(()) => Ok(()),
            Err(status) => Err(Error::of(format!("hold snapshot {chain_id}"), &status)),
        }
    }

    async fn layer(
        &mut self,
        layer: &Descriptor,
        diff_id: &Digest,
        parent: &str,
        chain_id: &Digest,
    ) -> Result<(), Error> {
        let key = unique("extract");
        let done = self.extract(layer, diff_id, parent, chain_id, &key).await;
        match done {
            Ok(Committed::ByUs) => {
                let used = self.place.committed_size(chain_id).await?.unwrap_or(0);
                self.left = self.left.checked_sub(used).ok_or_else(|| self.too_large(layer))?;
                return Ok(());
            }
            Ok(Committed::ByAnother) | Err(_) => {}
        }
        // What is left over is ours alone; the lease would take it too, but only at its end.
        let message =
            snap::RemoveSnapshotRequest { snapshotter: self.place.snapshotter.to_string(), key: key.clone() };
        let request = self.place.connection.request(message);
        if let Err(status) = within(RECORD, self.place.connection.snapshots().remove(request)).await
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
        let snapshotter = self.place.snapshotter.to_string();
        let message = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: Default::default(),
        };
        let request = self.place.connection.leased(message, &self.lease.header);
        let mounts = within(RECORD, self.place.connection.snapshots().prepare(request))
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
        let request = self.place.connection.leased(message, &self.lease.header);
        let (mut client, deadline) = (self.place.connection.diff(), transfer_deadline(layer.size));
        let at_work = self.lease.writing().await;
        // It goes on when nobody waits for it any more, and the lease waits for it.
        let mut call = tokio::spawn(async move {
            let _at_work = at_work;
            within(deadline, client.apply(request)).await
        });
        let applied = tokio::select! {
            applied = &mut call => applied.unwrap_or_else(|error| Err(Status::internal(error.to_string()))),
            error = self.overflow(layer, key) => {
                // Dropping the call ends the work in containerd too.
                call.abort();
                return Err(error);
            }
        };
        let applied = applied
            .map_err(|status| Error::of_unpacking(&layer.digest, &status))?
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
        let request = self.place.connection.leased(message, &self.lease.header);
        match within(RECORD, self.place.connection.snapshots().commit(request)).await {
            Ok(()) => Ok(Committed::ByUs),
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => Ok(Committed::ByAnother),
            Err(status) => Err(Error::of(format!("commit snapshot {chain_id}"), &status)),
        }
    }

    /// Waits until a layer under work takes more than what is left. While it goes well it never ends.
    async fn overflow(&self, layer: &Descriptor, key: &str) -> Error {
        let mut left = self.left;
        loop {
            tokio::time::sleep(pause(left)).await;
            match self.place.usage(key).await {
                Ok(used) if used > self.left => return self.too_large(layer),
                Ok(used) => left = self.left - used,
                // The work itself will say what is wrong with containerd.
                Err(status) => {
                    tracing::debug!(
                        key,
                        error = status.message(),
                        "could not look how large a layer has become"
                    );
                }
            }
        }
    }

    fn too_large(&self, layer: &Descriptor) -> Error {
        let what = format!("with layer {} unpacked the image", layer.digest);
        Error::ImageTooLarge { what, limit: self.place.limit }
    }
}

/// When to look again at a layer that may still grow by `left` bytes.
fn pause(left: u64) -> Duration {
    let millis = left / (FASTEST_BYTES_PER_SECOND / 1000);
    Duration::from_millis(millis).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

enum Committed {
    ByUs,
    ByAnother,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closer_the_limit_the_sooner_the_next_look() {
        assert_eq!(pause(0), SHORTEST_PAUSE);
        assert_eq!(pause(1 << 30).as_millis() / 10, 100);
        assert_eq!(pause(u64::MAX), LONGEST_PAUSE);
    }
}

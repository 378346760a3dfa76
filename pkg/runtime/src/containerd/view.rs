//! Looking into an image without making a container of it: a read-only snapshot on the image's, which holds the layers
//! as long as it is there.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;
use warren_image::{Fault, ImageInfo, Reference, within};

use super::create::resolve;
use super::{LIST, RECORD, Shared};
use crate::Result;
use crate::container::Swept;
use crate::error::Error;
use crate::image_files::{self, ImageFiles, RunsAs};
use crate::spec::user::Wanted;

/// A snapshot that is only looked at has this label, and its name begins with it.
const VIEW: &str = "warren.view";
/// containerd keeps what has this label although nothing refers to it.
const ROOT: &str = "containerd.io/gc.root";

/// The views of this process.
#[derive(Default)]
pub(super) struct Views(Mutex<Held>);

#[derive(Default)]
struct Held {
    keys: BTreeSet<String>,
    count: u64,
}

/// A snapshot of this process, until it is dropped.
struct View {
    shared: Arc<Shared>,
    key: String,
}

impl Views {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let (shared, key) = (Arc::clone(&self.shared), std::mem::take(&mut self.key));
        // Without a runtime, or when it ends first, the next sweep removes it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            shared.views.held().keys.remove(&key);
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = shared.remove_view(&key).await {
                tracing::debug!(key, %error, "an image's view stays until the next sweep");
            }
            shared.views.held().keys.remove(&key);
        });
    }
}

impl Shared {
    pub(super) async fn image_files(self: &Arc<Self>, image: &Reference) -> Result<ImageFiles> {
        let info = self.image(image).await?;
        let (view, mounts) = self.view(&info, image).await?;
        // It is covered for one thread only.
        let place = self.connection.socket().parent().unwrap_or(Path::new("/")).to_owned();
        let open = move || image_files::open(&mounts, &place);
        let opened: std::io::Result<OwnedFd> =
            spawn_blocking(open).await.expect("opening a directory does not panic");
        let root = opened.map_err(|error| match error.kind() {
            ErrorKind::Unsupported => {
                Error::ImageUnusable { reference: image.to_string(), reason: error.to_string() }
            }
            _ => Error::Failed { action: format!("look into image {image}"), reason: error.to_string() },
        })?;
        Ok(ImageFiles::new(root, view))
    }

    pub(super) async fn runs_as(self: &Arc<Self>, image: &Reference, user: Option<&str>) -> Result<RunsAs> {
        let info = self.image(image).await?;
        let wanted = Wanted::new(user, Vec::new(), &info.config);
        let user = match wanted.numeric() {
            Some(user) => user,
            None => {
                let (_view, mounts) = self.view(&info, image).await?;
                resolve(wanted, mounts).await?
            }
        };
        Ok(RunsAs { uid: user.uid, gid: user.gid })
    }

    async fn view(self: &Arc<Self>, image: &ImageInfo, reference: &Reference) -> Result<(View, Vec<Mount>)> {
        let failed = |status: &Status| Error::of(format!("look into image {reference}"), status);
        loop {
            // Held before it is there, so that no sweep takes it for a stray.
            let view = self.take_view();
            let first = self.send_view(&view.key, image).await;
            let made = match first.as_ref().map_err(Fault::of) {
                // A process before this one had the same number, and left it.
                Err(Fault::AlreadyExists) => continue,
                // The image's own snapshots are gone or were never made; its content is there.
                Err(Fault::NotFound) => {
                    let unpacked = self.images.ensure_unpacked(image).await;
                    unpacked.map_err(|error| Error::of_image(&reference.to_string(), error))?;
                    self.send_view(&view.key, image).await
                }
                _ => first,
            };
            return made.map(|mounts| (view, mounts)).map_err(|status| failed(&status));
        }
    }

    fn take_view(self: &Arc<Self>) -> View {
        let mut held = self.views.held();
        held.count += 1;
        let key = format!("{VIEW}-{}-{}", std::process::id(), held.count);
        held.keys.insert(key.clone());
        View { shared: Arc::clone(self), key }
    }

    async fn send_view(&self, key: &str, image: &ImageInfo) -> std::result::Result<Vec<Mount>, Status> {
        let labels = [(VIEW.to_owned(), "1".to_owned()), (ROOT.to_owned(), "1".to_owned())];
        let request = self.connection.request(snap::ViewSnapshotRequest {
            snapshotter: self.settings.snapshotter.clone(),
            key: key.to_owned(),
            parent: image.chain_id.to_string(),
            labels: labels.into(),
        });
        Ok(within(RECORD, self.connection.snapshots().view(request)).await?.mounts)
    }

    async fn remove_view(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let message = snap::RemoveSnapshotRequest { snapshotter, key: key.to_owned() };
        match within(RECORD, self.connection.snapshots().remove(self.connection.request(message))).await {
            Ok(()) => {
                self.removed.notify_one();
                Ok(true)
            }
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("remove {key}"), &status)),
        }
    }

    /// Removes the views that a killed process left. Those of this one are known, so nothing is waited for.
    pub(super) async fn sweep_views(&self, swept: &mut Swept) -> Result<()> {
        for key in self.list_views().await? {
            if self.views.held().keys.contains(&key) {
                continue;
            }
            match self.remove_view(&key).await {
                Ok(true) => swept.snapshots.push(key),
                Ok(false) => {}
                Err(error) => swept.failed.push(error.to_string()),
            }
        }
        Ok(())
    }

    async fn list_views(&self) -> Result<Vec<String>> {
        let failed = |status: Status| Error::of("list views of images", &status);
        let request = self.connection.request(snap::ListSnapshotsRequest {
            snapshotter: self.settings.snapshotter.clone(),
            filters: vec![format!("labels.{VIEW:?}==1")],
        });
        let call = async {
            let mut replies = self.connection.snapshots().list(request).await?.into_inner();
            let mut keys = Vec::new();
            while let Some(reply) = replies.message().await? {
                keys.extend(reply.info.into_iter().map(|info| info.name));
            }
            Ok(keys)
        };
        match timeout(LIST, call).await {
            Ok(keys) => keys.map_err(failed),
            Err(_) => Err(failed(Status::deadline_exceeded(format!("no list within {LIST:?}")))),
        }
    }
}

//! Access to the files of an image without a container: a read-only snapshot of the image, which holds the
//! layers while it exists.

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
use warren_image::{CallError, ImageInfo, Reference, with_deadline};

use super::create::resolve_user;
use super::{Inner, LIST_TIMEOUT, RECORD_TIMEOUT};
use crate::Result;
use crate::container::SweepReport;
use crate::error::Error;
use crate::image_files::{self, ContainerUser, ImageFiles};
use crate::spec::user::RequestedUser;

/// Label and name prefix of a snapshot that is only read.
const VIEW_LABEL: &str = "warren.view";
/// containerd keeps objects with this label although nothing refers to them.
const GC_ROOT_LABEL: &str = "containerd.io/gc.root";

/// The views of this process.
#[derive(Default)]
pub(super) struct Views(Mutex<HeldViews>);

#[derive(Default)]
struct HeldViews {
    keys: BTreeSet<String>,
    next_number: u64,
}

/// A snapshot of this process, until it is dropped.
struct View {
    shared: Arc<Inner>,
    key: String,
}

impl Views {
    fn lock(&self) -> MutexGuard<'_, HeldViews> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let (shared, key) = (Arc::clone(&self.shared), std::mem::take(&mut self.key));
        // Without a runtime, or if it ends first, the next sweep removes it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            shared.views.lock().keys.remove(&key);
            return;
        };
        runtime.spawn(async move {
            if let Err(error) = shared.remove_view(&key).await {
                tracing::debug!(key, %error, "view of an image is kept until the next sweep");
            }
            shared.views.lock().keys.remove(&key);
        });
    }
}

impl Inner {
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
            _ => Error::Failed {
                action: format!("open the files of image {image}"),
                reason: error.to_string(),
            },
        })?;
        Ok(ImageFiles::new(root, view))
    }

    pub(super) async fn resolve_user(
        self: &Arc<Self>,
        image: &Reference,
        user: Option<&str>,
    ) -> Result<ContainerUser> {
        let info = self.image(image).await?;
        let desired = RequestedUser::new(user, Vec::new(), &info.config);
        let user = match desired.numeric() {
            Some(user) => user,
            None => {
                let (_view, mounts) = self.view(&info, image).await?;
                resolve_user(desired, mounts).await?
            }
        };
        Ok(ContainerUser { uid: user.uid, gid: user.gid })
    }

    async fn view(self: &Arc<Self>, image: &ImageInfo, reference: &Reference) -> Result<(View, Vec<Mount>)> {
        let failed =
            |status: &Status| Error::from_status(format!("open the files of image {reference}"), status);
        loop {
            // Recorded before it exists, so that no sweep treats it as an orphan.
            let view = self.take_view();
            let first = self.send_view(&view.key, image).await;
            let made = match first.as_ref().map_err(CallError::from_status) {
                // A killed process had the same pid, and left it.
                Err(CallError::AlreadyExists) => continue,
                // The image's snapshots were removed or never created; its content is there.
                Err(CallError::NotFound) => {
                    let unpacked = self.images.ensure_unpacked(image).await;
                    unpacked.map_err(|error| Error::from_image(&reference.to_string(), error))?;
                    self.send_view(&view.key, image).await
                }
                _ => first,
            };
            return made.map(|mounts| (view, mounts)).map_err(|status| failed(&status));
        }
    }

    fn take_view(self: &Arc<Self>) -> View {
        let mut held = self.views.lock();
        held.next_number += 1;
        let key = format!("{VIEW_LABEL}-{}-{}", std::process::id(), held.next_number);
        held.keys.insert(key.clone());
        View { shared: Arc::clone(self), key }
    }

    async fn send_view(&self, key: &str, image: &ImageInfo) -> std::result::Result<Vec<Mount>, Status> {
        let labels = [(VIEW_LABEL.to_owned(), "1".to_owned()), (GC_ROOT_LABEL.to_owned(), "1".to_owned())];
        let request = self.connection.request(snap::ViewSnapshotRequest {
            snapshotter: self.settings.snapshotter.clone(),
            key: key.to_owned(),
            parent: image.chain_id.to_string(),
            labels: labels.into(),
        });
        Ok(with_deadline(RECORD_TIMEOUT, self.connection.snapshots().view(request)).await?.mounts)
    }

    async fn remove_view(&self, key: &str) -> Result<bool> {
        let snapshotter = self.settings.snapshotter.clone();
        let message = snap::RemoveSnapshotRequest { snapshotter, key: key.to_owned() };
        match with_deadline(
            RECORD_TIMEOUT,
            self.connection.snapshots().remove(self.connection.request(message)),
        )
        .await
        {
            Ok(()) => {
                self.removed.notify_one();
                Ok(true)
            }
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("remove {key}"), &status)),
        }
    }

    /// Removes the views of a killed process. Those of this process are known, so there is no delay.
    pub(super) async fn sweep_views(&self, swept: &mut SweepReport) -> Result<()> {
        for key in self.list_views().await? {
            if self.views.lock().keys.contains(&key) {
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
        let failed = |status: Status| Error::from_status("list views of images", &status);
        let request = self.connection.request(snap::ListSnapshotsRequest {
            snapshotter: self.settings.snapshotter.clone(),
            filters: vec![format!("labels.{VIEW_LABEL:?}==1")],
        });
        let call = async {
            let mut replies = self.connection.snapshots().list(request).await?.into_inner();
            let mut keys = Vec::new();
            while let Some(reply) = replies.message().await? {
                keys.extend(reply.info.into_iter().map(|info| info.name));
            }
            Ok(keys)
        };
        match timeout(LIST_TIMEOUT, call).await {
            Ok(keys) => keys.map_err(failed),
            Err(_) => Err(failed(Status::deadline_exceeded(format!("no list within {LIST_TIMEOUT:?}")))),
        }
    }
}

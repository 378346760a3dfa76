//! Orphaned directories of processes: the bundle below containerd's state, where the process is created, and
//! one below its root. Both have the name of the container.
//!
//! containerd cleans up a creation whose caller was killed, but not always completely; leftovers stay until
//! it is restarted. Seen with 1.6.20: both directories, if the supervisor was abandoned before it was told
//! what to create, since its clean-up program then finds no `runtime` in the bundle and fails; and a bundle
//! next to the rest of an earlier one, `.ID`, to which containerd renames a bundle before removal, which
//! fails while that exists. The second happens when the next agent creates the process again meanwhile:
//! containerd cleans up by container id alone, so each of the two removes what the other created.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::services::v1::PluginsRequest;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tokio::time::{Instant, sleep};
use warren_image::with_deadline;

use super::{Inner, RECORD_TIMEOUT, bundle, shim};
use crate::Result;
use crate::container::ContainerId;
use crate::error::Error;

/// Below containerd's root and state, followed by namespace and container (`runtime/v2/bundle.go`, the same
/// in 1.6, 1.7 and 2).
const TASKS_PLUGIN_DIR: &str = "io.containerd.runtime.v2.task";
/// A directory directly below containerd's root in all versions; used to find the root.
const CONTENT_PLUGIN_DIR: &str = "io.containerd.content.v1";
/// Mount point of the file system.
const ROOT_FS: &str = "rootfs";
/// Link in a bundle to the other directory of the container.
const WORK_LINK: &str = "work";
/// Prefix of a name that containerd is about to remove.
const REMOVING_PREFIX: char = '.';
/// Time for containerd to clean up after a killed supervisor; it takes some 50 ms.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Inner {
    /// Every process directory in the namespace, with its container. Skips directories that this process may
    /// not read, or in an unknown place: containerd finds these when it is restarted.
    pub(super) async fn bundle_dirs(&self) -> Result<BTreeMap<PathBuf, ContainerId>> {
        let Some(root) = self.containerd_root().await? else { return Ok(BTreeMap::new()) };
        let namespace = Path::new(TASKS_PLUGIN_DIR).join(self.connection.namespace());
        let work = root.join(&namespace);
        // containerd reports its root but not its state; the default place of its socket is there.
        let bundles = self.connection.socket().parent().map(|state| state.join(&namespace));
        let mut folders = bundles_in(&work);
        folders.extend(bundles.map(|place| bundles_in(&place)).unwrap_or_default());
        // A bundle shows whether it is the state of another containerd.
        folders.retain(|path, owner| {
            fs::read_link(path.join(WORK_LINK)).map_or(true, |target| target == work.join(owner.as_str()))
        });
        Ok(folders)
    }

    /// The directory in which containerd stores persistent data.
    async fn containerd_root(&self) -> Result<Option<PathBuf>> {
        let message = PluginsRequest { filters: vec![format!("type=={CONTENT_PLUGIN_DIR}")] };
        let mut client = self.connection.introspection();
        let reply = with_deadline(RECORD_TIMEOUT, client.plugins(self.connection.request(message))).await;
        let reply = reply.map_err(|status| Error::from_status("ask for its root directory", &status))?;
        let stores = reply.plugins.iter().filter_map(|plugin| plugin.exports.get("root"));
        Ok(stores.filter_map(|store| Path::new(store).parent()).map(Path::to_owned).next())
    }

    /// Removes a directory that containerd forgot. One with a supervisor, or with unexpected content, is
    /// kept.
    pub(super) async fn remove_bundle_dir(&self, folder: &Path, owner: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.try_lock_unowned(owner).await? else { return Ok(false) };
        // containerd may have a process that it does not list, and removes it when asked to end it.
        self.remove_orphan_process(owner).await?;
        let shims = shim::find_all(self.connection.socket(), self.connection.namespace());
        if shims.iter().any(|shim| shim.id == *owner) {
            return Ok(false);
        }
        remove(folder).map_err(|error| Error::Failed {
            action: format!("remove {}, which containerd forgot", folder.display()),
            reason: error.to_string(),
        })
    }
}

fn bundles_in(place: &Path) -> BTreeMap<PathBuf, ContainerId> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let owned = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let owner = ContainerId::parse(name.strip_prefix(REMOVING_PREFIX).unwrap_or(&name)).ok()?;
        Some((entry.path(), owner))
    });
    owned.collect()
}

/// Waits until containerd has removed all of these, at most for the timeout.
pub(super) async fn wait_until_cleared(folders: impl Iterator<Item = &PathBuf> + Clone) {
    let deadline = Instant::now() + CLEAR_TIMEOUT;
    while folders.clone().any(|path| path.exists()) && Instant::now() < deadline {
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether it existed.
fn remove(folder: &Path) -> std::io::Result<bool> {
    // A mount in use is not unmounted, and a mount point is not removed.
    while unmount_top(&folder.join(ROOT_FS))? {}
    clear_mount_points(&folder.join(ROOT_FS))?;
    match bundle::remove(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes empty directories and empty files: mount points that the OCI runtime created, possibly after the
/// container's file system was removed. Other files and mount points are kept.
fn clear_mount_points(place: &Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            clear_mount_points(&path)?;
            match std::fs::remove_dir(&path) {
                Err(error) if !is_busy(&error) => return Err(error),
                _ => {}
            }
        } else if kind.is_file() && entry.metadata()?.len() == 0 {
            match std::fs::remove_file(&path) {
                Err(error) if !is_busy(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Not empty, or a mount point.
fn is_busy(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy)
}

/// Unmounts the topmost file system there; returns whether there was one.
fn unmount_top(place: &Path) -> std::io::Result<bool> {
    match umount2(place, MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

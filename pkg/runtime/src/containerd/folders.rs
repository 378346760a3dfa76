//! The folders that containerd makes for each process, as they lie on the disk: the bundle below its state, which its
//! process is made in, and one below its root. Both have the name of the container.
//!
//! containerd clears away a creation whose caller was killed, and does not always come to the end of it; what it leaves
//! stays until it is started again. Seen with 1.6.20: both folders, where the supervisor had not yet been told what to
//! make when it was given up, for then the program that clears away after it finds no `runtime` in the bundle and
//! fails; and a bundle beside the rest of an earlier one, `.ID`, which containerd renames one to before it removes it,
//! and cannot as long as that is there. The second comes of the next agent's making the process again meanwhile:
//! containerd clears away by the container's id alone, and each of the two takes what the other one made.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::services::v1::PluginsRequest;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tokio::time::{Instant, sleep};
use warren_image::within;

use super::{RECORD, Shared, bundle, shim};
use crate::Result;
use crate::container::ContainerId;
use crate::error::Error;

/// In containerd's root and state: below it come namespace and container (`runtime/v2/bundle.go`, the same in 1.6, 1.7
/// and 2).
const TASKS: &str = "io.containerd.runtime.v2.task";
/// Tells where containerd's root is, in all versions: it keeps a directory right below it.
const STORE: &str = "io.containerd.content.v1";
/// The file system is mounted here.
const ROOT_FS: &str = "rootfs";
/// In a bundle: points to the other folder of the container.
const WORK: &str = "work";
/// Before the name of one that containerd is about to remove.
const DYING: char = '.';
/// So long containerd gets to clear away what a supervisor that was killed had; it takes some 50 ms.
const CLEARING: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Shared {
    /// Every folder of a process in our namespace, with whose it is. Those that this process may not read, or that lie
    /// where nobody tells, are left out: containerd finds these when it is started again.
    pub(super) async fn folders(&self) -> Result<BTreeMap<PathBuf, ContainerId>> {
        let Some(root) = self.root().await? else { return Ok(BTreeMap::new()) };
        let namespace = Path::new(TASKS).join(self.connection.namespace());
        let work = root.join(&namespace);
        // containerd tells its root but not its state; its socket lies there unless somebody chose another place.
        let bundles = self.connection.socket().parent().map(|state| state.join(&namespace));
        let mut folders = in_place(&work);
        folders.extend(bundles.map(|place| in_place(&place)).unwrap_or_default());
        // Should that be the state of another containerd, then a bundle says so.
        folders.retain(|path, owner| {
            fs::read_link(path.join(WORK)).map_or(true, |target| target == work.join(owner.as_str()))
        });
        Ok(folders)
    }

    /// The directory in which containerd keeps what outlives a reboot.
    async fn root(&self) -> Result<Option<PathBuf>> {
        let message = PluginsRequest { filters: vec![format!("type=={STORE}")] };
        let mut client = self.connection.introspection();
        let reply = within(RECORD, client.plugins(self.connection.request(message))).await;
        let reply = reply.map_err(|status| Error::of("ask where it keeps things", &status))?;
        let stores = reply.plugins.iter().filter_map(|plugin| plugin.exports.get("root"));
        Ok(stores.filter_map(|store| Path::new(store).parent()).map(Path::to_owned).next())
    }

    /// Removes a folder that containerd forgot. One with a supervisor, or with anything in it that containerd would not
    /// have left there, stays.
    pub(super) async fn end_folder(&self, folder: &Path, owner: &ContainerId) -> Result<bool> {
        let Some(_alone) = self.unowned(owner).await? else { return Ok(false) };
        // containerd may have a process that it does not list, and clears it away when it is asked to end it.
        self.end_orphan(owner).await?;
        let shims = shim::all(self.connection.socket(), self.connection.namespace());
        if shims.iter().any(|shim| shim.id == *owner) {
            return Ok(false);
        }
        remove(folder).map_err(|error| Error::Failed {
            action: format!("remove {}, which containerd forgot", folder.display()),
            reason: error.to_string(),
        })
    }
}

fn in_place(place: &Path) -> BTreeMap<PathBuf, ContainerId> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let owned = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let owner = ContainerId::parse(name.strip_prefix(DYING).unwrap_or(&name)).ok()?;
        Some((entry.path(), owner))
    });
    owned.collect()
}

/// Waits until containerd has cleared all of these away, or could have.
pub(super) async fn cleared(folders: impl Iterator<Item = &PathBuf> + Clone) {
    let deadline = Instant::now() + CLEARING;
    while folders.clone().any(|path| path.exists()) && Instant::now() < deadline {
        sleep(LOOK_EVERY).await;
    }
}

/// Says whether it was there.
fn remove(folder: &Path) -> std::io::Result<bool> {
    // One that is in use is not unmounted, and what is mounted is not removed.
    while umounted(&folder.join(ROOT_FS))? {}
    clear_mount_points(&folder.join(ROOT_FS))?;
    match bundle::remove(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes empty directories and empty files: what the low-level runtime makes to mount on, also when it was late and
/// the container's file system had been taken away already. All else stays, and what is mounted on.
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
                Err(error) if !is_in_the_way(&error) => return Err(error),
                _ => {}
            }
        } else if kind.is_file() && entry.metadata()?.len() == 0 {
            match std::fs::remove_file(&path) {
                Err(error) if !is_in_the_way(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Something is in it or mounted on it.
fn is_in_the_way(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::ResourceBusy)
}

/// Takes off the topmost file system that is mounted there; says whether there was one.
fn umounted(place: &Path) -> std::io::Result<bool> {
    match umount2(place, MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

//! Mounts one directory of a volume at a path that no container can replace.
//!
//! A container that has the volume can replace any directory in it by a link, at any time. The program
//! that creates a container would resolve a checked path into the volume again, and could then reach any
//! file of the node. So the directory is opened within the volume, and the open directory is mounted at a
//! path that only root can reach; the container is created with that path. What remains: a container may
//! move the directory elsewhere in the volume, or delete it, and the container created from the subpath
//! mount then has that directory. It never has another.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tokio::task::spawn_blocking;
use warren_tree::IoFailure;
use warren_types::VolumeName;

use crate::error::Error;
use crate::{Result, subpath};

/// The mount point in the directory of a subpath mount.
const MOUNT_POINT: &str = "at";

/// The subpath mounts of this node, all below one directory. Clones share it.
#[derive(Clone, Debug)]
pub struct SubpathMounts {
    shared: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    state: Mutex<MountNames>,
}

#[derive(Debug, Default)]
struct MountNames {
    names: HashSet<OsString>,
    /// Number of mounts so far; makes names unique.
    count: u64,
}

/// A directory of a volume mounted at its own path until this is dropped. It is needed only while a
/// container is created, which then has its own mount.
#[derive(Debug)]
pub struct SubpathMount {
    shared: Arc<Inner>,
    name: OsString,
    path: PathBuf,
}

impl SubpathMounts {
    /// Subpath mounts below `root`, which is created when first needed. Use a path that does not survive
    /// a reboot and has no other user.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { shared: Arc::new(Inner { root: root.into(), state: Mutex::default() }) }
    }

    /// Mounts the directory `subpath` of the volume at `path`, and creates it if missing. `subpath` is
    /// relative and has no `..`.
    ///
    /// # Errors
    /// [`Error::Subpath`] if a file or link is in the way.
    pub async fn mount(&self, volume: &VolumeName, path: &Path, subpath: &str) -> Result<SubpathMount> {
        let (shared, volume) = (Arc::clone(&self.shared), volume.clone());
        let (path, subpath) = (path.to_owned(), subpath.to_owned());
        let pin = move || shared.mount(&volume, &path, &subpath);
        spawn_blocking(pin).await.expect("work on the disk does not panic")
    }

    /// Unmounts leftovers of a killed process and returns their number. Safe at any time.
    ///
    /// # Errors
    /// [`Error::Root`] for the first that cannot be removed.
    pub async fn sweep(&self) -> Result<usize> {
        let shared = Arc::clone(&self.shared);
        spawn_blocking(move || shared.sweep()).await.expect("work on the disk does not panic")
    }
}

impl SubpathMount {
    /// The path of the mount.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SubpathMount {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.shared.root, &self.name) {
            tracing::warn!(path = %self.path.display(), %error, "subpath mount is kept until the next sweep");
        }
        self.shared.state().names.remove(&self.name);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, MountNames> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mount(self: Arc<Self>, volume: &VolumeName, path: &Path, subpath: &str) -> Result<SubpathMount> {
        let failed = |failure| Error::from_failure(volume, failure);
        let root = File::open(path).map_err(IoFailure::io("open", path)).map_err(failed)?;
        let directory = subpath::open(&root, Path::new(subpath)).map_err(|errno| {
            let reason = match errno {
                Errno::ENOTDIR => "part of the path is not a directory",
                Errno::ENOENT => "a link on the path is dangling",
                Errno::ELOOP => "the links on the path form a loop",
                errno => return failed(IoFailure::at("make", &path.join(subpath))(errno)),
            };
            let (volume, subpath) = (volume.clone(), subpath.to_owned());
            Error::Subpath { volume, subpath, reason: reason.to_owned() }
        })?;
        let pin = self.new_mount_dir()?;
        bind_mount(&directory, &pin.path).map_err(IoFailure::io("show", &pin.path)).map_err(failed)?;
        Ok(pin)
    }

    /// Creates an empty directory for one more mount.
    fn new_mount_dir(self: Arc<Self>) -> Result<SubpathMount> {
        let failed = |error| Error::root("create a directory in", &self.root, error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(failed)?;
        loop {
            let name = {
                let mut held = self.state();
                held.count += 1;
                // A leftover of a killed process has another name, so operations that process began
                // cannot affect this mount.
                let name = OsString::from(format!("{}-{}", std::process::id(), held.count));
                held.names.insert(name.clone());
                name
            };
            let pin = SubpathMount {
                path: self.root.join(&name).join(MOUNT_POINT),
                name,
                shared: Arc::clone(&self),
            };
            match DirBuilder::new().mode(0o700).create(self.root.join(&pin.name)) {
                Ok(()) => return Ok(pin),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    fn sweep(&self) -> Result<usize> {
        let listing = |error| Error::root("list", &self.root, error);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries.map_err(listing)?,
        };
        let mut swept = 0;
        for entry in entries {
            let name = entry.map_err(listing)?.file_name();
            if !self.state().names.contains(&name) {
                unmount(&self.root, &name)
                    .map_err(|error| Error::root("remove", &self.root.join(&name), error))?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}

/// Mounts the open directory. The path by which it was found may lead elsewhere now.
fn bind_mount(directory: &OwnedFd, at: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(at)?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    // Not recursive: mounts within it would be unmounted there as well with this mount.
    Ok(mount(Some(&opened), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Removes a subpath mount; missing parts are ignored. A directory that is still a mount point is never
/// entered.
fn unmount(root: &Path, name: &OsString) -> io::Result<()> {
    let mut dead = OsString::from(".");
    dead.push(name);
    let dead = match name.as_encoded_bytes().first() {
        Some(b'.') => root.join(name),
        _ => {
            // Renamed first, so that a container in creation does not find an empty directory in its
            // place.
            ignore_not_found(fs::rename(root.join(name), root.join(&dead)))?;
            root.join(dead)
        }
    };
    let at = dead.join(MOUNT_POINT);
    match umount2(&at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    ignore_not_found(fs::remove_dir(at))?;
    ignore_not_found(fs::remove_dir(dead))
}

fn ignore_not_found(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts_below(dir: &Path) -> usize {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        table
            .lines()
            .filter(|line| line.split(' ').nth(1).unwrap().starts_with(dir.to_str().unwrap()))
            .count()
    }

    #[tokio::test]
    async fn subpath_mount_survives_path_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, pins) = (dir.path().join("data"), SubpathMounts::new(dir.path().join("pins")));
        let name: VolumeName = "data".parse().unwrap();
        fs::create_dir(&volume).unwrap();
        let pin = pins.mount(&name, &volume, "a/b").await.unwrap();
        fs::write(volume.join("a/b/file"), "here").unwrap();
        fs::rename(volume.join("a"), volume.join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("a")).unwrap();
        assert_eq!(fs::read_to_string(pin.path().join("file")).unwrap(), "here");
        let again = pins.mount(&name, &volume, "moved/b").await.unwrap();
        assert!(again.path() != pin.path() && again.path().join("file").exists());
        assert_eq!(pins.sweep().await.unwrap(), 0, "both are in use");
        drop((pin, again));
        assert_eq!(mounts_below(dir.path()), 0);
        assert_eq!(fs::read_dir(dir.path().join("pins")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(volume.join("moved/b/file")).unwrap(), "here");
    }

    #[test]
    fn swapped_path_is_not_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, at) = (dir.path().join("data"), dir.path().join("pin").join(MOUNT_POINT));
        fs::create_dir_all(volume.join("a")).unwrap();
        fs::create_dir(dir.path().join("pin")).unwrap();
        fs::write(volume.join("a/file"), "inside").unwrap();
        let opened = subpath::open(File::open(&volume).unwrap(), Path::new("a")).unwrap();
        fs::rename(volume.join("a"), volume.join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("a")).unwrap();
        bind_mount(&opened, &at).unwrap();
        let shown = fs::read_to_string(at.join("file"));
        unmount(dir.path(), &"pin".into()).unwrap();
        assert_eq!(shown.unwrap(), "inside");
    }

    #[tokio::test]
    async fn leftover_mounts_are_swept_without_data_loss() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, pins) = (dir.path().join("data"), SubpathMounts::new(dir.path().join("pins")));
        let name: VolumeName = "data".parse().unwrap();
        fs::create_dir(&volume).unwrap();
        assert_eq!(pins.sweep().await.unwrap(), 0, "before there was any");
        std::mem::forget(pins.mount(&name, &volume, "sub").await.unwrap());
        fs::write(volume.join("sub/file"), "here").unwrap();
        let root = dir.path().join("pins");
        for half_done in ["1-1", ".1-2"] {
            fs::create_dir(root.join(half_done)).unwrap();
        }
        fs::create_dir(root.join(".1-2").join(MOUNT_POINT)).unwrap();
        let next = SubpathMounts::new(&root);
        assert_eq!(next.sweep().await.unwrap(), 3);
        assert_eq!(next.sweep().await.unwrap(), 0);
        assert_eq!((mounts_below(dir.path()), fs::read_dir(&root).unwrap().count()), (0, 0));
        assert_eq!(fs::read_to_string(volume.join("sub/file")).unwrap(), "here");
    }

    #[tokio::test]
    async fn non_directory_subpath_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let pins = SubpathMounts::new(dir.path().join("pins"));
        fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        for (subpath, why) in [("file/x", "not a directory"), ("link/x", "dangling")] {
            let error = pins.mount(&"data".parse().unwrap(), dir.path(), subpath).await.unwrap_err();
            assert!(matches!(error, Error::Subpath { .. }) && !error.is_transient(), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(!dir.path().join("pins").exists(), "nothing was made for it");
    }
}

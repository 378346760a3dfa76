//! Shows one directory of a volume at a path that nobody can swap.
//!
//! A container that has the volume can replace any directory in it by a link, at any time. A path into the volume that
//! was checked would be looked up again by the program that makes the container, and could then lead to any file of
//! the node. So the directory is opened within the volume, and what was opened is mounted at a path where only root
//! comes; that path is what the container is made with. What remains: a container may move the directory elsewhere in
//! the volume, or delete it, and the one made from the pin then has that directory. It never has another.

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
use warren_types::VolumeName;

use crate::error::{Error, Failure};
use crate::{Result, subpath};

/// The mount in a pin's directory.
const AT: &str = "at";

/// The pins of this node, all below one directory. Clones are the same.
#[derive(Clone, Debug)]
pub struct Pins {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    names: HashSet<OsString>,
    /// How many there were.
    count: u64,
}

/// A directory of a volume at a path of its own, until this is dropped: needed only while a container is made, which
/// then has a mount of its own.
#[derive(Debug)]
pub struct Pin {
    shared: Arc<Shared>,
    name: OsString,
    path: PathBuf,
}

impl Pins {
    /// Pins below `root`, which is made when it is first needed. A path that is lost with a reboot, and that nobody
    /// else uses.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { shared: Arc::new(Shared { root: root.into(), held: Mutex::default() }) }
    }

    /// Shows the directory `subpath` of a volume that is at `path`, and makes it where it is missing. Relative, without
    /// `..`.
    ///
    /// # Errors
    /// [`Error::Subpath`] when something else is in the way.
    pub async fn pin(&self, volume: &VolumeName, path: &Path, subpath: &str) -> Result<Pin> {
        let (shared, volume) = (Arc::clone(&self.shared), volume.clone());
        let (path, subpath) = (path.to_owned(), subpath.to_owned());
        let pin = move || shared.pin(&volume, &path, &subpath);
        spawn_blocking(pin).await.expect("work on the disk does not panic")
    }

    /// Removes the pins that a killed process left; says how many. For any time.
    ///
    /// # Errors
    /// [`Error::Root`] for the first that cannot be removed.
    pub async fn sweep(&self) -> Result<usize> {
        let shared = Arc::clone(&self.shared);
        spawn_blocking(move || shared.sweep()).await.expect("work on the disk does not panic")
    }
}

impl Pin {
    /// Where it is shown.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Err(error) = release(&self.shared.root, &self.name) {
            tracing::warn!(path = %self.path.display(), %error, "a pin stays until the next sweep");
        }
        self.shared.held().names.remove(&self.name);
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(self: Arc<Self>, volume: &VolumeName, path: &Path, subpath: &str) -> Result<Pin> {
        let failed = |failure| Error::of(volume, failure);
        let root = File::open(path).map_err(Failure::io("open", path)).map_err(failed)?;
        let directory = subpath::open(&root, Path::new(subpath)).map_err(|errno| {
            let reason = match errno {
                Errno::ENOTDIR => "something on the way is not a directory",
                Errno::ENOENT => "a link on the way leads nowhere in the volume",
                Errno::ELOOP => "links on the way lead to each other",
                errno => return failed(Failure::at("make", &path.join(subpath))(errno)),
            };
            let (volume, subpath) = (volume.clone(), subpath.to_owned());
            Error::Subpath { volume, subpath, reason: reason.to_owned() }
        })?;
        let pin = self.take()?;
        show(&directory, &pin.path).map_err(Failure::io("show", &pin.path)).map_err(failed)?;
        Ok(pin)
    }

    /// A directory for one more pin, with nothing in it yet.
    fn take(self: Arc<Self>) -> Result<Pin> {
        let failed = |error| Error::root("make a place in", &self.root, error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(failed)?;
        loop {
            let name = {
                let mut held = self.held();
                held.count += 1;
                // One that is left of a killed process has another name, so that nothing that process began can meet
                // this one in its place.
                let name = OsString::from(format!("{}-{}", std::process::id(), held.count));
                held.names.insert(name.clone());
                name
            };
            let pin = Pin { path: self.root.join(&name).join(AT), name, shared: Arc::clone(&self) };
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
            if !self.held().names.contains(&name) {
                release(&self.root, &name)
                    .map_err(|error| Error::root("remove", &self.root.join(&name), error))?;
                swept += 1;
            }
        }
        Ok(swept)
    }
}

/// Mounts what was opened. It is not given the path by which that was found, which may lead elsewhere by now.
fn show(directory: &OwnedFd, at: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(at)?;
    let opened = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    // Without what is mounted in it: that would be unmounted there too when the pin goes.
    Ok(mount(Some(&opened), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Takes a pin away; what is missing of it is fine. A directory that something is still mounted at is never entered.
fn release(root: &Path, name: &OsString) -> io::Result<()> {
    let mut dead = OsString::from(".");
    dead.push(name);
    let dead = match name.as_encoded_bytes().first() {
        Some(b'.') => root.join(name),
        _ => {
            // First, so that a container that is being made does not find an empty directory in its place.
            absent_is_fine(fs::rename(root.join(name), root.join(&dead)))?;
            root.join(dead)
        }
    };
    let at = dead.join(AT);
    match umount2(&at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    absent_is_fine(fs::remove_dir(at))?;
    absent_is_fine(fs::remove_dir(dead))
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
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
    async fn a_pin_shows_its_directory_whatever_becomes_of_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, pins) = (dir.path().join("data"), Pins::new(dir.path().join("pins")));
        let name: VolumeName = "data".parse().unwrap();
        fs::create_dir(&volume).unwrap();
        let pin = pins.pin(&name, &volume, "a/b").await.unwrap();
        fs::write(volume.join("a/b/file"), "here").unwrap();
        fs::rename(volume.join("a"), volume.join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("a")).unwrap();
        assert_eq!(fs::read_to_string(pin.path().join("file")).unwrap(), "here");
        let again = pins.pin(&name, &volume, "moved/b").await.unwrap();
        assert!(again.path() != pin.path() && again.path().join("file").exists());
        assert_eq!(pins.sweep().await.unwrap(), 0, "both are in use");
        drop((pin, again));
        assert_eq!(mounts_below(dir.path()), 0);
        assert_eq!(fs::read_dir(dir.path().join("pins")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(volume.join("moved/b/file")).unwrap(), "here");
    }

    #[test]
    fn what_was_opened_is_shown_and_not_what_is_swapped_in_before_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, at) = (dir.path().join("data"), dir.path().join("pin").join(AT));
        fs::create_dir_all(volume.join("a")).unwrap();
        fs::create_dir(dir.path().join("pin")).unwrap();
        fs::write(volume.join("a/file"), "inside").unwrap();
        let opened = subpath::open(File::open(&volume).unwrap(), Path::new("a")).unwrap();
        fs::rename(volume.join("a"), volume.join("moved")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("a")).unwrap();
        show(&opened, &at).unwrap();
        let shown = fs::read_to_string(at.join("file"));
        release(dir.path(), &"pin".into()).unwrap();
        assert_eq!(shown.unwrap(), "inside");
    }

    #[tokio::test]
    async fn what_a_killed_process_left_is_swept_and_the_data_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, pins) = (dir.path().join("data"), Pins::new(dir.path().join("pins")));
        let name: VolumeName = "data".parse().unwrap();
        fs::create_dir(&volume).unwrap();
        assert_eq!(pins.sweep().await.unwrap(), 0, "before there was any");
        std::mem::forget(pins.pin(&name, &volume, "sub").await.unwrap());
        fs::write(volume.join("sub/file"), "here").unwrap();
        let root = dir.path().join("pins");
        for half_done in ["1-1", ".1-2"] {
            fs::create_dir(root.join(half_done)).unwrap();
        }
        fs::create_dir(root.join(".1-2").join(AT)).unwrap();
        let next = Pins::new(&root);
        assert_eq!(next.sweep().await.unwrap(), 3);
        assert_eq!(next.sweep().await.unwrap(), 0);
        assert_eq!((mounts_below(dir.path()), fs::read_dir(&root).unwrap().count()), (0, 0));
        assert_eq!(fs::read_to_string(volume.join("sub/file")).unwrap(), "here");
    }

    #[tokio::test]
    async fn what_cannot_be_a_directory_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let pins = Pins::new(dir.path().join("pins"));
        fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        for (subpath, why) in [("file/x", "not a directory"), ("link/x", "leads nowhere in the volume")] {
            let error = pins.pin(&"data".parse().unwrap(), dir.path(), subpath).await.unwrap_err();
            assert!(matches!(error, Error::Subpath { .. }) && !error.is_transient(), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(!dir.path().join("pins").exists(), "nothing was made for it");
    }
}

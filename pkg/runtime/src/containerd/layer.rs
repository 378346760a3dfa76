//! Writable layers of containers: their limit, what they use, and their removal before that of the container.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use warren_image::{CallError, with_deadline};
use warren_tree::{DirEntries, IoFailure, TreeUsage};
use warren_types::Bytes;

use super::{DELETE_TIMEOUT, Inner, RECORD_TIMEOUT};
use crate::container::{ContainerId, ProcessState};
use crate::error::Error;
use crate::usage::LayerUsage;
use crate::{Result, quota};

/// Measuring a layer: some hundred thousand files a second, unless they must be read from a slow disk.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);
/// One call of the kernel on a disk that answers.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// The directories of overlayfs in which a layer is.
struct LayerDirs {
    upper: PathBuf,
    work: PathBuf,
}

impl LayerDirs {
    /// `None`: it is not one of overlayfs.
    fn of(mounts: &[Mount]) -> Option<Self> {
        let option = |name: &str| {
            let mut options = mounts.iter().flat_map(|mount| &mount.options);
            options.find_map(|option| option.strip_prefix(name)).map(PathBuf::from)
        };
        Some(Self { upper: option("upperdir=")?, work: option("workdir=")? })
    }
}

impl Inner {
    /// Sets the limit where the file system has quotas. Elsewhere it has no effect.
    pub(super) async fn limit_layer(&self, id: &ContainerId, limit: Bytes, mounts: &[Mount]) {
        let Some(LayerDirs { upper, work }) = LayerDirs::of(mounts) else { return };
        let limited = spawn_blocking(move || quota::limit(&upper, &work, limit)).await;
        if let Err(error) = limited.expect("setting a quota does not panic") {
            tracing::debug!(%id, %error, "the layer has no quota; only what it uses is measured");
        }
    }

    /// Clears the quotas of removed layers.
    pub(super) async fn sweep_quotas(&self) -> Result<()> {
        let Some(root) = self.layer_root().await? else { return Ok(()) };
        let cleared = spawn_blocking(move || quota::clear_unused(&root)).await;
        // Most file systems have none.
        if let Ok(cleared @ 1..) = cleared.expect("clearing quotas does not panic") {
            tracing::debug!(cleared, "cleared quotas of removed layers");
        }
        Ok(())
    }

    /// The directory in which containerd has the layers.
    pub(super) async fn layer_root(&self) -> Result<Option<PathBuf>> {
        if let Some(root) = self.layer_root.get() {
            return Ok(Some(root.clone()));
        }
        let containers = self.snapshots().await?;
        let Some(id) = containers.iter().find_map(|key| ContainerId::parse(key).ok()) else {
            return Ok(None);
        };
        let mounts = self.find_mounts(&id).await?.unwrap_or_default();
        // `snapshots/12/fs`
        let root =
            LayerDirs::of(&mounts).and_then(|layer| layer.upper.ancestors().nth(2).map(Path::to_path_buf));
        Ok(root.map(|root| self.layer_root.get_or_init(|| root).clone()))
    }

    pub(super) async fn layer_usage(&self, id: &ContainerId) -> Result<Option<LayerUsage>> {
        let mounts = self.find_mounts(id).await?.unwrap_or_default();
        let Some(LayerDirs { upper, .. }) = LayerDirs::of(&mounts) else { return Ok(None) };
        let action = || format!("measure the layer of container {id}");
        let measuring = spawn_blocking(move || measure(&upper, Instant::now() + MEASURE_TIMEOUT));
        // A disk that does not answer keeps no other layer from being measured.
        let measured = timeout(MEASURE_TIMEOUT + DISK_TIMEOUT, measuring).await.map_err(|_| {
            Error::Timeout { action: action(), reason: "its disk does not answer".to_owned() }
        })?;
        let measured = measured.expect("reading directories does not panic");
        measured.map_err(|failure| Error::Failed { action: action(), reason: failure.to_string() })
    }

    /// Its files first, without containerd: on a full disk its database cannot be changed before some are gone.
    pub(super) async fn remove_layer(&self, id: &ContainerId) -> Result<()> {
        let process = self.process(id).await?;
        if !matches!(process, ProcessState::Absent | ProcessState::Stopped(_)) {
            return Err(Error::Conflict {
                action: "remove the layer of",
                id: id.to_string(),
                found: "it has a process; signal it and wait for its end first".to_owned(),
            });
        }
        let Some(mounts) = self.find_mounts(id).await? else { return Ok(()) };
        if let Some(LayerDirs { upper, .. }) = LayerDirs::of(&mounts) {
            let action = || format!("remove the files of container {id}");
            let emptied = timeout(DELETE_TIMEOUT, spawn_blocking(move || empty(&upper))).await;
            let emptied = emptied.map_err(|_| Error::Timeout {
                action: action(),
                reason: format!("it takes more than {DELETE_TIMEOUT:?}, and goes on"),
            })?;
            let failed = |failure: IoFailure| Error::Failed { action: action(), reason: failure.to_string() };
            emptied.expect("removing files does not panic").map_err(failed)?;
        }
        // The file system of an ended process is mounted until that is deleted.
        if process == ProcessState::Absent && self.remove_snapshot(id.as_str()).await? {
            self.removed.notify_one();
        }
        Ok(())
    }

    /// `None` without a layer.
    pub(super) async fn find_mounts(&self, id: &ContainerId) -> Result<Option<Vec<Mount>>> {
        let snapshotter = self.settings.snapshotter.clone();
        let request = self.connection.request(snap::MountsRequest { snapshotter, key: id.to_string() });
        match with_deadline(RECORD_TIMEOUT, self.connection.snapshots().mounts(request)).await {
            Ok(reply) => Ok(Some(reply.mounts)),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(None),
            Err(status) => Err(Error::from_status(format!("find the file system of {id}"), &status)),
        }
    }
}

/// Whether containerd lists the layer and its directory does not exist: containerd was killed while it created or
/// cleaned up layers.
pub(super) fn is_lost(mounts: &[Mount]) -> bool {
    LayerDirs::of(mounts).is_some_and(|layer| !layer.upper.exists())
}

/// `None` if it does not exist.
fn open(layer: &Path) -> std::result::Result<Option<File>, IoFailure> {
    match File::open(layer) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(IoFailure::io("open", layer)(error)),
    }
}

/// What a layer uses, measured until the deadline; `None` if it does not exist.
fn measure(layer: &Path, deadline: Instant) -> std::result::Result<Option<LayerUsage>, IoFailure> {
    let Some(directory) = open(layer)? else { return Ok(None) };
    let TreeUsage { bytes, inodes, unmeasured } =
        warren_tree::measure(directory.as_fd(), || Instant::now() >= deadline)?;
    Ok(Some(LayerUsage { bytes: Bytes(bytes), inodes, unmeasured }))
}

/// Removes everything in a layer that can be removed; the failure is the first.
fn empty(layer: &Path) -> std::result::Result<(), IoFailure> {
    let Some(directory) = open(layer)? else { return Ok(()) };
    let failed = || IoFailure::at("list", layer);
    let mut emptied = Ok(());
    for name in DirEntries::read(&directory).map_err(failed())? {
        emptied = emptied.and(warren_tree::remove(directory.as_fd(), &name.map_err(failed())?));
    }
    emptied
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;

    use nix::errno::Errno;
    use nix::sys::stat::{Mode, mkdirat};
    use warren_testkit::small_disk::SmallDisk;
    use warren_tree::{Unmeasured, open_directory};

    use super::*;

    /// With a stack that a call for each level would exceed.
    #[test]
    fn deeply_nested_layer_is_measured_and_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().to_owned();
        let mut directory: OwnedFd = File::open(&layer).unwrap().into();
        for _ in 0..5_000 {
            mkdirat(&directory, "d", Mode::S_IRWXU).unwrap();
            directory = open_directory(&directory, Path::new("d")).unwrap();
        }
        let ending = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            let later = || Instant::now() + Duration::from_secs(600);
            let usage = measure(&layer, later()).unwrap().unwrap();
            assert_eq!(usage.unmeasured, Unmeasured::Depth);
            for _twice in 0..2 {
                empty(&layer).unwrap();
            }
            let usage = measure(&layer, later()).unwrap().unwrap();
            assert_eq!((usage.inodes, usage.unmeasured), (1, Unmeasured::Nothing));
            assert_eq!(measure(&layer.join("none"), later()), Ok(None));
        });
        ending.unwrap().join().unwrap();
    }

    #[test]
    fn directory_is_emptied_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, outside) = (dir.path().join("fs"), dir.path().join("outside"));
        fs::create_dir_all(layer.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        fs::write(layer.join("x"), "").unwrap();
        std::os::unix::fs::symlink(&outside, layer.join("link")).unwrap();
        std::os::unix::fs::symlink(&outside, layer.join("a/link")).unwrap();
        for _twice in 0..2 {
            empty(&layer).unwrap();
            assert_eq!(fs::read_dir(&layer).unwrap().count(), 0);
        }
        assert!(outside.join("kept").exists());
        empty(&dir.path().join("none")).unwrap();
    }

    #[test]
    fn entry_that_cannot_be_removed_keeps_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path();
        let disk = SmallDisk::new(layer, 4);
        for file in 0..40 {
            fs::write(layer.join(file.to_string()), "").unwrap();
        }
        let failure = empty(layer).unwrap_err();
        assert_eq!((failure.path.as_path(), failure.errno), (Path::new("small"), Errno::EXDEV));
        let left: Vec<_> = fs::read_dir(layer).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [disk.path()]);
    }

    #[test]
    fn directories_are_those_of_overlayfs() {
        let options = ["index=off", "workdir=/s/12/work", "upperdir=/s/12/fs", "lowerdir=/s/1/fs"];
        let overlay = Mount { options: options.map(str::to_owned).into(), ..Mount::default() };
        let layer = LayerDirs::of(&[overlay]).unwrap();
        assert_eq!((layer.upper, layer.work), ("/s/12/fs".into(), "/s/12/work".into()));
        assert!(LayerDirs::of(&[Mount::default()]).is_none());
    }
}

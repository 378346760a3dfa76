//! The order of disk operations on a local volume, such that a crash at any point leaves no volume or a
//! complete one.
//!
//! Next to the volumes are directories whose names start with a dot, which volume names cannot:
//!
//! | name | meaning | after a crash |
//! |---|---|---|
//! | `.new-NAME` | a volume in creation | deleted |
//! | `.copy-NAME` | its initial content, partly copied | deleted |
//! | `.full-NAME` | its initial content, complete: moved to the volume, entry by entry | moved on |
//! | `.gone-NAME` | a volume in deletion | deleted |
//!
//! The directory of a volume stays the same from creation to deletion, since containers that have it
//! mounted would not see a replacement. So initial content is moved into it and not renamed to it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::syncfs;
use warren_tree::{self as tree, DirEntries, IoFailure, Unmeasured};
use warren_types::{Bytes, VolumeName};

use super::locks::VolumeLockGuard;
use crate::Result;
use crate::error::Error;
use crate::options::{DEFAULT_MODE, Ownership};

const NEW_PREFIX: &str = ".new-";
const COPY_PREFIX: &str = ".copy-";
const FULL_PREFIX: &str = ".full-";
const REMOVED_PREFIX: &str = ".gone-";

/// The directory of all volumes.
pub(super) struct VolumeRoot {
    root: PathBuf,
}

/// The initial content of an empty volume.
pub(super) struct InitialFill<'a> {
    pub source: &'a OwnedFd,
    pub ownership: &'a Ownership,
}

/// Result of a step, before the volume is added to the error.
type StepResult<T> = std::result::Result<T, IoFailure>;

impl VolumeRoot {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn path(&self, volume: &VolumeName) -> PathBuf {
        self.root.join(volume.as_str())
    }

    /// Creates the volume, completes interrupted operations, and returns whether it is empty.
    pub fn ensure(&self, volume: &VolumeName, owned: &Ownership) -> Result<bool> {
        let root = self.open()?;
        let ensured = || {
            let directory = match self.directory(&root, volume)? {
                Some(directory) => directory,
                None => self.make(&root, volume, owned)?,
            };
            self.publish_copy(&root, volume, owned, &directory)?;
            DirEntries::read(&directory)
                .and_then(DirEntries::has_no_entries)
                .map_err(IoFailure::at("list", &self.path(volume)))
        };
        ensured().map_err(|failure| Error::from_failure(volume, failure))
    }

    /// Fills the volume if it is still empty.
    pub fn fill(&self, volume: &VolumeName, filling: &InitialFill<'_>) -> Result<()> {
        let root = self.open()?;
        let copied = self.copy(&root, volume, filling);
        if copied.is_err() {
            // On a full disk, the partial copy must not occupy space.
            let removed = tree::remove(root.as_fd(), format!("{COPY_PREFIX}{volume}").as_ref());
            removed
                .unwrap_or_else(|failure| tracing::warn!(%volume, ?failure, "cannot remove a partial copy"));
        }
        let filled = copied.and_then(|()| {
            let directory = self.directory(&root, volume)?;
            directory
                .map_or(Ok(()), |directory| self.publish_copy(&root, volume, filling.ownership, &directory))
        });
        filled.map_err(|failure| Error::from_failure(volume, failure))
    }

    /// Deletes the volume and its leftovers.
    pub fn remove(&self, volume: &VolumeName) -> Result<()> {
        let Some(root) = self.open_existing()? else { return Ok(()) };
        if let Some(path) = mounted_below(&self.root, volume) {
            return Err(Error::Mounted { volume: volume.clone(), path });
        }
        let removed = || {
            let gone = format!("{REMOVED_PREFIX}{volume}");
            self.delete(&root, &gone)?;
            match renameat2(&root, volume.as_str(), &root, &*gone, RenameFlags::RENAME_NOREPLACE) {
                Err(Errno::ENOENT) => {}
                renamed => renamed.map_err(IoFailure::at("delete", &self.path(volume)))?,
            }
            // From here on the volume is deleted, whatever happens to its data.
            self.sync(&root)?;
            [FULL_PREFIX, COPY_PREFIX, NEW_PREFIX, REMOVED_PREFIX]
                .iter()
                .try_for_each(|kind| self.delete(&root, &format!("{kind}{volume}")))
        };
        removed().map_err(|failure| Error::from_failure(volume, failure))
    }

    pub fn list(&self) -> Result<Vec<VolumeName>> {
        let unread = |error| Error::root("list", &self.root, error);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unread)?,
        };
        let mut volumes = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unread)?;
            let name = entry.file_name().to_str().and_then(|name| name.parse::<VolumeName>().ok());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                volumes.extend(name);
            }
        }
        volumes.sort();
        Ok(volumes)
    }

    /// `None` also if the caller was cancelled.
    pub fn usage(&self, volume: &VolumeName, stop: &AtomicBool) -> Result<Option<Bytes>> {
        let Some(root) = self.open_existing()? else { return Ok(None) };
        let measured = || match self.directory(&root, volume)? {
            Some(directory) => tree::measure(directory.as_fd(), || stop.load(Ordering::Relaxed)).map(Some),
            None => Ok(None),
        };
        let measured = measured().map_err(|failure| Error::from_failure(volume, failure))?;
        if measured.is_some_and(|usage| usage.unmeasured == Unmeasured::Depth) {
            tracing::debug!(%volume, "files in directories that are nested too deep are not measured");
        }
        let measured = measured.filter(|usage| usage.unmeasured != Unmeasured::Time);
        Ok(measured.map(|usage| Bytes(usage.bytes)))
    }

    /// Handles leftovers of a crash of volumes that are not locked. Unknown names are ignored.
    pub fn sweep(&self, turn: impl Fn(&VolumeName) -> Option<VolumeLockGuard>) -> Result<()> {
        let Some(root) = self.open_existing()? else { return Ok(()) };
        let unread = |error: Errno| Error::root("list", &self.root, error);
        let mut worst = Ok(());
        for entry in DirEntries::read(&root).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let Some((kind, volume)) = entry.to_str().and_then(parse_leftover) else { continue };
            let Some(_turn) = turn(&volume) else { continue };
            let dealt = || {
                let directory = self.directory(&root, &volume)?;
                match directory.filter(|_| kind == FULL_PREFIX) {
                    // Owner and mode were set before it was renamed to `.full`.
                    Some(directory) => self.publish_copy(&root, &volume, &Ownership::default(), &directory),
                    None => self.delete(&root, &format!("{kind}{volume}")),
                }
            };
            // An error on one volume does not stop the others.
            if let Err(failure) = dealt() {
                worst = Err(Error::from_failure(&volume, failure));
            }
        }
        worst
    }

    fn open(&self) -> Result<OwnedFd> {
        let make = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
            // setuid programs in volumes are for containers only, not for users of this node.
            match fs::metadata(&self.root)?.permissions().mode() & 0o077 {
                0 => Ok(()),
                _ => fs::set_permissions(&self.root, fs::Permissions::from_mode(0o700)),
            }
        };
        make().map_err(|error| Error::root("make", &self.root, error))?;
        let opened = self.open_existing()?;
        opened.ok_or_else(|| Error::root("open", &self.root, Errno::ENOENT))
    }

    fn open_existing(&self) -> Result<Option<OwnedFd>> {
        match File::open(&self.root) {
            Ok(root) => Ok(Some(root.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::root("open", &self.root, error)),
        }
    }

    /// The volume's directory, if it exists. An administrator may have mounted a disk there.
    fn directory(&self, root: &OwnedFd, volume: &VolumeName) -> StepResult<Option<OwnedFd>> {
        use nix::fcntl::{OFlag, openat};
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(root, volume.as_str(), flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(IoFailure::at("open", &self.path(volume))(errno)),
        }
    }

    fn make(&self, root: &OwnedFd, volume: &VolumeName, owned: &Ownership) -> StepResult<OwnedFd> {
        let new = format!("{NEW_PREFIX}{volume}");
        self.delete(root, &new)?;
        let made = || {
            mkdirat(root, &*new, Mode::S_IRWXU)?;
            let directory = tree::open_directory(root, Path::new(&new))?;
            let mode = Some(owned.mode.unwrap_or(Mode::from_bits_truncate(DEFAULT_MODE)));
            Ownership { mode, ..*owned }.set_on(&directory)?;
            renameat2(root, &*new, root, volume.as_str(), RenameFlags::RENAME_NOREPLACE)?;
            Ok(directory)
        };
        let directory = made().map_err(IoFailure::at("make", &self.path(volume)))?;
        self.sync(root)?;
        Ok(directory)
    }

    /// Copies the initial content next to the volume.
    fn copy(&self, root: &OwnedFd, volume: &VolumeName, filling: &InitialFill<'_>) -> StepResult<()> {
        let (copy, full) = (format!("{COPY_PREFIX}{volume}"), format!("{FULL_PREFIX}{volume}"));
        self.delete(root, &copy)?;
        let path = self.path(volume);
        let failed = || IoFailure::at("fill", &path);
        mkdirat(root, &*copy, Mode::S_IRWXU).map_err(failed())?;
        let directory = tree::open_directory(root, Path::new(&copy)).map_err(failed())?;
        let copied = tree::copy(filling.source.as_fd(), directory.as_fd()).map_err(|failure| {
            // The path in the volume is what the user knows.
            IoFailure { path: self.path(volume).join(&failure.path), ..failure }
        })?;
        if copied.skipped_devices > 0 {
            let devices = copied.skipped_devices;
            tracing::warn!(%volume, devices, "devices of the image were not copied to the volume");
        }
        filling.ownership.set_on(&directory).map_err(failed())?;
        // The complete copy must be on disk before its rename says so.
        syncfs(&directory).map_err(failed())?;
        renameat2(root, &*copy, root, &*full, RenameFlags::RENAME_NOREPLACE).map_err(failed())?;
        self.sync(root)
    }

    /// Moves a complete copy to the volume, if there is one; a crash may have interrupted this before.
    /// Files that a container wrote meanwhile are kept.
    fn publish_copy(
        &self,
        root: &OwnedFd,
        volume: &VolumeName,
        owned: &Ownership,
        directory: &OwnedFd,
    ) -> StepResult<()> {
        let full = format!("{FULL_PREFIX}{volume}");
        let path = self.path(volume);
        let failed = || IoFailure::at("fill", &path);
        let from = match tree::open_directory(root, Path::new(&full)) {
            Err(Errno::ENOENT) => return Ok(()),
            from => from.map_err(failed())?,
        };
        for entry in DirEntries::read(&from).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            match renameat2(&from, &*entry, directory, &*entry, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) | Err(Errno::ENOENT | Errno::EEXIST) => {}
                Err(errno) => return Err(failed()(errno)),
            }
        }
        // Last, since every new entry changes the times.
        let take_after = || {
            let stat = fstat(&from)?;
            tree::copy_attributes(&from, &stat, directory)?;
            owned.set_on(directory)?;
            nix::unistd::fsync(directory)
        };
        take_after().map_err(failed())?;
        self.delete(root, &full)
    }

    fn delete(&self, root: &OwnedFd, name: &str) -> StepResult<()> {
        tree::remove(root.as_fd(), name.as_ref())
            .map_err(|failure| IoFailure { path: self.root.join(name), ..failure })
    }

    fn sync(&self, root: &OwnedFd) -> StepResult<()> {
        nix::unistd::fsync(root).map_err(IoFailure::at("write", &self.root))
    }
}

/// The kind of leftover and its volume.
fn parse_leftover(name: &str) -> Option<(&'static str, VolumeName)> {
    [NEW_PREFIX, COPY_PREFIX, FULL_PREFIX, REMOVED_PREFIX]
        .into_iter()
        .find_map(|kind| Some((kind, name.strip_prefix(kind)?.parse().ok()?)))
}

/// A mount point at or in a volume.
fn mounted_below(root: &Path, volume: &VolumeName) -> Option<PathBuf> {
    let path = fs::canonicalize(root).ok()?.join(volume.as_str());
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    places.map(PathBuf::from).find(|place| place.starts_with(&path))
}

/// The kernel writes spaces and some other characters as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

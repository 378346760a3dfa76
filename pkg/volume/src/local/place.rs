//! What happens to a local volume on the disk, in which order, so that a crash at any point leaves no volume or a whole
//! one.
//!
//! Beside the volumes lie directories with names that no volume can have, since they begin with a dot:
//!
//! | name | is | after a crash |
//! |---|---|---|
//! | `.new-NAME` | a volume that is being made | deleted |
//! | `.copy-NAME` | what it will begin with, as far as it is copied | deleted |
//! | `.full-NAME` | the same when it is whole: it is moved to the volume, entry by entry | moved on |
//! | `.gone-NAME` | a volume that is being deleted | deleted |
//!
//! A volume's own directory stays the same one from its making to its end, since containers that have it mounted would
//! not see another that takes its place. So its first content is moved into it, and not renamed to it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::syncfs;
use warren_types::{Bytes, VolumeName};

use super::turns::Turn;
use crate::Result;
use crate::error::{Error, Failure};
use crate::options::{DEFAULT_MODE, Owned};
use crate::tree::{self, Entries};

const NEW: &str = ".new-";
const COPY: &str = ".copy-";
const FULL: &str = ".full-";
const GONE: &str = ".gone-";

/// The directory of all volumes.
pub(super) struct Place {
    root: PathBuf,
}

/// What an empty volume becomes.
pub(super) struct Filling<'a> {
    pub from: &'a OwnedFd,
    pub owned: &'a Owned,
}

/// What came of a step, before it is said of which volume.
type Done<T> = std::result::Result<T, Failure>;

impl Place {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub fn path(&self, volume: &VolumeName) -> PathBuf {
        self.root.join(volume.as_str())
    }

    /// Makes the volume, finishes what was begun, and says whether it is empty.
    pub fn ensure(&self, volume: &VolumeName, owned: &Owned) -> Result<bool> {
        let root = self.open()?;
        let ensured = || {
            let directory = match self.directory(&root, volume)? {
                Some(directory) => directory,
                None => self.make(&root, volume, owned)?,
            };
            self.move_full(&root, volume, owned, &directory)?;
            Entries::of(&directory).and_then(Entries::none).map_err(Failure::at("list", &self.path(volume)))
        };
        ensured().map_err(|failure| Error::of(volume, failure))
    }

    /// Fills a volume that is empty; one that is not any more stays as it is.
    pub fn fill(&self, volume: &VolumeName, filling: &Filling<'_>) -> Result<()> {
        let root = self.open()?;
        let copied = self.copy(&root, volume, filling);
        if copied.is_err() {
            // A full disk, above all: what was copied in vain must not keep it full.
            let removed = tree::remove(root.as_fd(), format!("{COPY}{volume}").as_ref());
            removed.unwrap_or_else(|failure| tracing::warn!(%volume, ?failure, "left a half-made copy"));
        }
        let filled = copied.and_then(|()| {
            let directory = self.directory(&root, volume)?;
            directory.map_or(Ok(()), |directory| self.move_full(&root, volume, filling.owned, &directory))
        });
        filled.map_err(|failure| Error::of(volume, failure))
    }

    /// Deletes the volume and whatever was begun with it.
    pub fn remove(&self, volume: &VolumeName) -> Result<()> {
        let Some(root) = self.open_existing()? else { return Ok(()) };
        if let Some(path) = mounted_below(&self.root, volume) {
            return Err(Error::Mounted { volume: volume.clone(), path });
        }
        let removed = || {
            let gone = format!("{GONE}{volume}");
            self.delete(&root, &gone)?;
            match renameat2(&root, volume.as_str(), &root, &*gone, RenameFlags::RENAME_NOREPLACE) {
                Err(Errno::ENOENT) => {}
                renamed => renamed.map_err(Failure::at("delete", &self.path(volume)))?,
            }
            // From here on the volume is gone, whatever happens to what it held.
            self.sync(&root)?;
            [FULL, COPY, NEW, GONE].iter().try_for_each(|kind| self.delete(&root, &format!("{kind}{volume}")))
        };
        removed().map_err(|failure| Error::of(volume, failure))
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

    /// `None` also when nobody waits for the answer any more.
    pub fn usage(&self, volume: &VolumeName, stop: &AtomicBool) -> Result<Option<Bytes>> {
        let Some(root) = self.open_existing()? else { return Ok(None) };
        let measured = || match self.directory(&root, volume)? {
            Some(directory) => tree::measure(directory.as_fd(), stop),
            None => Ok(None),
        };
        measured().map(|bytes| bytes.map(Bytes)).map_err(|failure| Error::of(volume, failure))
    }

    /// Deals with what a crash left of volumes that nobody works on. What is named like nothing of ours stays.
    pub fn sweep(&self, turn: impl Fn(&VolumeName) -> Option<Turn>) -> Result<()> {
        let Some(root) = self.open_existing()? else { return Ok(()) };
        let unread = |error: Errno| Error::root("list", &self.root, error);
        let mut worst = Ok(());
        for entry in Entries::of(&root).map_err(unread)? {
            let entry = entry.map_err(unread)?;
            let Some((kind, volume)) = entry.to_str().and_then(leftover) else { continue };
            let Some(_turn) = turn(&volume) else { continue };
            let dealt = || {
                let directory = self.directory(&root, &volume)?;
                match directory.filter(|_| kind == FULL) {
                    // Owner and mode were settled before it was called full.
                    Some(directory) => self.move_full(&root, &volume, &Owned::default(), &directory),
                    None => self.delete(&root, &format!("{kind}{volume}")),
                }
            };
            // One that cannot be dealt with does not hold up the others.
            if let Err(failure) = dealt() {
                worst = Err(Error::of(&volume, failure));
            }
        }
        worst
    }

    fn open(&self) -> Result<OwnedFd> {
        let make = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
            // Programs in volumes that run with their owner's rights are for containers only, not for users here.
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

    /// The volume's directory, unless there is none. A person may have mounted a disk there.
    fn directory(&self, root: &OwnedFd, volume: &VolumeName) -> Done<Option<OwnedFd>> {
        use nix::fcntl::{OFlag, openat};
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(root, volume.as_str(), flags, Mode::empty()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(Failure::at("open", &self.path(volume))(errno)),
        }
    }

    fn make(&self, root: &OwnedFd, volume: &VolumeName, owned: &Owned) -> Done<OwnedFd> {
        let new = format!("{NEW}{volume}");
        self.delete(root, &new)?;
        let made = || {
            mkdirat(root, &*new, Mode::S_IRWXU)?;
            let directory = tree::open_directory(root, Path::new(&new))?;
            let mode = Some(owned.mode.unwrap_or(Mode::from_bits_truncate(DEFAULT_MODE)));
            tree::own(&directory, &Owned { mode, ..*owned })?;
            renameat2(root, &*new, root, volume.as_str(), RenameFlags::RENAME_NOREPLACE)?;
            Ok(directory)
        };
        let directory = made().map_err(Failure::at("make", &self.path(volume)))?;
        self.sync(root)?;
        Ok(directory)
    }

    /// Copies what the volume shall begin with beside it.
    fn copy(&self, root: &OwnedFd, volume: &VolumeName, filling: &Filling<'_>) -> Done<()> {
        let (copy, full) = (format!("{COPY}{volume}"), format!("{FULL}{volume}"));
        self.delete(root, &copy)?;
        let path = self.path(volume);
        let failed = || Failure::at("fill", &path);
        mkdirat(root, &*copy, Mode::S_IRWXU).map_err(failed())?;
        let directory = tree::open_directory(root, Path::new(&copy)).map_err(failed())?;
        let copied = tree::copy(filling.from.as_fd(), directory.as_fd()).map_err(|failure| {
            // Said as a path in the volume: that is where it would be.
            Failure { path: self.path(volume).join(&failure.path), ..failure }
        })?;
        if copied.devices > 0 {
            tracing::warn!(%volume, devices = copied.devices, "an image has devices for a volume; left out");
        }
        tree::own(&directory, filling.owned).map_err(failed())?;
        // Before it is called whole, it must be so after a power cut too.
        syncfs(&directory).map_err(failed())?;
        renameat2(root, &*copy, root, &*full, RenameFlags::RENAME_NOREPLACE).map_err(failed())?;
        self.sync(root)
    }

    /// Moves what the volume shall begin with to it, if there is such; that may have been begun before a crash. What a
    /// container wrote meanwhile stays.
    fn move_full(&self, root: &OwnedFd, volume: &VolumeName, owned: &Owned, directory: &OwnedFd) -> Done<()> {
        let full = format!("{FULL}{volume}");
        let path = self.path(volume);
        let failed = || Failure::at("fill", &path);
        let from = match tree::open_directory(root, Path::new(&full)) {
            Err(Errno::ENOENT) => return Ok(()),
            from => from.map_err(failed())?,
        };
        for entry in Entries::of(&from).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            match renameat2(&from, &*entry, directory, &*entry, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) | Err(Errno::ENOENT | Errno::EEXIST) => {}
                Err(errno) => return Err(failed()(errno)),
            }
        }
        // Last, since every entry changes the times.
        let take_after = || {
            let stat = fstat(&from)?;
            tree::take_after(&from, &stat, directory)?;
            tree::own(directory, owned)?;
            nix::unistd::fsync(directory)
        };
        take_after().map_err(failed())?;
        self.delete(root, &full)
    }

    fn delete(&self, root: &OwnedFd, name: &str) -> Done<()> {
        tree::remove(root.as_fd(), name.as_ref())
            .map_err(|failure| Failure { path: self.root.join(name), ..failure })
    }

    fn sync(&self, root: &OwnedFd) -> Done<()> {
        nix::unistd::fsync(root).map_err(Failure::at("write", &self.root))
    }
}

/// What kind of leftover a name is, and of which volume.
fn leftover(name: &str) -> Option<(&'static str, VolumeName)> {
    [NEW, COPY, FULL, GONE].into_iter().find_map(|kind| Some((kind, name.strip_prefix(kind)?.parse().ok()?)))
}

/// Something that is mounted at or in a volume.
fn mounted_below(root: &Path, volume: &VolumeName) -> Option<PathBuf> {
    let path = fs::canonicalize(root).ok()?.join(volume.as_str());
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let places = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped);
    places.map(PathBuf::from).find(|place| place.starts_with(&path))
}

/// The kernel writes spaces and the like as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

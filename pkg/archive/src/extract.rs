//! Extracts an archive to a directory.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{
    FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, mkdirat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, geteuid, linkat, symlinkat, unlinkat};
use tar::{Archive, Entry, EntryType};
use warren_types::IdRange;

use crate::identity::as_owner;
use crate::{Error, Result, RootDir, names_content, names_directory};

/// Name of a file until it is complete.
const UNFINISHED: &str = ".warren-cp.";
/// Longest header of an entry, with its names.
const MAX_HEADER: u64 = 1 << 20;
const COPY_BUFFER: usize = 64 << 10;

/// Where an archive is extracted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Its entries in an existing directory.
    Into,
    /// The content of the directory `.` that it has, in a directory that is created if it is missing.
    Content,
    /// Its one file or tree: in the directory at the path, under its own name; otherwise as the path, in an existing
    /// directory.
    Named,
}

impl Destination {
    /// The destination of a tree at `source`.
    #[must_use]
    pub fn of(source: &Path) -> Self {
        if names_content(source) || source.file_name().is_none() { Self::Content } else { Self::Named }
    }
}

/// Extracts an archive at `path`. A file is complete when it gets its name; the part of one that cannot be completed
/// is removed. Links below `path` are not followed.
///
/// # Errors
/// All of [`Error`]. What was extracted before remains.
pub fn extract(root: &RootDir, path: &Path, destination: Destination, input: impl Read + Send) -> Result<()> {
    let Some(ids) = root.ids else { return extract_entries(root, path, destination, input) };
    let extracted = as_owner(ids.first, || extract_entries(root, path, destination, input));
    extracted.map_err(Error::io("write as root of the container", path))?
}

fn extract_entries(root: &RootDir, path: &Path, destination: Destination, input: impl Read) -> Result<()> {
    let limit = Rc::new(Cell::new(MAX_HEADER));
    let mut archive = Archive::new(LimitedReader { input, limit: Rc::clone(&limit) });
    let mut extraction = None;
    for entry in archive.entries().map_err(Error::Archive)? {
        let mut entry = entry.map_err(Error::Archive)?;
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            limit.set(MAX_HEADER);
            continue;
        }
        limit.set(u64::MAX);
        let extraction = match &mut extraction {
            Some(known) => known,
            none => {
                let is_directory = entry.header().entry_type().is_dir();
                none.insert(Extraction::begin(root, path, destination, is_directory)?)
            }
        };
        extraction.add(&mut entry)?;
        limit.set(MAX_HEADER);
    }
    match (extraction, destination) {
        (Some(mut extraction), _) => extraction.finish_directories(Path::new("/")),
        (None, Destination::Into) => Extraction::begin(root, path, destination, true).map(drop),
        (None, _) => Err(Error::Archive(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Fails when a header is longer than the limit, which the loop above sets.
struct LimitedReader<R> {
    input: R,
    limit: Rc<Cell<u64>>,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(part)?;
        let rest = self.limit.get().checked_sub(count as u64);
        self.limit.set(rest.ok_or_else(|| io::Error::other("an entry has too long names"))?);
        Ok(count)
    }
}

struct Extraction {
    base: OwnedFd,
    /// For messages.
    path: PathBuf,
    /// Replaces the first part of each name.
    rename: Option<OsString>,
    /// Directories that get more entries: their modes and times are set at the end.
    open: Vec<(PathBuf, Attributes)>,
    is_root: bool,
    ids: Option<IdRange>,
    next_number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Attributes {
    mode: Mode,
    owner: Uid,
    group: Gid,
    modified: TimeSpec,
}

impl Extraction {
    fn begin(root: &RootDir, path: &Path, destination: Destination, is_directory: bool) -> Result<Self> {
        let (found, base, rename) = match root.handle(path, true) {
            Ok(handle) => (Some(kind(&fstat(&handle).map_err(Error::io("read", path))?)), Some(handle), None),
            Err(Errno::ENOENT) => (None, None, path.file_name().map(OsStr::to_owned)),
            Err(errno) => return Err(Error::io("open", path)(errno)),
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        let in_parent = || root.handle(parent, true).map_err(Error::io("open", parent));
        let (base, rename) = match (found, destination) {
            (Some(SFlag::S_IFDIR), _) => (base, None),
            (Some(_), Destination::Named) if !is_directory && !names_directory(path) => {
                (Some(in_parent()?), path.file_name().map(OsStr::to_owned))
            }
            (Some(_), _) => return Err(Error::refused(path, "is not a directory")),
            (None, Destination::Named) if is_directory || !names_directory(path) => {
                (Some(in_parent()?), rename)
            }
            (None, Destination::Content) => {
                let name = rename.unwrap_or_default();
                mkdirat(&in_parent()?, name.as_os_str(), Mode::from_bits_truncate(0o755))
                    .map_err(Error::io("create", path))?;
                (Some(root.handle(path, true).map_err(Error::io("open", path))?), None)
            }
            (None, _) => return Err(Error::NotFound { path: path.to_owned() }),
        };
        let base = base.ok_or_else(|| Error::NotFound { path: path.to_owned() })?;
        let path = if rename.is_some() { parent.to_owned() } else { path.to_owned() };
        let (ids, is_root) = (root.ids, geteuid().is_root());
        Ok(Self { base, path, rename, open: Vec::new(), is_root, ids, next_number: 0 })
    }

    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<()> {
        let name = self.name(&entry.path().map_err(Error::Archive)?)?;
        self.finish_directories(&name)?;
        let Some(file_name) = name.file_name() else { return Ok(()) };
        let header = entry.header();
        let shown = self.path.join(&name);
        let number = |number: io::Result<u64>| {
            let id = number.ok().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
            let on_node = self.ids.map_or(Some(id), |ids| ids.on_node(id));
            on_node
                .ok_or_else(|| Error::refused(&shown, "belongs to a user that the container does not have"))
        };
        let attributes = Attributes {
            mode: Mode::from_bits_truncate(header.mode().map_err(Error::Archive)? & 0o7777),
            owner: Uid::from_raw(number(header.uid())?),
            group: Gid::from_raw(number(header.gid())?),
            modified: TimeSpec::new(header.mtime().unwrap_or(0).try_into().unwrap_or(0), 0),
        };
        let parent = self.directory(name.parent().unwrap_or(Path::new("")))?;
        match header.entry_type() {
            EntryType::Directory => self.add_directory(&parent, &name, attributes),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let unfinished = self.unfinished();
                let written = self.write_file(&parent, &unfinished, entry, attributes, &shown);
                place(&parent, &unfinished, file_name, written, &shown)
            }
            EntryType::Symlink => {
                let target = entry.link_name().map_err(Error::Archive)?.unwrap_or_default();
                let unfinished = self.unfinished();
                let made = symlinkat(&*target, &parent, unfinished.as_os_str());
                let made = made.map_err(Error::io("create", &shown)).and_then(|()| {
                    let (from, flags) = (unfinished.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
                    if self.is_root {
                        let (owner, group) = (Some(attributes.owner), Some(attributes.group));
                        fchownat(&parent, from, owner, group, flags).map_err(Error::io("create", &shown))?;
                    }
                    let (time, flags) = (&attributes.modified, UtimensatFlags::NoFollowSymlink);
                    utimensat(&parent, from, time, time, flags).map_err(Error::io("create", &shown))
                });
                place(&parent, &unfinished, file_name, made, &shown)
            }
            EntryType::Link => {
                let target = self.name(&entry.link_name().map_err(Error::Archive)?.unwrap_or_default())?;
                let unfinished = self.unfinished();
                let first = self.directory(target.parent().unwrap_or(Path::new("")))?;
                let made = linkat(
                    &first,
                    target.file_name().unwrap_or_default(),
                    &parent,
                    unfinished.as_os_str(),
                    AtFlags::empty(),
                );
                let made = made.map_err(Error::io("link", &self.path.join(&target)));
                place(&parent, &unfinished, file_name, made, &shown)
            }
            EntryType::Char | EntryType::Block => Err(Error::refused(&shown, "is a device")),
            EntryType::Fifo => Err(Error::refused(&shown, "is a named pipe")),
            _ => Err(Error::refused(&shown, "has a type that is not supported")),
        }
    }

    /// The path below the base; empty for the base itself.
    fn name(&self, path: &Path) -> Result<PathBuf> {
        let mut name = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(part) => match &self.rename {
                    Some(rename) if name.as_os_str().is_empty() => name.push(rename),
                    _ => name.push(part),
                },
                Component::ParentDir => return Err(Error::refused(path, "leads out of the archive")),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(name)
    }

    fn unfinished(&mut self) -> OsString {
        self.next_number += 1;
        format!("{UNFINISHED}{}.{}", std::process::id(), self.next_number).into()
    }

    /// Opens a directory below the base, which is created if the archive does not have it.
    fn directory(&self, name: &Path) -> Result<OwnedFd> {
        let open = |from: &OwnedFd, path: &Path| {
            let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS,
            );
            openat2(from, path, how)
        };
        let shown = || self.path.join(name);
        let mut found = open(&self.base, Path::new("."));
        if !name.as_os_str().is_empty() {
            found = open(&self.base, name);
        }
        if matches!(found, Err(Errno::ENOENT)) {
            found = open(&self.base, Path::new("."));
            for part in name {
                let parent = found.map_err(Error::io("open", &shown()))?;
                match mkdirat(&parent, part, Mode::from_bits_truncate(0o755)) {
                    Ok(()) | Err(Errno::EEXIST) => found = open(&parent, Path::new(part)),
                    Err(errno) => return Err(Error::io("create", &shown())(errno)),
                }
            }
        }
        match found {
            Err(Errno::ELOOP) => Err(Error::refused(&shown(), "is a link, or leads over one")),
            Err(Errno::ENOTDIR) => Err(Error::refused(&shown(), "is not a directory")),
            other => other.map_err(Error::io("open", &shown())),
        }
    }

    fn add_directory(&mut self, parent: &OwnedFd, name: &Path, attributes: Attributes) -> Result<()> {
        let (shown, last) = (self.path.join(name), name.file_name().unwrap_or_default());
        match mkdirat(parent, last, Mode::S_IRWXU) {
            Ok(()) => {}
            Err(Errno::EEXIST) => {
                let found = fstatat(parent, last, AtFlags::AT_SYMLINK_NOFOLLOW);
                if kind(&found.map_err(Error::io("read", &shown))?) != SFlag::S_IFDIR {
                    return Err(Error::refused(&shown, "exists and is not a directory"));
                }
            }
            Err(errno) => return Err(Error::io("create", &shown)(errno)),
        }
        self.open.push((name.to_owned(), attributes));
        Ok(())
    }

    /// Sets the attributes of the directories that do not contain `next`.
    fn finish_directories(&mut self, next: &Path) -> Result<()> {
        while let Some((name, attributes)) = self.open.pop_if(|(name, _)| !next.starts_with(&*name)) {
            let shown = self.path.join(&name);
            let directory = self.directory(&name)?;
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let directory =
                openat(&directory, ".", flags, Mode::empty()).map_err(Error::io("open", &shown))?;
            self.set_attributes(&directory, attributes, &shown)?;
        }
        Ok(())
    }

    fn write_file(
        &self,
        parent: &OwnedFd,
        unfinished: &OsStr,
        entry: &mut impl ReadSized,
        attributes: Attributes,
        shown: &Path,
    ) -> Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(parent, unfinished, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = File::from(file.map_err(Error::io("create", shown))?);
        let (mut rest, mut part) = (entry.size(), vec![0; COPY_BUFFER]);
        while rest > 0 {
            let count = entry.read(&mut part).map_err(Error::Archive)?;
            if count == 0 {
                return Err(Error::Archive(io::ErrorKind::UnexpectedEof.into()));
            }
            file.write_all(&part[..count]).map_err(Error::io("write", shown))?;
            rest = rest.saturating_sub(count as u64);
        }
        self.set_attributes(&file, attributes, shown)
    }

    fn set_attributes(&self, file: impl AsFd, attributes: Attributes, shown: &Path) -> Result<()> {
        let Attributes { mode, owner, group, modified } = attributes;
        // For another user than root they would be rights of that user.
        let refused = if self.is_root { Mode::empty() } else { Mode::S_ISUID | Mode::S_ISGID };
        let owned = if self.is_root { fchown(&file, Some(owner), Some(group)) } else { Ok(()) };
        // After the owner, whose change clears some bits.
        let set = owned.and_then(|()| fchmod(&file, mode - refused));
        let set = set.and_then(|()| futimens(&file, &modified, &modified));
        set.map_err(Error::io("set the attributes of", shown))
    }
}

/// An entry's content.
trait ReadSized: Read {
    fn size(&self) -> u64;
}

impl<R: Read> ReadSized for Entry<'_, R> {
    fn size(&self) -> u64 {
        Entry::size(self)
    }
}

/// Gives a finished file its name, or removes what was made of it.
fn place(parent: &OwnedFd, unfinished: &OsStr, name: &OsStr, made: Result<()>, shown: &Path) -> Result<()> {
    let placed = made.and_then(|()| {
        let renamed = renameat(parent, unfinished, parent, name);
        if renamed == Err(Errno::EISDIR) {
            return Err(Error::refused(shown, "exists and is a directory"));
        }
        renamed.map_err(Error::io("write", shown))
    });
    // Two names of one file remain after a rename.
    let _ = unlinkat(parent, unfinished, UnlinkatFlags::NoRemoveDir);
    placed
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

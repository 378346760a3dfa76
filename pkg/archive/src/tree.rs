//! Writes a tree of files to an archive.

use std::collections::BTreeMap;
use std::fs::{File, ReadDir};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::sys::statfs::fstatfs;
use tar::{Builder, EntryType, Header};
use warren_types::IdRange;

use crate::{Error, Result, RootDir, names_content, names_directory};

/// Hard links whose other names are remembered; further ones become copies.
const MAX_HARD_LINKS: usize = 100_000;
/// Nested directories, each of which is open.
const MAX_DEPTH: usize = 256;
/// File systems of the kernel: proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, bpf, mqueue.
const KERNEL_FILE_SYSTEMS: [u64; 9] = [
    0x9fa0,
    0x6265_6572,
    0x27_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x1980_0202,
];

/// A file or a directory with all that is in it.
#[derive(Debug)]
pub struct FileTree {
    path: PathBuf,
    /// Of its root in an archive; `.` for the content of a directory, `/` for all files.
    name: PathBuf,
    found: Found,
    ids: Option<IdRange>,
}

#[derive(Debug)]
struct Found {
    handle: OwnedFd,
    stat: FileStat,
}

impl Found {
    fn new(handle: OwnedFd, path: &Path) -> Result<Self> {
        let stat = fstat(&handle).map_err(Error::io("read", path))?;
        Ok(Self { handle, stat })
    }

    fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.stat.st_mode) & SFlag::S_IFMT
    }

    /// Why it is never copied.
    fn refusal(&self) -> Option<&'static str> {
        match self.kind() {
            SFlag::S_IFCHR | SFlag::S_IFBLK => Some("is a device"),
            SFlag::S_IFIFO => Some("is a named pipe"),
            SFlag::S_IFSOCK => Some("is a socket"),
            SFlag::S_IFLNK => None,
            _ => {
                let kind = fstatfs(&self.handle).map(|found| found.filesystem_type().0 as u64);
                kind.is_ok_and(|kind| KERNEL_FILE_SYSTEMS.contains(&kind))
                    .then_some("is a file of the kernel")
            }
        }
    }

    /// Opens the content. The handle cannot be replaced, so nothing else is opened.
    fn open(&self, path: &Path) -> Result<File> {
        File::open(format!("/proc/self/fd/{}", self.handle.as_raw_fd())).map_err(Error::io("open", path))
    }

    /// With the owners that a container with these ids sees.
    fn header(&self, ids: Option<IdRange>) -> Header {
        let seen = |id: u32| ids.map_or(id, |ids| ids.in_container(id));
        let mut header = Header::new_gnu();
        header.set_mode(self.stat.st_mode & 0o7777);
        header.set_uid(seen(self.stat.st_uid).into());
        header.set_gid(seen(self.stat.st_gid).into());
        header.set_mtime(self.stat.st_mtime.try_into().unwrap_or(0));
        header.set_size(0);
        header
    }
}

impl FileTree {
    /// Finds the tree at `path`. A link as its last part is followed with `follow`, or if the path ends with `/` or
    /// `/.`; the latter means the content of a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Refused`] for anything but files, directories and links.
    pub fn open(root: &RootDir, path: &Path, follow: bool) -> Result<Self> {
        let handle = root.handle(path, follow || names_directory(path)).map_err(Error::io("open", path))?;
        let found = Found::new(handle, path)?;
        if let Some(reason) = found.refusal() {
            return Err(Error::refused(path, reason));
        }
        let name = match path.file_name() {
            _ if path.as_os_str() == "/" => "/".into(),
            Some(name) if !names_content(path) => name.into(),
            _ => ".".into(),
        };
        Ok(Self { path: path.to_owned(), name, found, ids: root.ids })
    }

    /// Writes the archive and returns its writer. `left_out` gets a sentence about each file that is not copied.
    ///
    /// # Errors
    /// A file cannot be read; [`Error::Archive`] if `out` fails.
    pub fn write_to<W: Write>(self, out: W, left_out: &mut dyn FnMut(String)) -> Result<W> {
        let Self { path, name, found, ids } = self;
        let mut archive = ArchiveWriter { out: Builder::new(out), links: BTreeMap::new(), left_out, ids };
        let mut open = Vec::new();
        archive.add(found, path, name, &mut open)?;
        while let Some(OpenDirectory { entries, handle, path, name }) = open.last_mut() {
            let Some(entry) = entries.next().transpose().map_err(Error::io("list", path))? else {
                open.pop();
                continue;
            };
            let (file, name) = (entry.file_name(), name.join(entry.file_name()));
            let path = path.join(&file);
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            match openat(&*handle, Path::new(&file), flags, Mode::empty()) {
                Ok(handle) => archive.add(Found::new(handle, &path)?, path, name, &mut open)?,
                // It was removed since it was listed.
                Err(nix::errno::Errno::ENOENT) => {}
                Err(errno) => return Err(Error::io("open", &path)(errno)),
            }
        }
        archive.out.into_inner().map_err(Error::Archive)
    }
}

struct OpenDirectory {
    entries: ReadDir,
    handle: OwnedFd,
    path: PathBuf,
    /// In the archive.
    name: PathBuf,
}

struct ArchiveWriter<'a, W: Write> {
    out: Builder<W>,
    /// First names of files with several ones, by device and inode.
    links: BTreeMap<(u64, u64), PathBuf>,
    left_out: &'a mut dyn FnMut(String),
    ids: Option<IdRange>,
}

impl<W: Write> ArchiveWriter<'_, W> {
    fn add(
        &mut self,
        found: Found,
        path: PathBuf,
        name: PathBuf,
        open: &mut Vec<OpenDirectory>,
    ) -> Result<()> {
        if let Some(reason) = found.refusal() {
            (self.left_out)(format!("{} {reason}", path.display()));
            return Ok(());
        }
        let mut header = found.header(self.ids);
        match found.kind() {
            SFlag::S_IFDIR => {
                if open.len() >= MAX_DEPTH {
                    return Err(Error::refused(&path, "is too deep in other directories"));
                }
                header.set_entry_type(EntryType::Directory);
                // With a `/` at its end, as usual in archives.
                self.append(header, &name.join(""), None, io::empty()).map_err(Error::Archive)?;
                let listed = format!("/proc/self/fd/{}", found.handle.as_raw_fd());
                let entries = std::fs::read_dir(listed).map_err(Error::io("list", &path))?;
                open.push(OpenDirectory { entries, handle: found.handle, path, name });
            }
            SFlag::S_IFLNK => {
                let target = readlinkat(&found.handle, "").map_err(Error::io("read", &path))?;
                header.set_entry_type(EntryType::Symlink);
                self.append(header, &name, Some(Path::new(&target)), io::empty()).map_err(Error::Archive)?;
            }
            _ => self.add_file(&found, header, &path, name)?,
        }
        Ok(())
    }

    /// The library leaves out the `./` or `/` before the content of a directory, which clients of Docker need.
    fn append(
        &mut self,
        mut header: Header,
        name: &Path,
        link: Option<&Path>,
        content: impl Read,
    ) -> io::Result<()> {
        let bytes = name.as_os_str().as_bytes();
        if !bytes.starts_with(b"./") && !bytes.starts_with(b"/") {
            return match link {
                Some(link) => self.out.append_link(&mut header, name, link),
                None => self.out.append_data(&mut header, name, content),
            };
        }
        let link = link.map_or(&[][..], |link| link.as_os_str().as_bytes());
        self.append_long(EntryType::GNULongLink, link)?;
        self.append_long(EntryType::GNULongName, bytes)?;
        if let Some(header) = header.as_gnu_mut() {
            for (field, text) in [(&mut header.name, bytes), (&mut header.linkname, link)] {
                let length = text.len().min(field.len() - 1);
                field[..length].copy_from_slice(&text[..length]);
            }
        }
        header.set_cksum();
        self.out.append(&header, content)
    }

    /// An entry with a text that is too long for the header of the next one, as GNU tar writes it.
    fn append_long(&mut self, kind: EntryType, text: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        let field = header.as_gnu_mut().map_or(0, |header| header.name.len());
        if text.len() < field {
            return Ok(());
        }
        header.set_path("@LongLink")?;
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(text.len() as u64 + 1);
        header.set_cksum();
        self.out.append(&header, text.chain(&[0][..]))
    }

    fn add_file(&mut self, found: &Found, mut header: Header, path: &Path, name: PathBuf) -> Result<()> {
        if found.stat.st_nlink > 1 {
            let inode = (found.stat.st_dev, found.stat.st_ino);
            if let Some(first) = self.links.get(&inode).cloned() {
                header.set_entry_type(EntryType::Link);
                return self.append(header, &name, Some(&first), io::empty()).map_err(Error::Archive);
            }
            if self.links.len() < MAX_HARD_LINKS {
                self.links.insert(inode, name.clone());
            }
        }
        let size = found.stat.st_size.try_into().unwrap_or(0);
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        let mut content = FixedSize { file: found.open(path)?, rest: size, failure: None };
        let added = self.append(header, &name, None, &mut content);
        match content.failure {
            Some(error) => Err(Error::io("read", path)(error)),
            None => added.map_err(Error::Archive),
        }
    }
}

/// The content of a file, as long as its header says even if the file changes meanwhile.
struct FixedSize {
    file: File,
    rest: u64,
    failure: Option<io::Error>,
}

impl Read for FixedSize {
    fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.rest).unwrap_or(usize::MAX).min(part.len());
        let part = &mut part[..most];
        let count = match self.file.read(part) {
            // It became shorter.
            Ok(0) => {
                part.fill(0);
                most
            }
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.failure = Some(error);
                return Err(io::Error::other("a file cannot be read"));
            }
        };
        self.rest -= count as u64;
        Ok(count)
    }
}

//! The unix socket: its file permissions decide who may open it, and are set before it exists at its path.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::Group;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

const BACKLOG: i32 = 128;

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LocalSocketError {
    /// Another process answers on it.
    #[error("another process serves {}: stop it, or use another socket path", .0.display())]
    InUse(PathBuf),
    /// Something that is no socket is in its place.
    #[error("{} exists and is not a socket: remove it, or use another socket path", .0.display())]
    NotASocket(PathBuf),
    /// The group that shall have access does not exist.
    #[error("there is no group {0:?} on this machine: create it, or configure another or none")]
    UnknownGroup(String),
    /// The operating system refused.
    #[error("cannot open the socket {}: check that its directory exists and is writable", path.display())]
    Open {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listening unix socket with its file, which goes away with it.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    file: SocketFile,
}

impl LocalListener {
    /// Listens at `path`, for the own user only (mode 0600), or for the members of `group` too (0660). A
    /// socket without a server is replaced. Must be called within a tokio runtime.
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self, LocalSocketError> {
        let group = group.map(find_group).transpose()?;
        check_path_free(path)?;
        let opened = open(path, group.map(|group| group.gid.as_raw()));
        opened.map_err(|source| LocalSocketError::Open { path: path.to_owned(), source })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    pub(super) fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        let (stream, _) = ready!(self.listener.poll_accept(context))?;
        Poll::Ready(Ok(stream))
    }
}

/// Connections to be served as they are (`tonic`'s `serve_with_incoming`), by whoever trusts everybody that the
/// permissions of the file admit. Dropping it frees the path at once.
impl Stream for LocalListener {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(context).map(Some)
    }
}

fn find_group(name: &str) -> Result<Group, LocalSocketError> {
    // A group database that cannot be read has no such group for us either.
    Group::from_name(name).ok().flatten().ok_or_else(|| LocalSocketError::UnknownGroup(name.to_owned()))
}

/// Makes sure that what is at `path`, if anything, is a socket without a server.
fn check_path_free(path: &Path) -> Result<(), LocalSocketError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(LocalSocketError::NotASocket(path.to_owned())),
        Ok(_) if StdStream::connect(path).is_ok() => Err(LocalSocketError::InUse(path.to_owned())),
        _ => Ok(()),
    }
}

/// Binds beside `path` and renames: the socket appears with its permissions, in the place of a dead one.
fn open(path: &Path, group: Option<u32>) -> io::Result<LocalListener> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let descriptor = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Linux gives the file the descriptor's mode less the umask, so that it is never open to others.
    fchmod(&descriptor, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(descriptor.as_raw_fd(), &UnixAddr::new(&partial)?)?;
    let mut file = SocketFile::of(partial.clone())?;
    if group.is_some() {
        chown(&partial, None, group)?;
    }
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    fs::set_permissions(&partial, fs::Permissions::from_mode(mode))?;
    listen(&descriptor, Backlog::new(BACKLOG)?)?;
    fs::rename(&partial, path)?;
    file.path = path.to_owned();
    let listener = UnixListener::from_std(StdListener::from(descriptor))?;
    Ok(LocalListener { listener, file })
}

/// The socket's file, removed in the end unless another has taken its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    fn of(path: PathBuf) -> io::Result<Self> {
        let inode = inode(&path)?;
        Ok(Self { path, inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|found| found == self.inode)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the file of the unix socket");
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

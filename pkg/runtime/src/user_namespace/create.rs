//! Makes the user namespace of a container with a program of its own, which has one thread, and binds it to a file.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{NSFS_MAGIC, statfs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use warren_types::ID_RANGE_SIZE;

use super::{kernel, unmount};
use crate::Result;
use crate::container::PrivateUsers;
use crate::error::Error;

/// It takes some 2 ms.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);

impl PrivateUsers {
    /// Makes the user namespace unless it exists, and with `network` a network namespace that belongs to it, bound to
    /// that file. `program` is `warren-namespaces`.
    ///
    /// # Errors
    /// [`Error::Failed`] with what the kernel refused.
    pub async fn ensure(&self, network: Option<&Path>, program: &Path) -> Result<()> {
        let failed = |error: io::Error| Error::Failed {
            action: "make the user namespace of a container".to_owned(),
            reason: error.to_string(),
        };
        let is_complete = is_bound(&self.namespace())
            && network.is_none_or(|network| belongs_to(network, &self.namespace()).unwrap_or(false));
        if is_complete {
            return Ok(());
        }
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not done in {CREATE_TIMEOUT:?}"));
        let made = timeout(CREATE_TIMEOUT, self.create(network, program)).await;
        made.unwrap_or_else(|_| Err(late())).map_err(failed)
    }

    /// Removes the namespace, and what is mounted beside it. The kernel keeps the namespace until its last process has
    /// ended.
    ///
    /// # Errors
    /// [`Error::Failed`] with the path that cannot be removed.
    pub fn remove(&self) -> Result<()> {
        remove(&self.directory).map_err(|error| Error::Failed {
            action: format!("remove {}", self.directory.display()),
            reason: error.to_string(),
        })
    }

    async fn create(&self, network: Option<&Path>, program: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut process = NamespaceProcess::start(program)?;
        process.wait_created().await?;
        let map = format!("0 {} {ID_RANGE_SIZE}\n", self.ids.first);
        for file in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{file}", process.pid), &map)?;
        }
        if let Some(network) = network {
            process.input.write_all(b".").await?;
            process.wait_created().await?;
            process.bind("net", network)?;
        }
        // Last: an agent that is killed before it finds neither, and begins again.
        process.bind("user", &self.namespace())
    }
}

/// A running `warren-namespaces`, which is killed when this is dropped.
struct NamespaceProcess {
    pid: u32,
    input: ChildStdin,
    output: ChildStdout,
    failure: ChildStderr,
    _process: Child,
}

impl NamespaceProcess {
    fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.env_clear().current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let missing = || io::Error::other("warren-namespaces ended at once");
        Ok(Self {
            pid: process.id().ok_or_else(missing)?,
            input: process.stdin.take().ok_or_else(missing)?,
            output: process.stdout.take().ok_or_else(missing)?,
            failure: process.stderr.take().ok_or_else(missing)?,
            _process: process,
        })
    }

    /// Waits until it has made the next namespace.
    async fn wait_created(&mut self) -> io::Result<()> {
        match self.output.read_u8().await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let mut reason = String::new();
                self.failure.read_to_string(&mut reason).await?;
                Err(io::Error::other(format!("warren-namespaces: {}", reason.trim())))
            }
            Err(error) => Err(error),
        }
    }

    /// Binds a namespace of the process to a file, in place of what is bound to it.
    fn bind(&self, kind: &str, path: &Path) -> io::Result<()> {
        unmount(path)?;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        File::create(path)?;
        let namespace = format!("/proc/{}/ns/{kind}", self.pid);
        Ok(mount(Some(Path::new(&namespace)), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    }
}

/// Whether a namespace is bound to the file.
fn is_bound(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Whether a network namespace is bound to the file that belongs to the user namespace of the other file.
fn belongs_to(network: &Path, users: &Path) -> io::Result<bool> {
    if !is_bound(network) {
        return Ok(false);
    }
    let owner = File::from(kernel::owner(File::open(network)?.as_fd())?).metadata()?;
    let users = fs::metadata(users)?;
    Ok((owner.dev(), owner.ino()) == (users.dev(), users.ino()))
}

fn remove(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        unmount(&path)?;
        // The kernel refuses if it is a mount point or not empty.
        match fs::symlink_metadata(&path)?.is_dir() {
            true => fs::remove_dir(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    fs::remove_dir(directory)
}

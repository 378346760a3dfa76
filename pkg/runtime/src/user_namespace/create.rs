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

use super::{clear, kernel, unmount};
use crate::Result;
use crate::container::PrivateUsers;
use crate::error::Error;

/// It takes some 2 ms.
const CREATE_TIMEOUT: Duration = Duration::from_secs(10);
/// What stays in the directory between creations of processes: the namespaces.
const NAMESPACES: [&str; 2] = ["user", "net"];

impl PrivateUsers {
    /// Makes the user namespace unless it exists, and with `network` a network namespace that belongs to it, bound to
    /// that file, which may be `net` in the directory. `program` is `warren-namespaces`. Removes the mounts of an agent
    /// that was killed while it created a process.
    ///
    /// # Errors
    /// [`Error::Failed`] with what the kernel refused.
    pub async fn ensure(&self, network: Option<&Path>, program: &Path) -> Result<()> {
        let failed = |error: io::Error| Error::Failed {
            action: "make the user namespace of a container".to_owned(),
            reason: error.to_string(),
        };
        clear_entries(&self.directory, &NAMESPACES).map_err(failed)?;
        let is_complete = is_bound(&self.namespace())
            && network.is_none_or(|network| belongs_to(network, &self.namespace()).unwrap_or(false));
        if is_complete {
            return Ok(());
        }
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not done in {CREATE_TIMEOUT:?}"));
        let made = timeout(CREATE_TIMEOUT, self.create(network, program)).await;
        made.unwrap_or_else(|_| Err(late())).map_err(failed)
    }

    /// Removes the namespace, and what is mounted beside it, but keeps the directory. The kernel keeps the namespace
    /// until its last process has ended.
    ///
    /// # Errors
    /// [`Error::Failed`] if something cannot be removed.
    pub fn clear(&self) -> Result<()> {
        clear_entries(&self.directory, &[]).map_err(|error| self.not_removed(&error))
    }

    /// As [`PrivateUsers::clear`], and removes the directory as well.
    ///
    /// # Errors
    /// As [`PrivateUsers::clear`].
    pub fn remove(&self) -> Result<()> {
        self.clear()?;
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.not_removed(&error)),
            _ => Ok(()),
        }
    }

    fn not_removed(&self, error: &io::Error) -> Error {
        Error::Failed { action: format!("remove {}", self.directory.display()), reason: error.to_string() }
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

/// Removes the entries of a directory but those with these names. The kernel refuses for a directory that is not empty.
fn clear_entries(directory: &Path, kept: &[&str]) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if !kept.iter().any(|kept| entry.file_name() == *kept) {
            clear(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use warren_types::IdRange;

    use super::*;

    fn entries(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn mounts_of_a_killed_agent_are_removed_and_namespaces_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (source, directory) = (dir.path().join("source"), dir.path().join("users"));
        fs::create_dir_all(source.join("below")).unwrap();
        fs::create_dir_all(directory.join("layers")).unwrap();
        for file in ["user", "net", "mount-3"] {
            File::create(directory.join(file)).unwrap();
        }
        let layers = directory.join("layers");
        mount(Some(&source), &layers, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        assert!(layers.join("below").exists());
        let users = PrivateUsers { ids: IdRange { first: 2_000_000 }, directory };
        for _twice in 0..2 {
            clear_entries(&users.directory, &NAMESPACES).unwrap();
            assert_eq!(entries(&users.directory), ["net", "user"]);
        }
        assert!(source.join("below").exists(), "what was mounted there stays");
        for _twice in 0..2 {
            users.clear().unwrap();
            assert!(entries(&users.directory).is_empty());
        }
        for _twice in 0..2 {
            users.remove().unwrap();
            assert!(!users.directory.exists());
        }
    }
}

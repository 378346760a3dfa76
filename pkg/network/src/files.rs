//! The name resolution files of a container: `/etc/resolv.conf`, `/etc/hosts` and `/etc/hostname`.
//! [`ensure_files`] writes them for one task.

use std::fmt::Write;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::Error;

/// Paths of the files of one task, to be mounted into its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNetworkFiles {
    /// For `/etc/resolv.conf`.
    pub resolv_conf: PathBuf,
    /// For `/etc/hosts`.
    pub hosts: PathBuf,
    /// For `/etc/hostname`.
    pub hostname: PathBuf,
}

/// Writes the files of one task into `directory`, which is created if missing. An up-to-date file is not
/// written; another is changed in place, because a running container sees only the mounted file. `further`
/// are additional names for the container's hosts file.
///
/// # Errors
/// [`Error::File`] with the file that could not be read or written.
pub async fn ensure_files(
    directory: &Path,
    hostname: &str,
    address: Ipv4Addr,
    further: &[(String, Ipv4Addr)],
    resolv_conf: &str,
) -> Result<TaskNetworkFiles, Error> {
    tokio::fs::create_dir_all(directory).await.map_err(file_error("create", directory))?;
    let files = TaskNetworkFiles {
        resolv_conf: directory.join("resolv.conf"),
        hosts: directory.join("hosts"),
        hostname: directory.join("hostname"),
    };
    let contents = [
        (&files.resolv_conf, resolv_conf.to_owned()),
        (&files.hosts, hosts(hostname, address, further)),
        (&files.hostname, format!("{hostname}\n")),
    ];
    for (path, content) in contents {
        if read(path).await?.as_ref() != Some(&content) {
            tokio::fs::write(path, content).await.map_err(file_error("write", path))?;
        }
    }
    Ok(files)
}

async fn read(path: &Path) -> Result<Option<String>, Error> {
    match tokio::fs::read(path).await {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error("read", path)(source)),
    }
}

fn file_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { operation, path, source }
}

/// Content of a container's `/etc/hosts`. IPv6 is off in a task's namespace, so no name has an IPv6
/// address. `further` names follow its own, in their order.
pub fn hosts(hostname: &str, address: Ipv4Addr, further: &[(String, Ipv4Addr)]) -> String {
    let mut text = format!("127.0.0.1\tlocalhost\n{address}\t{hostname}\n");
    for (name, address) in further {
        writeln!(text, "{address}\t{name}").expect("writing to a string works");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_are_written_once_and_corrected_in_place() {
        let run = tempfile::tempdir().unwrap();
        let directory = run.path().join("task");
        let further = [("db".to_owned(), Ipv4Addr::new(192, 0, 2, 7))];
        let address = Ipv4Addr::new(10, 210, 1, 2);
        let ensure = |resolver: &'static str| ensure_files(&directory, "web-1", address, &further, resolver);
        let files = ensure("nameserver 10.210.1.1\n").await.unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(text(&files.resolv_conf), "nameserver 10.210.1.1\n");
        assert_eq!(text(&files.hosts), "127.0.0.1\tlocalhost\n10.210.1.2\tweb-1\n192.0.2.7\tdb\n");
        assert_eq!(text(&files.hostname), "web-1\n");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        let changed = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
        let before = (inode(&files.resolv_conf), changed(&files.hosts));
        assert_eq!(ensure("nameserver 192.0.2.1\n").await.unwrap(), files);
        assert_eq!(text(&files.resolv_conf), "nameserver 192.0.2.1\n");
        assert_eq!(before, (inode(&files.resolv_conf), changed(&files.hosts)));
    }
}

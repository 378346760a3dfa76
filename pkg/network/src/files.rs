//! The name resolution files of a container: `/etc/resolv.conf`, `/etc/hosts` and `/etc/hostname`. Their
//! contents are pure functions; [`ensure_files`] writes them for one task.

use std::fmt::Write;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use crate::Error;

/// Used when the host has no resolver that a container can reach.
const FALLBACK_SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(8, 8, 8, 8), Ipv4Addr::new(1, 1, 1, 1)];

/// Limit of glibc (`MAXNS` in resolv.h).
const MAX_SERVERS: usize = 3;

/// Paths of the host's resolver configuration.
#[derive(Debug, Clone)]
pub struct HostResolverPaths {
    /// `/etc/resolv.conf`.
    pub main: PathBuf,
    /// systemd-resolved's list of the real servers behind its stub.
    pub behind_stub: PathBuf,
}

impl Default for HostResolverPaths {
    fn default() -> Self {
        Self { main: "/etc/resolv.conf".into(), behind_stub: "/run/systemd/resolve/resolv.conf".into() }
    }
}

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
    host: &HostResolverPaths,
) -> Result<TaskNetworkFiles, Error> {
    let main = read(&host.main).await?.unwrap_or_default();
    let behind_stub = read(&host.behind_stub).await?;
    tokio::fs::create_dir_all(directory).await.map_err(file_error("create", directory))?;
    let files = TaskNetworkFiles {
        resolv_conf: directory.join("resolv.conf"),
        hosts: directory.join("hosts"),
        hostname: directory.join("hostname"),
    };
    let secret_objects = [
        (&files.resolv_conf, resolv_conf(&main, behind_stub.as_deref())),
        (&files.hosts, hosts(hostname, address, further)),
        (&files.hostname, format!("{hostname}\n")),
    ];
    for (path, content) in secret_objects {
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

/// Content of a container's `/etc/resolv.conf`: the real servers of the host. `main` is the host's own
/// file; when it names only a stub on the host's loopback, which a container cannot reach, `behind_stub` is
/// used, systemd-resolved's list of the real servers. Search domains and options come from the same file.
pub fn resolv_conf(main: &str, behind_stub: Option<&str>) -> String {
    let main = ResolvConf::parse(main);
    let behind = behind_stub.map(ResolvConf::parse).filter(|_| main.servers.is_empty());
    let mut chosen = behind.filter(|behind| !behind.servers.is_empty()).unwrap_or(main);
    if chosen.servers.is_empty() {
        chosen.servers = FALLBACK_SERVERS.to_vec();
    }
    chosen.text()
}

/// The settings of a resolv.conf that apply in a container.
#[derive(Debug, Default)]
struct ResolvConf {
    servers: Vec<Ipv4Addr>,
    search: Vec<String>,
    options: Vec<String>,
}

impl ResolvConf {
    /// Parses a file as in resolv.conf(5): the last of `search` and `domain` wins, options add up.
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => found.servers.extend(words.next().and_then(reachable)),
                Some("search") => {
                    found.search = words.filter(|domain| *domain != ".").map(str::to_owned).collect()
                }
                Some("domain") => found.search = words.take(1).map(str::to_owned).collect(),
                // trust-ad trusts the path to a resolver on the host itself; a container uses another path.
                Some("options") => {
                    found.options.extend(words.filter(|o| *o != "trust-ad").map(str::to_owned))
                }
                _ => {}
            }
        }
        found
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, rest: String| {
            writeln!(text, "{name} {rest}").expect("writing to a string works");
        };
        for server in self.servers.iter().take(MAX_SERVERS) {
            line("nameserver", server.to_string());
        }
        if !self.search.is_empty() {
            line("search", self.search.join(" "));
        }
        if !self.options.is_empty() {
            line("options", self.options.join(" "));
        }
        text
    }
}

/// A server that a container can reach: IPv4, and not on the loopback, which is the container's own.
fn reachable(server: &str) -> Option<Ipv4Addr> {
    match server.parse().ok()? {
        IpAddr::V4(ip) if !ip.is_loopback() && !ip.is_unspecified() => Some(ip),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_resolvers_are_dropped() {
        let stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n";
        let behind = "# comment\nnameserver 192.0.2.1\nnameserver fe80::1%2\nsearch lan example.org\n";
        let fallback = "nameserver 8.8.8.8\nnameserver 1.1.1.1\n";
        let cases = [
            ("nameserver 192.0.2.7\n", Some(behind), "nameserver 192.0.2.7\n".to_owned()),
            (stub, Some(behind), "nameserver 192.0.2.1\nsearch lan example.org\n".to_owned()),
            (stub, Some(stub), format!("{fallback}options edns0\n")),
            (stub, None, format!("{fallback}options edns0\n")),
            ("", None, fallback.to_owned()),
            (
                "nameserver ::1\nnameserver 2001:db8::1\nnameserver 0.0.0.0\nnameserver junk\n",
                None,
                fallback.to_owned(),
            ),
            (
                "nameserver 127.0.0.1\nnameserver\t192.0.2.1 \nnameserver 192.0.2.2\nnameserver 192.0.2.3\n\
                 nameserver 192.0.2.4\n;nameserver 192.0.2.5\n",
                None,
                "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n".to_owned(),
            ),
            (
                "domain a.example\nsearch b.example c.example\nnameserver 192.0.2.1\n\
                 options ndots:2\noptions rotate\n",
                None,
                "nameserver 192.0.2.1\nsearch b.example c.example\noptions ndots:2 rotate\n".to_owned(),
            ),
            (
                "search x\ndomain y z\nnameserver 192.0.2.1",
                None,
                "nameserver 192.0.2.1\nsearch y\n".to_owned(),
            ),
        ];
        for (main, behind_stub, expected) in cases {
            assert_eq!(resolv_conf(main, behind_stub), expected, "{main:?} {behind_stub:?}");
        }
    }

    #[tokio::test]
    async fn files_are_written_once_and_corrected_in_place() {
        let run = tempfile::tempdir().unwrap();
        let host =
            HostResolverPaths { main: run.path().join("resolv"), behind_stub: run.path().join("none") };
        let directory = run.path().join("task");
        let further = [("db".to_owned(), Ipv4Addr::new(192, 0, 2, 7))];
        let ensure = || ensure_files(&directory, "web-1", Ipv4Addr::new(10, 210, 1, 2), &further, &host);
        let files = ensure().await.unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(
            text(&files.resolv_conf),
            "nameserver 8.8.8.8\nnameserver 1.1.1.1\n",
            "no host file at all"
        );
        assert_eq!(text(&files.hosts), "127.0.0.1\tlocalhost\n10.210.1.2\tweb-1\n192.0.2.7\tdb\n");
        assert_eq!(text(&files.hostname), "web-1\n");
        let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
        let changed = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
        let before = (inode(&files.resolv_conf), changed(&files.hosts));
        std::fs::write(&host.main, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(ensure().await.unwrap(), files);
        assert_eq!(text(&files.resolv_conf), "nameserver 192.0.2.1\n");
        assert_eq!(before, (inode(&files.resolv_conf), changed(&files.hosts)));
    }
}

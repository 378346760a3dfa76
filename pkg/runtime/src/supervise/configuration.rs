//! Files of the private containerd.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::Error;

/// The kernel's limit for the path of a socket, without its closing zero byte.
const MAX_SOCKET: usize = 107;
/// containerd derives a second socket from the first.
const TTRPC_SUFFIX: &str = ".ttrpc";
/// A larger log is truncated at the next start.
const MAX_LOG: u64 = 16 << 20;
const LOG_TAIL_BYTES: u64 = 1000;
/// Unused plugins. The CRI plugin alone doubles the memory. Names of several versions; containerd ignores
/// unknown ones.
const DISABLED_PLUGINS: [&str; 11] = [
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.images",
    "io.containerd.cri.v1.runtime",
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.tracing",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.nri.v1.nri",
];

/// Paths of the private containerd's files.
#[derive(Clone, Debug)]
pub(super) struct ContainerdPaths {
    root: PathBuf,
    state: PathBuf,
    pub socket: PathBuf,
    pub configuration: PathBuf,
    pub log: PathBuf,
}

impl ContainerdPaths {
    pub fn new(root: &Path, state: &Path) -> Result<Self, Error> {
        let bad =
            |path: &Path, reason: &str| Error::Path { path: path.to_owned(), reason: reason.to_owned() };
        for path in [root, state] {
            let plain = |text: &str| !text.chars().any(|c| c.is_control() || matches!(c, '"' | '\\' | ':'));
            if !path.is_absolute() || !path.to_str().is_some_and(plain) {
                return Err(bad(
                    path,
                    "must be an absolute path in UTF-8 without quotes, colons and backslashes",
                ));
            }
        }
        let socket = state.join("containerd.sock");
        if socket.as_os_str().len() + TTRPC_SUFFIX.len() > MAX_SOCKET {
            return Err(bad(
                &socket,
                "the path of its socket is longer than 101 bytes; choose a shorter directory",
            ));
        }
        Ok(Self {
            root: root.to_owned(),
            state: state.to_owned(),
            socket,
            configuration: state.join("containerd.toml"),
            log: root.join("containerd.log"),
        })
    }

    /// Whether a private containerd has stored images or containers here.
    pub fn was_used(&self) -> bool {
        self.root.join("io.containerd.metadata.v1.bolt/meta.db").exists()
    }

    /// Creates directories and configuration, and opens the log.
    pub fn ensure(&self) -> Result<fs::File, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| Error::Path { path, reason: error.to_string() }
        };
        for folder in [&self.root, &self.state] {
            // User namespaces of containers reach their files through this directory; others cannot list it.
            fs::DirBuilder::new().recursive(true).mode(0o711).create(folder).map_err(failed(folder))?;
        }
        fs::write(&self.configuration, self.render()).map_err(failed(&self.configuration))?;
        let large = fs::metadata(&self.log).is_ok_and(|log| log.len() > MAX_LOG);
        if large {
            fs::remove_file(&self.log).map_err(failed(&self.log))?;
        }
        fs::File::options().create(true).append(true).open(&self.log).map_err(failed(&self.log))
    }

    fn render(&self) -> String {
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let disabled = DISABLED_PLUGINS.map(|plugin| format!("  \"{plugin}\",\n")).concat();
        format!(
            "# Written by warren at every start of its containerd; changes are lost.\n\
             version = 2\nroot = {}\nstate = {}\ndisabled_plugins = [\n{disabled}]\n\n\
             [grpc]\n  address = {}\n\n[debug]\n  level = \"warn\"\n",
            quoted(&self.root),
            quoted(&self.state),
            quoted(&self.socket),
        )
    }

    /// The end of the log, in one line.
    pub fn log_tail(&self) -> String {
        let read = || {
            let mut log = fs::File::open(&self.log)?;
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim().replace('\n', " | "))
        };
        read().unwrap_or_else(|error| error.to_string())
    }

    /// Removes the sockets and the configuration of a stopped containerd.
    pub fn remove_volatile(&self) {
        let mut second = self.socket.clone().into_os_string();
        second.push(TTRPC_SUFFIX);
        for path in [self.socket.clone(), second.into(), self.configuration.clone()] {
            // A missing file is fine, and the next start replaces them.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_has_our_paths_and_disables_cri() {
        let files = ContainerdPaths::new(Path::new("/var/lib/w"), Path::new("/run/w")).unwrap();
        let text = files.render();
        for line in ["root = \"/var/lib/w\"", "address = \"/run/w/containerd.sock\"", "v1.cri\""] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn invalid_paths_are_rejected() {
        let long = format!("/{}", "a".repeat(100));
        for (root, state) in
            [("relative", "/run/w"), ("/a\"b", "/run/w"), ("/var", &long), ("/a:b", "/run/w")]
        {
            assert!(
                matches!(ContainerdPaths::new(Path::new(root), Path::new(state)), Err(Error::Path { .. })),
                "{root}"
            );
        }
    }
}

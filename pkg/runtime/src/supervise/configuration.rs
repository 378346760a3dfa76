//! The files of our own containerd.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::Error;

/// The kernel's limit for the path of a socket, without its closing zero byte.
const MAX_SOCKET: usize = 107;
/// containerd derives a second socket from the first.
const SECOND_SOCKET: &str = ".ttrpc";
/// A log that has grown beyond this is begun anew at the next start.
const MAX_LOG: u64 = 16 << 20;
const LAST_WORDS: u64 = 1000;
/// What we do not use. Kubernetes' part alone doubles the memory. Names of several versions; unknown ones
/// are ignored.
const DISABLED: [&str; 11] = [
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

/// Paths of our containerd's files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
    state: PathBuf,
    pub socket: PathBuf,
    pub configuration: PathBuf,
    pub log: PathBuf,
}

impl Files {
    pub fn new(root: &Path, state: &Path) -> Result<Self, Error> {
        let bad =
            |path: &Path, reason: &str| Error::Path { path: path.to_owned(), reason: reason.to_owned() };
        for path in [root, state] {
            let plain = |text: &str| !text.chars().any(|c| c.is_control() || matches!(c, '"' | '\\' | ':'));
            if !path.is_absolute() || !path.to_str().is_some_and(plain) {
                return Err(bad(
                    path,
                    "want an absolute path in UTF-8 without quotes, colons and backslashes",
                ));
            }
        }
        let socket = state.join("containerd.sock");
        if socket.as_os_str().len() + SECOND_SOCKET.len() > MAX_SOCKET {
            return Err(bad(
                &socket,
                "the path of a socket has at most 101 bytes here; choose a shorter directory",
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

    /// Whether a containerd of ours has kept images or containers here.
    pub fn was_used(&self) -> bool {
        self.root.join("io.containerd.metadata.v1.bolt/meta.db").exists()
    }

    /// Makes directories and configuration, and opens the log.
    pub fn ensure(&self) -> Result<fs::File, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| Error::Path { path, reason: error.to_string() }
        };
        for folder in [&self.root, &self.state] {
            // Users in containers reach their files through here; nobody else lists it.
            fs::DirBuilder::new().recursive(true).mode(0o711).create(folder).map_err(failed(folder))?;
        }
        fs::write(&self.configuration, self.text()).map_err(failed(&self.configuration))?;
        let large = fs::metadata(&self.log).is_ok_and(|log| log.len() > MAX_LOG);
        if large {
            fs::remove_file(&self.log).map_err(failed(&self.log))?;
        }
        fs::File::options().create(true).append(true).open(&self.log).map_err(failed(&self.log))
    }

    fn text(&self) -> String {
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let disabled = DISABLED.map(|plugin| format!("  \"{plugin}\",\n")).concat();
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
    pub fn last_words(&self) -> String {
        let read = || {
            let mut log = fs::File::open(&self.log)?;
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
            let mut bytes = Vec::new();
            log.read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).trim().replace('\n', " | "))
        };
        read().unwrap_or_else(|error| error.to_string())
    }

    /// Removes what a stopped containerd leaves of its sockets and our configuration.
    pub fn remove_volatile(&self) {
        let mut second = self.socket.clone().into_os_string();
        second.push(SECOND_SOCKET);
        for path in [self.socket.clone(), second.into(), self.configuration.clone()] {
            // Gone already is what was wanted, and the next start replaces them anyway.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_our_paths_and_no_kubernetes() {
        let files = Files::new(Path::new("/var/lib/w"), Path::new("/run/w")).unwrap();
        let text = files.text();
        for line in ["root = \"/var/lib/w\"", "address = \"/run/w/containerd.sock\"", "v1.cri\""] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn paths_that_cannot_work_are_refused() {
        let long = format!("/{}", "a".repeat(100));
        for (root, state) in
            [("relative", "/run/w"), ("/a\"b", "/run/w"), ("/var", &long), ("/a:b", "/run/w")]
        {
            assert!(
                matches!(Files::new(Path::new(root), Path::new(state)), Err(Error::Path { .. })),
                "{root}"
            );
        }
    }
}

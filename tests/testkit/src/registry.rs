//! An image registry of the test: Debian's `docker-registry`, which is the distribution project's.
//!
//! Images are written directly into its storage, so that no test depends on a pushing tool. Source of the
//! layout: distribution 2.x, `registry/storage/paths.go`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::image::PackedImage;
use crate::ports;
use crate::process::ChildProcess;
use crate::scratch::ScratchDir;
use crate::wait::try_eventually;

/// The user of a registry with [`TestRegistry::start_private`].
pub const USER: &str = "anna";
/// The user's password.
pub const PASSWORD: &str = "open sesame";
/// The `htpasswd` line for both, with bcrypt.
const HTPASSWD: &str = "anna:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Another process may take a port between its choice and its use.
const TRIES: usize = 5;

/// The configuration that makes a registry require a password.
const PRIVATE: &str = "auth: {htpasswd: {realm: private, path: HTPASSWD}}\n";

/// A registry over plain HTTP; dropping it ends it and removes its data.
#[derive(Debug)]
pub struct TestRegistry {
    // Declared before the directory: fields are dropped in order.
    process: ChildProcess,
    scratch: ScratchDir,
    address: SocketAddr,
}

impl TestRegistry {
    /// Starts one on loopback that allows anonymous pulls.
    #[must_use]
    #[track_caller]
    pub fn start() -> TestRegistry {
        TestRegistry::on_loopback("")
    }

    /// Starts one on loopback that only [`USER`] with [`PASSWORD`] may pull from.
    #[must_use]
    #[track_caller]
    pub fn start_private() -> TestRegistry {
        TestRegistry::on_loopback(PRIVATE)
    }

    /// Starts one at `address`, with a command made by `program`: on another host.
    #[must_use]
    #[track_caller]
    pub fn start_at(address: SocketAddr, program: impl FnOnce(&str) -> Command) -> TestRegistry {
        TestRegistry::start_on(address, "", program)
    }

    /// As [`TestRegistry::start_at`], for [`USER`] with [`PASSWORD`] only.
    #[must_use]
    #[track_caller]
    pub fn start_private_at(address: SocketAddr, program: impl FnOnce(&str) -> Command) -> TestRegistry {
        TestRegistry::start_on(address, PRIVATE, program)
    }

    #[track_caller]
    fn start_on(
        address: SocketAddr,
        configuration: &str,
        program: impl FnOnce(&str) -> Command,
    ) -> TestRegistry {
        match TestRegistry::try_start(address, configuration, program) {
            Ok(registry) => registry,
            Err(error) => panic!("{error}"),
        }
    }

    #[track_caller]
    fn on_loopback(configuration: &str) -> TestRegistry {
        let mut problems = Vec::new();
        for _ in 0..TRIES {
            let address = (Ipv4Addr::LOCALHOST, ports::allocate()).into();
            match TestRegistry::try_start(address, configuration, |name| Command::new(name)) {
                Ok(registry) => return registry,
                Err(error) => problems.push(error),
            }
        }
        panic!("the registry did not start: {problems:#?}");
    }

    fn try_start(
        address: SocketAddr,
        configuration: &str,
        program: impl FnOnce(&str) -> Command,
    ) -> Result<TestRegistry, String> {
        let scratch = ScratchDir::new();
        let passwords = scratch.path().join("htpasswd");
        let configuration = configuration.replace("HTPASSWD", &passwords.display().to_string());
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nhttp: {{addr: \"{address}\"}}\n\
             storage: {{filesystem: {{rootdirectory: {0}/storage}}}}\n{configuration}",
            scratch.path().display()
        );
        let path = scratch.path().join("config.yml");
        for (path, text) in [(&passwords, HTPASSWD), (&path, &text)] {
            std::fs::write(path, text)
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        let mut command = program("docker-registry");
        command.arg("serve").arg(&path);
        let mut process = ChildProcess::spawn("docker-registry", command, &scratch.path().join("log"));
        let ready = try_eventually(READY_DEADLINE, "the registry to listen", || {
            let is_up = process.log().contains("listening on");
            // A registry that has ended will not listen any more; that is reported below.
            if is_up || !process.is_running() { Ok(is_up) } else { Err("nothing yet".to_owned()) }
        });
        match ready {
            Ok(true) => Ok(TestRegistry { process, scratch, address }),
            Ok(false) => Err(format!("the registry ended: {}", process.log_tail(5))),
            Err(error) => Err(format!("{error}: {}", process.log_tail(5))),
        }
    }

    /// Its name in image references: `HOST:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// The process, to pause it, kill it or read its log.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// Stores the image of an OCI archive as `repository:tag` and returns its reference for pulls.
    #[track_caller]
    pub fn push(&self, repository: &str, tag: &str, archive: &PackedImage) -> String {
        let mut manifest = None;
        let mut tar = tar::Archive::new(&archive.bytes[..]);
        for entry in tar.entries().expect("an archive from memory can be read") {
            let mut entry = entry.expect("an archive from memory can be read");
            let name = entry.path().expect("names of test archives are UTF-8").display().to_string();
            let mut bytes = Vec::new();
            std::io::copy(&mut entry, &mut bytes).expect("memory can be read");
            if !name.starts_with("blobs/sha256/") || bytes.is_empty() {
                continue;
            }
            let digest = self.put_blob(repository, &bytes);
            if archive.manifest_digest.as_ref() == Some(&digest) {
                manifest = Some(bytes);
            }
        }
        self.put_manifest(repository, Some(tag), &manifest.expect("an OCI archive holds its manifest"));
        format!("{}/{repository}:{tag}", self.host())
    }

    /// Stores a blob and returns its digest.
    #[track_caller]
    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = self.put_data(bytes);
        self.link(&format!("repositories/{repository}/_layers/sha256/{}", hex(&digest)), &digest);
        digest
    }

    /// Stores a manifest or an index, under a tag or only by its digest. Returns the digest.
    #[track_caller]
    pub fn put_manifest(&self, repository: &str, tag: Option<&str>, bytes: &[u8]) -> String {
        let digest = self.put_data(bytes);
        let manifests = format!("repositories/{repository}/_manifests");
        self.link(&format!("{manifests}/revisions/sha256/{}", hex(&digest)), &digest);
        if let Some(tag) = tag {
            self.link(&format!("{manifests}/tags/{tag}/index/sha256/{}", hex(&digest)), &digest);
            self.link(&format!("{manifests}/tags/{tag}/current"), &digest);
        }
        digest
    }

    /// As [`TestRegistry::put_manifest`] of a JSON value.
    #[track_caller]
    pub fn put_json(&self, repository: &str, tag: Option<&str>, manifest: &Value) -> String {
        self.put_manifest(repository, tag, manifest.to_string().as_bytes())
    }

    /// The file that holds the bytes of `digest`.
    #[must_use]
    pub fn data(&self, digest: &str) -> PathBuf {
        let hex = hex(digest);
        self.root().join(format!("blobs/sha256/{}/{hex}/data", &hex[..2]))
    }

    #[track_caller]
    fn put_data(&self, bytes: &[u8]) -> String {
        let hash = Sha256::digest(bytes);
        let digest = hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        write(&self.data(&digest), bytes);
        digest
    }

    #[track_caller]
    fn link(&self, directory: &str, digest: &str) {
        write(&self.root().join(directory).join("link"), digest.as_bytes());
    }

    /// The directory of its blobs and repositories.
    pub(crate) fn root(&self) -> PathBuf {
        self.scratch.path().join("storage/docker/registry/v2")
    }
}

fn hex(digest: &str) -> &str {
    digest.strip_prefix("sha256:").expect("a digest starts with its algorithm")
}

#[track_caller]
fn write(path: &Path, bytes: &[u8]) {
    let directory = path.parent().expect("files of the registry lie in directories");
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(path, bytes));
    written.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageLayer, TestImage};
    use crate::tool;

    fn status(arguments: &[&str]) -> String {
        let always = ["--silent", "--show-error", "--max-time", "60", "--output", "/dev/null"];
        let written = ["--write-out", "%{http_code} %{size_download}"];
        tool::run("curl", always.iter().chain(&written).chain(arguments))
    }

    #[test]
    fn pushed_image_can_be_fetched() {
        let registry = TestRegistry::start();
        let layer = ImageLayer::new().file("/data", vec![7; 1000], 0o644);
        let archive = TestImage::new("warren.local/x:1").layer(layer).oci_archive();
        for _ in 0..2 {
            assert_eq!(registry.push("team/x", "1", &archive), format!("{}/team/x:1", registry.host()));
        }
        let base = format!("http://{}/v2/team/x", registry.host());
        let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
        let manifest = status(&["--header", accept, &format!("{base}/manifests/1")]);
        assert!(manifest.starts_with("200 "), "{manifest}");
        let config = status(&[&format!("{base}/blobs/{}", archive.config_digest)]);
        assert!(config.starts_with("200 "), "{config}");
        assert!(status(&[&format!("{base}/manifests/2")]).starts_with("404 "));
    }

    #[test]
    fn private_registry_needs_credentials() {
        let registry = TestRegistry::start_private();
        let base = format!("http://{}/v2/", registry.host());
        assert!(status(&[&base]).starts_with("401 "));
        assert!(status(&["--user", &format!("{USER}:wrong"), &base]).starts_with("401 "));
        assert!(status(&["--user", &format!("{USER}:{PASSWORD}"), &base]).starts_with("200 "));
    }
}

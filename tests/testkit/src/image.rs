//! Container images made in memory, without a registry and without a container tool: an OCI image layout in a
//! tar, or the archive that `docker save` writes. The same input gives the same bytes: times are zero, owners
//! are root, entries are sorted.
//!
//! Formats: OCI image specification 1.1 (`image-layout.md`, `config.md`, `layer.md`) and Docker image
//! specification 1.2 for the other.

mod archive;
mod executable;
mod layer;

pub use archive::{Compression, PackedImage};
pub use executable::{StaticCheckError, require_static};
pub use layer::ImageLayer;

use std::path::Path;

/// An image to be packed: its layers and its configuration.
#[derive(Debug, Clone, Default)]
pub struct TestImage {
    reference: String,
    layers: Vec<ImageLayer>,
    compression: Compression,
    entrypoint: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<String>,
    working_directory: Option<String>,
    user: Option<String>,
    stop_signal: Option<String>,
    exposed: Vec<String>,
    labels: Vec<(String, String)>,
    architecture: Option<String>,
}

fn words<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Vec<String> {
    words.into_iter().map(Into::into).collect()
}

impl TestImage {
    /// An image without layers, known as `reference` (a full name with a tag: `warren.local/demo:1`).
    #[must_use]
    pub fn new(reference: &str) -> TestImage {
        TestImage { reference: reference.to_owned(), ..TestImage::default() }
    }

    /// A static busybox with all its applets in `/bin`, a writable `/tmp` and the accounts root and nobody;
    /// its default command is `sh`. `busybox` is the machine's own, from the package busybox-static.
    #[must_use]
    pub fn busybox(reference: &str) -> TestImage {
        let path = Path::new("/bin/busybox");
        let program = std::fs::read(path).unwrap_or_else(|error| {
            panic!("cannot read {}: {error}; install busybox-static", path.display())
        });
        if let Err(error) = require_static(&program) {
            panic!("{} cannot run alone in an image: {error}; install busybox-static", path.display());
        }
        let mut layer = ImageLayer::new()
            .file("/bin/busybox", program, 0o755)
            .directory("/tmp", 0o1777)
            .file("/etc/passwd", "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n", 0o644)
            .file("/etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644);
        for applet in crate::tool::run("/bin/busybox", ["--list"]).lines().filter(|name| *name != "busybox") {
            layer = layer.symlink(&format!("/bin/{applet}"), "busybox");
        }
        TestImage::new(reference).layer(layer).environment(["PATH=/bin"]).arguments(["sh"])
    }

    /// An image of one static executable at `/<name>`, which is also its entry point.
    pub fn of_executable(
        reference: &str,
        name: &str,
        program: Vec<u8>,
    ) -> Result<TestImage, StaticCheckError> {
        require_static(&program)?;
        let path = format!("/{name}");
        let layer = ImageLayer::new().file(&path, program, 0o755).directory("/tmp", 0o1777);
        Ok(TestImage::new(reference).layer(layer).entrypoint([path]))
    }

    /// The same image, known as `reference`.
    #[must_use]
    pub fn known_as(mut self, reference: &str) -> TestImage {
        self.reference = reference.to_owned();
        self
    }

    /// Adds `layer` on top of the existing layers.
    #[must_use]
    pub fn layer(mut self, layer: ImageLayer) -> TestImage {
        self.layers.push(layer);
        self
    }

    /// The compression of the layers; gzip by default. A docker archive never compresses them.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> TestImage {
        self.compression = compression;
        self
    }

    /// The configuration's `Entrypoint`. As in a Dockerfile, this removes existing arguments.
    #[must_use]
    pub fn entrypoint<S: Into<String>>(mut self, entrypoint: impl IntoIterator<Item = S>) -> TestImage {
        self.entrypoint = words(entrypoint);
        self.arguments = Vec::new();
        self
    }

    /// The configuration's `Cmd`.
    #[must_use]
    pub fn arguments<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> TestImage {
        self.arguments = words(arguments);
        self
    }

    /// The configuration's `Env`, as `NAME=value`.
    #[must_use]
    pub fn environment<S: Into<String>>(mut self, environment: impl IntoIterator<Item = S>) -> TestImage {
        self.environment = words(environment);
        self
    }

    /// The configuration's `WorkingDir`.
    #[must_use]
    pub fn working_directory(mut self, path: &str) -> TestImage {
        self.working_directory = Some(path.to_owned());
        self
    }

    /// The configuration's `User`: a name or number, with an optional `:group`.
    #[must_use]
    pub fn user(mut self, user: &str) -> TestImage {
        self.user = Some(user.to_owned());
        self
    }

    /// The configuration's `StopSignal`.
    #[must_use]
    pub fn stop_signal(mut self, signal: &str) -> TestImage {
        self.stop_signal = Some(signal.to_owned());
        self
    }

    /// Adds one of the configuration's `ExposedPorts`, as `80/tcp`.
    #[must_use]
    pub fn exposed_port(mut self, port: &str) -> TestImage {
        self.exposed.push(port.to_owned());
        self
    }

    /// Another architecture than this machine's, by its name in Go.
    #[must_use]
    pub fn architecture(mut self, name: &str) -> TestImage {
        self.architecture = Some(name.to_owned());
        self
    }

    /// Adds one of the configuration's `Labels`.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> TestImage {
        self.labels.push((name.to_owned(), value.to_owned()));
        self
    }
}

#[cfg(test)]
mod tests;

//! The documents that a name can stand for.

/// An index of OCI.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A manifest of OCI.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Docker's index.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Docker's manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// All that a name can stand for.
pub const IMAGE_TYPES: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

/// Size limit of an image document in bytes; registries use the same limit.
pub const MAX_DOCUMENT: u64 = 4 << 20;

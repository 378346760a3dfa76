//! The users of a container with a user namespace of its own.

use std::path::{Path, PathBuf};

use warren_types::IdRange;

use super::storage::is_normalized;
use super::{ContainerMountSource, ContainerSpec, MountPropagation, NetworkMode};
use crate::error::Error;

/// A user namespace for one container: its users and groups have ids of the node that no other container has, and no
/// rights on the node. Files of its image, and of bind mounts, have the ids in the container that they have on the
/// node: both are mounted with shifted ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateUsers {
    /// Its ids on the node.
    pub ids: IdRange,
    /// Absolute path of a directory that root alone can enter, without other users and on a file system that does not
    /// survive a reboot. [`PrivateUsers::ensure`] puts the namespace there, before the container is created.
    pub directory: PathBuf,
}

impl PrivateUsers {
    /// The file to which the user namespace is bound.
    pub(crate) fn namespace(&self) -> PathBuf {
        self.directory.join("user")
    }

    /// Where the layers of the image are mounted while the process is created.
    pub(crate) fn layers(&self) -> PathBuf {
        self.directory.join("layers")
    }

    /// Where the source of the mount at that place of [`ContainerSpec::mounts`] is mounted while the process is
    /// created.
    pub(crate) fn mount_source(&self, place: usize) -> PathBuf {
        self.directory.join(format!("mount-{place}"))
    }
}

/// Refuses what such a container cannot have.
pub(super) fn check(users: &PrivateUsers, spec: &ContainerSpec) -> Result<(), Error> {
    let wrong = |reason: &str| Err(Error::invalid_field("user_namespace", reason));
    if !is_normalized(&users.directory) || users.directory == Path::new("/") {
        return wrong("its directory is not an absolute path below / without '..'");
    }
    if users.ids.first == 0 || users.ids.on_node(warren_types::ID_RANGE_SIZE - 1).is_none() {
        return wrong("its ids are not those of users without rights");
    }
    if spec.privileged {
        return wrong("a privileged container has the rights of the node's root");
    }
    if spec.network == NetworkMode::Host {
        return wrong("it has no rights over the network of the host");
    }
    if !spec.devices.is_empty() {
        return wrong("devices belong to users of the host");
    }
    for (place, mount) in spec.mounts.iter().enumerate() {
        if let ContainerMountSource::Bind { propagation, .. } = &mount.source
            && *propagation != MountPropagation::Private
        {
            let field = format!("mounts[{place}].propagation");
            let reason = "mounts that are made later would have the ids of the node; with a user namespace of its own \
                          only rprivate is possible";
            return Err(Error::invalid_field(field, reason));
        }
    }
    Ok(())
}

//! The mounts with shifted ids from which the OCI runtime creates a container.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;
use warren_types::{ID_RANGE_SIZE, IdRange};

use super::clear;
use super::kernel::{self, MapError, MountKind};
use crate::Result;
use crate::container::{ContainerMountSource, ContainerSpec, PrivateUsers};
use crate::error::Error;
use crate::host_check::{kernel_release, major_minor, mount_of};
use crate::image_files::relative_layers;

/// First kernel whose overlayfs takes layers that are mounted with shifted ids.
const MIN_KERNEL: (u32, u32) = (5, 19);
/// Field of the spec.
const FIELD: &str = "user_namespace";

/// Mounts that exist while a process is created. It has its own after that.
#[derive(Debug, Default)]
pub(crate) struct MappedMounts(Vec<PathBuf>);

impl Drop for MappedMounts {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = clear(path) {
                tracing::warn!(path = %path.display(), %error, "a mount is kept until its container is removed");
            }
        }
    }
}

/// Checks the node: the kernel, and that users without rights reach the directories of containers below `state`, the
/// state directory of containerd.
///
/// # Errors
/// [`Error::InvalidSpec`] with what the node lacks.
pub(crate) fn check_node(state: &Path) -> Result<()> {
    let release = kernel_release().map_err(|error| failed("read the release of the kernel", &error))?;
    if major_minor(&release) < Some(MIN_KERNEL) {
        let (major, minor) = MIN_KERNEL;
        let reason = format!("this node runs Linux {release}, and private needs {major}.{minor} or later");
        return Err(Error::invalid_field(FIELD, reason));
    }
    for directory in state.ancestors() {
        let found = fs::metadata(directory).map_err(|error| failed("look at its state directory", &error))?;
        if found.permissions().mode() & 0o001 == 0 {
            let reason = format!(
                "users without rights cannot enter {} on this node, which holds the state of containerd; run chmod \
                 o+x {}",
                directory.display(),
                directory.display()
            );
            return Err(Error::invalid_field(FIELD, reason));
        }
    }
    Ok(())
}

/// Mounts the layers of the container's file system and the sources of its bind mounts. Returns the file system for
/// the OCI runtime.
///
/// # Errors
/// [`Error::InvalidSpec`] with the field whose file system cannot shift ids; [`Error::Failed`] for anything else.
pub(crate) fn map(
    spec: &ContainerSpec,
    users: &PrivateUsers,
    root: Vec<Mount>,
) -> Result<(Vec<Mount>, MappedMounts)> {
    let namespace =
        File::open(users.namespace()).map_err(|error| failed("open its user namespace", &error))?;
    let mut held = MappedMounts::default();
    let mut place = |field: &str, source: &Path, target: PathBuf, kind: MountKind| {
        prepare(&target, source.is_dir()).map_err(|error| failed("create a mount point", &error))?;
        held.0.push(target.clone());
        let mounted = kernel::mount_mapped(source, &target, namespace.as_fd(), kind);
        mounted.map_err(|error| match error {
            MapError::Unsupported => unsupported(field, source),
            MapError::Failed(error) => {
                failed(&format!("mount {} with shifted ids", source.display()), &error)
            }
        })
    };
    let root = match mapped_root(&root, &users.layers())? {
        None => root,
        Some((layers, mapped)) => {
            place(FIELD, &layers, users.layers(), MountKind { recursive: false, read_only: true })?;
            mapped
        }
    };
    for (number, mount) in spec.mounts.iter().enumerate() {
        if let ContainerMountSource::Bind { path, recursive, .. } = &mount.source {
            let kind = MountKind { recursive: *recursive, read_only: mount.read_only };
            place(&format!("mounts[{number}].source"), path, users.mount_source(number), kind)?;
        }
    }
    own_root(&root, users.ids).map_err(|error| failed("give it its file system", &error))?;
    Ok((root, held))
}

fn failed(action: &str, error: &io::Error) -> Error {
    Error::Failed {
        action: format!("{action}, for a container with a user namespace"),
        reason: error.to_string(),
    }
}

fn unsupported(field: &str, source: &Path) -> Error {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let real = fs::canonicalize(source).unwrap_or_else(|_| source.to_owned());
    let (below, _) = mount_of(&table, &real);
    let reason = format!(
        "{} is on the mount {}, whose file system cannot shift ids (id-mapped mounts), which user namespace private \
         needs",
        source.display(),
        below.display()
    );
    Error::invalid_field(field, reason)
}

/// Creates an empty mount point. A killed agent may have left a mount there.
fn prepare(target: &Path, is_directory: bool) -> io::Result<()> {
    clear(target)?;
    match is_directory {
        true => fs::create_dir(target),
        false => File::create(target).map(drop),
    }
}

/// The common directory of all layers of an overlay, and the overlay with that directory at `layers`. `None` for a file
/// system without layers, as of an empty image.
fn mapped_root(root: &[Mount], layers: &Path) -> Result<Option<(PathBuf, Vec<Mount>)>> {
    let needs_overlay =
        || Error::invalid_field(FIELD, "private needs the snapshotter overlayfs on this node");
    let [overlay] = root else { return Err(needs_overlay()) };
    match overlay.r#type.as_str() {
        "overlay" => {}
        // overlayfs makes a plain directory of a snapshot without a parent.
        "bind" if overlay.source.ends_with("/fs") => return Ok(None),
        _ => return Err(needs_overlay()),
    }
    let (common, names) =
        relative_layers(&overlay.options).map_err(|error| failed("find its layers", &error))?;
    let names: Vec<String> = names.iter().map(|name| layers.join(name).display().to_string()).collect();
    let lower = format!("lowerdir={}", names.join(":"));
    let options = overlay.options.iter().map(|option| match option.starts_with("lowerdir=") {
        true => lower.clone(),
        false => option.clone(),
    });
    Ok(Some((common, vec![Mount { options: options.collect(), ..overlay.clone() }])))
}

/// Gives the root directory of the writable layer to the container's user with the same id: the ids of that layer are
/// those of the node.
fn own_root(root: &[Mount], ids: IdRange) -> io::Result<()> {
    let [mount] = root else { return Ok(()) };
    let upper = mount.options.iter().find_map(|option| option.strip_prefix("upperdir="));
    let directory = Path::new(upper.unwrap_or(&mount.source));
    let found = match fs::metadata(directory) {
        // Whoever mounts it reports that.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let shifted = |id: u32| match id {
        // It was given away before.
        id if ids.on_node(0) <= Some(id) && Some(id) <= ids.on_node(ID_RANGE_SIZE - 1) => Some(id),
        id => ids.on_node(id),
    };
    let (Some(uid), Some(gid)) = (shifted(found.uid()), shifted(found.gid())) else {
        return Err(io::Error::other(format!("{} belongs to another container", directory.display())));
    };
    match (uid, gid) == (found.uid(), found.gid()) {
        true => Ok(()),
        false => lchown(directory, Some(uid), Some(gid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::fixtures::spec;

    fn overlay(options: &[&str]) -> Vec<Mount> {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        vec![Mount {
            r#type: "overlay".to_owned(),
            source: "overlay".to_owned(),
            options,
            ..Default::default()
        }]
    }

    #[test]
    fn layers_are_replaced_by_those_of_the_mapped_mount() {
        let root = overlay(&[
            "index=off",
            "upperdir=/c/snapshots/3/fs",
            "lowerdir=/c/snapshots/2/fs:/c/snapshots/1/fs",
        ]);
        let (common, mapped) = mapped_root(&root, Path::new("/run/x/layers")).unwrap().unwrap();
        assert_eq!(common, Path::new("/c/snapshots"));
        let expected =
            ["index=off", "upperdir=/c/snapshots/3/fs", "lowerdir=/run/x/layers/2/fs:/run/x/layers/1/fs"];
        assert_eq!(mapped[0].options, expected);
        let plain =
            vec![Mount { r#type: "bind".into(), source: "/c/snapshots/3/fs".into(), ..Default::default() }];
        assert_eq!(mapped_root(&plain, Path::new("/l")).unwrap(), None);
        for other in [Vec::new(), vec![Mount { r#type: "ext4".into(), ..Default::default() }]] {
            let error = mapped_root(&other, Path::new("/l")).unwrap_err();
            assert!(error.to_string().contains("snapshotter overlayfs"), "{error}");
        }
    }

    #[test]
    fn writable_layer_is_given_away_once() {
        let dir = tempfile::tempdir().unwrap();
        let option = format!("upperdir={}", dir.path().display());
        let (ids, other) = (IdRange { first: 2_000_000 }, IdRange { first: 3_000_000 });
        let owner = || fs::metadata(dir.path()).map(|found| (found.uid(), found.gid())).unwrap();
        std::os::unix::fs::chown(dir.path(), Some(7), Some(8)).unwrap();
        for _ in 0..2 {
            own_root(&overlay(&[&option]), ids).unwrap();
            assert_eq!(owner(), (2_000_007, 2_000_008));
        }
        assert!(own_root(&overlay(&[&option]), other).is_err());
        assert_eq!(owner(), (2_000_007, 2_000_008));
    }

    #[test]
    fn state_must_be_reachable_for_users_without_rights() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let error = check_node(&state).unwrap_err().to_string();
        assert!(error.contains(&format!("chmod o+x {}", dir.path().display())), "{error}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        check_node(&state).unwrap();
    }

    #[test]
    fn file_system_without_shifted_ids_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let users = PrivateUsers { ids: IdRange { first: 2_000_000 }, directory: dir.path().join("x") };
        let error = unsupported("mounts[0].source", Path::new("/proc"));
        assert!(matches!(&error, Error::InvalidSpec { field, .. } if field == "mounts[0].source"), "{error}");
        assert!(error.to_string().contains("/proc is on the mount /proc,"), "{error}");
        // Without a namespace nothing is mounted.
        assert!(map(&spec(), &users, overlay(&[])).unwrap_err().is_transient());
        assert!(!users.directory.exists());
    }
}

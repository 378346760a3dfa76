//! Volumes, bind mounts, tmpfs, secrets and configs of a task.

use std::path::{Path, PathBuf};

use warren_types::{Bytes, Mount, MountSource, Propagation, SecretObjectMount};

use super::fields::Fields;
use super::{LocalPath, Names};
use crate::canonical::{LOCAL_PATH, normalized};
use crate::scalar::parse_size;

/// The mode of a secret or config, by the Compose Specification.
const FILE_MODE: u32 = 0o444;

/// The API of Docker, which programs expect there.
const DOCKER_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/docker.sock"];

/// All mounts of `volumes` and `tmpfs`.
pub(super) fn mounts(service: &Fields<'_>, names: &Names<'_>) -> Vec<Mount> {
    let volumes = service.items("volumes");
    let volumes = volumes.iter().filter_map(|volume| mount(volume, names));
    let tmpfs = service.items("tmpfs");
    volumes.chain(tmpfs.iter().filter_map(tmpfs_mount)).collect()
}

fn mount(volume: &Fields<'_>, names: &Names<'_>) -> Option<Mount> {
    let Some(target) = volume.text("target").map(str::to_owned) else {
        volume.fail("has no path in the container; give `target`");
        return None;
    };
    let (kind, source) = (volume.text("type").unwrap_or_default(), volume.text("source"));
    for (key, of) in [("bind", "bind"), ("volume", "volume"), ("tmpfs", "tmpfs")] {
        if kind != of && volume.sub(key).is_some() {
            volume.fail_at(key, format!("has no meaning for a mount of type {kind}; leave it out"));
        }
    }
    let source = match (kind, source) {
        ("volume", Some(source)) => {
            let options = volume.sub("volume");
            let subpath = options.as_ref().and_then(|options| options.text("subpath")).map(str::to_owned);
            let no_copy = options.and_then(|options| options.flag("nocopy")).unwrap_or_default();
            MountSource::Volume { name: names.name_of("volumes", source), subpath, no_copy }
        }
        ("volume", None) => {
            volume.fail("has no name: every volume has one here; define it in the top-level `volumes`");
            return None;
        }
        ("bind", Some(path)) => bind(volume, path),
        ("bind", None) => {
            volume.fail("has no path on the node; give `source`");
            return None;
        }
        ("tmpfs", None) => {
            let options = volume.sub("tmpfs");
            let size = options.as_ref().and_then(|options| options.bytes("size"));
            let mode = options.as_ref().and_then(|options| octal(options, "mode"));
            MountSource::Tmpfs { size, mode, exec: false }
        }
        ("tmpfs", Some(_)) => {
            volume.fail_at("source", "a tmpfs has no source; leave it out");
            return None;
        }
        (other, _) => {
            volume.fail_at(
                "type",
                format!("{other:?} is not supported by this version; give bind, volume or tmpfs"),
            );
            return None;
        }
    };
    Some(Mount { target, source, read_only: volume.flag("read_only").unwrap_or_default() })
}

/// The bind mounts of paths on the machine of the files.
pub(super) fn local_paths(service: &Fields<'_>) -> Vec<LocalPath> {
    let volumes = service.items("volumes");
    let local = volumes.iter().filter(|volume| volume.flag(LOCAL_PATH) == Some(true));
    let path = |volume: &Fields<'_>| {
        let path = volume.text("source").map(PathBuf::from)?;
        let create = volume.sub("bind").and_then(|bind| bind.flag("create_host_path")).unwrap_or(true);
        Some(LocalPath { defined: volume.position(), path, create })
    };
    local.filter_map(path).collect()
}

fn bind(volume: &Fields<'_>, path: &str) -> MountSource {
    if DOCKER_SOCKETS.iter().any(|socket| normalized(Path::new(path)) == Path::new(socket)) {
        let message = "is the socket of Docker, which nodes do not run, and Warren gives containers no API of this \
                       kind in this version; leave out the mount, or run the program outside of the cluster";
        volume.fail_at("source", message);
    }
    let options = volume.sub("bind");
    let propagation = options.as_ref().and_then(|options| options.parse::<Propagation>("propagation"));
    let recursive = options.as_ref().and_then(|options| options.sub("recursive"));
    let recursive = recursive.is_none_or(|recursive| match recursive.node.as_text() {
        Some("disabled") => false,
        Some("enabled") => true,
        other => {
            let other = other.unwrap_or_default();
            recursive.fail(format!("{other:?} is not supported by this version; give enabled or disabled"));
            true
        }
    });
    if let Some(create) = options.as_ref().and_then(|options| options.sub("create_host_path"))
        && create.node.as_text() == Some("true")
        && volume.flag(LOCAL_PATH) != Some(true)
    {
        create.warn("has no effect: the path must exist on each node that runs the service");
    }
    MountSource::Bind { path: path.to_owned(), propagation: propagation.unwrap_or_default(), recursive }
}

/// `PATH[:OPTIONS]`.
fn tmpfs_mount(item: &Fields<'_>) -> Option<Mount> {
    let text = item.node.as_text()?;
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let (mut size, mut mode, mut exec, mut read_only) = (None, None, false, false);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", value)) => {
                size = parse_size(value).map(Bytes);
                if size.is_none() {
                    item.fail(format!("{value:?} is not a number of bytes like 64m"));
                }
            }
            Some(("mode", value)) => {
                mode = u32::from_str_radix(value, 8).ok();
                if mode.is_none() {
                    item.fail(format!("{value:?} is not permission bits in octal like 1777"));
                }
            }
            None if option == "exec" || option == "noexec" => exec = option == "exec",
            None if option == "ro" || option == "rw" => read_only = option == "ro",
            // Every tmpfs of a container is mounted with these.
            None if option == "nosuid" || option == "nodev" => {}
            _ => item.fail(format!(
                "the option {option:?} is not supported by this version; there are size, mode, exec, noexec, ro and rw"
            )),
        }
    }
    Some(Mount { target: target.to_owned(), source: MountSource::Tmpfs { size, mode, exec }, read_only })
}

/// The secrets or configs of a service; a relative target is in `directory`.
pub(super) fn secret_objects(
    service: &Fields<'_>,
    section: &str,
    directory: &str,
    names: &Names<'_>,
) -> Vec<SecretObjectMount> {
    let mount = |item: &Fields<'_>| {
        let Some(source) = item.text("source") else {
            item.fail("has no name; give `source`");
            return None;
        };
        let name = item.parse_text(&names.name_of(section, source))?;
        let target = item.text("target").unwrap_or(source);
        let target = if target.starts_with('/') { target.to_owned() } else { format!("{directory}{target}") };
        Some(SecretObjectMount {
            target: Some(target),
            uid: item.parse("uid"),
            gid: item.parse("gid"),
            mode: Some(octal(item, "mode").unwrap_or(FILE_MODE)),
            template: names.is_template(section, source),
            ..SecretObjectMount::new(name)
        })
    };
    service.items(section).iter().filter_map(mount).collect()
}

fn octal(fields: &Fields<'_>, key: &str) -> Option<u32> {
    let text = fields.text(key)?;
    let mode = u32::from_str_radix(text, 8).ok();
    if mode.is_none() {
        fields.fail_at(key, format!("{text} has more than permission bits"));
    }
    mode
}

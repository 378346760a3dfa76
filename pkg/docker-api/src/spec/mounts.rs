//! Mounts, secrets and configs of a task.

use warren_types::{Bytes, Mount, MountSource, Propagation, SecretObjectMount};

use super::reader::{MountedVolume, SpecReader, non_empty};
use crate::model;
use crate::object_ids::{ObjectIds, id_of, name_of};

/// Mounts; volumes that they describe are collected by the reader.
pub fn mounts_from_docker(reader: &mut SpecReader, mounts: Vec<model::Mount>) -> Vec<Mount> {
    let mounts = mounts.into_iter().enumerate();
    mounts.filter_map(|(i, mount)| mount_from_docker(reader, i, mount)).collect()
}

fn mount_from_docker(reader: &mut SpecReader, i: usize, docker: model::Mount) -> Option<Mount> {
    let path = |field: &str| format!("TaskTemplate.ContainerSpec.Mounts[{i}].{field}");
    let model::Mount {
        r#type,
        source,
        target,
        read_only,
        consistency,
        bind_options,
        volume_options,
        image_options,
        tmpfs_options,
        cluster_options,
    } = docker;
    reader.only(path("Consistency"), consistency, "default");
    let kind = r#type.unwrap_or_default();
    let given = [
        ("bind", "BindOptions", bind_options.is_some()),
        ("volume", "VolumeOptions", volume_options.is_some()),
        ("tmpfs", "TmpfsOptions", tmpfs_options.is_some()),
        ("image", "ImageOptions", image_options.is_some()),
        ("cluster", "ClusterOptions", cluster_options.is_some()),
    ];
    for (of, field, is_given) in given {
        let message = format!("has no meaning for a mount of type {kind}; leave it out");
        reader.refuse_if(is_given && of != kind, path(field), message);
    }
    let source = match (kind.as_str(), non_empty(source)) {
        ("volume", Some(name)) => volume(reader, path, name, volume_options.unwrap_or_default()),
        ("volume", None) => {
            reader.refuse(path("Source"), "is missing: every volume has a name here");
            return None;
        }
        ("bind", Some(source)) => bind(reader, path, source, bind_options.unwrap_or_default()),
        ("bind", None) => {
            reader.refuse(path("Source"), "is missing; give the path on the node");
            return None;
        }
        ("tmpfs", source) => {
            reader.refuse_if(source.is_some(), path("Source"), "a tmpfs has no source; leave it out");
            tmpfs(reader, path, tmpfs_options.unwrap_or_default())
        }
        (other, _) => {
            let message = format!("{other:?} is not supported by this version; give bind, volume or tmpfs");
            reader.refuse(path("Type"), message);
            return None;
        }
    };
    let target = target.unwrap_or_default();
    Some(Mount { target, source, read_only: read_only.unwrap_or_default() })
}

fn volume(
    reader: &mut SpecReader,
    path: impl Fn(&str) -> String,
    name: String,
    options: model::VolumeOptions,
) -> MountSource {
    let model::VolumeOptions { no_copy, labels, driver_config, subpath } = options;
    let model::Driver { name: driver, options } = driver_config.unwrap_or_default();
    let (labels, options) = (labels.unwrap_or_default(), options.unwrap_or_default());
    let driver = driver.unwrap_or_default();
    if !(labels.is_empty() && options.is_empty() && driver.is_empty()) {
        if warren_types::template::is_template(&name) {
            let message =
                "a volume per task is created with its first task, without labels and options; leave it out";
            reader.refuse(path("VolumeOptions"), message);
        } else {
            reader.volumes.push(MountedVolume { name: name.clone(), driver, options, labels });
        }
    }
    MountSource::Volume { name, subpath: non_empty(subpath), no_copy: no_copy.unwrap_or_default() }
}

fn bind(
    reader: &mut SpecReader,
    path: impl Fn(&str) -> String,
    source: String,
    options: model::BindOptions,
) -> MountSource {
    let model::BindOptions {
        propagation,
        non_recursive,
        create_mountpoint,
        read_only_non_recursive,
        read_only_force_recursive,
    } = options;
    let propagation: Propagation =
        reader.parse_or_default(path("BindOptions.Propagation"), propagation.as_deref());
    if create_mountpoint == Some(true) {
        let message = "has no effect: the path must exist on each node that runs the service";
        reader.warn(&path("BindOptions.CreateMountpoint"), message);
    }
    let message = "is not supported by this version; leave it out";
    for (field, is_set) in [
        ("BindOptions.ReadOnlyNonRecursive", read_only_non_recursive),
        ("BindOptions.ReadOnlyForceRecursive", read_only_force_recursive),
    ] {
        reader.refuse_if(is_set == Some(true), path(field), message);
    }
    MountSource::Bind { path: source, propagation, recursive: non_recursive != Some(true) }
}

fn tmpfs(
    reader: &mut SpecReader,
    path: impl Fn(&str) -> String,
    options: model::TmpfsOptions,
) -> MountSource {
    let model::TmpfsOptions { size_bytes, mode, options } = options;
    let mut exec = false;
    for option in options.into_iter().flatten() {
        match option.join("=").as_str() {
            text @ ("exec" | "noexec") => exec = text == "exec",
            other => {
                let message =
                    format!("{other:?} is not supported by this version; there are exec and noexec");
                reader.refuse(path("TmpfsOptions.Options"), message);
            }
        }
    }
    let size = reader.positive(path("TmpfsOptions.SizeBytes"), size_bytes).map(Bytes);
    // Clients send 0 for a mode that was not set.
    MountSource::Tmpfs { size, mode: mode.filter(|mode| *mode != 0), exec }
}

/// `None` without mounts.
pub fn mounts_to_docker(mounts: &[Mount]) -> Option<Vec<model::Mount>> {
    let mount = |Mount { target, source, read_only }: &Mount| {
        let mut docker = model::Mount {
            target: Some(target.clone()),
            read_only: read_only.then_some(true),
            ..Default::default()
        };
        match source {
            MountSource::Bind { path, propagation, recursive } => {
                docker.r#type = Some("bind".to_owned());
                docker.source = Some(path.clone());
                let options = model::BindOptions {
                    propagation: (*propagation != Propagation::default())
                        .then(|| propagation.as_str().to_owned()),
                    non_recursive: (!recursive).then_some(true),
                    ..Default::default()
                };
                docker.bind_options = (options != model::BindOptions::default()).then_some(options);
            }
            MountSource::Volume { name, subpath, no_copy } => {
                docker.r#type = Some("volume".to_owned());
                docker.source = Some(name.clone());
                let options = model::VolumeOptions {
                    no_copy: no_copy.then_some(true),
                    subpath: subpath.clone(),
                    ..Default::default()
                };
                docker.volume_options = (options != model::VolumeOptions::default()).then_some(options);
            }
            MountSource::Tmpfs { size, mode, exec } => {
                docker.r#type = Some("tmpfs".to_owned());
                let options = model::TmpfsOptions {
                    size_bytes: size.map(|Bytes(size)| i64::try_from(size).unwrap_or(i64::MAX)),
                    mode: *mode,
                    options: exec.then(|| vec![vec!["exec".to_owned()]]),
                };
                docker.tmpfs_options = (options != model::TmpfsOptions::default()).then_some(options);
            }
        }
        docker
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(mount).collect())
}

/// Secrets; a relative target is in `/run/secrets`.
pub fn secrets_from_docker(
    reader: &mut SpecReader,
    secrets: Vec<model::SecretReference>,
    ids: &ObjectIds,
) -> Vec<SecretObjectMount> {
    let secret = |(i, secret): (usize, model::SecretReference)| {
        let model::SecretReference { file, secret_id, secret_name } = secret;
        let path = format!("TaskTemplate.ContainerSpec.Secrets[{i}]");
        let reference = non_empty(secret_name).or(non_empty(secret_id)).unwrap_or_default();
        let source = name_of(&ids.secrets, &reference);
        file_mount(reader, &path, "SecretName", source, file, "/run/secrets/")
    };
    secrets.into_iter().enumerate().filter_map(secret).collect()
}

/// Configs; a relative target is in `/`.
pub fn configs_from_docker(
    reader: &mut SpecReader,
    configs: Vec<model::ConfigReference>,
    ids: &ObjectIds,
) -> Vec<SecretObjectMount> {
    let mut mounts = Vec::new();
    for (i, config) in configs.into_iter().enumerate() {
        let model::ConfigReference { file, runtime, config_id, config_name } = config;
        let path = format!("TaskTemplate.ContainerSpec.Configs[{i}]");
        reader.refuse_if(runtime.is_some(), format!("{path}.Runtime"), "is for Windows; give File");
        let reference = non_empty(config_name).or(non_empty(config_id)).unwrap_or_default();
        let source = name_of(&ids.configs, &reference);
        mounts.extend(file_mount(reader, &path, "ConfigName", source, file, "/"));
    }
    mounts
}

fn file_mount(
    reader: &mut SpecReader,
    path: &str,
    name_field: &str,
    source: &str,
    file: Option<model::FileTarget>,
    directory: &str,
) -> Option<SecretObjectMount> {
    let source = reader.parse(format!("{path}.{name_field}"), source)?;
    let model::FileTarget { name, uid, gid, mode } = file.unwrap_or_default();
    let target = non_empty(name).map(|name| match name.starts_with('/') {
        true => name,
        false => format!("{directory}{name}"),
    });
    let mut owner = |field: &str, text: Option<String>| {
        non_empty(text).and_then(|text| reader.parse(format!("{path}.File.{field}"), &text))
    };
    let (uid, gid) = (owner("UID", uid), owner("GID", gid));
    Some(SecretObjectMount { target, uid, gid, mode, ..SecretObjectMount::new(source) })
}

/// `None` without secrets. Templates have no form in Docker's mounts.
pub fn secrets_to_docker(
    secrets: &[SecretObjectMount],
    ids: &ObjectIds,
) -> Option<Vec<model::SecretReference>> {
    let secret = |mount: &SecretObjectMount| model::SecretReference {
        file: Some(file_target(mount, mount.secret_target(), mount.secret_mode(), "/run/secrets/")),
        secret_id: Some(id_of(&ids.secrets, mount.source.as_str())),
        secret_name: Some(mount.source.to_string()),
    };
    (!secrets.is_empty()).then(|| secrets.iter().map(secret).collect())
}

/// `None` without configs.
pub fn configs_to_docker(
    configs: &[SecretObjectMount],
    ids: &ObjectIds,
) -> Option<Vec<model::ConfigReference>> {
    let config = |mount: &SecretObjectMount| model::ConfigReference {
        file: Some(file_target(mount, mount.config_target(), mount.config_mode(), "/")),
        runtime: None,
        config_id: Some(id_of(&ids.configs, mount.source.as_str())),
        config_name: Some(mount.source.to_string()),
    };
    (!configs.is_empty()).then(|| configs.iter().map(config).collect())
}

/// An owner that is left to the container's user is empty, which Docker does not have.
fn file_target(mount: &SecretObjectMount, target: String, mode: u32, directory: &str) -> model::FileTarget {
    let relative = target.strip_prefix(directory).filter(|name| !name.contains('/'));
    let owner = |id: Option<u32>| Some(id.map(|id| id.to_string()).unwrap_or_default());
    model::FileTarget {
        name: Some(relative.map_or_else(|| target.clone(), str::to_owned)),
        uid: owner(mount.uid),
        gid: owner(mount.gid),
        mode: Some(mode),
    }
}

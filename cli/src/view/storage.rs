//! What a task sees mounted, secrets and configs among it, and its devices.

use serde::Serialize;
use warren_types::{ContentMount, Device, Mount, MountSource};

#[derive(Debug, Serialize)]
pub struct DeviceView {
    source: String,
    target: String,
    access: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MountView {
    target: String,
    source: SourceView,
    read_only: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum SourceView {
    Bind {
        path: String,
        propagation: &'static str,
        recursive: bool,
    },
    Tmpfs {
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<String>,
        /// Octal.
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        exec: bool,
    },
    #[serde(rename_all = "camelCase")]
    Volume {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
        no_copy: bool,
    },
}

/// A secret or config as a file.
#[derive(Debug, Serialize)]
pub struct ContentMountView {
    source: String,
    target: String,
    /// Left out for the container's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    /// Octal.
    mode: String,
    template: bool,
}

impl ContentMountView {
    /// As a secret is seen.
    pub fn secret(mount: &ContentMount) -> Self {
        Self::new(mount, mount.secret_target(), mount.secret_mode())
    }

    /// As a config is seen.
    pub fn config(mount: &ContentMount) -> Self {
        Self::new(mount, mount.config_target(), mount.config_mode())
    }

    /// With what holds where nothing is said.
    fn new(mount: &ContentMount, target: String, mode: u32) -> Self {
        let ContentMount { source, target: _, uid, gid, mode: _, template } = mount;
        let (source, mode) = (source.to_string(), format!("{mode:04o}"));
        Self { source, target, uid: *uid, gid: *gid, mode, template: *template }
    }
}

impl From<&Device> for DeviceView {
    fn from(device: &Device) -> Self {
        let Device { source, target, access } = device;
        Self { source: source.clone(), target: target.clone(), access: access.to_string() }
    }
}

impl From<&Mount> for MountView {
    fn from(mount: &Mount) -> Self {
        let Mount { target, source, read_only } = mount;
        let source = match source {
            MountSource::Bind { path, propagation, recursive } => SourceView::Bind {
                path: path.clone(),
                propagation: propagation.as_str(),
                recursive: *recursive,
            },
            MountSource::Tmpfs { size, mode, exec } => SourceView::Tmpfs {
                size: size.map(|size| size.to_string()),
                mode: mode.map(|mode| format!("{mode:o}")),
                exec: *exec,
            },
            MountSource::Volume { name, subpath, no_copy } => {
                SourceView::Volume { name: name.clone(), subpath: subpath.clone(), no_copy: *no_copy }
            }
        };
        Self { target: target.clone(), source, read_only: *read_only }
    }
}

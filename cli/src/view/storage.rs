//! What a task sees mounted, and its devices.

use serde::Serialize;
use warren_types::{Device, Mount, MountSource};

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
        };
        Self { target: target.clone(), source, read_only: *read_only }
    }
}

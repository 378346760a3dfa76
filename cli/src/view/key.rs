//! The keys that encrypt what managers store, and how far their replacement is.

use serde::Serialize;
use warren_proto::convert::key_phase;
use warren_proto::v1;

use super::TimeView;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyStatusView {
    /// Names the key that encrypts secrets, configs and credentials.
    secret_object_key: String,
    /// Absent if the keys were never replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    rotation: Option<KeyRotationView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyRotationView {
    phase: &'static str,
    began_at: TimeView,
    managers: KeyManagersView,
    objects: KeyObjectsView,
}

/// Who has done what the phase asks of managers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyManagersView {
    done: u32,
    total: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

/// What is encrypted with the new key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeyObjectsView {
    done: u32,
    total: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    remaining: Vec<String>,
}

impl KeyStatusView {
    pub fn new(wire: v1::KeyStatus) -> Self {
        let (managers_done, objects_done) = (managers_done(&wire), objects_done(&wire));
        let v1::KeyStatus {
            phase,
            began_at,
            secret_object_key,
            managers,
            missing_managers,
            objects,
            remaining_names,
            ..
        } = wire;
        let rotation = |phase: warren_types::KeyPhase| KeyRotationView {
            phase: phase.as_str(),
            began_at: TimeView::new(began_at),
            managers: KeyManagersView { done: managers_done, total: managers, missing: missing_managers },
            objects: KeyObjectsView { done: objects_done, total: objects, remaining: remaining_names },
        };
        Self { secret_object_key, rotation: key_phase(phase).ok().map(rotation) }
    }
}

fn managers_done(status: &v1::KeyStatus) -> u32 {
    status.managers.saturating_sub(u32::try_from(status.missing_managers.len()).unwrap_or(u32::MAX))
}

fn objects_done(status: &v1::KeyStatus) -> u32 {
    status.objects.saturating_sub(status.remaining_objects)
}

/// `disks of managers 1/3`.
pub fn progress_summary(status: &v1::KeyStatus) -> String {
    let managers = format!("{}/{}", managers_done(status), status.managers);
    match status.phase() {
        v1::KeyPhase::Disks => format!("disks of managers {managers}"),
        v1::KeyPhase::Managers => format!("managers with the new key {managers}"),
        v1::KeyPhase::Objects | v1::KeyPhase::Complete | v1::KeyPhase::Unspecified => {
            format!("objects with the new key {}/{}", objects_done(status), status.objects)
        }
    }
}

/// Who is waited for, with what to do.
pub fn progress_lines(status: &v1::KeyStatus) -> Vec<(String, String)> {
    let line = |name: &String| {
        let line = format!(
            "manager with an earlier key; if it is down, start it, or remove it with `warren manager rm {name}`"
        );
        (name.clone(), line)
    };
    status.missing_managers.iter().map(line).collect()
}
